//! The freeze of the guest's filesystems: it ends by itself, also when the program that asked for it and the worker are gone.
//!
//! ```text
//! freeze ─► guest-fsfreeze-freeze ─► deadline, also in the folder ─► a thread of its own thaws then, again until the agent does
//! thaw, reset ─► no deadline
//! ```
//!
//! Not here: the guest agent's answers to other commands, and which program froze the guest.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::Notice;
use super::libvirt::Failure;
use crate::folder::{Deadline, Folder};

/// Until the agent is asked again to thaw a guest whose time is over.
const RETRY: Duration = Duration::from_secs(5);

/// The result of asking the agent to thaw.
pub(super) enum Thawed {
    /// It did, or the guest is gone.
    Yes,
    /// It does not answer, or refuses.
    No,
}

/// The freeze of a guest.
#[derive(Clone, Debug)]
pub(super) struct Freeze(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    folder: Folder,
    notices: Sender<Notice>,
    /// When the filesystems are thawed; `None`: they are not frozen.
    until: Mutex<Option<Instant>>,
    changed: Condvar,
    alone: Mutex<()>,
}

impl Freeze {
    pub(super) fn new(folder: Folder, notices: Sender<Notice>) -> Self {
        let (until, changed, alone) = (Mutex::default(), Condvar::new(), Mutex::default());
        Self(Arc::new(Shared { folder, notices, until, changed, alone }))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Held while the agent is asked to freeze or thaw: a thaw whose time is over does not undo a freeze that just begins.
    pub(super) fn alone(&self) -> MutexGuard<'_, ()> {
        self.0.alone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the filesystems are frozen, as far as the requests say.
    pub(super) fn is_on(&self) -> bool {
        self.lock().is_some()
    }

    /// The filesystems are about to be frozen for this time; `thaw` is called when it is over, until it succeeds.
    ///
    /// # Errors
    /// The time cannot be recorded, or no thread be started: then nothing may be frozen.
    pub(super) fn begin(
        &self,
        time: Duration,
        thaw: impl Fn() -> Thawed + Send + 'static,
    ) -> Result<(), Failure> {
        let failed = |error: &dyn ToString| Failure(error.to_string());
        let mut until = self.lock();
        self.0.folder.set_remaining(Deadline::Thaw, time).map_err(|error| failed(&error.chain()))?;
        if until.is_none() {
            let freeze = self.clone();
            let work = move || freeze.end_in_time(thaw);
            thread::Builder::new().name("thaw".to_owned()).spawn(work).map_err(|error| failed(&error))?;
        }
        *until = Some(Instant::now() + time);
        drop(until);
        self.0.changed.notify_all();
        Ok(())
    }

    /// The filesystems are not frozen.
    pub(super) fn end(&self) {
        let mut until = self.lock();
        *until = None;
        // Left behind it only makes the next worker thaw a guest that is not frozen.
        drop(self.0.folder.forget(Deadline::Thaw));
        drop(until);
        self.0.changed.notify_all();
        self.report();
    }

    /// Clients are sent the status.
    pub(super) fn report(&self) {
        // Without a receiver the worker ends.
        drop(self.0.notices.send(Notice::Status));
    }

    fn end_in_time(&self, thaw: impl Fn() -> Thawed) {
        let mut until = self.lock();
        while let Some(time) = *until {
            let left = time.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                let waited = self.0.changed.wait_timeout(until, left);
                until = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            drop(until);
            let _alone = self.alone();
            // Requests are served without this lock: the deadline is compared again.
            if *self.lock() == Some(time) {
                match thaw() {
                    Thawed::Yes => return self.end(),
                    Thawed::No => {
                        if let Some(until) = self.lock().as_mut() {
                            *until = Instant::now() + RETRY;
                        }
                    }
                }
            }
            until = self.lock();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn freeze() -> (tempfile::TempDir, Folder, Freeze, Receiver<Notice>) {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::new(place.path()).unwrap();
        let (sender, notices) = channel();
        let freeze = Freeze::new(folder.clone(), sender);
        (place, folder, freeze, notices)
    }

    #[test]
    fn a_freeze_ends_after_its_time_and_is_reported() {
        let (_place, folder, freeze, notices) = freeze();
        let thaws = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&thaws);
        let thaw = move || {
            count.fetch_add(1, Ordering::Relaxed);
            Thawed::Yes
        };
        freeze.begin(Duration::from_millis(50), thaw).unwrap();
        assert!(freeze.is_on() && folder.remaining(Deadline::Thaw).unwrap().is_some());
        assert!(matches!(notices.recv_timeout(Duration::from_secs(10)), Ok(Notice::Status)));
        assert!(!freeze.is_on() && thaws.load(Ordering::Relaxed) == 1);
        assert_eq!(folder.remaining(Deadline::Thaw).unwrap(), None);
    }

    #[test]
    fn an_earlier_freeze_does_not_end_a_later_one() {
        let (_place, folder, freeze, _notices) = freeze();
        let never = || panic!("it is thawed");
        freeze.begin(Duration::from_millis(100), never).unwrap();
        freeze.begin(LONG, never).unwrap();
        thread::sleep(Duration::from_millis(300));
        assert!(freeze.is_on());
        freeze.end();
        freeze.begin(LONG, never).unwrap();
        assert!(folder.remaining(Deadline::Thaw).unwrap().unwrap() > LONG / 2);
        freeze.end();
        assert!(!freeze.is_on());
    }
}
