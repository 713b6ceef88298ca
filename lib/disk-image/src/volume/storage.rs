//! Where the bytes of a file or block device are stored, and whether two of them share some: hard links, device nodes,
//! a loop device and the file behind it, a partition and its disk.
//!
//! Facts are of the kernel's sysfs (`Documentation/ABI/testing/sysfs-block`, `sysfs-block-loop`); where it is not
//! mounted, only names of the same file or device are seen. Not seen in any case: what lies behind device mapper, a
//! network, or a program that exports a file (NBD).

use std::fs::Metadata;
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Unit of a partition's place, whatever the device's sectors are.
const SECTOR: u64 = 512;
/// Loop devices on loop devices that are followed.
const DEPTH_MAX: usize = 16;

/// A file or a device, whatever its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    /// A file by filesystem and inode.
    File { device: u64, inode: u64 },
    /// A block device by number.
    Device { number: u64 },
}

impl Holder {
    fn of(meta: &Metadata) -> Self {
        match meta.file_type().is_block_device() {
            true => Self::Device { number: meta.rdev() },
            false => Self::File { device: meta.dev(), inode: meta.ino() },
        }
    }
}

/// A range of bytes of a file or device.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stretch {
    holder: Holder,
    range: Range<u64>,
}

impl Stretch {
    /// `part` of this stretch, seen from what holds it.
    fn inner(&self, holder: Holder, start: u64, len: Option<u64>) -> Self {
        let from = start.saturating_add(self.range.start);
        let most = len.map_or(u64::MAX, |len| start.saturating_add(len));
        Self { holder, range: from..start.saturating_add(self.range.end).min(most) }
    }

    fn meets(&self, other: &Self) -> bool {
        self.holder == other.holder
            && self.range.start < other.range.end
            && other.range.start < self.range.end
    }
}

/// Whether writing to one changes the bytes of the other, as far as can be seen.
pub(crate) fn shared(one: &Metadata, other: &Metadata) -> bool {
    let (one, other) = (stretches(one), stretches(other));
    one.iter().any(|one| other.iter().any(|other| one.meets(other)))
}

/// The file or device itself, and what its bytes are a part of.
fn stretches(meta: &Metadata) -> Vec<Stretch> {
    let mut all = vec![Stretch { holder: Holder::of(meta), range: 0..u64::MAX }];
    for _ in 0..DEPTH_MAX {
        let below = match all.last() {
            Some(Stretch { holder: Holder::Device { number }, .. }) => below(&sysfs(*number)).zip(all.last()),
            Some(Stretch { holder: Holder::File { .. }, .. }) | None => None,
        };
        let Some(((holder, start, len), above)) = below else { break };
        let next = above.inner(holder, start, len);
        all.push(next);
    }
    all
}

fn sysfs(number: u64) -> PathBuf {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    PathBuf::from(format!("/sys/dev/block/{major}:{minor}"))
}

/// The block device that holds a target's bytes, their offset there, and their number if known.
fn below(device: &Path) -> Option<(Holder, u64, Option<u64>)> {
    let number =
        |name: &str| -> Option<u64> { std::fs::read_to_string(device.join(name)).ok()?.trim().parse().ok() };
    if device.join("partition").exists() {
        // The folder of a partition lies in its disk's.
        let disk = std::fs::read_to_string(std::fs::canonicalize(device).ok()?.parent()?.join("dev")).ok()?;
        let (major, minor) = disk.trim().split_once(':')?;
        let disk = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
        let bytes = |sectors: u64| sectors.saturating_mul(SECTOR);
        return Some((Holder::Device { number: disk }, bytes(number("start")?), number("size").map(bytes)));
    }
    let mut backing = std::fs::read(device.join("loop/backing_file")).ok()?;
    backing.truncate(backing.strip_suffix(b"\n").map_or(backing.len(), <[u8]>::len));
    let backing = std::fs::metadata(PathBuf::from(std::ffi::OsString::from_vec(backing))).ok()?;
    let limit = number("loop/sizelimit").filter(|&limit| limit > 0);
    Some((Holder::of(&backing), number("loop/offset").unwrap_or(0), limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_meet_where_they_overlap() {
        let disk = Holder::Device { number: 1 };
        let whole = Stretch { holder: Holder::Device { number: 2 }, range: 0..u64::MAX };
        let first = whole.inner(disk, 100, Some(50));
        let second = whole.inner(disk, 150, Some(50));
        let rest = whole.inner(disk, 199, None);
        assert_eq!((first.range.clone(), rest.range.clone()), (100..150, 199..u64::MAX));
        assert!(!first.meets(&second) && second.meets(&rest) && !first.meets(&whole));
        // A part of a part.
        let file = Holder::File { device: 3, inode: 4 };
        assert_eq!(second.inner(file, 1000, Some(180)).range, 1150..1180);
    }

    #[test]
    fn hard_links_share_their_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("a"), "a").unwrap();
        std::fs::write(path("b"), "b").unwrap();
        std::fs::hard_link(path("a"), path("c")).unwrap();
        let meta = |name: &str| std::fs::metadata(path(name)).unwrap();
        assert!(shared(&meta("a"), &meta("c")) && !shared(&meta("a"), &meta("b")));
    }
}
