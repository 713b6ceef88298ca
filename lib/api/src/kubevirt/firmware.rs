//! Firmware, direct kernel boot and SMBIOS strings of a guest.

use crate::resource::resource;

resource! {
    /// SMBIOS chassis strings.
    pub struct Chassis {
        /// Manufacturer.
        pub manufacturer: Option<String>,
        /// Version.
        pub version: Option<String>,
        /// Serial number.
        pub serial: Option<String>,
        /// Asset tag.
        pub asset: Option<String>,
        /// SKU number.
        pub sku: Option<String>,
    }

    /// Firmware and SMBIOS identity.
    pub struct Firmware {
        /// SMBIOS system UUID. Default: derived from the object.
        pub uuid: Option<String>,
        /// SMBIOS system serial number. Default: derived from the object.
        pub serial: Option<String>,
        /// Firmware type. Default: BIOS.
        pub bootloader: Option<Bootloader>,
        /// Additional ACPI tables.
        pub acpi: Option<AcpiTables>,
        /// Direct boot of a kernel.
        pub kernel_boot: Option<KernelBoot>,
    }

    /// Additional ACPI tables, from volumes of type `secret`.
    pub struct AcpiTables {
        /// Volume with the MSDM table (Windows product key).
        pub msdm_name_ref: Option<String>,
        /// Volume with the SLIC table.
        pub slic_name_ref: Option<String>,
    }

    /// Firmware type; one field is set.
    pub struct Bootloader {
        /// SeaBIOS.
        pub bios: Option<Bios>,
        /// OVMF.
        pub efi: Option<Efi>,
    }

    /// SeaBIOS.
    pub struct Bios {
        /// Whether messages are also written to the serial console. Default: false.
        pub use_serial: Option<bool>,
    }

    /// OVMF.
    pub struct Efi {
        /// Whether only signed boot loaders are started; needs `features.smm`. Default: true.
        pub secure_boot: Option<bool>,
        /// Whether EFI variables outlive the guest. Default: false.
        pub persistent: Option<bool>,
    }

    /// Direct boot of a kernel.
    pub struct KernelBoot {
        /// Image with kernel and initrd.
        pub container: Option<KernelBootContainer>,
        /// Kernel command line.
        pub kernel_args: Option<String>,
    }

    /// Image with kernel and initrd.
    pub struct KernelBootContainer {
        /// Image reference.
        pub image: String ["x-required" = true],
        /// `Always`, `IfNotPresent` or `Never`.
        pub image_pull_policy: Option<String>,
        /// Pull secret.
        pub image_pull_secret: Option<String>,
        /// Path of the initrd in the image.
        pub initrd_path: Option<String>,
        /// Path of the kernel in the image.
        pub kernel_path: Option<String>,
    }
}
