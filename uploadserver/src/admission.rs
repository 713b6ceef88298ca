//! The one place for an upload: which request holds it, and how the last upload ended.
//!
//! ```text
//!            POST                      success
//!   free ───────────► taken by upload ─────────► finished
//!    ▲                   │      │
//!    └──── failure ◄─────┘      └─► by another POST, when the client of the first is gone
//! ```
//!
//! Not here: HTTP.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use disk_image::volume::{self, Error, Kind};
use tokio::sync::watch;

use crate::answer::{Ended, Refusal};
use crate::decode::Shape;
use crate::upload::{Outcome, Upload};

/// How long an upload that is ended may take to let go of the volume.
const LETTING_GO: Duration = Duration::from_secs(30);
/// How long a broken upload can be resumed.
const RESUME_WITHIN: Duration = Duration::from_secs(3600);

/// The place.
pub(crate) struct Admission {
    volume: volume::Config,
    inside: Mutex<Inside>,
    ended: watch::Sender<Option<Ended>>,
}

#[derive(Default)]
struct Inside {
    /// The last upload, running or not.
    last: Option<Arc<Upload>>,
    /// It runs.
    taken: bool,
    finished: bool,
    /// The deadline has passed.
    late: bool,
}

/// Result of a request for the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlaceState {
    Free,
    Taken { alive: bool },
    Finished,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Enter,
    /// End the upload there is first.
    Replace,
    Refused(Refusal),
}

/// Whether an upload may begin.
fn admit(found: PlaceState, late: bool) -> Decision {
    match (found, late) {
        (PlaceState::Finished, _) => Decision::Refused(Refusal::Finished),
        (PlaceState::Taken { alive: true }, _) => Decision::Refused(Refusal::Busy),
        (PlaceState::Free | PlaceState::Taken { alive: false }, true) => Decision::Refused(Refusal::Late),
        (PlaceState::Free, false) => Decision::Enter,
        (PlaceState::Taken { alive: false }, false) => Decision::Replace,
    }
}

/// Why an upload does not begin.
#[derive(Debug)]
pub(crate) enum AdmitError {
    Refused(Refusal),
    Failed(Error),
}

impl Admission {
    /// A free place for an upload into `volume`.
    pub(crate) fn new(volume: volume::Config) -> Arc<Self> {
        Arc::new(Self { volume, inside: Mutex::default(), ended: watch::Sender::new(None) })
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an upload of `size` bytes, if that is known.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        shape: &Shape,
        size: Option<u64>,
        resumable: bool,
    ) -> Result<Arc<Upload>, AdmitError> {
        let until = tokio::time::Instant::now() + LETTING_GO;
        loop {
            let gone = {
                let mut inside = self.lock();
                let found = match (&inside.last, inside.taken, inside.finished) {
                    (_, _, true) => PlaceState::Finished,
                    (Some(last), true, false) => PlaceState::Taken { alive: last.feed.is_alive() },
                    (_, _, false) => PlaceState::Free,
                };
                match (admit(found, inside.late), inside.last.clone()) {
                    (Decision::Refused(refusal), _) => return Err(AdmitError::Refused(refusal)),
                    (Decision::Replace, Some(last)) => last,
                    (Decision::Replace | Decision::Enter, _) => {
                        let admission = self.clone();
                        let ended = move |upload: &_, outcome: &_| admission.leave(upload, outcome);
                        let upload = Upload::start(&self.volume, shape.clone(), size, resumable, ended)
                            .map_err(|e| {
                                AdmitError::Failed(Error::with(Kind::Process, "cannot start the upload", e))
                            })?;
                        (inside.last, inside.taken) = (Some(upload.clone()), true);
                        return Ok(upload);
                    }
                }
            };
            tracing::info!("a new upload replaces one without a client");
            gone.cancel();
            if tokio::time::timeout_at(until, gone.end()).await.is_err() {
                return Err(AdmitError::Refused(Refusal::Busy));
            }
        }
    }

    /// `upload` has ended.
    fn leave(&self, upload: &Arc<Upload>, outcome: &Outcome) {
        let mut inside = self.lock();
        inside.taken = false;
        if let Ok(done) = &**outcome {
            inside.finished = true;
            let ended = Ended::Uploaded {
                clone: upload.clone,
                preallocated: done.preallocated,
                warnings: done.warnings.clone(),
            };
            self.ended.send_replace(Some(ended));
        }
    }

    /// The last upload, if it has this name and can be resumed.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<Upload>> {
        self.lock().last.clone().filter(|upload| upload.resumable && upload.name == name)
    }

    /// The last upload.
    pub(crate) fn last(&self) -> Option<Arc<Upload>> {
        self.lock().last.clone()
    }

    /// Ends an upload that was not resumed in time and, when the deadline has passed without an upload, the server.
    pub(crate) fn look_after(&self, late: bool) {
        let mut inside = self.lock();
        inside.late = late;
        let deserted = inside.last.as_ref().filter(|_| inside.taken).and_then(|last| last.feed.idle_time());
        if deserted.is_some_and(|since| late || since > RESUME_WITHIN)
            && let Some(last) = &inside.last
        {
            last.cancel();
        }
        if late && !inside.taken && !inside.finished {
            self.ended.send_if_modified(|ended| {
                ended.is_none().then(|| *ended = Some(Ended::DeadlinePassed)).is_some()
            });
        }
    }

    /// Waits until there is nothing more to do.
    pub(crate) async fn end(&self) -> Ended {
        let mut ended = self.ended.subscribe();
        loop {
            if let Some(ended) = ended.borrow_and_update().clone() {
                return ended;
            }
            // The sender is ours: it does not go.
            drop(ended.changed().await);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_upload_at_a_time_gets_the_place() {
        use Decision::{Enter, Refused, Replace};
        for (found, late, expected) in [
            (PlaceState::Free, false, Enter),
            (PlaceState::Free, true, Refused(Refusal::Late)),
            (PlaceState::Taken { alive: true }, false, Refused(Refusal::Busy)),
            (PlaceState::Taken { alive: true }, true, Refused(Refusal::Busy)),
            (PlaceState::Taken { alive: false }, false, Replace),
            (PlaceState::Taken { alive: false }, true, Refused(Refusal::Late)),
            (PlaceState::Finished, false, Refused(Refusal::Finished)),
            (PlaceState::Finished, true, Refused(Refusal::Finished)),
        ] {
            assert_eq!(admit(found, late), expected, "{found:?} {late}");
        }
    }
}
