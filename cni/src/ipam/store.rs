//! The reservations of `host-local` on disk, in the reference's format, so that both can work on one network: a file per
//! address holds `<container>\r\n<interface>` (older ones the container alone), `last_reserved_ip.<set>` the address that
//! was reserved last, and `lock` is held with flock by every reader and writer.
//!
//! ```text
//! 10.1.2.3              the reservation
//! .3f2a9c01d5e6b748.0   a symbolic link to it, ours: its name identifies the owner, and counts the owner's addresses
//! ```
//!
//! By its second name a reservation is found without reading the others, which are a thousand on a full node. Reservations
//! of the reference have none, and get one from our next ADD: the reference writes `last_reserved_ip` with every
//! reservation, ours sets the time of that file to zero when it is done, so another time means that the directory must be
//! read. The reference removes both names, because through both it reads the content it looks for.
//!
//! A reservation appears with all its content or not at all. Nothing is forced to the disk: a node that loses power has
//! lost its pods too. What that leaves without content has no owner, and is free.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, Dir, FlockOperation, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;
use sha2::{Digest, Sha512};

use crate::error::{Error, Kind};
use crate::protocol::Attachment;

/// The longest content of a reservation that is looked at, in bytes: above every container id that fits into a variable.
const CONTENT_LIMIT: u64 = 256 << 10;

/// Digits of an owner in a second name.
const OWNER_DIGITS: usize = 16;

/// The reservations of one network, locked as long as this lives.
pub(super) struct Store {
    path: PathBuf,
    folder: OwnedFd,
    _lock: OwnedFd,
}

/// The owner of an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Owner {
    pub(super) container: String,
    /// Empty in files of old versions, which hold the container alone.
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
    addresses: BTreeSet<IpAddr>,
    /// The second names.
    marks: Vec<String>,
}

impl Contents {
    /// The addresses that are reserved.
    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().copied()
    }

    /// Whether an address is reserved.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
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
            // Where no folder can be, none is.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => return Ok(None),
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

    /// Lists the reserved addresses and the marks.
    ///
    /// # Errors
    /// See [`Store::make`].
    pub(super) fn list(&self) -> Result<Contents, Error> {
        let mut contents = Contents::default();
        for entry in Dir::read_from(&self.folder).map_err(|errno| self.failed("read", errno))? {
            let entry = entry.map_err(|errno| self.failed("read", errno))?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if let Ok(address) = name.parse::<IpAddr>() {
                contents.addresses.insert(address);
            } else if let Some((digits, _)) = name.strip_prefix('.').and_then(|name| name.split_once('.'))
                && digits.len() == OWNER_DIGITS
            {
                contents.marks.push(name.to_owned());
            }
        }
        Ok(contents)
    }

    /// Whether a file of that name is there.
    ///
    /// # Errors
    /// See [`Store::make`].
    pub(super) fn has(&self, address: IpAddr) -> Result<bool, Error> {
        match rustix::fs::statat(&self.folder, address.to_string(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(self.failed("read", errno)),
        }
    }

    /// The addresses of an attachment, reserved by ours or the reference, completely or by an interrupted ADD.
    ///
    /// # Errors
    /// See [`Store::make`].
    pub(super) fn find(&self, attachment: &Attachment) -> Result<Vec<IpAddr>, Error> {
        let marked = if self.is_marked(1) { self.marked(attachment)? } else { Vec::new() };
        if marked.is_empty() { self.search(attachment, &self.list()?) } else { Ok(marked) }
    }

    /// Whether every reservation has its second name: the last one of every range set had, of at least so many sets.
    pub(super) fn is_marked(&self, sets: usize) -> bool {
        let done = |set| {
            let facts = rustix::fs::statat(&self.folder, last_name(set), AtFlags::SYMLINK_NOFOLLOW).ok()?;
            Some(facts.st_mtime == 0)
        };
        let done: Vec<bool> = (0..usize::MAX).map_while(done).collect();
        done.len() >= sets && done.into_iter().all(|done| done)
    }

    /// The addresses of an attachment that have a second name: all of them if [`Store::is_marked`].
    ///
    /// # Errors
    /// See [`Store::make`].
    pub(super) fn marked(&self, attachment: &Attachment) -> Result<Vec<IpAddr>, Error> {
        let mut marked = Vec::new();
        for (_, address) in self.marks(attachment)? {
            if let Some(address) = address
                && self.owner(address)?.is_some_and(|owner| owner.is(attachment))
            {
                marked.push(address);
            }
        }
        Ok(marked)
    }

    /// The addresses of an attachment by reading all reservations. As in the reference, those of files that name no
    /// interface count only when there are no others.
    ///
    /// # Errors
    /// See [`Store::make`].
    pub(super) fn search(&self, attachment: &Attachment, contents: &Contents) -> Result<Vec<IpAddr>, Error> {
        let mut exact = Vec::new();
        let mut vague = Vec::new();
        for address in contents.addresses() {
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

    /// Gives every reservation that lacks one its second name; false when one cannot have one.
    ///
    /// # Errors
    /// See [`Store::make`].
    pub(super) fn mark_all(&self, contents: &Contents) -> Result<bool, Error> {
        let mut all = true;
        for address in contents.addresses() {
            let Some(Owner { container, interface }) = self.owner(address)? else { continue };
            if interface.is_empty() {
                all = false;
                continue;
            }
            let owner = Attachment { container, interface };
            if !self.marks(&owner)?.iter().any(|(_, marked)| *marked == Some(address)) {
                all &= self.mark(&owner, address)?;
            }
        }
        Ok(all)
    }

    /// The second names of an attachment's reservations, and the addresses they lead to.
    fn marks(&self, attachment: &Attachment) -> Result<Vec<(String, Option<IpAddr>)>, Error> {
        let mut marks = Vec::new();
        for name in mark_names(attachment) {
            match rustix::fs::readlinkat(&self.folder, &name, Vec::new()) {
                Ok(target) => marks.push((name, target.to_str().ok().and_then(|text| text.parse().ok()))),
                // Somebody's file.
                Err(Errno::INVAL) => marks.push((name, None)),
                Err(Errno::NOENT) => break,
                Err(errno) => return Err(self.failed("read", errno)),
            }
        }
        Ok(marks)
    }

    /// Gives a reservation its second name; false where there are no symbolic links.
    fn mark(&self, attachment: &Attachment, address: IpAddr) -> Result<bool, Error> {
        for name in mark_names(attachment) {
            match rustix::fs::symlinkat(address.to_string(), &self.folder, name) {
                Ok(()) => return Ok(true),
                Err(Errno::EXIST) => {}
                Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(false),
                Err(errno) => return Err(self.failed("marked", errno)),
            }
        }
        Ok(false)
    }

    /// The owner of a reserved address; `None` when its file is empty or gone.
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

    /// Reserves a free address, and records it as the last one of its range set; `marked` reports whether all other
    /// reservations have their second name.
    ///
    /// # Errors
    /// See [`Store::make`]; nothing is reserved then.
    pub(super) fn reserve(
        &self,
        address: IpAddr,
        attachment: &Attachment,
        set: usize,
        marked: bool,
    ) -> Result<(), Error> {
        let name = address.to_string();
        // Where to go on is a hint; half of it is as good as none. Written first: until its time is set, the folder is
        // known to have a reservation without its second name.
        let last = self.write_last(&name, set);
        let content = format!("{}\r\n{}", attachment.container, attachment.interface);
        self.write_whole(&name, content.as_bytes())?;
        match self.mark(attachment, address) {
            Ok(true) if marked => {
                let zero = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
                let times = Timestamps { last_access: zero(UTIME_OMIT), last_modification: zero(0) };
                // Without it, the next ADD reads the folder.
                let _ = last.and_then(|file| Ok(rustix::fs::futimens(file, &times)?));
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(error) => Error::all([Some(error), self.remove(&name).err()].into_iter().flatten().collect()),
        }
    }

    /// Frees addresses of an attachment. What is gone already is no failure.
    ///
    /// # Errors
    /// See [`Store::make`].
    pub(super) fn free(&self, addresses: &[IpAddr], attachment: &Attachment) -> Result<(), Error> {
        addresses.iter().try_for_each(|address| self.clear(*address))?;
        // After them, so that none is ever without. From the end, so that those that are left are counted without a gap.
        for (name, address) in self.marks(attachment)?.into_iter().rev() {
            let owner = address.map(|address| self.owner(address)).transpose()?.flatten();
            if !owner.is_some_and(|owner| owner.is(attachment)) {
                self.remove(&name)?;
            }
        }
        Ok(())
    }

    /// Frees an address.
    ///
    /// # Errors
    /// See [`Store::make`].
    pub(super) fn clear(&self, address: IpAddr) -> Result<(), Error> {
        self.remove(&address.to_string())
    }

    /// Frees the addresses of owners that are not to be kept, and whatever second name leads to none of its owner's.
    ///
    /// # Errors
    /// See [`Store::make`].
    pub(super) fn sweep(&self, contents: &Contents, keep: impl Fn(&Owner) -> bool) -> Result<(), Error> {
        let mut kept = BTreeSet::new();
        for address in contents.addresses() {
            match self.owner(address)?.filter(&keep) {
                Some(Owner { container, interface }) => {
                    kept.insert((owner_digits(&Attachment { container, interface }), address.to_string()));
                }
                None => self.clear(address)?,
            }
        }
        for name in &contents.marks {
            let digits = name.get(1..=OWNER_DIGITS).unwrap_or_default().to_owned();
            let target = rustix::fs::readlinkat(&self.folder, name, Vec::new()).unwrap_or_default();
            if !kept.contains(&(digits, target.to_string_lossy().into_owned())) {
                self.remove(name)?;
            }
        }
        Ok(())
    }

    /// The address that was given last out of a range set.
    pub(super) fn last(&self, set: usize) -> Option<IpAddr> {
        let mut text = String::new();
        self.open_last(set, OFlags::RDONLY).ok()?.take(CONTENT_LIMIT).read_to_string(&mut text).ok()?;
        text.trim().parse().ok()
    }

    fn write_last(&self, address: &str, set: usize) -> std::io::Result<File> {
        // Overwritten without truncation: ext4 flushes a truncated file at close, for programs that replace a file so, and
        // allocates its block again: milliseconds, for a hint.
        let mut file = self.open_last(set, OFlags::WRONLY | OFlags::CREATE)?;
        file.write_all(address.as_bytes())?;
        if file.metadata()?.len() != address.len() as u64 {
            file.set_len(address.len() as u64)?;
        }
        Ok(file)
    }

    fn open_last(&self, set: usize, flags: OFlags) -> std::io::Result<File> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
        Ok(rustix::fs::openat(&self.folder, last_name(set), flags, Mode::from_raw_mode(0o600))?.into())
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

/// Whether reservations could be written to `folder`, which need not be there yet.
///
/// # Errors
/// [`crate::Kind::Unavailable`] with the kernel's error.
pub(super) fn writable(folder: &Path) -> Result<(), Error> {
    for path in folder.ancestors() {
        match room(path) {
            Ok(()) => return Ok(()),
            Err(Errno::NOENT) => {}
            Err(errno) => {
                let message = format!("no address can be reserved in {}", path.display());
                return Err(Error::with(Kind::Unavailable, message, errno));
            }
        }
    }
    Ok(())
}

/// Writes what a reservation has to a file without a name, which goes at once.
fn room(folder: &Path) -> Result<(), Errno> {
    rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK)?;
    let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
    match rustix::fs::open(folder, flags, Mode::from_raw_mode(0o600)) {
        Ok(file) => rustix::io::write(file, b"container\r\neth0").map(drop),
        // File systems without nameless files.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => match rustix::fs::statvfs(folder)?.f_bfree {
            0 => Err(Errno::NOSPC),
            _ => Ok(()),
        },
        Err(errno) => Err(errno),
    }
}

fn last_name(set: usize) -> String {
    format!("last_reserved_ip.{set}")
}

/// The second names that the reservations of an attachment have, one after the other.
fn mark_names(attachment: &Attachment) -> impl Iterator<Item = String> {
    let digits = owner_digits(attachment);
    (0..u16::MAX).map(move |number| format!(".{digits}.{number}"))
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
    fn reservations_are_found_and_freed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/net");
        assert!(Store::open(&path).unwrap().is_none());
        let store = Store::make(&path).unwrap();
        let (one, two) = (attachment("c1"), attachment("c2"));
        store.reserve(address("10.1.2.3"), &one, 0, true).unwrap();
        store.reserve(address("fd00::3"), &one, 1, false).unwrap();
        store.reserve(address("10.1.2.4"), &two, 0, true).unwrap();
        assert_eq!(std::fs::read(path.join("10.1.2.3")).unwrap(), b"c1\r\nnet1");
        assert_eq!(std::fs::read(path.join("last_reserved_ip.0")).unwrap(), b"10.1.2.4");
        let lasts = [0, 1, 2].map(|set| store.last(set));
        assert_eq!(lasts, [Some(address("10.1.2.4")), Some(address("fd00::3")), None]);

        assert_eq!(store.list().unwrap().marks.len(), 3);
        let mine = store.marked(&one).unwrap();
        assert_eq!(mine, [address("10.1.2.3"), address("fd00::3")]);
        assert_eq!(store.search(&one, &store.list().unwrap()).unwrap(), mine);
        store.free(&mine, &one).unwrap();
        assert!(store.find(&one).unwrap().is_empty());
        store.free(&[address("10.1.2.4")], &two).unwrap();
        assert_eq!(names(&path), ["last_reserved_ip.0", "last_reserved_ip.1", "lock"]);
        // Twice is no failure.
        store.free(&mine, &one).unwrap();
    }

    #[test]
    fn second_names_are_a_hint() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let store = Store::make(path).unwrap();
        let (one, two) = (attachment("c1"), attachment("c2"));
        assert!(!store.is_marked(1));
        store.reserve(address("10.1.2.3"), &one, 0, true).unwrap();
        assert!(store.is_marked(1) && !store.is_marked(2));
        // Another process removed the reservation and made its own.
        std::fs::remove_file(path.join("10.1.2.3")).unwrap();
        std::fs::write(path.join("10.1.2.3"), "c2\r\nnet1").unwrap();
        std::fs::write(path.join("last_reserved_ip.0"), "10.1.2.3").unwrap();
        assert!(!store.is_marked(1));
        assert!(store.find(&one).unwrap().is_empty());
        assert_eq!(store.find(&two).unwrap(), [address("10.1.2.3")]);
        assert!(store.marked(&two).unwrap().is_empty());
        assert!(store.mark_all(&store.list().unwrap()).unwrap());
        assert_eq!(store.marked(&two).unwrap(), [address("10.1.2.3")]);
        store.sweep(&store.list().unwrap(), |owner| owner.is(&two)).unwrap();
        assert!(store.marks(&one).unwrap().is_empty());
        assert_eq!((store.marks(&two).unwrap().len(), names(path).len()), (1, 4));
        store.sweep(&store.list().unwrap(), |_| false).unwrap();
        assert_eq!(names(path), ["last_reserved_ip.0", "lock"]);
    }

    #[test]
    fn files_of_old_versions_count_when_there_are_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::make(folder.path()).unwrap();
        std::fs::write(folder.path().join("10.1.2.3"), "c1").unwrap();
        std::fs::write(folder.path().join("10.1.2.4"), "c1 \n").unwrap();
        std::fs::write(folder.path().join("10.1.2.5"), "").unwrap();
        std::fs::write(folder.path().join("10.1.2.6"), "\0\0\0").unwrap();
        let found = store.find(&attachment("c1")).unwrap();
        assert_eq!(found, [address("10.1.2.3"), address("10.1.2.4")]);
        assert_eq!(store.owner(address("10.1.2.5")).unwrap(), None);
        assert_eq!(store.owner(address("10.1.2.6")).unwrap(), None);
        assert!(!store.mark_all(&store.list().unwrap()).unwrap());
        store.reserve(address("10.1.2.7"), &attachment("c1"), 0, false).unwrap();
        assert_eq!(store.find(&attachment("c1")).unwrap(), [address("10.1.2.7")]);
    }
}
