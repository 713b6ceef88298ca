//! Checksums of the files that a guest boots from.

use crate::resource::resource;

resource! {
    /// Checksums of the files of a direct kernel boot.
    pub struct KernelBootStatus {
        /// Initrd.
        pub initrd_info: Option<BootFileStatus>,
        /// Kernel.
        pub kernel_info: Option<BootFileStatus>,
    }

    /// Checksum of a file from an image.
    pub struct BootFileStatus {
        /// CRC-32.
        pub checksum: Option<u32>,
    }
}
