//! The reservations of `host-local` on disk, in the reference's format, so that both can work on one network:
//! a file per address holds `<container>\r\n<interface>` (older ones the container alone), `last_reserved_ip.<set>` the
//! address that was given last, and `lock` is held with flock by whoever looks or changes.
//!
//! ```text
//! 10.1.2.3                     the reservation
//! .3f2a9c01d5e6b748.10.1.2.3   a hard link to it, ours: its name tells the owner
//! ```
//!
//! With the second name an owner's addresses are found by listing the folder instead of reading every file. It is only a
//! hint: a reservation without it, made by the reference, is read, and the reference removes both names because both
//! have the content it looks for.
//!
//! A reservation appears with all its content or not at all. Nothing is forced to the disk: a node that loses power has
//! lost its pods too. What that leaves without content has no owner, and is free.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Write};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use sha2::{Digest, Sha512};

use crate::error::Error;
use crate::protocol::Attachment;

/// The longest content of a reservation that is looked at, in bytes.
const CONTENT_LIMIT: u64 = 4096;

/// Digits of an owner in a second name.
const OWNER_DIGITS: usize = 16;

/// The reservations of one network, locked as long as this lives.
pub(super) struct Store {
    path: PathBuf,
    folder: OwnedFd,
    _lock: OwnedFd,
}

/// Who has an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Owner {
    pub(super) container: String,
    /// Empty in files of old versions, which did not say.
    pub(super) interface: String,
}

impl Owner {
    /// Whether it is the attachment, or was it before files named the interface.
    pub(super) fn is(&self, attachment: &Attachment) -> bool {
        self.container == attachment.container
            && (self.interface.is_empty() || self.interface == attachment.interface)
    }
}

/// One look at the folder.
#[derive(Default)]
pub(super) struct Contents {
    /// All reserved addresses, with their files' inode numbers.
    addresses: BTreeMap<IpAddr, u64>,
    /// The second names: owner, address, inode number.
    marks: BTreeSet<(String, IpAddr, u64)>,
}

impl Contents {
    /// The addresses that are reserved.
    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.keys().copied()
    }

    /// Whether an address is reserved.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.addresses.contains_key(&address)
    }

    /// The owner's digits of a reservation that has a second name.
    fn marked(&self) -> BTreeMap<IpAddr, &str> {
        let paired =
            |(_, address, inode): &&(String, IpAddr, u64)| self.addresses.get(address) == Some(inode);
        self.marks.iter().filter(paired).map(|(owner, address, _)| (*address, owner.as_str())).collect()
    }
}

impl Store {
    /// Opens the folder, made if it is not there, and waits for its lock.
    ///
    /// # Errors
    /// [`crate::Kind::Io`]; so do all of the following.
    pub(super) fn make(path: &Path) -> Result<Self, Error> {
        match Self::open(path)? {
            Some(store) => Ok(store),
            None => {
                std::fs::create_dir_all(path).map_err(|error| {
                    Error::io(format!("the folder {} cannot be made", path.display()), error)
                })?;
                Self::open(path)?.ok_or_else(|| {
                    Error::io(format!("the folder {} went away", path.display()), Errno::NOENT)
                })
            }
        }
    }

    /// The same without making it; none when it is not there.
    ///
    /// # Errors
    /// See [`Store::make`].
    pub(super) fn open(path: &Path) -> Result<Option<Self>, Error> {
        let failed =
            |errno: Errno| Error::io(format!("the reservations in {} cannot be read", path.display()), errno);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(folder) => folder,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        };
        let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::CLOEXEC;
        let lock = rustix::fs::openat(&folder, "lock", flags, Mode::from_raw_mode(0o600)).map_err(failed)?;
        loop {
            match rustix::fs::flock(&lock, FlockOperation::LockExclusive) {
                Ok(()) => return Ok(Some(Self { path: path.to_owned(), folder, _lock: lock })),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
    }

    /// Lists what is reserved.
    ///
    /// # Errors
    /// See [`Store::make`].
    pub(super) fn look(&self) -> Result<Contents, Error> {
        let mut contents = Contents::default();
        for entry in Dir::read_from(&self.folder).map_err(|errno| self.failed("read", errno))? {
            let entry = entry.map_err(|errno| self.failed("read", errno))?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if let Ok(address) = name.parse::<IpAddr>() {
                contents.addresses.insert(address, entry.ino());
            } else if let Some((owner, address)) =
                name.strip_prefix('.').and_then(|name| name.split_once('.'))
                && let Ok(address) = address.parse::<IpAddr>()
                && owner.len() == OWNER_DIGITS
            {
                contents.marks.insert((owner.to_owned(), address, entry.ino()));
            }
        }
        Ok(contents)
    }

    /// The addresses of an attachment. As in the reference, those of files that name no interface count only when there
    /// are no others.
    ///
    /// # Errors
    /// See [`Store::make`].
    pub(super) fn of(&self, attachment: &Attachment, contents: &Contents) -> Result<Vec<IpAddr>, Error> {
        let digits = owner_digits(attachment);
        let marked = contents.marked();
        let mut exact = Vec::new();
        let mut vague = Vec::new();
        for address in contents.addresses() {
            if marked.get(&address).is_some_and(|owner| *owner != digits) {
                continue;
            }
            match self.owner(address)? {
                Some(owner) if owner.is(attachment) => {
                    if owner.interface.is_empty() {
                        vague.push(address)
                    } else {
                        exact.push(address)
                    }
                }
                Some(_) | None => {}
            }
        }
        Ok(if exact.is_empty() { vague } else { exact })
    }

    /// Who has a reserved address; none when its file says nothing or is gone.
    ///
    /// # Errors
    /// See [`Store::make`].
    pub(super) fn owner(&self, address: IpAddr) -> Result<Option<Owner>, Error> {
        let Some(content) = self.read(&address.to_string())? else { return Ok(None) };
        let content = content.trim();
        if content.trim_matches('\0').is_empty() {
            return Ok(None);
        }
        let (container, interface) = content.split_once('\n').unwrap_or((content, ""));
        Ok(Some(Owner { container: container.trim().to_owned(), interface: interface.trim().to_owned() }))
    }

    /// Reserves an address that is not reserved, and notes it as the last one of its range set.
    ///
    /// # Errors
    /// See [`Store::make`]; nothing is reserved then.
    pub(super) fn reserve(&self, address: IpAddr, attachment: &Attachment, set: usize) -> Result<(), Error> {
        let name = address.to_string();
        let content = format!("{}\r\n{}", attachment.container, attachment.interface);
        self.write_whole(&name, content.as_bytes())?;
        let flags = AtFlags::empty();
        // Only a hint, and there are file systems without hard links.
        let _ = rustix::fs::linkat(&self.folder, &name, &self.folder, mark(attachment, address), flags);
        // Where to go on is a hint too; half of it is as good as none.
        let _ = self.write_last(&name, set);
        Ok(())
    }

    /// Frees addresses. What is gone already is no failure.
    ///
    /// # Errors
    /// See [`Store::make`].
    pub(super) fn free(&self, addresses: &[IpAddr], contents: &Contents) -> Result<(), Error> {
        // The second name goes first: a reservation without one is read, one that is only a second name is not seen.
        for (owner, address, _) in contents.marks.iter().filter(|(_, address, _)| addresses.contains(address))
        {
            self.remove(&format!(".{owner}.{address}"))?;
        }
        addresses.iter().try_for_each(|address| self.remove(&address.to_string()))
    }

    /// Takes back what [`Store::reserve`] just did.
    ///
    /// # Errors
    /// See [`Store::make`].
    pub(super) fn take_back(&self, address: IpAddr, attachment: &Attachment) -> Result<(), Error> {
        self.remove(&mark(attachment, address))?;
        self.remove(&address.to_string())
    }

    /// Removes second names whose reservation is gone.
    ///
    /// # Errors
    /// See [`Store::make`].
    pub(super) fn tidy(&self, contents: &Contents) -> Result<(), Error> {
        let stale =
            |(_, address, inode): &&(String, IpAddr, u64)| contents.addresses.get(address) != Some(inode);
        contents
            .marks
            .iter()
            .filter(stale)
            .try_for_each(|(owner, address, _)| self.remove(&format!(".{owner}.{address}")))
    }

    /// The address that was given last out of a range set.
    pub(super) fn last(&self, set: usize) -> Option<IpAddr> {
        self.read(&last_name(set)).ok()??.trim().parse().ok()
    }

    fn write_last(&self, address: &str, set: usize) -> std::io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.folder, last_name(set), flags, Mode::from_raw_mode(0o600))?;
        File::from(file).write_all(address.as_bytes())
    }

    /// Makes a file that appears with all its content.
    fn write_whole(&self, name: &str, content: &[u8]) -> Result<(), Error> {
        let failed = |error: std::io::Error| {
            Error::io(format!("{name} cannot be reserved in {}", self.path.display()), error)
        };
        let mode = Mode::from_raw_mode(0o600);
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.folder, ".", flags | OFlags::TMPFILE, mode) {
            Ok(file) => {
                let mut file = File::from(file);
                file.write_all(content).map_err(failed)?;
                let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
                rustix::fs::linkat(CWD, unnamed, &self.folder, name, AtFlags::SYMLINK_FOLLOW)
                    .map_err(|errno| failed(errno.into()))
            }
            // File systems without nameless files: the lock keeps others from seeing half of it.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                let flags = flags | OFlags::CREATE | OFlags::EXCL;
                let file = rustix::fs::openat(&self.folder, name, flags, mode);
                let mut file = File::from(file.map_err(|errno| failed(errno.into()))?);
                file.write_all(content).map_err(|error| match self.remove(name) {
                    Ok(()) => failed(error),
                    Err(also) => also,
                })
            }
            Err(errno) => Err(failed(errno.into())),
        }
    }

    fn read(&self, name: &str) -> Result<Option<String>, Error> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
        let file = match rustix::fs::openat(&self.folder, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(self.failed("read", errno)),
        };
        let mut content = Vec::with_capacity(512);
        match file.take(CONTENT_LIMIT).read_to_end(&mut content) {
            Ok(_) => Ok(Some(String::from_utf8_lossy(&content).into_owned())),
            // A folder that has the name of an address is no reservation, and keeps its address from being given.
            Err(error) if error.kind() == std::io::ErrorKind::IsADirectory => Ok(Some("?".to_owned())),
            Err(error) => Err(Error::io(format!("{name} in {} cannot be read", self.path.display()), error)),
        }
    }

    fn remove(&self, name: &str) -> Result<(), Error> {
        match rustix::fs::unlinkat(&self.folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => {
                Err(Error::io(format!("{name} in {} cannot be removed", self.path.display()), errno))
            }
        }
    }

    fn failed(&self, what: &str, errno: Errno) -> Error {
        Error::io(format!("the reservations in {} cannot be {what}", self.path.display()), errno)
    }
}

fn last_name(set: usize) -> String {
    format!("last_reserved_ip.{set}")
}

fn mark(attachment: &Attachment, address: IpAddr) -> String {
    format!(".{}.{address}", owner_digits(attachment))
}

fn owner_digits(attachment: &Attachment) -> String {
    let text = format!("{}/{}", attachment.container, attachment.interface);
    Sha512::digest(text.as_bytes()).iter().take(OWNER_DIGITS / 2).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(container: &str) -> Attachment {
        Attachment { container: container.into(), interface: "net1".into() }
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn what_is_reserved_is_found_and_freed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/net");
        assert!(Store::open(&path).unwrap().is_none());
        let store = Store::make(&path).unwrap();
        store.reserve(address("10.1.2.3"), &attachment("c1"), 0).unwrap();
        store.reserve(address("fd00::3"), &attachment("c1"), 1).unwrap();
        store.reserve(address("10.1.2.4"), &attachment("c2"), 0).unwrap();
        assert_eq!(std::fs::read(path.join("10.1.2.3")).unwrap(), b"c1\r\nnet1");
        assert_eq!(std::fs::read(path.join("last_reserved_ip.0")).unwrap(), b"10.1.2.4");
        assert_eq!((store.last(0), store.last(1)), (Some(address("10.1.2.4")), Some(address("fd00::3"))));

        let contents = store.look().unwrap();
        assert_eq!(contents.marked().len(), 3);
        let mine = store.of(&attachment("c1"), &contents).unwrap();
        assert_eq!(mine, [address("10.1.2.3"), address("fd00::3")]);
        store.free(&mine, &contents).unwrap();
        assert!(store.of(&attachment("c1"), &store.look().unwrap()).unwrap().is_empty());
        store.take_back(address("10.1.2.4"), &attachment("c2")).unwrap();
        assert_eq!(names(&path), ["last_reserved_ip.0", "last_reserved_ip.1", "lock"]);
        // Twice is no failure.
        store.free(&mine, &contents).unwrap();
    }

    #[test]
    fn second_names_are_a_hint() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let store = Store::make(path).unwrap();
        store.reserve(address("10.1.2.3"), &attachment("c1"), 0).unwrap();
        // Somebody removed the reservation and made one of their own.
        std::fs::remove_file(path.join("10.1.2.3")).unwrap();
        std::fs::write(path.join("10.1.2.3"), "c2\r\nnet1").unwrap();
        let contents = store.look().unwrap();
        assert!(store.of(&attachment("c1"), &contents).unwrap().is_empty());
        assert_eq!(store.of(&attachment("c2"), &contents).unwrap(), [address("10.1.2.3")]);
        store.tidy(&contents).unwrap();
        assert_eq!(names(path), ["10.1.2.3", "last_reserved_ip.0", "lock"]);
    }

    #[test]
    fn files_of_old_versions_count_when_there_are_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::make(folder.path()).unwrap();
        std::fs::write(folder.path().join("10.1.2.3"), "c1").unwrap();
        std::fs::write(folder.path().join("10.1.2.4"), "c1 \n").unwrap();
        std::fs::write(folder.path().join("10.1.2.5"), "").unwrap();
        std::fs::write(folder.path().join("10.1.2.6"), "\0\0\0").unwrap();
        let contents = store.look().unwrap();
        let found = store.of(&attachment("c1"), &contents).unwrap();
        assert_eq!(found, [address("10.1.2.3"), address("10.1.2.4")]);
        assert_eq!(store.owner(address("10.1.2.5")).unwrap(), None);
        assert_eq!(store.owner(address("10.1.2.6")).unwrap(), None);
        store.reserve(address("10.1.2.7"), &attachment("c1"), 0).unwrap();
        assert_eq!(store.of(&attachment("c1"), &store.look().unwrap()).unwrap(), [address("10.1.2.7")]);
    }
}
