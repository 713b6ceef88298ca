//! The controller's jobs: one per object at once, each on a thread of its own, tried again later and later where it fails.
//! Not here: their number at once ([`super::jobs`]), their results ([`super::job_results`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread;

use super::controller::{Controller, Message, Outcome, Work};
use super::jobs::Task;
use crate::error::{Error, Kind};
use virt::time;

/// Longest wait before a job that failed is tried again, in seconds.
const RETRY_MAX: u64 = 300;

impl Controller {
    /// Whether a job of the object runs or waits.
    pub(super) fn is_busy(&self, uid: &str) -> bool {
        self.memory.get(uid).is_some_and(|memory| memory.job.is_some())
    }

    /// Has something done, unless something is being done for the same object.
    pub(super) fn job(
        &mut self,
        uid: &str,
        work: Work,
        task: impl FnOnce(&Arc<AtomicBool>, &Sender<Message>) -> Result<Outcome, Error> + Send + 'static,
    ) {
        if self.is_busy(uid) {
            return;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, name) = (self.sender(), uid.to_owned());
        self.memory(uid).job = Some(Arc::clone(&stop));
        self.touch(uid);
        let task: Task = Box::new(move || {
            let outcome = task(&stop, &sender);
            // The receiver is gone when the daemon ends.
            drop(sender.send(Message::Ended(name, work, outcome)));
        });
        // The others are short, make room, or wait for a client.
        let counts = matches!(work, Work::Make | Work::Fill | Work::Start);
        let task = if counts { self.jobs.admit(uid, work, task) } else { Some((uid.to_owned(), work, task)) };
        self.run_job(task);
    }

    fn run_job(&self, job: Option<(String, Work, Task)>) {
        let Some((uid, work, task)) = job else { return };
        if let Err(error) = thread::Builder::new().name("job".to_owned()).spawn(task) {
            let error = Error::with(Kind::System, "a job cannot be started", error);
            drop(self.sender.send(Message::Ended(uid, work, Err(error))));
        }
    }

    /// Notes that a job has ended; the next may begin.
    pub(super) fn job_ended(&mut self, uid: &str) {
        self.memory(uid).job = None;
        let next = self.jobs.ended(uid);
        self.run_job(next);
    }

    /// Ends an object's job, if there is one.
    pub(super) fn cancel(&mut self, uid: &str) {
        if let Some(stop) = self.memory.get(uid).and_then(|memory| memory.job.as_ref()) {
            stop.store(true, Ordering::Relaxed);
        }
        let waiting = self.jobs.recall(uid);
        self.run_job(waiting);
    }

    /// Notes that a try failed.
    pub(super) fn failed(&mut self, uid: &str) {
        let memory = self.memory(uid);
        memory.failures = memory.failures.saturating_add(1);
        let wait = 2u64.saturating_pow(memory.failures.min(10)).saturating_mul(2).min(RETRY_MAX);
        memory.retry = Some(time::now() + wait);
    }

    /// Whether an object may be tried now; if not, its next look is noted.
    pub(super) fn may_try(&mut self, uid: &str) -> bool {
        match self.memory.get(uid).and_then(|memory| memory.retry) {
            Some(time) if time > time::now() => {
                self.look_at(time);
                false
            }
            Some(_) | None => true,
        }
    }
}
