//! The connections that are served: when there is no room for one more, the one that is idle longest is closed. Not here: what is
//! answered.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use hyper::body::{Body, Frame, SizeHint};
use tokio::task::AbortHandle;

/// Connections served at once; the importer makes eight.
pub(crate) const CONNECTIONS_MAX: usize = 64;

/// The requests of one connection.
#[derive(Debug)]
pub(crate) struct Activity {
    /// Requests with an answer that is not sent yet.
    answering: AtomicUsize,
    /// Since when there is none.
    idle: Mutex<Instant>,
}

/// A request that is being answered, until it is dropped with the answer's body.
#[derive(Debug)]
pub(crate) struct Answering(Arc<Activity>);

/// The body of an answer, which keeps its connection busy until the last of it is sent.
#[derive(Debug)]
pub(crate) struct BusyBody<B> {
    body: B,
    _answering: Answering,
}

impl<B> BusyBody<B> {
    /// A body of this request's answer.
    pub(crate) fn new(body: B, answering: Answering) -> Self {
        Self { body, _answering: answering }
    }
}

impl<B: Body + Unpin> Body for BusyBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    /// The length of the answer's head is from here.
    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Activity {
    /// A new connection, which is idle.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { answering: AtomicUsize::new(0), idle: Mutex::new(Instant::now()) })
    }

    /// A request came.
    pub(crate) fn answer(self: &Arc<Self>) -> Answering {
        self.answering.fetch_add(1, Ordering::AcqRel);
        Answering(Arc::clone(self))
    }

    fn idle_since(&self) -> Option<Instant> {
        let idle = *self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        (self.answering.load(Ordering::Acquire) == 0).then_some(idle)
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        *self.0.idle.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.0.answering.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The connections.
#[derive(Debug, Default)]
pub(crate) struct Connections(Vec<(Arc<Activity>, AbortHandle)>);

impl Connections {
    /// Makes room for one more; `false`: all are busy.
    pub(crate) fn make_room(&mut self) -> bool {
        self.0.retain(|(_, task)| !task.is_finished());
        if self.0.len() < CONNECTIONS_MAX {
            return true;
        }
        let idle = self.0.iter().enumerate().filter_map(|(place, (one, _))| Some((one.idle_since()?, place)));
        let Some((_, place)) = idle.min() else { return false };
        let (_, task) = self.0.swap_remove(place);
        task.abort();
        true
    }

    /// Counts a connection that is served by this task.
    pub(crate) fn add(&mut self, activity: Arc<Activity>, task: AbortHandle) {
        self.0.push((activity, task));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_connection_that_is_idle_longest_makes_room_and_a_busy_one_does_not() {
        let mut connections = Connections::default();
        let mut tasks = Vec::new();
        let mut busy = Vec::new();
        for number in 0..CONNECTIONS_MAX {
            assert!(connections.make_room());
            let task = tokio::spawn(std::future::pending::<()>());
            let activity = Activity::new();
            if number != 5 {
                busy.push(activity.answer());
            }
            connections.add(activity, task.abort_handle());
            tasks.push(task);
        }
        assert!(connections.make_room(), "one is idle");
        assert!(tasks.remove(5).await.unwrap_err().is_cancelled());
        let task = tokio::spawn(std::future::pending::<()>());
        let activity = Activity::new();
        busy.push(activity.answer());
        connections.add(activity, task.abort_handle());
        assert!(!connections.make_room(), "all are busy");
        drop(busy);
        assert!(connections.make_room());
    }
}
