//! A guest's disk in its pod: a regular file or a block device, and nothing else, found by a handle before it is opened.
//! Opening a FIFO would wait, and a device may act on being opened.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use dir::Dir;
use rustix::fs::{FileType, Mode, OFlags, fstat};

use crate::error::{Error, Kind, Result};

/// A disk of a pod.
#[derive(Debug)]
pub(crate) struct Disk {
    handle: OwnedFd,
    /// Whether it is a block device; else a regular file.
    pub(crate) block: bool,
}

impl Disk {
    /// The disk `name` in a directory; `None`: there is nothing of that name.
    ///
    /// # Errors
    /// It is something else, or a symbolic link leads there.
    pub(crate) fn find(directory: &Dir, name: impl AsRef<Path>) -> Result<Option<Self>> {
        let name = name.as_ref();
        let Some(handle) = directory.handle(name)? else { return Ok(None) };
        Self::of(handle, &directory.path_of(name)).map(Some)
    }

    /// The disk that a handle names; `path` is for messages.
    ///
    /// # Errors
    /// It is something else.
    pub(crate) fn of(handle: OwnedFd, path: &Path) -> Result<Self> {
        let block = match file_type(&handle, path)? {
            FileType::RegularFile => false,
            FileType::BlockDevice => true,
            other @ (FileType::Directory
            | FileType::Symlink
            | FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::Unknown) => {
                let text = format!(
                    "{} is {}; a disk is a regular file or a block device",
                    path.display(),
                    called(other)
                );
                return Err(Error::new(Kind::Untrusted, text));
            }
        };
        Ok(Self { handle, block })
    }

    /// The handle: it names the file and cannot read it.
    pub(crate) fn handle(&self) -> &OwnedFd {
        &self.handle
    }

    /// Major and minor number of a block device.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn number(&self) -> Result<(u32, u32)> {
        let facts = fstat(&self.handle)
            .map_err(|error| Error::system("cannot inspect the device of a disk", error))?;
        Ok((rustix::fs::major(facts.st_rdev), rustix::fs::minor(facts.st_rdev)))
    }

    /// Opens it for reading, past the page cache if `direct`.
    ///
    /// # Errors
    /// It cannot be opened; with `direct`, its filesystem may not know that.
    pub(crate) fn open(&self, direct: bool) -> rustix::io::Result<File> {
        let mut flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        flags.set(OFlags::DIRECT, direct);
        // A handle is opened by its name in /proc, and by nothing else.
        let path = format!("/proc/self/fd/{}", self.handle.as_raw_fd());
        rustix::fs::open(path, flags, Mode::empty()).map(File::from)
    }
}

/// The type of what a handle names.
///
/// # Errors
/// The system refuses.
pub(crate) fn file_type(handle: &OwnedFd, path: &Path) -> Result<FileType> {
    let facts =
        fstat(handle).map_err(|error| Error::system(format!("cannot inspect {}", path.display()), error))?;
    Ok(FileType::from_raw_mode(facts.st_mode))
}

/// A type as people call it.
pub(crate) fn called(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "a regular file",
        FileType::Directory => "a directory",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice => "a character device",
        FileType::BlockDevice => "a block device",
        FileType::Unknown => "of an unknown type",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    fn tree() -> (tempfile::TempDir, Dir) {
        let tree = tempfile::tempdir().unwrap();
        let pod = tree.path().join("pod");
        std::fs::create_dir_all(pod.join("disk")).unwrap();
        std::fs::write(tree.path().join("secret"), "of the node").unwrap();
        std::fs::write(pod.join("disk/disk.img"), "a disk").unwrap();
        symlink("../../secret", pod.join("disk/link")).unwrap();
        symlink("/etc", pod.join("disk/etc")).unwrap();
        symlink("disk", pod.join("inside")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, pod.join("disk/fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        drop(std::os::unix::net::UnixListener::bind(pod.join("disk/socket")).unwrap());
        let opened = Dir::open(&pod).unwrap();
        (tree, opened)
    }

    #[test]
    fn a_disk_is_a_regular_file_beneath_its_directory() {
        let (_tree, pod) = tree();
        let disk = Disk::find(&pod, "disk/disk.img").unwrap().unwrap();
        assert!(!disk.block);
        let mut text = String::new();
        disk.open(false).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "a disk");
        assert!(Disk::find(&pod, "disk/none").unwrap().is_none());
    }

    #[test]
    fn links_fifos_sockets_and_ways_out_are_refused_without_waiting() {
        let (_tree, pod) = tree();
        for path in [
            "disk/link",
            "disk/etc/passwd",
            "inside/disk.img",
            "disk/fifo",
            "disk/socket",
            "disk",
            "../secret",
            "disk/../../secret",
            "/etc/passwd",
        ] {
            let error = Disk::find(&pod, path).unwrap_err();
            assert_eq!(error.kind(), Kind::Untrusted, "{path}: {}", error.chain());
        }
    }
}
