//! Files that are devices: making a filesystem in one, and a consistent cut of one that may be written to.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use crate::device::{Devices, Loop};
use crate::error::{Error, Kind, Result};
use crate::fault;
use crate::id::Id;
use crate::latency;
use crate::mounts;
use crate::plan::size::XFS_MIN;
use crate::pool::Open;
use crate::pool::clone::{self, How};
use crate::pool::tree;
use crate::record::Shape;
use crate::sys;
use dir::Dir;

/// Prefix of notes about frozen volumes.
const FROZEN: &str = "f.";
/// Bytes for which growing a filesystem is worth it.
const WORTH: u64 = 1 << 20;

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

    /// The filesystem in `file`, by its magic; `None` for any other content.
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

/// Whether the filesystem in a file is worth growing to the file's `size`: it may be a little smaller than its device.
pub(super) fn is_smaller(filesystem: Filesystem, file: &File, size: u64) -> Result<bool> {
    let io = |error| Error::io("read a volume's filesystem", error);
    let word = |at: u64, order: fn([u8; 4]) -> u32| {
        let mut bytes = [0; 4];
        file.read_exact_at(&mut bytes, at).map(|()| u64::from(order(bytes))).map_err(io)
    };
    let length = match filesystem {
        // xfs_dsb: sb_blocksize, sb_dblocks.
        Filesystem::Xfs => {
            let big = u32::from_be_bytes;
            let blocks = word(8, big)? << 32 | word(12, big)?;
            blocks.saturating_mul(word(4, big)?)
        }
        // ext4_super_block at 1024: s_blocks_count_lo, s_log_block_size, s_blocks_count_hi.
        Filesystem::Ext4 => {
            let little = u32::from_le_bytes;
            let blocks = word(1024 + 0x150, little)? << 32 | word(1024 + 4, little)?;
            blocks.saturating_mul(1024 << word(1024 + 24, little)?.min(16))
        }
    };
    Ok(size.saturating_sub(length) >= WORTH)
}

/// Makes a filesystem in an empty file: what is asked for, or XFS, or ext4 where the file is too small for XFS.
pub(crate) fn format(file: &File, asked: &str, size: u64) -> Result<()> {
    const EXT4: &[&str] = &["-q", "-F", "-b", "4096", "-E", "lazy_itable_init=1,nodiscard"];
    let (program, arguments): (_, &[&str]) = match asked {
        "ext4" => ("mkfs.ext4", EXT4),
        "" if size < XFS_MIN => ("mkfs.ext4", EXT4),
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
        .stdin(
            file.try_clone()
                .map_err(|error| Error::io("duplicate the descriptor of a volume's file", error))?,
        )
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| Error::io(format!("run {program}"), error).as_kind(Kind::Internal))?;
    if !output.status.success() {
        let said: String = String::from_utf8_lossy(&output.stderr).chars().take(300).collect();
        return Err(Error::new(Kind::Internal, format!("{program} failed: {}", said.trim())));
    }
    dir::fsync(file).map_err(|error| Error::io("sync a volume", error))
}

/// Puts the content of the image `from` into the new file `to`. Sharing blocks, it is of one moment, also while it is
/// written to. Copying takes long, and no filesystem is frozen for it: the caller checks that the image has not changed. Gives
/// the bytes it uses.
pub(super) fn cut(
    devices: &Devices,
    from: &File,
    to: &File,
    shape: Shape,
    how: How,
    note: &Note<'_>,
) -> Result<u64> {
    let held = hold(devices, from, shape, how, note)?;
    let used = latency::count(&latency::CLONES, || clone::content(from, to, how));
    if let Some(frozen) = held {
        frozen.release()?;
    }
    used
}

/// Holds the writers of the image `from` still: a mounted filesystem takes no writes until the answer is released, a block
/// device's page cache is written out. For a copy, which may take hours, nothing is held.
pub(super) fn hold<'a>(
    devices: &Devices,
    from: &File,
    shape: Shape,
    how: How,
    note: &'a Note<'a>,
) -> Result<Option<Frozen<'a>>> {
    let mut held = None;
    for device in devices.all(from)?.into_iter().filter(|device| !device.read_only) {
        match (shape, how) {
            (Shape::Loop, How::Share) => held = Frozen::hold(device, from, note)?,
            (Shape::Loop, How::Copy) | (Shape::Block | Shape::Folder, _) => device.sync()?,
        }
    }
    Ok(held)
}

/// A file that names a frozen volume, so that a restarted driver thaws it after a crash.
#[derive(Debug)]
pub(super) struct Note<'a> {
    tmp: &'a Dir,
    name: String,
}

impl<'a> Note<'a> {
    /// A note about the volume `id` in the folder of what is being made.
    pub(super) fn new(tmp: &'a Dir, id: &Id) -> Self {
        Self { tmp, name: format!("{FROZEN}{id}") }
    }
}

/// A filesystem that takes no writes until it is released or dropped.
#[derive(Debug)]
pub(super) struct Frozen<'a> {
    root: Dir,
    note: &'a Note<'a>,
    held: bool,
}

impl<'a> Frozen<'a> {
    /// Freezes the filesystem on `device`. `None` when it is frozen already.
    fn hold(device: Loop, image: &File, note: &'a Note<'a>) -> Result<Option<Self>> {
        let Some(root) = root_of(device, image)? else { return Ok(None) };
        if note.tmp.stat(&note.name)?.is_some() {
            return Err(Error::new(Kind::Busy, "another call has frozen the volume's filesystem"));
        }
        tree::new_file(note.tmp, &note.name)?;
        match sys::freeze(root.as_fd()) {
            Ok(()) => Ok(Some(Self { root, note, held: true })),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                note.tmp.unlink(&note.name)?;
                Ok(None)
            }
            Err(error) => {
                note.tmp.unlink(&note.name)?;
                Err(Error::io("freeze the volume's filesystem", error))
            }
        }
    }

    pub(super) fn release(mut self) -> Result<()> {
        self.thaw()
    }

    fn thaw(&mut self) -> Result<()> {
        if !self.held {
            return Ok(());
        }
        self.held = false;
        sys::thaw(self.root.as_fd()).map_err(|error| Error::io("thaw the volume's filesystem", error))?;
        self.note.tmp.unlink(&self.note.name)?;
        Ok(())
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.thaw() {
            tracing::error!(
                error = %error.chain(),
                "a filesystem is still frozen; a restart of the driver tries again"
            );
        }
    }
}

/// The root of the filesystem on `device`, from a detached mount of its own: other mounts are not affected.
pub(super) fn root_of(device: Loop, image: &File) -> Result<Option<Dir>> {
    let Some(filesystem) = Filesystem::of(image)? else { return Ok(None) };
    let mount = mounts::filesystem(filesystem.name(), &device.path(), false)?;
    mounts::root_of(mount.as_fd()).map(Some)
}

/// Thaws volumes that an earlier process froze and did not thaw.
pub(super) fn thaw_left(open: &Open<'_>) -> Result<()> {
    let tmp = open.tmp()?;
    for entry in tmp.entries()? {
        let Some(id) = entry.name.strip_prefix(FROZEN).and_then(Id::read) else { continue };
        if let Some(volume) = open.volume(&id)?
            && let Some(file) = open.image(&volume)?
        {
            for device in open.pool.devices.all(&file)? {
                // Thawing fails where the crash came before the freeze, or after the thaw.
                if let Some(root) = root_of(device, &file)?
                    && sys::thaw(root.as_fd()).is_ok()
                {
                    tracing::warn!(volume = %id, "thawed a volume that a killed driver had frozen");
                }
            }
        }
        tmp.unlink(&entry.name)?;
    }
    Ok(())
}

/// Grows the filesystem of a mount to its device's size.
pub(super) fn grow(mount: &Dir, filesystem: Filesystem, size: u64) -> Result<()> {
    let numbers = rustix::fs::fstatfs(mount)
        .map_err(|error| Error::io("read the block size of the volume's filesystem", error))?;
    let block = u64::try_from(numbers.f_bsize).unwrap_or(4096).max(512);
    let blocks = size / block;
    let io = |error| Error::io(format!("grow the volume's {}", filesystem.name()), error);
    fault::step("grow the filesystem")?;
    match filesystem {
        Filesystem::Xfs => sys::grow_xfs(mount.as_fd(), blocks).map_err(io),
        Filesystem::Ext4 => sys::grow_ext4(mount.as_fd(), blocks).map_err(io),
    }
}
