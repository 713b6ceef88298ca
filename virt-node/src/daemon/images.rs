//! Disks that are made for one run: of container images, over claims that stay as they are, empty ones, files of the
//! machine. Disks of claims are [`super::driver`]'s.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;

use api::kubevirt::{ContainerDisk, HostDisk, VirtualMachineInstanceSpec};
use api::launch::{DiskFormat, Storage};
use api::names::QEMU_ID;
use api::resource::Quantity;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::import::{self, LOOK};
use crate::error::{Error, Kind};
use crate::resolve::{Backend, Objects};

fn failed(path: &Path) -> impl Fn(io::Error) -> Error + '_ {
    move |error| Error::with(Kind::System, path.display().to_string(), error)
}

/// A disk as guests are given it.
pub(super) fn backend(storage: Storage) -> Backend {
    let direct = OFlags::DIRECT.bits().cast_signed();
    let direct = OpenOptions::new().read(true).custom_flags(direct).open(&storage.path).is_ok();
    Backend { storage, direct, preallocated: false, block_sizes: None }
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

/// Waits for the turn to fetch an image, which other starts may be fetching too. Answers whether it had to.
fn turn(lock: &File, path: &Path, stop: &AtomicBool) -> Result<bool, Error> {
    let mut waited = false;
    loop {
        match flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(waited),
            Err(Errno::WOULDBLOCK) if stop.load(Ordering::Relaxed) => {
                return Err(Error::new(Kind::System, "stopped"));
            }
            Err(Errno::WOULDBLOCK | Errno::INTR) => {
                waited = true;
                sleep(LOOK);
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
    stop: &AtomicBool,
    progress: impl FnMut(f64),
) -> Result<(), Error> {
    if own.exists() {
        return Ok(());
    }
    let root = folder(images, &disk.image);
    fs::create_dir_all(&root).map_err(failed(&root))?;
    fs::set_permissions(&root, fs::Permissions::from_mode(0o711)).map_err(failed(&root))?;
    let lock = File::create(root.join("lock")).map_err(failed(&root))?;
    let waited = turn(&lock, &root, stop)?;
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
        // What another start fetched while this one waited is new enough.
        ("Always", true) if !waited => fetch(&root, &file, disk, objects, stop, progress)?,
        (_, true) => {}
        (_, false) => fetch(&root, &file, disk, objects, stop, progress)?,
    }
    fs::hard_link(&file, own).map_err(failed(own))
}

/// Fetches an image, and has its disk be `file`.
fn fetch(
    root: &Path,
    file: &Path,
    disk: &ContainerDisk,
    objects: &Objects,
    stop: &AtomicBool,
    progress: impl FnMut(f64),
) -> Result<(), Error> {
    let new = root.join("new");
    let data = new.join("data");
    fs::create_dir_all(&data).map_err(failed(&data))?;
    chown(&data, Some(QEMU_ID), Some(QEMU_ID)).map_err(failed(&data))?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o711)).map_err(failed(&new))?;
    let from = import::image(&disk.image, objects, disk.image_pull_secret.as_deref())
        .map_err(|problem| Error::new(Kind::Content, format!("image {}: {problem}", disk.image)))?;
    import::fill(&new, &from, None, stop, progress).map_err(|error| {
        Error::with(Kind::Content, format!("image {} cannot be fetched", disk.image), error)
    })?;
    let fetched = data.join("disk.img");
    // Guests share it: none of their processes may write to it.
    chown(&fetched, Some(0), Some(0)).map_err(failed(&fetched))?;
    fs::set_permissions(&fetched, fs::Permissions::from_mode(0o444)).map_err(failed(&fetched))?;
    fs::rename(&fetched, file).map_err(failed(file))?;
    fs::remove_dir_all(&new).map_err(failed(&new))
}

/// Takes away images that none of these guests names.
pub(super) fn sweep<'a>(images: &Path, specs: impl Iterator<Item = &'a VirtualMachineInstanceSpec>) {
    let volumes = specs.flat_map(|spec| &spec.volumes);
    let named = volumes.filter_map(|volume| volume.container_disk.as_ref());
    let kept: BTreeSet<PathBuf> = named.map(|disk| folder(images, &disk.image)).collect();
    for entry in fs::read_dir(images).into_iter().flatten().flatten() {
        if !kept.contains(&entry.path()) {
            // What stays is taken away with the next machine.
            drop(fs::remove_dir_all(entry.path()));
        }
    }
}

/// A disk that takes what is written in place of one that stays as it is.
pub(super) fn overlay(path: &Path, below: Storage) -> Result<Storage, Error> {
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
        chown(&new, Some(QEMU_ID), Some(QEMU_ID)).map_err(failed(path))?;
        fs::rename(&new, path).map_err(failed(path))?;
    }
    Ok(Storage { format: DiskFormat::Qcow2, backing: Some(Box::new(below)), ..raw(path, false) })
}

/// A new disk that holds nothing.
pub(super) fn empty(path: &Path, capacity: Option<&Quantity>) -> Result<Storage, Error> {
    if !path.exists() {
        let size = capacity.map_or(Ok(0), Quantity::bytes);
        let size = size.map_err(|error| Error::new(Kind::Content, error.to_string()))?;
        let new = path.with_extension("new");
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new);
        file.and_then(|file| file.set_len(size)).map_err(failed(path))?;
        chown(&new, Some(QEMU_ID), Some(QEMU_ID)).map_err(failed(path))?;
        fs::rename(&new, path).map_err(failed(path))?;
    }
    Ok(raw(path, false))
}

/// A file of the machine.
pub(super) fn host(disk: &HostDisk) -> Result<Storage, Error> {
    let path = Path::new(&disk.path);
    if disk.kind == "DiskOrCreate" {
        return empty(path, disk.capacity.as_ref());
    }
    let facts = fs::metadata(path).map_err(failed(path))?;
    Ok(raw(path, !facts.is_file()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_that_nobody_names_are_swept() {
        let images = tempfile::tempdir().unwrap();
        let spec: VirtualMachineInstanceSpec = serde_json::from_value(serde_json::json!({
            "volumes": [{"name": "a", "containerDisk": {"image": "registry/a:1"}}],
        }))
        .unwrap();
        let (kept, other) = (folder(images.path(), "registry/a:1"), folder(images.path(), "registry/b:1"));
        assert_ne!(kept, other);
        fs::create_dir(&kept).unwrap();
        fs::create_dir(&other).unwrap();
        sweep(images.path(), [&spec].into_iter());
        assert!(kept.exists() && !other.exists());
    }

    #[test]
    fn disks_of_a_run_are_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.img");
        empty(&path, Some(&Quantity("1Mi".into()))).unwrap();
        fs::write(&path, "written").unwrap();
        let storage = empty(&path, Some(&Quantity("1Mi".into()))).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"written");
        let over = folder.path().join("b.qcow2");
        let made = overlay(&over, storage.clone()).unwrap();
        assert_eq!(made.backing, Some(Box::new(storage)));
        assert_eq!(fs::metadata(&over).unwrap().uid(), QEMU_ID);
    }
}
