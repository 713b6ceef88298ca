//! Host devices and directories that are given to a guest.

use super::Feature;
use crate::resource::{Empty, resource};

resource! {
    /// Directory shared by virtiofs.
    pub struct Filesystem {
        /// Name of the volume, and mount tag in the guest.
        pub name: String ["x-required" = true],
        /// Virtiofs (no fields).
        pub virtiofs: Empty ["x-required" = true],
    }

    /// GPU of the host.
    pub struct Gpu {
        /// Entry of `resourceClaims` that provides the device.
        pub claim_name: Option<String>,
        /// Resource name from the permitted host devices.
        pub device_name: Option<String>,
        /// Name.
        pub name: String ["x-required" = true],
        /// Request within the claim.
        pub request_name: Option<String>,
        /// Tag shown to the guest in the config drive.
        pub tag: Option<String>,
        /// Options of a virtual GPU.
        #[serde(rename = "virtualGPUOptions")]
        pub virtual_gpu_options: Option<VirtualGpuOptions>,
    }

    /// Options of a virtual GPU.
    pub struct VirtualGpuOptions {
        /// Display.
        pub display: Option<VirtualGpuDisplay>,
    }

    /// Display of a virtual GPU.
    pub struct VirtualGpuDisplay {
        /// Whether the display is shown by VNC. Default: true.
        pub enabled: Option<bool>,
        /// Boot-time framebuffer. Default: on.
        #[serde(rename = "ramFB")]
        pub ram_fb: Option<Feature>,
    }

    /// Device of the host.
    pub struct HostDevice {
        /// Entry of `resourceClaims` that provides the device.
        pub claim_name: Option<String>,
        /// Resource name from the permitted host devices.
        pub device_name: Option<String>,
        /// Name.
        pub name: String ["x-required" = true],
        /// Request within the claim.
        pub request_name: Option<String>,
        /// Tag shown to the guest in the config drive.
        pub tag: Option<String>,
    }
}
