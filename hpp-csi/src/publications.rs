//! Which volume is published at which paths. The kernel knows; this remembers it, so that no call reads the table of all
//! mounts. After a restart it is read from there once.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::device;
use crate::error::{Error, Result};
use crate::id::Id;
use crate::mounts;
use crate::pool::{Open, Pool, Volume};
use crate::record::Shape;
use dir::Dir;

/// Last component of a path at which the kubelet stages.
const STAGING: &str = "globalmount";

/// Paths by volume.
#[derive(Debug, Default)]
pub(crate) struct Publications {
    paths: Mutex<HashMap<Id, BTreeSet<PathBuf>>>,
}

impl Publications {
    fn paths(&self) -> MutexGuard<'_, HashMap<Id, BTreeSet<PathBuf>>> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, id: &Id, path: &Path) {
        self.paths().entry(id.clone()).or_default().insert(path.to_path_buf());
    }

    pub(crate) fn remove(&self, id: &Id, path: &Path) {
        let mut paths = self.paths();
        if let Some(of_volume) = paths.get_mut(id) {
            of_volume.remove(path);
            if of_volume.is_empty() {
                paths.remove(id);
            }
        }
    }

    /// Paths at which the volume is published, other than `except`. A path without a mount is dropped: it was unmounted by
    /// other means, or the node restarted.
    pub(crate) fn others(&self, id: &Id, except: Option<&Path>) -> Result<Vec<PathBuf>> {
        let known: Vec<PathBuf> = self.paths().get(id).into_iter().flatten().cloned().collect();
        let mut still = Vec::new();
        for path in known {
            if mounted(&path)? {
                if except != Some(path.as_path()) {
                    still.push(path);
                }
            } else {
                self.remove(id, &path);
            }
        }
        Ok(still)
    }

    /// Whether the volume is known to be published, without looking.
    pub(crate) fn is_anywhere(&self, id: &Id) -> bool {
        self.paths().contains_key(id)
    }
}

fn mounted(path: &Path) -> Result<bool> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(false) };
    match Dir::find(parent)? {
        None => Ok(false),
        Some(folder) => Ok(mounts::stat(&folder, Path::new(name))?.is_some_and(|place| place.mounted)),
    }
}

/// Finds out what is published, from the kernel's table of mounts.
///
/// # Errors
/// When the table cannot be read.
pub(crate) fn recover(pools: &[Pool], published: &Publications) -> Result<()> {
    let table = table()?;
    let mut files: HashMap<(u64, u64), Id> = HashMap::new();
    let mut devices: HashMap<u64, Id> = HashMap::new();
    for pool in pools {
        let Ok(open) = pool.open() else { continue };
        for id in open.volume_ids()? {
            let Ok(Some(volume)) = open.volume(&id) else { continue };
            note(&open, &volume, &mut files, &mut devices)?;
        }
    }
    let points = lines(&table).map(|mount| mount.point);
    for path in points.filter(|path| path.file_name().is_some_and(|name| name != STAGING)) {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { continue };
        let Ok(Some(folder)) = Dir::find(parent) else { continue };
        // A network filesystem that hangs or is gone is not ours.
        let Ok(Some(place)) = mounts::stat(&folder, Path::new(name)) else { continue };
        let id = match place.block {
            Some(device) => devices.get(&device),
            None => files.get(&place.file).or_else(|| devices.get(&place.file.0)),
        };
        if let Some(id) = id.filter(|_| place.mounted) {
            published.add(id, &path);
        }
    }
    Ok(())
}

fn note(
    open: &Open<'_>,
    volume: &Volume,
    files: &mut HashMap<(u64, u64), Id>,
    devices: &mut HashMap<u64, Id>,
) -> Result<()> {
    match volume.shape {
        Shape::Folder => {
            files.insert(volume.file, volume.id.clone());
        }
        Shape::Loop | Shape::Block => {
            if let Some(file) = open.image(volume)? {
                for found in open.pool.devices.all(&file)? {
                    devices.insert(found.device(), volume.id.clone());
                }
            }
        }
    }
    Ok(())
}

/// Whether what is mounted at `name` in `folder` was, when it was mounted, the folder or the device of volume `id`: by the
/// names that the kernel keeps. For what cannot be looked at, because its volume or its filesystem is gone.
///
/// # Errors
/// When the table of mounts cannot be read.
pub(crate) fn is_of(id: &Id, folder: &Dir, name: &Path) -> Result<bool> {
    let failed = |error| Error::io("read the table of mounts", error);
    // The table has paths without links.
    let opened = Path::new("/proc/self/fd").join(folder.as_fd().as_raw_fd().to_string());
    let point = fs::read_link(opened).map_err(failed)?.join(name);
    let table = table()?;
    // Of mounts on top of each other, the last is seen.
    let Some(mount) = lines(&table).filter(|mount| mount.point == point).last() else { return Ok(false) };
    let own: &Path = id.as_ref();
    let named = |path: &Path| path.components().any(|part| part.as_os_str() == own.as_os_str());
    let backing = mount.loop_device.and_then(device::backing_file);
    Ok(named(&mount.root) || backing.is_some_and(|file| named(&file)))
}

/// Numbers of the loop devices with a filesystem that is mounted anywhere in the mount namespace of this process.
///
/// # Errors
/// When the table of mounts cannot be read.
pub(crate) fn mounted_devices() -> Result<HashSet<u64>> {
    Ok(lines(&table()?).filter_map(|mount| mount.loop_device).map(device::numbered).collect())
}

/// Replaces each path without links by its place on its filesystem, whatever mount leads there: `/DEVICE/PATH`, with the
/// device's numbers as in mountinfo. Paths of one filesystem can be compared by it, also through bind mounts.
///
/// # Errors
/// When the table of mounts cannot be read.
pub(crate) fn locate<'a>(paths: impl Iterator<Item = &'a mut PathBuf>) -> Result<()> {
    let table = table()?;
    paths.for_each(|path| *path = located(&table, path));
    Ok(())
}

/// The kernel's table of mounts, as this process sees them.
fn table() -> Result<Vec<u8>> {
    fs::read("/proc/self/mountinfo").map_err(|error| Error::io("read the table of mounts", error))
}

fn located(table: &[u8], path: &Path) -> PathBuf {
    let leading = lines(table).filter(|mount| path.starts_with(&mount.point));
    // Of mounts on top of each other, the last is seen.
    let nearest = leading.max_by_key(|mount| mount.point.components().count());
    nearest.map_or_else(
        || path.to_path_buf(),
        |mount| {
            let mut place = Path::new("/").join(&mount.device);
            for part in [mount.root.as_path(), path.strip_prefix(&mount.point).unwrap_or(path)] {
                place.extend(part.components().filter(|part| matches!(part, Component::Normal(_))));
            }
            place
        },
    )
}

/// A line of mountinfo (proc_pid_mountinfo(5)).
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    /// Numbers of the filesystem's device, as `8:1`.
    device: String,
    /// The mounted part of its filesystem.
    root: PathBuf,
    point: PathBuf,
    /// The loop device that holds the filesystem, or that is itself mounted.
    loop_device: Option<u32>,
}

fn lines(table: &[u8]) -> impl Iterator<Item = Mount> + '_ {
    table.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let device = std::str::from_utf8(fields.nth(2)?).ok()?;
        let (root, point) = (unescaped(fields.next()?), unescaped(fields.next()?));
        let of_device = device.strip_prefix("7:").and_then(|minor| minor.parse().ok());
        let itself = || root.to_str()?.rsplit('/').next()?.strip_prefix("loop")?.parse().ok();
        let loop_device = of_device.or_else(itself);
        Some(Mount { device: device.to_owned(), root, point, loop_device })
    })
}

/// A path of mountinfo: `\ooo` stands for some bytes.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let octal = tail
            .get(..3)
            .filter(|_| *first == b'\\')
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match octal {
            Some(byte) => {
                path.push(byte);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                path.push(*first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(path).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_understood() {
        let table = br"36 35 98:0 /mnt1 /mnt/a\040b\134c rw,noatime master:1 - ext3 /dev/root rw
1 2 7:12 / /a\0 rw - xfs /dev/loop12 rw
1 2 0:6 /loop3 /b rw - devtmpfs none rw
1 2 0:6 /x/loop /c rw - tmpfs none rw

short";
        let mount = |device: &str, root: &str, point: &str, loop_device| Mount {
            device: device.to_owned(),
            root: root.into(),
            point: point.into(),
            loop_device,
        };
        let found: Vec<_> = lines(table).collect();
        let wanted = [
            mount("98:0", "/mnt1", r"/mnt/a b\c", None),
            mount("7:12", "/", r"/a\0", Some(12)),
            mount("0:6", "/loop3", "/b", Some(3)),
            mount("0:6", "/x/loop", "/c", None),
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn paths_are_located_on_their_filesystem_through_bind_mounts() {
        let table = b"1 0 8:1 / / rw - ext4 /dev/sda1 rw
2 1 8:2 / /data rw - xfs /dev/sda2 rw
3 1 8:2 /b/vv/deep /bound rw - xfs /dev/sda2 rw
4 1 8:3 / /data/over rw - xfs /dev/sda3 rw
5 4 8:2 / /data/over rw - xfs /dev/sda2 rw
";
        for (path, place) in [
            ("/data/b", "/8:2/b"),
            ("/bound", "/8:2/b/vv/deep"),
            ("/bound/x", "/8:2/b/vv/deep/x"),
            ("/data", "/8:2"),
            ("/database", "/8:1/database"),
            ("/data/over/x", "/8:2/x"),
        ] {
            assert_eq!(located(table, Path::new(path)), Path::new(place), "{path}");
        }
    }
}
