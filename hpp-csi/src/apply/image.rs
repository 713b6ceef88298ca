//! Files that are devices: making a filesystem in one, and a consistent cut of one that may be written to.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use crate::device::{self, Loop};
use crate::error::{Error, Kind, Result};
use crate::folder::Folder;
use crate::id::Id;
use crate::mounts;
use crate::pool::Open;
use crate::pool::tree::{self, How};
use crate::record::Shape;
use crate::sys;

/// Bytes of a sector under a filesystem of ours. With smaller ones there is no direct I/O on files that share blocks.
pub(super) const SECTOR: u32 = 4096;
/// What notes about volumes that are held still begin with.
const FROZEN: &str = "f.";
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
pub(super) fn cut(from: &File, to: &File, shape: Shape, how: How, note: &Note<'_>) -> Result<u64> {
    let attached = device::all(device::identity(from)?)?;
    let mut frozen = None;
    for device in attached.iter().filter(|device| !device.read_only) {
        match shape {
            Shape::Loop => frozen = Frozen::hold(*device, from, note)?,
            Shape::Block | Shape::Folder => device.sync()?,
        }
    }
    let used = tree::content(from, to, how);
    if let Some(frozen) = frozen {
        frozen.release()?;
    }
    used
}

/// A file that says which volume is held still: whoever finds it after a crash lets the volume go on.
#[derive(Debug)]
pub(super) struct Note<'a> {
    tmp: &'a Folder,
    name: String,
}

impl<'a> Note<'a> {
    /// A note about the volume `id` in the folder of what is being made.
    pub(super) fn new(tmp: &'a Folder, id: &Id) -> Self {
        Self { tmp, name: format!("{FROZEN}{id}") }
    }
}

/// A filesystem that takes no writes until it is released or dropped.
#[derive(Debug)]
struct Frozen<'a> {
    root: Folder,
    note: &'a Note<'a>,
    held: bool,
}

impl<'a> Frozen<'a> {
    /// Holds the filesystem on `device` still. `None` when somebody else already does.
    fn hold(device: Loop, image: &File, note: &'a Note<'a>) -> Result<Option<Self>> {
        let Some(root) = root_of(device, image)? else { return Ok(None) };
        tree::new_file(note.tmp, &note.name)?;
        match sys::freeze(root.as_fd()) {
            Ok(()) => Ok(Some(Self { root, note, held: true })),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                note.tmp.unlink(&note.name)?;
                Ok(None)
            }
            Err(error) => {
                note.tmp.unlink(&note.name)?;
                Err(Error::io("hold the volume's filesystem still", error))
            }
        }
    }

    fn release(mut self) -> Result<()> {
        self.thaw()
    }

    fn thaw(&mut self) -> Result<()> {
        if !self.held {
            return Ok(());
        }
        self.held = false;
        sys::thaw(self.root.as_fd())
            .map_err(|error| Error::io("let the volume's filesystem go on", error))?;
        self.note.tmp.unlink(&self.note.name).map(drop)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.thaw() {
            tracing::error!(
                error = error.chain(),
                "a filesystem is still frozen; a restart of the driver tries again"
            );
        }
    }
}

/// The root of the filesystem on `device`, mounted once more, out of sight: whoever has it mounted keeps it.
fn root_of(device: Loop, image: &File) -> Result<Option<Folder>> {
    let Some(filesystem) = Filesystem::of(image)? else { return Ok(None) };
    let mount = mounts::filesystem(filesystem.name(), &device.path(), false)?;
    mounts::root_of(mount.as_fd()).map(Some)
}

/// Lets volumes go on that a process before us held still and did not come to release.
pub(crate) fn thaw_left(open: &Open<'_>) -> Result<()> {
    let tmp = open.tmp()?;
    for entry in tmp.entries()? {
        let Some(id) = entry.name.strip_prefix(FROZEN).and_then(Id::read) else { continue };
        if let Some(volume) = open.volume(&id)?
            && let Some(file) = open.image(&volume)?
        {
            for device in device::all(device::identity(&file)?)? {
                // It is an error to let go on what is not held: a crash may have come before or after.
                if let Some(root) = root_of(device, &file)?
                    && sys::thaw(root.as_fd()).is_ok()
                {
                    tracing::warn!(volume = %id, "the volume was held still by a driver that was killed; it goes on");
                }
            }
        }
        tmp.unlink(&entry.name)?;
    }
    Ok(())
}

/// Grows the filesystem of a mount to its device's size.
pub(super) fn grow(mount: &Folder, filesystem: Filesystem, size: u64) -> Result<()> {
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
