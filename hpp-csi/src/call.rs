//! Calls of CSI as work on the disk: each runs on a thread of its own, to its end, and a failure is logged. Not here: wire
//! types, and what a call does.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tonic::Status;

use crate::error::{Kind, Result};
use crate::id::Id;

/// Controllers' calls at once; more wait.
const CONTROLLERS: usize = 48;
/// Those of them that may take minutes.
const SLOW: usize = 12;
/// Calls of the kubelet that find a thread whatever the controllers do; they are short.
const KUBELETS: usize = 16;
/// Threads for calls. While controllers' calls wait for their turn, all threads come into being and take memory: a turn ends
/// before its thread is free again, and the next call starts another.
pub(crate) const THREADS: usize = CONTROLLERS + KUBELETS;

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

/// Turns of controllers' calls. The kubelet's need none: a pod must not wait for clones.
#[derive(Clone, Debug)]
pub(crate) struct Lanes {
    controller: Arc<Semaphore>,
    slow: Arc<Semaphore>,
}

impl Default for Lanes {
    fn default() -> Self {
        Self { controller: Arc::new(Semaphore::new(CONTROLLERS)), slow: Arc::new(Semaphore::new(SLOW)) }
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
