//! Calls of CSI as work on the disk: each runs on a thread of its own, to its end, and a failure is logged. Not here: wire
//! types, and what a call does.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinError;
use tonic::Status;

use crate::error::{Kind, Result};
use crate::id::Id;

/// Controllers' calls at once; more wait.
const CONTROLLERS: usize = 48;
/// Those of them that may take minutes.
const SLOW: usize = 12;
/// Calls of the kubelet that find a thread whatever the controllers do; they are short.
const KUBELETS: usize = 16;
/// Parts of streams that are read at once; more wait.
const STREAMS: usize = 8;
/// Threads for calls. While controllers' calls wait for their turn, all threads come into being and take memory: a turn ends
/// before its thread is free again, and the next call starts another.
pub(crate) const THREADS: usize = CONTROLLERS + KUBELETS + STREAMS;

/// A call, as each log line of its work names it.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    name: &'static str,
    /// The volume, snapshot or group that it is about; empty when it is about none.
    id: String,
    /// The volumes that a snapshot or group is taken of; empty for other calls.
    sources: String,
}

impl Call {
    /// The call `name` about a volume, snapshot or group.
    pub(crate) fn of(name: &'static str, id: impl std::fmt::Display) -> Self {
        Self { name, id: id.to_string(), sources: String::new() }
    }

    /// The call `name` that takes a snapshot or group of `volumes`.
    pub(crate) fn taking(name: &'static str, id: impl std::fmt::Display, volumes: &[Id]) -> Self {
        let volumes: Vec<&str> = volumes.iter().map(Id::as_str).collect();
        Self { sources: volumes.join(","), ..Self::of(name, id) }
    }

    /// The call `name` about all of them.
    pub(crate) fn named(name: &'static str) -> Self {
        Self { name, id: String::new(), sources: String::new() }
    }

    /// The span of the call's work. Of the highest level: lines of each level have it.
    pub(crate) fn span(&self) -> tracing::Span {
        fn some(text: &str) -> Option<&str> {
            Some(text).filter(|text| !text.is_empty())
        }
        tracing::error_span!("csi", call = self.name, id = some(&self.id), source = some(&self.sources))
    }
}

/// Turns of controllers' calls and of streams. The kubelet's calls need none: a pod must not wait for clones.
#[derive(Clone, Debug)]
pub(crate) struct Lanes {
    controller: Arc<Semaphore>,
    slow: Arc<Semaphore>,
    streams: Arc<Semaphore>,
}

impl Default for Lanes {
    fn default() -> Self {
        Self {
            controller: Arc::new(Semaphore::new(CONTROLLERS)),
            slow: Arc::new(Semaphore::new(SLOW)),
            streams: Arc::new(Semaphore::new(STREAMS)),
        }
    }
}

impl Lanes {
    /// Runs a controller's call that may copy, clone or allocate, for minutes: few at once, others wait without a thread.
    pub(crate) async fn slow<P: Send + Sync + 'static, T: Send + 'static>(
        &self,
        part: &Arc<P>,
        what: Call,
        call: impl FnOnce(&P) -> Result<T> + Send + 'static,
    ) -> std::result::Result<T, Status> {
        let turn = self.slow.clone().acquire_owned().await.ok();
        self.run(part, what, move |part| {
            let _turn = turn;
            call(part)
        })
        .await
    }

    /// Reads a part of a stream: however many there are, threads are left for calls.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        part: impl FnOnce() -> T + Send + 'static,
    ) -> std::result::Result<T, JoinError> {
        let turn = self.streams.clone().acquire_owned().await.ok();
        let read = move || {
            let _turn = turn;
            part()
        };
        tokio::task::spawn_blocking(read).await
    }

    /// Runs a controller's call: however many there are, threads are left for the kubelet's.
    pub(crate) async fn run<P: Send + Sync + 'static, T: Send + 'static>(
        &self,
        part: &Arc<P>,
        what: Call,
        call: impl FnOnce(&P) -> Result<T> + Send + 'static,
    ) -> std::result::Result<T, Status> {
        let turn = self.controller.clone().acquire_owned().await.ok();
        run(part, what, move |part| {
            let _turn = turn;
            call(part)
        })
        .await
    }
}

/// Runs a call of a part of the driver on a thread of its own. It runs to its end, whether the caller waits or not.
pub(crate) async fn run<P: Send + Sync + 'static, T: Send + 'static>(
    part: &Arc<P>,
    what: Call,
    call: impl FnOnce(&P) -> Result<T> + Send + 'static,
) -> std::result::Result<T, Status> {
    let part = part.clone();
    let span = what.span();
    let work = span.clone();
    match tokio::task::spawn_blocking(move || work.in_scope(|| call(&part))).await {
        Ok(result) => result.map_err(|error| {
            let _entered = span.enter();
            match error.kind() {
                Kind::Internal | Kind::NotReady | Kind::Overloaded => {
                    tracing::warn!(error = %error.chain(), "the call failed");
                }
                Kind::Invalid
                | Kind::NotFound
                | Kind::Exists
                | Kind::Exhausted
                | Kind::Precondition
                | Kind::Busy
                | Kind::OutOfRange
                | Kind::Unsupported => {
                    tracing::debug!(error = %error.chain(), "the call is refused");
                }
            }
            Status::from(error)
        }),
        Err(_) => Err(Status::internal("the call panicked, which is a defect of the driver")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn parts_of_many_streams_leave_threads_to_calls() {
        let lanes = Lanes::default();
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let start = |_| {
            let (lanes, running, most) = (lanes.clone(), running.clone(), most.clone());
            let part = move || {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(20));
                running.fetch_sub(1, Ordering::SeqCst);
            };
            tokio::spawn(async move { lanes.read(part).await })
        };
        let parts: Vec<_> = (0..4 * STREAMS).map(start).collect();
        for part in parts {
            part.await.unwrap().unwrap();
        }
        let most = most.load(Ordering::SeqCst);
        assert!((1..=STREAMS).contains(&most), "{most} at once");
    }
}
