//! Disks: how a guest sees its volumes.

use crate::resource::resource;

resource! {
    /// A disk, CD drive or SCSI device that shows the volume of the same name. A disk where none of `disk`, `cdrom` and
    /// `lun` is given.
    pub struct Disk {
        /// Its name, and the volume's.
        pub name: String,
        /// A disk.
        pub disk: Option<DiskTarget>,
        /// A CD drive.
        pub cdrom: Option<CdRomTarget>,
        /// A SCSI device that is passed through.
        pub lun: Option<LunTarget>,
        /// Place among the devices that are booted from, from 1; each one once. Default: not booted from where another
        /// device has a place, else disks in their order.
        pub boot_order: Option<u32>,
        /// Serial number that the guest reads.
        pub serial: Option<String>,
        /// A thread of its own.
        #[serde(rename = "dedicatedIOThread")]
        pub dedicated_io_thread: Option<bool>,
        /// The host's page cache: `none`, `writethrough` or `writeback`. Default: `none` where the storage can do
        /// without it, else `writethrough`.
        pub cache: Option<String>,
        /// How QEMU reads and writes: `native`, `threads` or `default`. Default: `native` for block devices and
        /// preallocated files.
        pub io: Option<String>,
        /// A word that a config drive tells about the disk.
        pub tag: Option<String>,
        /// Sizes of blocks that the guest sees.
        pub block_size: Option<BlockSize>,
        /// Several guests may write it: nothing is locked, nothing cached.
        pub shareable: Option<bool>,
        /// What follows an error of the storage: `stop` (default: the guest is paused), `report`, `ignore` or
        /// `enospace` (paused when the storage is full, else reported).
        pub error_policy: Option<String>,
    }

    /// A disk.
    pub struct DiskTarget {
        /// `virtio`, `sata` (default), `scsi` or `usb`.
        pub bus: Option<String>,
        /// The guest cannot write. Default: no.
        pub readonly: Option<bool>,
    }

    /// A CD drive.
    pub struct CdRomTarget {
        /// `sata` (default), `scsi` or `usb`.
        pub bus: Option<String>,
        /// Default, and the only value: yes.
        pub readonly: Option<bool>,
        /// `open` or `closed` (default).
        pub tray: Option<String>,
    }

    /// A SCSI device that is passed through.
    pub struct LunTarget {
        /// `scsi` (default).
        pub bus: Option<String>,
        /// The guest cannot write. Default: no.
        pub readonly: Option<bool>,
    }

    /// Sizes of blocks: one of the two.
    pub struct BlockSize {
        /// As given.
        pub custom: Option<CustomBlockSize>,
        /// As the volume has them.
        pub match_volume: Option<MatchVolume>,
    }

    /// Sizes of blocks as given, in bytes: powers of two from 512.
    pub struct CustomBlockSize {
        /// What the guest addresses.
        pub logical: Option<u32>,
        /// What is written at once; not less than `logical`.
        pub physical: Option<u32>,
    }

    /// Sizes of blocks as the volume has them.
    pub struct MatchVolume {
        /// Default: yes.
        pub enabled: Option<bool>,
    }
}
