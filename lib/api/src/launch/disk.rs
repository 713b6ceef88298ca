//! Disks, and the small CDs that are made for a guest.

use serde::{Deserialize, Serialize};

use super::{PciAddress, words};
use crate::resource::Confidential;

words! {
    /// The kind of device that the guest sees.
    pub enum DiskDevice {
        /// A disk.
        Disk = "disk",
        /// A CD drive.
        Cdrom = "cdrom",
        /// A SCSI device that is passed through.
        Lun = "lun",
    }

    /// The bus of a disk.
    pub enum Bus {
        /// A virtio device of its own.
        Virtio = "virtio",
        /// AHCI.
        Sata = "sata",
        /// virtio-scsi.
        Scsi = "scsi",
        /// USB.
        Usb = "usb",
    }

    /// The host's page cache.
    pub enum Cache {
        /// Not used.
        None = "none",
        /// Used, and every write waits for the storage.
        Writethrough = "writethrough",
        /// Used.
        Writeback = "writeback",
    }

    /// How QEMU reads and writes.
    pub enum Io {
        /// The kernel's asynchronous interface.
        Native = "native",
        /// Threads.
        Threads = "threads",
    }

    /// The reaction to a storage error.
    pub enum ErrorPolicy {
        /// The guest is paused.
        Stop = "stop",
        /// The guest gets the error.
        Report = "report",
        /// Nothing.
        Ignore = "ignore",
        /// The guest is paused when the storage is full, and gets any other error.
        Enospace = "enospace",
    }

    /// How a file or device is a disk.
    pub enum DiskFormat {
        /// Byte for byte.
        Raw = "raw",
        /// qcow2.
        Qcow2 = "qcow2",
    }

    /// The tray of a CD drive.
    pub enum Tray {
        /// Open.
        Open = "open",
        /// Closed.
        Closed = "closed",
    }
}

/// A disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Disk {
    /// Its name, unique among disks.
    pub name: String,
    /// The kind of device that the guest sees.
    pub device: DiskDevice,
    /// Its bus.
    pub bus: Bus,
    /// Its content.
    pub media: Media,
    /// Whether the guest cannot write.
    pub read_only: bool,
    /// Whether other guests may write it too.
    pub shareable: bool,
    /// The host's page cache.
    pub cache: Cache,
    /// How QEMU reads and writes; `None`: QEMU's choice.
    pub io: Option<Io>,
    /// Whether blocks that the guest discards are given back to the storage.
    pub discard: bool,
    /// The reaction to a storage error.
    pub error_policy: ErrorPolicy,
    /// Serial number.
    pub serial: Option<String>,
    /// Place among the devices that are booted from, from 1.
    pub boot_order: Option<u32>,
    /// The place on PCI that the guest's owner requests, one of [`super::Slot::at`]. virtio only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci_address: Option<PciAddress>,
    /// The thread that serves it, from 1; `None`: the main one. virtio, and scsi for its controller.
    pub io_thread: Option<u16>,
    /// Queues; `None`: one. virtio only.
    pub queues: Option<u32>,
    /// Sizes of blocks; `None`: 512 bytes.
    pub block_sizes: Option<BlockSizes>,
    /// The tray of a CD drive.
    pub tray: Option<Tray>,
}

/// The content of a disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Media {
    /// Nothing: an empty drive.
    Empty,
    /// A file or block device.
    Storage(Storage),
    /// One of [`super::Launch::media`], by name.
    Medium(String),
}

/// A file or block device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Storage {
    /// Its path.
    pub path: String,
    /// Whether it is a block device.
    pub block: bool,
    /// How it is a disk.
    pub format: DiskFormat,
    /// The backing file of a qcow2, which is only read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backing: Option<Box<Storage>>,
}

/// Sizes of blocks in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BlockSizes {
    /// The block size that the guest addresses: a power of two from 512 to 2 MiB.
    pub logical: u32,
    /// The unit of writes: a power of two, not less than `logical`, at most 2 MiB.
    pub physical: u32,
}

/// A small CD: the launcher makes `NAME.iso` in its folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Medium {
    /// Its name, unique among media.
    pub name: String,
    /// Its label, such as `cidata`.
    pub label: String,
    /// The files on it.
    pub files: Vec<MediaFile>,
}

/// A file on a small CD.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MediaFile {
    /// Its path, such as `openstack/latest/user_data`.
    pub path: String,
    /// Its content, base64.
    pub content: Confidential,
}
