//! Disks that are made for one run: of container images, over claims that stay as they are, empty ones, files of the
//! machine. Disks of claims are [`super::csi_client`]'s.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;

use api::kubevirt::{ContainerDisk, HostDisk, VirtualMachineInstanceSpec};
use api::launch::{DiskFormat, Storage};
use api::resource::Quantity;
use dir::{Dir, Owner};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::disk::{self, Access};
use super::ids::{Ids, Transfer};
use super::import::{self, POLL_INTERVAL};
use crate::error::{Error, Kind};
use virt::resolve::Objects;

fn failed(path: &Path) -> impl Fn(io::Error) -> Error + '_ {
    move |error| Error::with(Kind::System, path.display().to_string(), error)
}

/// A file that holds the disk as it is.
pub(super) fn raw(path: &Path, block: bool) -> Storage {
    Storage { path: path.to_string_lossy().into_owned(), block, format: DiskFormat::Raw, backing: None }
}

/// The folder of an image, by what names it. An archive that is another one since has another folder.
fn folder(images: &Path, image: &str) -> PathBuf {
    let mut name = image.to_owned();
    if let Some(facts) = image.strip_prefix("oci-archive:").and_then(|path| fs::metadata(path).ok()) {
        name.push_str(&format!(" {} {} {}", facts.ino(), facts.size(), facts.mtime_nsec() + facts.mtime()));
    }
    let hash = Sha256::digest(name.as_bytes());
    images.join(hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect::<String>())
}

/// The name of the number of an image: of the user that fetches it, and of the group that reads it.
pub(super) fn number_name(images: &Path, image: &str) -> String {
    format!("image/{}", folder(images, image).file_name().unwrap_or_default().to_string_lossy())
}

/// Locks an image for fetching it, which other starts may be doing too. Answers whether it had to wait.
fn wait_for_lock(lock: &File, path: &Path, stop: &AtomicBool) -> Result<bool, Error> {
    let mut waited = false;
    loop {
        match flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(waited),
            Err(Errno::WOULDBLOCK) if stop.load(Ordering::Relaxed) => {
                return Err(Error::new(Kind::System, "stopped"));
            }
            Err(Errno::WOULDBLOCK | Errno::INTR) => {
                waited = true;
                sleep(POLL_INTERVAL);
            }
            Err(error) => return Err(failed(path)(error.into())),
        }
    }
}

/// The disk of a container image, fetched where it is not there yet, as the file `own` of a run: it keeps the one that it
/// began with, whatever is fetched after it. An image is there as a whole, or not at all.
pub(super) fn container(
    images: &Path,
    own: &Path,
    disk: &ContainerDisk,
    objects: &Objects,
    ids: &Ids,
    stop: &AtomicBool,
    progress: impl FnMut(f64),
) -> Result<(), Error> {
    if own.exists() {
        return Ok(());
    }
    let root = folder(images, &disk.image);
    fs::create_dir_all(&root).map_err(failed(&root))?;
    fs::set_permissions(&root, fs::Permissions::from_mode(0o711)).map_err(failed(&root))?;
    let transfer = ids.transfer(&number_name(images, &disk.image))?;
    let lock = File::create(root.join("lock")).map_err(failed(&root))?;
    let waited = wait_for_lock(&lock, &root, stop)?;
    let file = root.join("disk.img");
    let latest = !disk.image.starts_with("oci-archive:")
        && disk.image.rsplit('/').next().is_some_and(|name| !name.contains(':') || name.ends_with(":latest"));
    let policy = disk.image_pull_policy.as_deref().unwrap_or(if latest { "Always" } else { "IfNotPresent" });
    match (policy, file.exists()) {
        ("Never", false) => {
            return Err(Error::new(
                Kind::Content,
                format!("image {}: imagePullPolicy is Never, and it is not here", disk.image),
            ));
        }
        // An image that another start fetched while this one waited is new enough.
        ("Always", true) if !waited => fetch(&root, &file, disk, objects, transfer, stop, progress)?,
        (_, true) => {}
        (_, false) => fetch(&root, &file, disk, objects, transfer, stop, progress)?,
    }
    // Its group may be another one since it was fetched.
    Access::readers(transfer.user.gid)
        .give(&File::open(&file).map_err(failed(&file))?)
        .map_err(failed(&file))?;
    fs::hard_link(&file, own).map_err(failed(own))
}

/// Fetches an image, and has its disk be `file`.
fn fetch(
    root: &Path,
    file: &Path,
    disk: &ContainerDisk,
    objects: &Objects,
    transfer: Transfer<'_>,
    stop: &AtomicBool,
    progress: impl FnMut(f64),
) -> Result<(), Error> {
    let user = transfer.user;
    let new = root.join("new");
    let data = new.join("data");
    fs::create_dir_all(&data).map_err(failed(&data))?;
    disk::begin(&data, user).map_err(|error| failed(&data)(error.into()))?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o711)).map_err(failed(&new))?;
    let from = import::image(&disk.image, objects, disk.image_pull_secret.as_deref())
        .map_err(|problem| Error::new(Kind::Content, format!("image {}: {problem}", disk.image)))?;
    import::fill(&new, &from, None, transfer, stop, progress).map_err(|error| {
        Error::with(Kind::Content, format!("image {} cannot be fetched", disk.image), error)
    })?;
    let kept = || -> dir::Result<bool> {
        disk::close(&data)?;
        // VMs share it: none of their processes may write to it.
        if disk::give(&data, Access::readers(user.gid), None)?.is_none() {
            return Ok(false);
        }
        let (root, name) = (Dir::open(root)?, file.file_name().unwrap_or_default());
        Dir::open(&data)?.rename(disk::NAME, &root, name)?;
        root.remove_all("new")?;
        Ok(true)
    };
    match kept() {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::new(Kind::Content, format!("image {} has no disk", disk.image))),
        Err(error) => {
            Err(Error::with(Kind::Content, format!("cannot store the disk of image {}", disk.image), error))
        }
    }
}

/// Takes away images that none of these guests names.
pub(super) fn sweep<'a>(
    images: &Path,
    ids: &Ids,
    specs: impl Iterator<Item = &'a VirtualMachineInstanceSpec>,
) {
    let volumes = specs.flat_map(|spec| &spec.volumes);
    let named = volumes.filter_map(|volume| volume.container_disk.as_ref());
    let kept: BTreeSet<PathBuf> = named.map(|disk| folder(images, &disk.image)).collect();
    for entry in fs::read_dir(images).into_iter().flatten().flatten() {
        if !kept.contains(&entry.path()) {
            // The rest is removed with the next VM.
            let removed = Dir::open(images).and_then(|dir| dir.remove_all(entry.file_name()));
            if removed.is_ok() {
                drop(ids.free(&format!("image/{}", entry.file_name().to_string_lossy())));
            }
        }
    }
}

/// A disk that takes what is written in place of one that stays as it is.
pub(super) fn overlay(path: &Path, below: Storage, user: Owner) -> Result<Storage, Error> {
    if !path.exists() {
        let new = path.with_extension("new");
        let format = if below.block { "host_device" } else { "raw" };
        let output = Command::new("qemu-img")
            .args(["create", "-q", "-f", "qcow2", "-F", format, "-b", &below.path])
            .arg(&new)
            .output()
            .map_err(|error| {
                Error::with(Kind::System, "qemu-img cannot be run; on Debian: apt install qemu-utils", error)
            })?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Error::new(Kind::System, format!("{}: {said}", path.display())));
        }
        fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).map_err(failed(path))?;
        fs::rename(&new, path).map_err(failed(path))?;
    }
    // Its user may be another one since it was made. The directory is root's.
    chown(path, Some(user.uid), Some(user.gid)).map_err(failed(path))?;
    Ok(Storage { format: DiskFormat::Qcow2, backing: Some(Box::new(below)), ..raw(path, false) })
}

/// A new disk that holds nothing, in a directory of root's.
pub(super) fn empty(path: &Path, capacity: Option<&Quantity>, user: Owner) -> Result<Storage, Error> {
    let size = size_of(capacity)?;
    let made = || -> dir::Result<()> {
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
        let dir = Dir::open(above)?;
        make_or_give(&dir, Path::new(name), size, Access::writers(user))
    };
    made().map_err(|error| {
        Error::with(Kind::System, format!("cannot create the emptyDisk {}", path.display()), error)
    })?;
    Ok(raw(path, false))
}

fn size_of(capacity: Option<&Quantity>) -> Result<u64, Error> {
    let size = capacity.map_or(Ok(0), Quantity::bytes);
    size.map_err(|error| Error::new(Kind::Content, error.to_string()))
}

/// Gives the disk `name` beneath `dir` to its writers, made with this size where nothing is.
fn make_or_give(dir: &Dir, name: &Path, size: u64, access: Access) -> dir::Result<()> {
    if let Some(file) = dir.own_file(name, OFlags::RDWR)? {
        return access
            .give(&file)
            .map_err(|error| dir::Error::new(format!("give away {}", dir.path_of(name).display()), error));
    }
    let (above, last) = (name.parent(), name.file_name().unwrap_or_default().to_string_lossy());
    let below = match above.filter(|above| !above.as_os_str().is_empty()) {
        Some(above) => Some(dir.need_dir(above)?),
        None => None,
    };
    disk::new(below.as_ref().unwrap_or(dir), &last, access, size)
}

/// A file or block device of the machine, which must lie in one of the directories that the administrator named. It is
/// opened beneath that directory without following links, and given to its writers; of a device the VM gets a node of its own
/// in the run's directory.
pub(super) fn host(
    disk: &HostDisk,
    allowed: &[PathBuf],
    run: &Path,
    volume: &str,
    user: Owner,
    access: Access,
) -> Result<Storage, Error> {
    let path = Path::new(&disk.path);
    let refused = |error: dir::Error| Error::with(Kind::Content, format!("hostDisk {}", disk.path), error);
    let Some((root, name)) = allowed.iter().find_map(|root| Some((root, path.strip_prefix(root).ok()?)))
    else {
        let known: Vec<String> = allowed.iter().map(|root| root.display().to_string()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let text = format!(
            "hostDisk {}: no directory that `virt-node serve --host-disk DIR` names holds it (named: {known})",
            disk.path
        );
        return Err(Error::new(Kind::Content, text));
    };
    if name.as_os_str().is_empty() {
        let text = format!("hostDisk {}: this is the allowed directory itself; name a file in it", disk.path);
        return Err(Error::new(Kind::Content, text));
    }
    if let Some(closed) = closed_to(user, path) {
        let text = format!(
            "hostDisk {}: the VM's user cannot enter the directory {}; `chmod o+x {}` lets every user pass it",
            disk.path,
            closed.display(),
            closed.display()
        );
        return Err(Error::new(Kind::Content, text));
    }
    let dir = Dir::open(root).map_err(refused)?;
    if disk.kind == "DiskOrCreate" {
        make_or_give(&dir, name, size_of(disk.capacity.as_ref())?, access).map_err(refused)?;
        return Ok(raw(path, false));
    }
    let handle = dir.handle(name).map_err(refused)?.ok_or_else(|| {
        let text = format!(
            "hostDisk {}: the file does not exist; create it, or use type DiskOrCreate with a capacity",
            disk.path
        );
        Error::new(Kind::Content, text)
    })?;
    let facts = File::from(handle).metadata().map_err(failed(path))?;
    if facts.file_type().is_block_device() {
        let node = device(run, volume, facts.rdev(), user).map_err(failed(path))?;
        return Ok(raw(&node, true));
    }
    make_or_give(&dir, name, 0, access).map_err(refused)?;
    Ok(raw(path, false))
}

/// The extended attribute with a file's access control list (acl(5)).
const ACL: &CStr = c"system.posix_acl_access";

/// The directory on the way to a file that does not let a user pass, by its mode. Of a directory with an access control list,
/// QEMU finds it out.
fn closed_to(user: Owner, file: &Path) -> Option<&Path> {
    file.ancestors().skip(1).find(|directory| {
        let Ok(facts) = fs::metadata(directory) else { return false };
        if rustix::fs::getxattr_query(*directory, ACL).is_ok() {
            return false;
        }
        let bit = match (facts.uid() == user.uid, facts.gid() == user.gid) {
            (true, _) => 0o100,
            (false, true) => 0o010,
            (false, false) => 0o001,
        };
        facts.mode() & bit == 0
    })
}

/// A node of a device of the machine, for the VM's user alone; the machine's own node keeps its owner.
fn device(run: &Path, volume: &str, device: u64, user: Owner) -> io::Result<PathBuf> {
    let (dir, name) = (Dir::open(run)?, format!("{volume}.device"));
    dir.unlink(&name)?;
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(&dir, &*name, rustix::fs::FileType::BlockDevice, mode, device)?;
    dir.chown(&name, user)?;
    Ok(run.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreferenced_images_are_swept() {
        let images = tempfile::tempdir().unwrap();
        let spec: VirtualMachineInstanceSpec = serde_json::from_value(serde_json::json!({
            "volumes": [{"name": "a", "containerDisk": {"image": "registry/a:1"}}],
        }))
        .unwrap();
        let (kept, other) = (folder(images.path(), "registry/a:1"), folder(images.path(), "registry/b:1"));
        assert_ne!(kept, other);
        fs::create_dir(&kept).unwrap();
        fs::create_dir(&other).unwrap();
        let ids = Ids::open(&images.path().join("ids")).unwrap();
        sweep(images.path(), &ids, [&spec].into_iter());
        assert!(kept.exists() && !other.exists());
    }

    #[test]
    fn disks_of_a_run_are_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.img");
        let user = Owner::same(7);
        empty(&path, Some(&Quantity("1Mi".into())), user).unwrap();
        fs::write(&path, "written").unwrap();
        let storage = empty(&path, Some(&Quantity("1Mi".into())), user).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"written");
        let over = folder.path().join("b.qcow2");
        let made = overlay(&over, storage.clone(), user).unwrap();
        assert_eq!(made.backing, Some(Box::new(storage)));
        assert_eq!(fs::metadata(&over).unwrap().uid(), 7);
    }

    fn host_disk(path: &Path, kind: &str) -> HostDisk {
        let json = serde_json::json!({"path": path, "type": kind, "capacity": "1Mi"});
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn files_of_the_machine_are_used_in_allowed_directories_only() {
        let (allowed, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (run, user) = (tempfile::tempdir().unwrap(), Owner::same(7));
        let below = allowed.path().join("below");
        fs::create_dir(&below).unwrap();
        for (outer, inner, closed) in [(0o700, 0o755, allowed.path()), (0o755, 0o750, below.as_path())] {
            fs::set_permissions(allowed.path(), fs::Permissions::from_mode(outer)).unwrap();
            fs::set_permissions(&below, fs::Permissions::from_mode(inner)).unwrap();
            let disk = host_disk(&below.join("a.img"), "DiskOrCreate");
            let error =
                host(&disk, &[allowed.path().to_owned()], run.path(), "a", user, Access::writers(user))
                    .unwrap_err()
                    .chain();
            let text = format!("cannot enter the directory {};", closed.display());
            assert!(error.contains(&text) && !below.join("a.img").exists(), "{error}");
        }
        // u::rwx,u:7:--x,g::---,m::--x,o::---
        let entries: [(u16, u16, u32); 5] =
            [(1, 7, u32::MAX), (2, 1, 7), (4, 0, u32::MAX), (0x10, 1, u32::MAX), (0x20, 0, u32::MAX)];
        let mut list = 2_u32.to_le_bytes().to_vec();
        for (tag, allowed, id) in entries {
            list.extend([tag.to_le_bytes(), allowed.to_le_bytes()].concat());
            list.extend(id.to_le_bytes());
        }
        rustix::fs::setxattr(&below, ACL, &list, rustix::fs::XattrFlags::empty()).unwrap();
        assert_eq!(closed_to(user, &below.join("a.img")), None, "the list lets this user pass");
        let theirs = outside.path().join("theirs");
        fs::write(&theirs, "theirs").unwrap();
        std::os::unix::fs::symlink(outside.path(), allowed.path().join("link")).unwrap();
        std::os::unix::fs::symlink(&theirs, allowed.path().join("linked")).unwrap();
        fs::hard_link(&theirs, allowed.path().join("hard")).unwrap();
        let roots = [allowed.path().to_owned()];
        let tried = |path: &Path, roots: &[PathBuf]| {
            for kind in ["Disk", "DiskOrCreate"] {
                host(&host_disk(path, kind), roots, run.path(), "a", user, Access::writers(user))
                    .unwrap_err();
            }
        };
        tried(&theirs, &roots);
        tried(&theirs, &[]);
        for name in ["link/theirs", "link/new", "linked", "hard", "../theirs", ""] {
            tried(&allowed.path().join(name), &roots);
        }
        for (name, wanted) in [
            ("linked", "symbolic links are not followed"),
            ("missing", "the file does not exist; create it"),
            ("", "the allowed directory itself; name a file in it"),
        ] {
            let path = allowed.path().join(name);
            let error = host(&host_disk(&path, "Disk"), &roots, run.path(), "a", user, Access::writers(user))
                .unwrap_err()
                .chain();
            assert!(error.contains(wanted) && error.contains("hostDisk /"), "{name}: {error}");
        }
        assert_eq!(
            (fs::read(&theirs).unwrap(), fs::metadata(&theirs).unwrap().uid()),
            (b"theirs".to_vec(), 0)
        );
        assert!(!outside.path().join("new").exists());
        // A file of the user's next to the disk was opened, truncated and renamed.
        fs::write(allowed.path().join("X.new"), "mine").unwrap();
        let made = host(
            &host_disk(&allowed.path().join("X.img"), "DiskOrCreate"),
            &roots,
            run.path(),
            "a",
            user,
            Access::writers(user),
        );
        let facts = fs::metadata(made.unwrap().path).unwrap();
        assert_eq!((facts.uid(), facts.len()), (7, 1 << 20));
        assert_eq!(fs::read(allowed.path().join("X.new")).unwrap(), b"mine");
    }
}
