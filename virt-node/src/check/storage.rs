//! Features of the filesystem with the guests' state, and io_uring.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use io_uring::IoUring;
use rustix::fs::{OFlags, ioctl_ficlone};
use tempfile::NamedTempFile;

use super::{Missing, Need, Tried};

/// Entries of the ring that is tried.
const ENTRIES: u32 = 8;

/// Everything about storage; `state` need not be there yet.
pub(super) fn all(state: &Path) -> [Tried; 4] {
    let folder = nearest(state);
    let shown = state.display();
    let written = NamedTempFile::new_in(&folder).and_then(|mut file| {
        file.write_all(&[1; 4096])?;
        Ok(file)
    });
    let (reflink, direct, room) = match written {
        Err(error) => {
            let missing = || {
                Missing::new(
                    format!("{}: {error}", folder.display()),
                    format!("make {shown} writable, or name another folder with --state"),
                )
            };
            (Err(missing()), Err(missing()), Err(missing()))
        }
        Ok(file) => (reflink(&folder, &file), direct(&folder, &file), room(&folder)),
    };
    [
        Tried { name: "state", purpose: "guests' state", need: Need::Required, found: room },
        Tried {
            name: "reflink",
            purpose: "clones of disks without copying",
            need: Need::Optional,
            found: reflink,
        },
        Tried {
            name: "direct-io",
            purpose: "disks past the page cache",
            need: Need::Optional,
            found: direct,
        },
        Tried { name: "io_uring", purpose: "fast imports", need: Need::Optional, found: ring() },
    ]
}

/// The folder, or the nearest one above it that is there.
fn nearest(folder: &Path) -> PathBuf {
    let there = folder.ancestors().find(|folder| folder.is_dir());
    there.unwrap_or(Path::new("/")).to_owned()
}

fn room(folder: &Path) -> Result<String, Missing> {
    let facts = rustix::fs::statvfs(folder);
    let facts = facts.map_err(|error| Missing::new(error.to_string(), "name another folder with --state"))?;
    let free = facts.f_bavail.saturating_mul(facts.f_frsize) >> 20;
    Ok(format!("{free} MiB free in {}", folder.display()))
}

fn reflink(folder: &Path, file: &NamedTempFile) -> Result<String, Missing> {
    let tried =
        NamedTempFile::new_in(folder).and_then(|clone| ioctl_ficlone(&clone, file).map_err(io::Error::from));
    match tried {
        Ok(()) => Ok("files can share blocks".to_owned()),
        Err(error) => {
            Err(Missing::new(error.to_string(), "put the folder on XFS or btrfs; till then clones copy"))
        }
    }
}

fn direct(folder: &Path, file: &NamedTempFile) -> Result<String, Missing> {
    let flags = i32::try_from(OFlags::DIRECT.bits()).unwrap_or(0);
    match OpenOptions::new().read(true).custom_flags(flags).open(file.path()) {
        Ok(_) => Ok("works".to_owned()),
        Err(error) => Err(Missing::new(
            format!("{}: {error}", folder.display()),
            "guests' disks are cached twice; another filesystem can do better",
        )),
    }
}

fn ring() -> Result<String, Missing> {
    match IoUring::new(ENTRIES) {
        Ok(_) => Ok("works".to_owned()),
        Err(error) => {
            let switch = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
            let advice = match switch.trim() {
                "" | "0" => "a seccomp profile may forbid it; imports use threads instead",
                _ => "sysctl kernel.io_uring_disabled=0 switches it on; till then imports use threads",
            };
            Err(Missing::new(error.to_string(), advice))
        }
    }
}
