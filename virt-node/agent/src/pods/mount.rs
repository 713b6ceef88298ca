//! A file or device of one container shown in another container: a bind mount that exists in the second one's mount
//! namespace alone, so nothing is left on the node when its pod ends. An image is shown read-only, a claim's disk to be
//! written.
//!
//! ```text
//! thread: own root ─► first's mount namespace: open_tree(handle) ─► sealed ─► second's: move_mount(target)
//! ```

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use dir::Dir;
use rustix::fs::{AtFlags, FileType, OFlags, StatxFlags, statx};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount};
use rustix::process::fchdir;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::disk::Disk;
use super::process::{Process, Root};
use crate::error::{Error, Kind, Result};
use crate::sys;

/// How a disk is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// An image: it is only read.
    Read,
    /// A claim's disk.
    Write,
}

/// Shows the disk `disk` of the container of `from` as `directory`/`name` in the container of `to`; once it is shown,
/// nothing is changed.
///
/// # Errors
/// The target is not a regular file, or the kernel refuses.
pub(crate) fn show(
    disk: &Disk,
    access: Access,
    from: &Process,
    to: &Process,
    directory: &str,
    name: &str,
) -> Result<()> {
    let (source, target) = (from.mounts()?, to.mounts()?);
    with_own_root(|| {
        enter(&source)?;
        let flags =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        let mount = open_tree(disk.handle(), c"", flags)
            .map_err(|error| Error::system("a container's disk cannot be mounted", error))?;
        sys::seal(&mount, access == Access::Write, disk.block)
            .map_err(|error| Error::system("a mount cannot be restricted", error))?;
        enter(&target)?;
        put(&mount, directory, name)
    })
}

/// Takes away what is shown as `directory`/`name` in the container of `of`; where nothing is, nothing is changed.
///
/// # Errors
/// The kernel refuses.
pub(crate) fn hide(of: &Process, directory: &str, name: &str) -> Result<()> {
    let target = of.mounts()?;
    with_own_root(|| {
        enter(&target)?;
        let place = Dir::open(directory)?;
        // An unmount takes a path: the name alone, from the directory itself.
        fchdir(&place).map_err(|error| Error::system(format!("cannot enter {directory}"), error))?;
        while let Some(handle) = place.handle(name)? {
            if mount_of(&handle)? == mount_of(&place)? {
                drop(handle);
                place.unlink(name)?;
                return Ok(());
            }
            drop(handle);
            unmount(name, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).map_err(|error| {
                Error::system(format!("{} cannot be unmounted", place.path_of(name).display()), error)
            })?;
        }
        Ok(())
    })
}

/// The disk that is shown as `directory`/`name` in the container of `of`; `None`: there is none.
///
/// # Errors
/// The process is gone, or something else than a disk is shown.
pub(crate) fn find(of: &Process, directory: &str, name: &str) -> Result<Option<Disk>> {
    let place = of.directory(directory)?;
    let Some(handle) = place.handle(name)? else { return Ok(None) };
    if mount_of(&handle)? == mount_of(&place)? {
        return Ok(None);
    }
    Disk::of(handle, &place.path_of(name)).map(Some)
}

/// Does something on a thread that has a root of its own and may enter mount namespaces. It ends with the work, since it
/// keeps the last namespace.
fn with_own_root<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let work = || {
        sys::own_root().map_err(|error| Error::system("a thread cannot have its own root", error))?;
        work()
    };
    let done = std::thread::scope(|scope| scope.spawn(work).join());
    done.unwrap_or_else(|_| {
        Err(Error::new(Kind::System, "the thread that mounts a disk ended before its work"))
    })
}

/// The id of the mount that something is in.
fn mount_of(what: impl AsFd) -> Result<u64> {
    let facts = statx(what, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID);
    facts.map(|facts| facts.stx_mnt_id).map_err(|error| Error::system("cannot find a file's mount", error))
}

fn enter(namespace: &OwnedFd) -> Result<()> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))
        .map_err(|error| Error::system("a container's mount namespace cannot be entered", error))
}

/// Moves the mount to its place, in the namespace that this thread is in.
fn put(mount: &OwnedFd, directory: &str, name: &str) -> Result<()> {
    // A mount point itself, which nothing in the pod can move; what is in it is the pod's.
    let place = Dir::open(directory)?;
    if let Some(there) = place.handle(name)?
        && mount_of(&there)? != mount_of(&place)?
    {
        // Shown before, by work that was cut short.
        return Ok(());
    }
    if place.file(name, OFlags::RDONLY)?.is_none() {
        drop(place.create_new(name, 0o444)?);
    }
    let target = place.handle(name)?.ok_or_else(|| {
        Error::new(Kind::Untrusted, format!("{} was removed", place.path_of(name).display()))
    })?;
    let path = place.path_of(name);
    if super::disk::file_type(&target, &path)? != FileType::RegularFile {
        return Err(Error::new(Kind::Untrusted, format!("{} is not a regular file", path.display())));
    }
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, c"", &target, c"", flags)
        .map_err(|error| Error::system(format!("a disk cannot be mounted at {}", path.display()), error))
}

/// The one disk of a containerDisk's image: the file `path` of it, or the only regular file in /disk.
///
/// # Errors
/// There is none, several, or it is not a regular file.
pub(crate) fn container_disk(image: &Root, path: Option<&str>) -> Result<Disk> {
    let wrong = |text: String| Error::new(Kind::Content, text);
    let (directory, name) = match path {
        Some(path) => {
            let path = Path::new(path);
            let parent = path.parent().and_then(Path::to_str).filter(|parent| !parent.is_empty());
            let name = path.file_name().and_then(|name| name.to_str());
            let name = name.ok_or_else(|| wrong(format!("{} is not the path of a disk", path.display())))?;
            (image.directory(parent.unwrap_or("/"))?, name.to_owned())
        }
        None => {
            let directory = image.directory("/disk")?;
            let mut files = Vec::new();
            for entry in directory.entries()?.into_iter().filter(|entry| !entry.is_dir) {
                if directory.stat(&entry.name)?.is_some_and(|facts| dir::is_file(&facts)) {
                    files.push(entry.name);
                }
            }
            match (files.pop(), files.is_empty()) {
                (Some(name), true) => (directory, name),
                (Some(_), false) => {
                    return Err(wrong(
                        "the image has several files in /disk; set containerDisk.path to one of them".into(),
                    ));
                }
                (None, _) => return Err(wrong("the image has no file in /disk".into())),
            }
        }
    };
    let disk = Disk::find(&directory, &name)?;
    match disk {
        Some(disk) if !disk.block => Ok(disk),
        Some(_) => Err(Error::new(Kind::Untrusted, format!("{name} in the image is a device"))),
        None => Err(wrong(format!("the image has no file {name}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    use super::*;

    /// An image as the kubelet mounts it into a container.
    #[test]
    fn disk_of_an_image_is_found_inside_it() {
        let container = tempfile::tempdir().unwrap();
        let image = container.path().join("images/os");
        fs::create_dir_all(image.join("disk")).unwrap();
        fs::create_dir_all(image.join("boot")).unwrap();
        fs::write(container.path().join("secret"), "of the pod").unwrap();
        fs::write(image.join("boot/vmlinuz"), "kernel").unwrap();
        symlink("/boot", image.join("linked")).unwrap();
        symlink("/secret", image.join("boot/secret")).unwrap();
        symlink("../..", image.join("out")).unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let root = Process::open(own).unwrap().unwrap().root().unwrap();
        let root = root.at(image.to_str().unwrap()).unwrap();
        let content = |path: Option<&str>| -> Result<String> {
            let mut text = String::new();
            container_disk(&root, path)?.open(false).unwrap().read_to_string(&mut text).unwrap();
            Ok(text)
        };
        assert!(content(None).unwrap_err().chain().contains("no file in /disk"));
        fs::write(image.join("disk/one.img"), "a disk").unwrap();
        assert_eq!(content(None).unwrap(), "a disk");
        fs::write(image.join("disk/two.img"), "another").unwrap();
        assert!(content(None).unwrap_err().chain().contains("several files"));
        assert_eq!(content(Some("/disk/two.img")).unwrap(), "another");
        assert_eq!(content(Some("/linked/vmlinuz")).unwrap(), "kernel");
        for outside in ["/boot/secret", "/out/secret", "/../../secret", "/disk"] {
            assert!(content(Some(outside)).is_err(), "{outside}");
        }
    }
}
