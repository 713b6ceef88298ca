//! Which volume is published at which paths. The kernel knows; this remembers it, so that no call reads the table of all
//! mounts. After a restart it is read from there once.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::device;
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::folder::Folder;
use crate::id::Id;
use crate::mounts;
use crate::pool::Volume;
use crate::record::Shape;

/// Last component of a path at which the kubelet stages.
const STAGING: &str = "globalmount";

/// Paths by volume.
#[derive(Debug, Default)]
pub(crate) struct Published {
    paths: Mutex<HashMap<Id, BTreeSet<PathBuf>>>,
}

impl Published {
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

    /// Paths at which the volume still is, other than `except`. A path where nothing is mounted any more is forgotten:
    /// somebody else unmounted it, or the node was restarted.
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
    match Folder::open_path(parent)? {
        None => Ok(false),
        Some(folder) => Ok(mounts::look(&folder, Path::new(name))?.is_some_and(|place| place.mounted)),
    }
}

/// Finds out what is published, from the kernel's table of mounts.
///
/// # Errors
/// When the table cannot be read.
pub(crate) fn recover(driver: &Driver) -> Result<()> {
    let table =
        fs::read("/proc/self/mountinfo").map_err(|error| Error::io("read the table of mounts", error))?;
    let mut files: HashMap<(u64, u64), Id> = HashMap::new();
    let mut devices: HashMap<u64, Id> = HashMap::new();
    for pool in &driver.pools {
        let Ok(open) = pool.open() else { continue };
        for id in open.volume_ids()? {
            let Ok(Some(volume)) = open.volume(&id) else { continue };
            note(&open, &volume, &mut files, &mut devices)?;
        }
    }
    let points = table.split(|byte| *byte == b'\n').filter_map(mount_point);
    for path in points.filter(|path| path.file_name().is_some_and(|name| name != STAGING)) {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { continue };
        let Ok(Some(folder)) = Folder::open_path(parent) else { continue };
        // A network filesystem that hangs or is gone is not ours.
        let Ok(Some(place)) = mounts::look(&folder, Path::new(name)) else { continue };
        let id = match place.block {
            Some(device) => devices.get(&device),
            None => files.get(&place.file).or_else(|| devices.get(&place.file.0)),
        };
        if let Some(id) = id.filter(|_| place.mounted) {
            driver.published.add(id, &path);
        }
    }
    Ok(())
}

fn note(
    open: &crate::pool::Open<'_>,
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
                for found in device::all(device::identity(&file)?)? {
                    devices.insert(found.device(), volume.id.clone());
                }
            }
        }
    }
    Ok(())
}

/// The mount point of a line of mountinfo (proc_pid_mountinfo(5)): its fifth field, `\ooo` for some bytes.
fn mount_point(line: &[u8]) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStringExt;
    let field = line.split(|byte| *byte == b' ').nth(4)?;
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
    Some(std::ffi::OsString::from_vec(path).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_unescaped() {
        let line = br"36 35 98:0 /mnt1 /mnt/a\040b\134c rw,noatime master:1 - ext3 /dev/root rw";
        assert_eq!(mount_point(line), Some(PathBuf::from(r"/mnt/a b\c")));
        assert_eq!(mount_point(b""), None);
        assert_eq!(mount_point(br"1 2 3:4 / /a\0"), Some(PathBuf::from(r"/a\0")));
    }
}
