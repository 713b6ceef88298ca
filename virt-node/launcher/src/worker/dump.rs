//! Dumps of the guest's memory, one at a time, each on a thread of its own: other requests are answered while one is written.
//!
//! The last one is known for as long as the worker runs; a later worker knows none, and the request is repeated.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use api::launcher::{Dump, RefusedKind};

use super::libvirt::{self, Connection, Failure};

/// Kind and text of a refusal.
type Refused = (RefusedKind, String);

/// Longest path of a file.
const PATH_MAX: usize = 4096;

/// The last dump.
#[derive(Clone, Debug, Default)]
pub(super) struct Dumps(Arc<Mutex<Option<Dump>>>);

impl Dumps {
    fn lock(&self) -> MutexGuard<'_, Option<Dump>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last dump.
    pub(super) fn last(&self) -> Option<Dump> {
        self.lock().clone()
    }

    /// Whether one is being written.
    pub(super) fn is_writing(&self) -> bool {
        self.lock().as_ref().is_some_and(|dump| !dump.ended)
    }

    /// Begins a dump into the file of this path, unless the last one was to that.
    ///
    /// # Errors
    /// Another one is being written, or the path is none.
    pub(super) fn begin(&self, path: String, connection: &Arc<Connection>) -> Result<(), Refused> {
        let connection = Arc::clone(connection);
        self.begin_with(path, move |path| match libvirt::domain(&connection)? {
            Some(domain) => libvirt::dump(&domain, path),
            None => Err(Failure("the guest ended before its memory was dumped".to_owned())),
        })
    }

    fn begin_with(
        &self,
        path: String,
        write: impl FnOnce(&str) -> Result<(), Failure> + Send + 'static,
    ) -> Result<(), Refused> {
        if !path.starts_with('/') || path.len() > PATH_MAX {
            return Err((RefusedKind::Invalid, "the path of a memory dump must be absolute".to_owned()));
        }
        let mut last = self.lock();
        match last.as_ref() {
            Some(dump) if dump.path == path => return Ok(()),
            Some(dump) if !dump.ended => {
                let text = format!("the guest's memory is being dumped to {}", dump.path);
                return Err((RefusedKind::State, text));
            }
            Some(_) | None => {}
        }
        let dumps = self.clone();
        let of = path.clone();
        let work = move || {
            let error = write(&of).err().map(|failure| failure.0);
            *dumps.lock() = Some(Dump { path: of, ended: true, error });
        };
        let spawned = thread::Builder::new().name("dump".to_owned()).spawn(work);
        spawned.map_err(|error| (RefusedKind::Failed, error.to_string()))?;
        *last = Some(Dump { path, ..Dump::default() });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    use super::*;

    fn ended(dumps: &Dumps) -> Dump {
        let end = Instant::now() + Duration::from_secs(10);
        while Instant::now() < end {
            if let Some(dump) = dumps.last().filter(|dump| dump.ended) {
                return dump;
            }
            thread::sleep(Duration::from_millis(5));
        }
        panic!("the dump does not end: {:?}", dumps.last());
    }

    #[test]
    fn one_dump_is_written_at_a_time_and_the_same_one_once() {
        let dumps = Dumps::default();
        let (release, wait) = channel::<()>();
        let first = move |_: &str| {
            wait.recv().unwrap();
            Ok(())
        };
        assert!(dumps.begin_with("/a".into(), first).is_ok());
        assert_eq!(dumps.last(), Some(Dump { path: "/a".into(), ..Dump::default() }));
        assert!(dumps.begin_with("/a".into(), |_| panic!("twice")).is_ok());
        let refused = dumps.begin_with("/b".into(), |_| Ok(())).err().unwrap();
        assert_eq!(refused.0, RefusedKind::State);
        release.send(()).unwrap();
        assert_eq!(ended(&dumps), Dump { path: "/a".into(), ended: true, error: None });
        assert!(dumps.begin_with("/b".into(), |_| Err(Failure("no space".into()))).is_ok());
        let end = Instant::now() + Duration::from_secs(10);
        while ended(&dumps).path != "/b" && Instant::now() < end {}
        assert_eq!(ended(&dumps).error.as_deref(), Some("no space"));
        assert!(dumps.begin_with("relative".into(), |_| Ok(())).is_err());
    }
}
