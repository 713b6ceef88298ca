//! The directory of a run; its lower half belongs to the VM's user.
//!
//! ```text
//! run/UID/       root's, others pass through: log (the launcher's standard error), NAME.img, NAME.qcow2, NAME.image
//! run/UID/vm/    the VM's user's: everything that its launcher, libvirt and QEMU write; sockets
//! ```
//!
//! Root writes nothing below `vm`, and reads and connects there by descriptor only ([`dir`]): whatever its owner plants is
//! neither followed, waited for nor read beyond a limit.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::launcher::{Cause, EXIT_RECORD, Exit, SOCKET};
use dir::{Dir, Owner};

use crate::error::{Error, Kind};
use guest::Client;
use virt::time;

/// The directory of the VM's user.
const OWN: &str = "vm";
/// Longest record of an end, in bytes.
const EXIT_MAX: u64 = 64 << 10;
/// How long a connection may wait for a place in the queue of a listener that the VM's user controls. The controller
/// connects to streams, too: it must answer within a second.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(250);

/// The end of a guest that no launcher recorded, now.
pub(super) fn ended(cause: Cause) -> Exit {
    Exit { uid: String::new(), cause, code: cause.code(), time: time::now() }
}

/// A run's directory.
#[derive(Clone, Debug)]
pub(super) struct Run(PathBuf);

impl Run {
    /// The directory at this path, whether it is there or not.
    pub(super) fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Root's part.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// The part of the VM's user.
    pub(super) fn own(&self) -> PathBuf {
        self.0.join(OWN)
    }

    /// The launcher's log, by which it is known.
    pub(super) fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    /// Whether there is one.
    pub(super) fn exists(&self) -> bool {
        self.0.is_dir()
    }

    /// Makes what is missing of it, for this user.
    ///
    /// # Errors
    /// The filesystem's error.
    pub(super) fn make(&self, owner: Owner) -> Result<(), Error> {
        let failed = |error: io::Error| Error::with(Kind::System, self.0.display().to_string(), error);
        fs::create_dir_all(&self.0).map_err(failed)?;
        fs::set_permissions(&self.0, fs::Permissions::from_mode(0o711)).map_err(failed)?;
        let made = || {
            let dir = Dir::open(&self.0)?;
            dir.dir_or_make(OWN, 0o700)?.chown_self(owner)
        };
        made().map_err(|error| failed(error.into()))
    }

    /// The user that it was made for; `None`: it is not there.
    pub(super) fn owner(&self) -> Option<Owner> {
        let found = self.open().ok()??.stat_self().ok()?;
        Some(Owner { uid: found.st_uid, gid: found.st_gid })
    }

    /// The part of the VM's user; `None`: it is not there.
    fn open(&self) -> dir::Result<Option<Dir>> {
        match Dir::find(&self.0)? {
            Some(dir) => dir.one_mount().dir(OWN),
            None => Ok(None),
        }
    }

    fn need(&self) -> io::Result<Dir> {
        Ok(self.open()?.ok_or_else(|| {
            dir::Error::new(format!("open {}", self.own().display()), io::ErrorKind::NotFound)
        })?)
    }

    /// The record of the end; `None`: there is none that can be read.
    pub(super) fn exit(&self) -> Option<Exit> {
        let record = self.open().ok()??.read(EXIT_RECORD, EXIT_MAX).ok()??;
        serde_json::from_slice(&record).ok()
    }

    /// The end of a run whose launcher is gone; `None`: there is no record. A record that cannot be read is one, too: of a
    /// guest that is gone nothing else will tell the cause.
    pub(super) fn end(&self) -> Option<Exit> {
        let unreadable = || {
            self.open().ok()??.stat(EXIT_RECORD).ok()??;
            Some(ended(Cause::Lost))
        };
        self.exit().or_else(unreadable)
    }

    /// Whether the guest was there.
    pub(super) fn is_started(&self) -> bool {
        self.open()
            .is_ok_and(|dir| dir.is_some_and(|dir| dir.stat("started").is_ok_and(|stat| stat.is_some())))
    }

    /// A connection to one of the sockets of QEMU or of the launcher.
    ///
    /// # Errors
    /// There is none, or its owner put something else there.
    pub(super) fn connect(&self, socket: &str) -> io::Result<UnixStream> {
        Ok(self.need()?.connect(socket, CONNECT_TIMEOUT)?)
    }

    /// A connection to the launcher.
    ///
    /// # Errors
    /// As [`Run::connect`].
    pub(super) fn client(&self) -> io::Result<Client> {
        Client::over(self.connect(SOCKET)?)
    }

    /// Removes the directory; one that is not there is gone.
    ///
    /// # Errors
    /// Something in it stays.
    pub(super) fn remove(&self) -> Result<(), Error> {
        let (Some(above), Some(name)) = (self.0.parent(), self.0.file_name()) else { return Ok(()) };
        let removed = Dir::open(above).and_then(|dir| dir.remove_all(name));
        removed.map(drop).map_err(|error| Error::with(Kind::System, self.0.display().to_string(), error))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::time::Instant;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    fn run(place: &tempfile::TempDir) -> Run {
        let run = Run::new(place.path().join("run"));
        let owner =
            Owner { uid: rustix::process::getuid().as_raw(), gid: rustix::process::getgid().as_raw() };
        run.make(owner).unwrap();
        run
    }

    /// Each of these blocked the whole daemon, or led it elsewhere.
    #[test]
    fn planted_records_and_sockets_neither_block_nor_lead_elsewhere() {
        let place = tempfile::tempdir().unwrap();
        let run = run(&place);
        let exit = r#"{"cause": "shutdown", "code": 0, "time": 1}"#;
        let theirs = place.path().join("theirs");
        fs::write(&theirs, exit).unwrap();
        let record = run.own().join(EXIT_RECORD);
        let begun = Instant::now();
        assert!(run.end().is_none());
        // A link to a file that reads as a record, a FIFO, an endless file, a directory. Without a launcher each is an end of
        // unknown cause.
        std::os::unix::fs::symlink(&theirs, &record).unwrap();
        assert!(run.exit().is_none() && run.end().unwrap().cause == Cause::Lost);
        fs::remove_file(&record).unwrap();
        mknodat(CWD, &record, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
        assert!(run.exit().is_none() && run.end().unwrap().cause == Cause::Lost);
        fs::remove_file(&record).unwrap();
        fs::File::create(&record).unwrap().set_len(1 << 40).unwrap();
        assert!(run.exit().is_none() && run.end().unwrap().cause == Cause::Lost);
        fs::remove_file(&record).unwrap();
        fs::write(&record, exit.replace("0", "99999999999999")).unwrap();
        assert!(run.exit().is_none() && run.end().unwrap().cause == Cause::Lost);
        fs::remove_file(&record).unwrap();
        fs::create_dir(&record).unwrap();
        assert!(run.exit().is_none() && run.end().unwrap().cause == Cause::Lost);
        // A link to another process's socket.
        let _theirs = UnixListener::bind(place.path().join("socket")).unwrap();
        std::os::unix::fs::symlink(place.path().join("socket"), run.own().join(SOCKET)).unwrap();
        assert!(run.client().is_err() && run.connect("absent").is_err());
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    }

    #[test]
    fn a_whole_run_goes_and_nothing_that_it_links_to() {
        let (place, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let run = run(&place);
        fs::write(outside.path().join("theirs"), "").unwrap();
        std::os::unix::fs::symlink(outside.path(), run.own().join("link")).unwrap();
        run.remove().unwrap();
        run.remove().unwrap();
        assert!(!run.exists() && outside.path().join("theirs").exists());
    }
}
