//! Files that are devices: making a filesystem in one, and a consistent cut of one that may be written to.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use crate::device::{self, Loop};
use crate::error::{Error, Kind, Result};
use crate::mounts;
use crate::pool::tree::{self, How};
use crate::record::Shape;
use crate::sys;

/// Bytes of a sector under a filesystem of ours. With smaller ones there is no direct I/O on files that share blocks.
pub(super) const SECTOR: u32 = 4096;
/// Below this mkfs.xfs refuses.
const XFS_MIN: u64 = 300 << 20;

/// The filesystem in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filesystem {
    Xfs,
    Ext4,
}

impl Filesystem {
    /// The kernel's name of it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Xfs => "xfs",
            Self::Ext4 => "ext4",
        }
    }

    /// What is in `file`, by its magic; `None` when it is neither.
    pub(crate) fn of(file: &File) -> Result<Option<Self>> {
        let io = |error| Error::io("read a volume's filesystem", error);
        let mut start = [0; 4];
        let mut ext = [0; 2];
        let read = |bytes: &mut [u8], at| match file.read_exact_at(bytes, at) {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(()),
            other => other,
        };
        read(&mut start, 0).map_err(io)?;
        read(&mut ext, 1080).map_err(io)?;
        Ok(match (&start, ext) {
            (b"XFSB", _) => Some(Self::Xfs),
            (_, [0x53, 0xEF]) => Some(Self::Ext4),
            _ => None,
        })
    }
}

/// Makes a filesystem in an empty file: what is asked for, XFS when nothing is, ext4 when it is too small for XFS.
pub(super) fn format(file: &File, asked: &str, size: u64) -> Result<()> {
    const EXT4: &[&str] = &["-q", "-F", "-b", "4096", "-E", "lazy_itable_init=1,nodiscard"];
    let (program, arguments): (_, &[&str]) = match asked {
        "ext4" => ("mkfs.ext4", EXT4),
        "" | "xfs" if size < XFS_MIN => ("mkfs.ext4", EXT4),
        "" | "xfs" => ("mkfs.xfs", &["-q", "-f", "-K", "-s", "size=4096"]),
        other => {
            return Err(Error::new(
                Kind::Invalid,
                format!("capacity is enforced by filesystems of their own here: xfs or ext4, not {other:?}"),
            ));
        }
    };
    // The file has no name that is sure to be it; the child inherits the descriptor as its standard input.
    let output = Command::new(program)
        .args(arguments)
        .arg("/proc/self/fd/0")
        .stdin(file.try_clone().map_err(|error| Error::io("hand on a volume's file", error))?)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| Error::io(format!("run {program}"), error).as_kind(Kind::Internal))?;
    if !output.status.success() {
        let said: String = String::from_utf8_lossy(&output.stderr).chars().take(300).collect();
        return Err(Error::new(Kind::Internal, format!("{program} failed: {}", said.trim())));
    }
    file.sync_all().map_err(|error| Error::io("sync a volume", error))
}

/// Puts the content of the image `from` into the new file `to`, as of one moment, whoever writes to it meanwhile: a
/// mounted filesystem is held still, a block device's page cache is written out. Gives the bytes it uses.
pub(super) fn cut(from: &File, to: &File, shape: Shape, how: How) -> Result<u64> {
    let attached = device::all(device::identity(from)?)?;
    let mut frozen = None;
    for device in attached.iter().filter(|device| !device.read_only) {
        match shape {
            Shape::Loop => frozen = Frozen::hold(*device, from)?,
            Shape::Block | Shape::Folder => device.sync()?,
        }
    }
    let used = tree::content(from, to, how);
    drop(frozen);
    used
}

/// A filesystem that takes no writes until this is dropped.
#[derive(Debug)]
struct Frozen {
    mount: OwnedFd,
}

impl Frozen {
    /// Holds the filesystem on `device` still. `None` when somebody else already does.
    fn hold(device: Loop, image: &File) -> Result<Option<Self>> {
        let Some(filesystem) = Filesystem::of(image)? else { return Ok(None) };
        // The same filesystem once more, out of sight: whoever has it mounted keeps it.
        let mount = mounts::filesystem(filesystem.name(), &device.path(), false)?;
        let root = mounts::root_of(mount.as_fd())?;
        match sys::freeze(root.as_fd()) {
            Ok(()) => Ok(Some(Self { mount })),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(None),
            Err(error) => Err(Error::io("hold the volume's filesystem still", error)),
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let thawed = mounts::root_of(self.mount.as_fd())
            .and_then(|root| sys::thaw(root.as_fd()).map_err(|error| Error::io("let it go on", error)));
        if let Err(error) = thawed {
            tracing::error!(
                fd = self.mount.as_raw_fd(),
                error = error.chain(),
                "a filesystem is still frozen"
            );
        }
    }
}

/// Grows the filesystem of a mount to its device's size.
pub(super) fn grow(mount: &crate::folder::Folder, filesystem: Filesystem, size: u64) -> Result<()> {
    let numbers =
        rustix::fs::fstatfs(mount).map_err(|error| Error::io("ask the volume's filesystem", error))?;
    let block = u64::try_from(numbers.f_bsize).unwrap_or(4096).max(512);
    let blocks = size / block;
    let io = |error| Error::io(format!("grow the volume's {}", filesystem.name()), error);
    match filesystem {
        Filesystem::Xfs => sys::grow_xfs(mount.as_fd(), blocks).map_err(io),
        Filesystem::Ext4 => sys::grow_ext4(mount.as_fd(), blocks).map_err(io),
    }
}
