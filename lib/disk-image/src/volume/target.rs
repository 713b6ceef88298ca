//! Facts about targets, and whether they may be written: files and devices, signatures, locks.
//! Not here: the decision (`plan`), writing (`crate::write`).

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::volume::error::{Error, Kind};
use crate::volume::storage;

/// Type of the entry at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetKind {
    Nothing,
    File { len: u64, occupied: u64 },
    Device { number: u64 },
    Folder,
}

/// Inspects `path`, without following a symbolic link to a file.
///
/// # Errors
/// When it cannot be inspected, or is of a type that no disk can be written to.
pub(crate) fn inspect(path: &Path) -> Result<TargetKind, Error> {
    let shown = path.display();
    let link = match std::fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let folder = folder_of(path);
            return if folder.is_dir() {
                Ok(TargetKind::Nothing)
            } else {
                Err(Error::new(
                    Kind::Target,
                    format!("the folder {} does not exist; make it first", folder.display()),
                ))
            };
        }
        Err(e) => return Err(Error::with(Kind::Target, format!("cannot inspect the target {shown}"), e)),
    };
    // /dev/disk/by-id and /dev/vg/lv are links to devices.
    let meta = if link.is_symlink() {
        std::fs::metadata(path).map_err(|e| {
            if e.kind() == io::ErrorKind::NotFound {
                let what =
                    format!("{shown} is a symbolic link to nothing; remove it, or name the file itself");
                return Error::new(Kind::Target, what);
            }
            if e.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) {
                let what = format!("{shown} is a symbolic link in a circle; name the file or folder itself");
                return Error::new(Kind::Target, what);
            }
            Error::with(Kind::Target, format!("cannot inspect the target {shown}"), e)
        })?
    } else {
        link.clone()
    };
    let kind = meta.file_type();
    if kind.is_block_device() {
        Ok(TargetKind::Device { number: meta.rdev() })
    } else if kind.is_dir() {
        Ok(TargetKind::Folder)
    } else if link.is_symlink() {
        Err(Error::new(Kind::Target, format!("{shown} is a symbolic link; name the file itself")))
    } else if kind.is_file() {
        Ok(TargetKind::File { len: meta.len(), occupied: meta.blocks().saturating_mul(512) })
    } else {
        Err(Error::new(
            Kind::Target,
            format!("{shown} is neither a file nor a block device; name another target"),
        ))
    }
}

/// Refuses a target that is the local source itself, under whatever name: opening it for writing would destroy it.
///
/// # Errors
/// [`Kind::Target`] when they are the same file or device, or one lies on the other.
pub(crate) fn not_the_source(source: &Metadata, path: &Path) -> Result<(), Error> {
    let Ok(target) = std::fs::metadata(path) else { return Ok(()) };
    if storage::shared(source, &target) {
        let what = format!("{} is the source itself; name another target", path.display());
        return Err(Error::new(Kind::Target, what));
    }
    Ok(())
}

/// The folder that holds `path`.
pub(crate) fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        Some(_) | None => PathBuf::from("."),
    }
}

/// Bytes that are free for us in the filesystem of `folder`; [`u64::MAX`] when it does not count them (ramfs).
///
/// # Errors
/// When it cannot be asked.
pub(crate) fn free(folder: &Path) -> Result<u64, Error> {
    let fs = rustix::fs::statvfs(folder).map_err(|e| {
        Error::with(Kind::Target, format!("cannot determine the free space of {}", folder.display()), e)
    })?;
    if fs.f_blocks == 0 {
        return Ok(u64::MAX);
    }
    let unit = if fs.f_frsize == 0 { fs.f_bsize } else { fs.f_frsize };
    Ok(fs.f_bavail.saturating_mul(unit))
}

/// Size of a block device in bytes, in whole sectors: a part of one cannot be written.
///
/// # Errors
/// When it cannot be opened or asked.
pub(crate) fn device_size(path: &Path) -> Result<u64, Error> {
    let failed = |e| Error::with(Kind::Target, format!("cannot determine the size of {}", path.display()), e);
    let mut device = File::open(path).map_err(failed)?;
    let size = device.seek(SeekFrom::End(0)).map_err(failed)?;
    let sector = rustix::fs::ioctl_blksszget(&device).map_or(512, |sector| u64::from(sector.max(1)));
    Ok(size - size % sector)
}

/// Which file or device it is. An inode's number is given again when its file is gone; the moment of its birth is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Node {
    /// Inode of a file, device number of a block device.
    pub(crate) number: u64,
    /// A file's creation time, in nanoseconds since 1970, if its filesystem records it.
    pub(crate) born: Option<u64>,
}

/// A lock on a target; two importers never write the same one. It ends with this value.
#[derive(Debug)]
pub(crate) struct TargetLock {
    file: File,
    /// The file was not there before.
    pub(crate) created: bool,
}

impl TargetLock {
    /// Which file or device is locked.
    ///
    /// # Errors
    /// When it cannot be asked.
    pub(crate) fn node(&self) -> io::Result<Node> {
        let meta = self.file.metadata()?;
        if meta.file_type().is_block_device() {
            return Ok(Node { number: meta.rdev(), born: None });
        }
        let born = meta.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
        Ok(Node { number: meta.ino(), born: born.and_then(|born| u64::try_from(born.as_nanos()).ok()) })
    }

    /// The locked file or device, open for reading.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Gives back what the locked file occupies.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn empty(&self) -> io::Result<()> {
        self.file.set_len(0)?;
        // Some filesystems count freed blocks as free only once that is on the disk.
        self.file.sync_all()
    }
}

/// How long a device may be busy with what passes by itself.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(3);
/// How soon it is tried again.
const AGAIN: Duration = Duration::from_millis(50);

/// Locks the file at `path`, creating it empty, or the device. Nothing in it is changed.
///
/// # Errors
/// [`Kind::Target`] when another importer holds it.
pub(crate) fn hold(path: &Path, device: bool) -> Result<TargetLock, Error> {
    let shown = path.display();
    // udev takes a shared lock on a device for a moment while it probes it.
    let patience = Instant::now() + if device { DEVICE_TIMEOUT } else { Duration::from_millis(300) };
    loop {
        let (file, created) = open_to_hold(path, device)
            .map_err(|e| Error::with(Kind::Target, format!("cannot open {shown}"), e))?;
        match file.try_lock() {
            Ok(()) => {
                // Another process may have removed or replaced it between open and lock.
                let same = device
                    || matches!((file.metadata(), std::fs::symlink_metadata(path)),
                        (Ok(ours), Ok(theirs)) if ours.ino() == theirs.ino() && ours.dev() == theirs.dev());
                if same {
                    return Ok(TargetLock { file, created });
                }
            }
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(e)) => {
                tracing::warn!(target = %shown, error = %e, "the target cannot be locked; make sure that nothing else writes to it");
                return Ok(TargetLock { file, created });
            }
        }
        if Instant::now() >= patience {
            return Err(Error::new(
                Kind::Target,
                format!("another import is writing {shown}; wait until it ends or name another target"),
            ));
        }
        std::thread::sleep(AGAIN);
    }
}

/// Opens the device, or the file, creating it if missing; returns whether it was created.
fn open_to_hold(path: &Path, device: bool) -> io::Result<(File, bool)> {
    if device {
        return Ok((File::open(path)?, false));
    }
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .mode(0o644)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
    match options.clone().create_new(true).open(path) {
        Ok(file) => Ok((file, true)),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok((options.open(path)?, false)),
        Err(e) => Err(e),
    }
}

/// Refuses a read-only device, according to sysfs. Without sysfs nothing is refused.
///
/// # Errors
/// [`Kind::Target`].
pub(crate) fn writable(path: &Path, number: u64) -> Result<(), Error> {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let told = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/ro")).unwrap_or_default();
    if told.trim() == "1" {
        let what = format!("{} is read-only; make it writable first (blockdev --setrw)", path.display());
        return Err(Error::new(Kind::Target, what));
    }
    Ok(())
}

/// Refuses a device that is mounted or held: by swap, by RAID or device mapper, by another program that opened it
/// exclusively. What is in use is never overwritten, forced or not.
///
/// # Errors
/// [`Kind::Target`], saying what was found and how to go on.
pub(crate) fn unused(path: &Path, number: u64) -> Result<(), Error> {
    let shown = path.display();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if let Some(at) = mounted_at(&mounts, number) {
        return Err(Error::new(Kind::Target, format!("{shown} is mounted at {at}; unmount it first")));
    }
    // Not for writing: closing that would make udev probe the device again.
    let alone = rustix::fs::OFlags::EXCL.bits().cast_signed();
    // A ring of a process that was killed is torn down some time after its end, and holds the device until then.
    let patience = Instant::now() + DEVICE_TIMEOUT;
    loop {
        let busy = match OpenOptions::new().read(true).custom_flags(alone).open(path) {
            Ok(_) => return Ok(()),
            Err(e) if e.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) => e,
            Err(e) => return Err(Error::with(Kind::Target, format!("cannot open {shown}"), e)),
        };
        if Instant::now() >= patience {
            let what = format!(
                "{shown} is in use: it, or a part of it, is mounted or held (by swap, LVM, RAID or another program); release it first"
            );
            return Err(Error::with(Kind::Target, what, busy));
        }
        std::thread::sleep(AGAIN);
    }
}

/// Refuses a device that is not blank.
///
/// # Errors
/// [`Kind::Target`], saying what was found and how to go on.
pub(crate) fn without_content(path: &Path) -> Result<(), Error> {
    let shown = path.display();
    let failed = |e| Error::with(Kind::Target, format!("cannot read {shown}"), e);
    let mut device = File::open(path).map_err(failed)?;
    let mut head = vec![0; HEAD];
    let got = crate::source::read_full(&mut device, &mut head).map_err(failed)?;
    head.truncate(got);
    let size = device.seek(SeekFrom::End(0)).map_err(failed)?;
    let mut tail = Vec::new();
    device.seek(SeekFrom::Start(size.saturating_sub(TAIL))).map_err(failed)?;
    device.take(TAIL).read_to_end(&mut tail).map_err(failed)?;
    match signature(&head, &tail) {
        None => Ok(()),
        Some(name) => Err(Error::new(
            Kind::Target,
            format!("{shown} carries {name}; wipe it (wipefs -a) or give --force to overwrite it"),
        )),
    }
}

/// The mount point of device `number`, from the text of mountinfo.
fn mounted_at(mountinfo: &str, number: u64) -> Option<&str> {
    let wanted = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
    mountinfo.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(2);
        (fields.next()? == wanted).then(|| fields.nth(1)).flatten()
    })
}

/// Bytes of the front that hold every signature of [`SIGNATURES`].
const HEAD: usize = 256 << 10;
/// Bytes of the end that hold a backup GPT.
const TAIL: u64 = 4096;

/// Offset, magic, name. From the formats' own headers; the same places that libblkid looks at.
const SIGNATURES: [(usize, &[u8], &str); 27] = [
    (512, b"EFI PART", "a GPT partition table"),
    (4096, b"EFI PART", "a GPT partition table"),
    (0x438, b"\x53\xef", "an ext filesystem"),
    (0, b"XFSB", "an XFS filesystem"),
    (0x10040, b"_BHRfS_M", "a btrfs filesystem"),
    (0x400, b"\x10\x20\xf5\xf2", "an F2FS filesystem"),
    (0x400, b"\xe2\xe1\xf5\xe0", "an EROFS filesystem"),
    (0, b"hsqs", "a squashfs filesystem"),
    (3, b"NTFS    ", "an NTFS filesystem"),
    (0x8001, b"CD001", "an ISO 9660 filesystem"),
    (
        0x1018,
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
        "a bcache or bcachefs superblock",
    ),
    (0, b"LUKS\xba\xbe", "a LUKS header"),
    (0x4000, b"SKUL\xba\xbe", "a LUKS header"),
    (0, b"LABELONE", "an LVM physical volume"),
    (512, b"LABELONE", "an LVM physical volume"),
    (1024, b"LABELONE", "an LVM physical volume"),
    (1536, b"LABELONE", "an LVM physical volume"),
    (4086, b"SWAPSPACE2", "swap space"),
    (65526, b"SWAPSPACE2", "swap space"),
    (0, b"\xfc\x4e\x2b\xa9", "a RAID member"),
    (4096, b"\xfc\x4e\x2b\xa9", "a RAID member"),
    (0, b"bluestore block device", "a Ceph OSD"),
    (0x10000, b"ReIsEr", "a ReiserFS filesystem"),
    (0, b"QFI\xfb", "a qcow2 image"),
    (0, b"vhdxfile", "a VHDX image"),
    (0, b"KDMV", "a VMDK image"),
    // Last: filesystems above may have a boot sector as well.
    (510, b"\x55\xaa", "a partition table or boot sector"),
];

/// Signatures at the front and the end of a device.
fn signature(head: &[u8], tail: &[u8]) -> Option<&'static str> {
    let found = SIGNATURES
        .iter()
        .find(|(at, magic, _)| head.get(*at..).is_some_and(|rest| rest.starts_with(magic)))
        .map(|(_, _, name)| *name);
    // ZFS keeps an array of uberblocks behind 128 KiB, in the byte order of its writer.
    let zfs = || {
        let magics = [0x00ba_b10cu64.to_le_bytes(), 0x00ba_b10cu64.to_be_bytes()];
        head.get(128 << 10..)
            .is_some_and(|ring| {
                ring.chunks(1024).any(|block| magics.iter().any(|magic| block.starts_with(magic)))
            })
            .then_some("a ZFS pool member")
    };
    let backup = || {
        let at = |from: usize| tail.len().checked_sub(from).and_then(|at| tail.get(at..));
        [512, 4096]
            .iter()
            .any(|&from| at(from).is_some_and(|rest| rest.starts_with(b"EFI PART")))
            .then_some("a backup GPT partition table")
    };
    found.or_else(zfs).or_else(backup)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signature_is_seen_alone() {
        for (at, magic, name) in SIGNATURES {
            let mut head = vec![0; HEAD];
            head[at..at + magic.len()].copy_from_slice(magic);
            assert_eq!(signature(&head, &[]), Some(name));
            assert_eq!(signature(&head[..at + magic.len() - 1], &[]), None, "{name} cut short");
        }
        assert_eq!(signature(&vec![0; HEAD], &vec![0; 4096]), None);
        let mut head = vec![0; HEAD];
        head[(128 << 10) + 1024 * 5..][..8].copy_from_slice(&0x00ba_b10cu64.to_be_bytes());
        assert_eq!(signature(&head, &[]), Some("a ZFS pool member"));
        let mut tail = vec![0; 4096];
        tail[3584..3592].copy_from_slice(b"EFI PART");
        assert_eq!(signature(&[], &tail), Some("a backup GPT partition table"));
    }

    #[test]
    fn mount_points_are_found_by_number() {
        let text = "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw\n37 35 8:1 / /boot rw - xfs /dev/sda1 rw\n";
        assert_eq!(mounted_at(text, rustix::fs::makedev(8, 1)), Some("/boot"));
        assert_eq!(mounted_at(text, rustix::fs::makedev(98, 0)), Some("/mnt2"));
        assert_eq!(mounted_at(text, rustix::fs::makedev(8, 2)), None);
    }

    #[test]
    fn path_kinds_are_distinguished() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        assert_eq!(inspect(&path).unwrap(), TargetKind::Nothing);
        assert_eq!(inspect(folder.path()).unwrap(), TargetKind::Folder);
        std::fs::write(&path, [1; 5]).unwrap();
        assert!(matches!(inspect(&path).unwrap(), TargetKind::File { len: 5, .. }));
        let link = folder.path().join("l");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(inspect(&link).unwrap_err().kind(), Kind::Target);
        assert_eq!(inspect(Path::new("/dev/null")).unwrap_err().kind(), Kind::Target);
        assert!(inspect(&folder.path().join("no/f")).unwrap_err().to_string().contains("does not exist"));
    }

    #[test]
    fn a_target_is_held_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let held = hold(&path, false).unwrap();
        assert!(held.created);
        assert_eq!(hold(&path, false).unwrap_err().kind(), Kind::Target);
        drop(held);
        assert!(!hold(&path, false).unwrap().created);
    }
}
