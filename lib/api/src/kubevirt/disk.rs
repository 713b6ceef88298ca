//! Disks of a guest.

use crate::resource::resource;

resource! {
    /// Disk, CD drive or SCSI device backed by the volume of the same name. A disk if none of `disk`, `cdrom` and
    /// `lun` is set.
    pub struct Disk {
        /// Name of the disk and its volume.
        pub name: String ["x-required" = true],
        /// Disk.
        pub disk: Option<DiskTarget>,
        /// CD drive.
        pub cdrom: Option<CdRomTarget>,
        /// SCSI device that is passed through.
        pub lun: Option<LunTarget>,
        /// Position in the boot order, from 1, unique among disks and interfaces. Default: disks in their order,
        /// unless another device has a position.
        pub boot_order: Option<u32>,
        /// Serial number shown to the guest.
        pub serial: Option<String>,
        /// Whether the disk has an I/O thread of its own. Default: false.
        #[serde(rename = "dedicatedIOThread")]
        pub dedicated_io_thread: Option<bool>,
        /// Host page cache mode: `none`, `writethrough` or `writeback`. Default: `none` if the storage supports
        /// direct I/O, else `writethrough`.
        pub cache: Option<String>,
        /// I/O mode of QEMU: `native`, `threads` or `default`. Default: `native` for block devices and preallocated
        /// files.
        pub io: Option<String>,
        /// Tag shown to the guest in the config drive.
        pub tag: Option<String>,
        /// Block sizes shown to the guest.
        pub block_size: Option<BlockSize>,
        /// Whether several guests may use the disk at once: no lock and no cache. Default: false.
        pub shareable: Option<bool>,
        /// Reaction to a storage error: `stop` (default) pauses the guest, `report` passes the error on, `ignore`
        /// drops it, `enospace` pauses if the storage is full and reports otherwise.
        pub error_policy: Option<String>,
        /// Whether changed blocks are tracked for incremental backups.
        pub changed_block_tracking: Option<bool>,
    }

    /// Block sizes shown to the guest; one field is set.
    pub struct BlockSize {
        /// Given sizes.
        pub custom: Option<CustomBlockSize>,
        /// Sizes of the volume.
        pub match_volume: Option<MatchVolume>,
    }

    /// Given block sizes in bytes; powers of two from 512.
    pub struct CustomBlockSize {
        /// Smallest unit of addressing.
        pub logical: Option<u32>,
        /// Smallest unit of writing, at least `logical`.
        pub physical: Option<u32>,
        /// Smallest unit of discarding.
        pub discard_granularity: Option<i64>,
    }

    /// Block sizes of the volume.
    pub struct MatchVolume {
        /// Whether the sizes are used. Default: true.
        pub enabled: Option<bool>,
    }

    /// CD drive.
    pub struct CdRomTarget {
        /// `sata` (default), `scsi` or `usb`.
        pub bus: Option<String>,
        /// Always true.
        pub readonly: Option<bool>,
        /// `open` or `closed` (default).
        pub tray: Option<String>,
    }

    /// Disk.
    pub struct DiskTarget {
        /// `virtio`, `sata` (default), `scsi` or `usb`.
        pub bus: Option<String>,
        /// Whether the guest cannot write. Default: false.
        pub readonly: Option<bool>,
        /// PCI address in the guest, such as `0000:81:01.0`; with bus `virtio`.
        pub pci_address: Option<String>,
    }

    /// SCSI device that is passed through.
    pub struct LunTarget {
        /// `scsi` (default).
        pub bus: Option<String>,
        /// Whether the guest cannot write. Default: false.
        pub readonly: Option<bool>,
        /// Whether the guest may use SCSI persistent reservations. Default: false.
        pub reservation: Option<bool>,
    }
}
