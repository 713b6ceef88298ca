//! The numbers of users that daemons of this machine hold, so that two daemons with state directories of their own never
//! give one number to two VMs: a VM's user may be asked to end with all its processes.
//!
//! ```text
//! /run/ferrovirt/ids/lock     held while a number is taken or given back
//! /run/ferrovirt/ids/NUMBER   the file of numbers (daemon::ids) of the state directory that holds it
//! ```
//!
//! A record is stale when that file is gone or does not list the number. Not here: which number is for what.

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

/// The records of this machine, until it restarts.
pub(super) const PLACE: &str = "/run/ferrovirt/ids";
/// Timeout of the lock: another daemon reads and writes some small files while it holds it.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest path in a record, in bytes.
const RECORD_MAX: u64 = 4096;

/// The records.
#[derive(Debug)]
pub(super) struct Registry(PathBuf);

/// The records while no other daemon changes them.
#[derive(Debug)]
pub(super) struct Locked<'a> {
    place: &'a Path,
    _lock: File,
}

impl Registry {
    /// The records in this directory, which is made when it is needed.
    pub(super) fn new(place: impl Into<PathBuf>) -> Self {
        Self(place.into())
    }

    /// Its directory.
    pub(super) fn place(&self) -> &Path {
        &self.0
    }

    /// Keeps other daemons from changing the records.
    ///
    /// # Errors
    /// The directory cannot be made, or another daemon holds the lock for more than five seconds.
    pub(super) fn lock(&self) -> io::Result<Locked<'_>> {
        fs::create_dir_all(&self.0)?;
        fs::set_permissions(&self.0, fs::Permissions::from_mode(0o700))?;
        let lock = File::create(self.0.join("lock"))?;
        let until = Instant::now() + LOCK_TIMEOUT;
        while let Err(error) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            if Instant::now() > until {
                return Err(error.into());
            }
            sleep(Duration::from_millis(10));
        }
        Ok(Locked { place: &self.0, _lock: lock })
    }
}

impl Locked<'_> {
    fn record(&self, id: u32) -> PathBuf {
        self.place.join(id.to_string())
    }

    /// The file of numbers in the record of `id`; `None`: there is no record.
    fn holder(&self, id: u32) -> io::Result<Option<PathBuf>> {
        let record = dir::read(self.record(id), RECORD_MAX)?;
        Ok(record.map(|path| PathBuf::from(std::ffi::OsString::from_vec(path))))
    }

    /// Claims a number for the file of numbers `mine`; `false`: another file that lists it, by `lists`, holds it.
    ///
    /// # Errors
    /// The record cannot be read or written.
    pub(super) fn claim(
        &self,
        id: u32,
        mine: &Path,
        lists: impl FnOnce(&Path, u32) -> bool,
    ) -> io::Result<bool> {
        match self.holder(id)? {
            Some(holder) if holder == mine => return Ok(true),
            Some(holder) if lists(&holder, id) => return Ok(false),
            Some(_) | None => {}
        }
        dir::replace(self.record(id), mine.as_os_str().as_bytes(), 0o600)?;
        Ok(true)
    }

    /// Gives a number back that `mine` holds.
    ///
    /// # Errors
    /// The record cannot be read or removed.
    pub(super) fn give_back(&self, id: u32, mine: &Path) -> io::Result<()> {
        match self.holder(id)? {
            Some(holder) if holder == mine => fs::remove_file(self.record(id)),
            Some(_) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_one_holder_until_it_is_given_back_or_the_record_is_stale() {
        let place = tempfile::tempdir().unwrap();
        let registry = Registry::new(place.path().join("ids"));
        let (a, b) = (Path::new("/a/ids"), Path::new("/b/ids"));
        let locked = registry.lock().unwrap();
        assert!(locked.claim(7, a, |_, _| true).unwrap());
        assert!(locked.claim(7, a, |_, _| true).unwrap(), "it is its own");
        assert!(!locked.claim(7, b, |_, _| true).unwrap(), "another one holds it");
        locked.give_back(7, b).unwrap();
        assert!(!locked.claim(7, b, |_, _| true).unwrap(), "only the holder gives it back");
        locked.give_back(7, a).unwrap();
        assert!(locked.claim(7, b, |_, _| true).unwrap());
        assert!(locked.claim(7, a, |_, _| false).unwrap(), "the record of b is stale");
    }

    #[test]
    fn a_second_daemon_waits_for_the_lock() {
        let place = tempfile::tempdir().unwrap();
        let registry = Registry::new(place.path());
        let locked = registry.lock().unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| registry.lock().map(drop));
            sleep(Duration::from_millis(50));
            assert!(!second.is_finished());
            drop(locked);
            second.join().unwrap().unwrap();
        });
    }
}
