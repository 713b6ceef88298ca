//! Host devices that `HyperConverged` permits for guests, equal in both versions.

use crate::kubevirt::UsbSelector;
use crate::resource::resource;

resource! {
    /// Host devices that may be assigned to guests.
    pub struct HostDevices {
        /// Mediated devices.
        pub mediated_devices: Vec<MediatedDevice> ["x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["mdevNameSelector"]],
        /// PCI devices.
        pub pci_host_devices: Vec<PciDevice> ["x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["pciDeviceSelector"]],
        /// USB devices.
        pub usb_host_devices: Vec<UsbDevice> ["x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["resourceName"]],
    }

    /// Mediated device that may be assigned to guests.
    pub struct MediatedDevice {
        /// Whether the entry is left out.
        pub disabled: Option<bool>,
        /// Whether another device plugin provides the resource. Default: false.
        pub external_resource_provider: Option<bool>,
        /// Name of the mediated device type.
        pub mdev_name_selector: String ["x-required" = true],
        /// Resource name by which VMs request the device.
        pub resource_name: String ["x-required" = true],
    }

    /// PCI device that may be assigned to guests.
    pub struct PciDevice {
        /// Whether the entry is left out.
        pub disabled: Option<bool>,
        /// Whether another device plugin provides the resource. Default: false.
        pub external_resource_provider: Option<bool>,
        /// Vendor and device ID, such as `10DE:1EB8`.
        pub pci_device_selector: String ["x-required" = true],
        /// Resource name by which VMs request the device.
        pub resource_name: String ["x-required" = true],
    }

    /// Set of USB devices that may be assigned to guests.
    pub struct UsbDevice {
        /// Whether the entry is left out.
        pub disabled: Option<bool>,
        /// Whether another device plugin provides the resource. Default: false.
        pub external_resource_provider: Option<bool>,
        /// Resource name by which VMs request the devices.
        pub resource_name: String ["x-required" = true],
        /// Devices of the set.
        pub selectors: Vec<UsbSelector>,
    }
}
