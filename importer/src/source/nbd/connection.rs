//! One connection to an NBD server: many requests in flight and their answers in any order.
//!
//! ```text
//!  read() status() ──► pending by cookie ◄──────── receive task ◄── socket
//!         └──────────► send task ──► socket            └─► each asker's channel
//! ```
//!
//! A server that breaks the protocol loses the connection: nothing after the break can be placed. Every asker then
//! finds its channel closed and the reason in [`Connection::why`]. Not here: the handshake (`handshake`), the receive
//! task (`answers`), when to connect again (`mod`).

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::answers::{Input, Pending, Reading, Shared, lock, receive};
use super::buffers::Buffer;
use super::failure::{Failure, FailureKind};
use super::handshake::{self, Agreed, Dial};
use super::wire::{self, Command, Export, REQUEST, ServerError, Status};

/// An established connection. Dropping it disconnects from the server.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) export: Export,
    /// The context of block status, if the server has one.
    context: Option<u32>,
    shared: Arc<Shared>,
    send: mpsc::UnboundedSender<[u8; REQUEST]>,
    next: AtomicU64,
    sender: Mutex<Option<JoinHandle<()>>>,
}

/// A request's answer, or the error the server reports instead.
pub(super) type Answer<T> = oneshot::Receiver<Result<T, ServerError>>;

impl Connection {
    /// Connects, shakes hands and starts the tasks, on the runtime that polls this.
    pub(super) async fn dial(dial: &Dial) -> Result<Self, Failure> {
        Ok(Self::start(handshake::connect_and_negotiate(dial).await?))
    }

    fn start(Agreed { stream, export, structured, context }: Agreed) -> Self {
        let (read, write) = tokio::io::split(stream);
        let shared = Arc::new(Shared {
            pending: Mutex::new(Some(HashMap::new())),
            why: Mutex::default(),
            received: AtomicU64::new(0),
        });
        let (send, requests) = mpsc::unbounded_channel();
        let receiver = tokio::spawn(receive(Input::new(read, shared.clone()), structured, context));
        let sender = tokio::spawn(transmit(write, requests, shared.clone(), receiver));
        let (next, sender) = (AtomicU64::new(1), Mutex::new(Some(sender)));
        Self { export, context, shared, send, next, sender }
    }

    /// Requests `range`, of `buffer`'s length.
    pub(super) fn read(&self, range: Range<u64>, buffer: Buffer) -> Result<Answer<Buffer>, Failure> {
        let (answer, receiver) = oneshot::channel();
        let (offset, len) = (range.start, length(&range));
        self.submit(Command::Read, offset, len, Pending::Read(Reading::new(range, buffer, answer)))?;
        Ok(receiver)
    }

    /// Requests the data ranges of `range`; `None` if the server does not support it. `range` is shorter than 4 GiB.
    pub(super) fn status(&self, range: Range<u64>) -> Result<Option<Answer<Status>>, Failure> {
        if self.context.is_none() {
            return Ok(None);
        }
        let (answer, receiver) = oneshot::channel();
        let (offset, len) = (range.start, length(&range));
        let status = Pending::Status { status: Status::new(range), error: None, answer };
        self.submit(Command::BlockStatus, offset, len, status)?;
        Ok(Some(receiver))
    }

    fn submit(&self, command: Command, offset: u64, len: u32, pending: Pending) -> Result<(), Failure> {
        let cookie = self.next.fetch_add(1, Ordering::Relaxed);
        match &mut *lock(&self.shared.pending) {
            Some(map) => map.insert(cookie, pending),
            None => return Err(self.why()),
        };
        self.send.send(wire::request(command, cookie, offset, len)).map_err(|_| self.why())
    }

    /// Whether requests can still be made.
    pub(super) fn is_alive(&self) -> bool {
        lock(&self.shared.pending).is_some()
    }

    /// Why it is gone.
    pub(super) fn why(&self) -> Failure {
        let why = lock(&self.shared.why).clone();
        let (trouble, what) = why.unwrap_or((FailureKind::Lost, "the connection was closed".to_owned()));
        Failure::new(trouble, what)
    }

    /// Bytes that arrived, to see whether any still do.
    pub(super) fn received(&self) -> u64 {
        self.shared.received.load(Ordering::Relaxed)
    }

    /// Gives up on it: waiting callers get the error.
    pub(super) fn abandon(&self, trouble: FailureKind, what: &str) {
        self.shared.end(trouble, what.to_owned());
    }

    /// A future to await after dropping it, until the server has received the disconnect request.
    pub(super) fn disconnected(&self) -> Option<JoinHandle<()>> {
        lock(&self.sender).take()
    }
}

fn length(range: &Range<u64>) -> u32 {
    // Callers bound it.
    u32::try_from(range.end.saturating_sub(range.start)).unwrap_or(u32::MAX)
}

/// Sends requests until the connection is dropped, then the disconnect request.
async fn transmit(
    mut output: impl AsyncWrite + Unpin,
    mut requests: mpsc::UnboundedReceiver<[u8; REQUEST]>,
    shared: Arc<Shared>,
    receiver: JoinHandle<()>,
) {
    while let Some(request) = requests.recv().await {
        if let Err(error) = async {
            output.write_all(&request).await?;
            output.flush().await
        }
        .await
        {
            shared.end(FailureKind::Lost, format!("the connection broke: {error}"));
        }
    }
    // The server may be gone already, and need not answer.
    let goodbye = wire::request(Command::Disconnect, 0, 0, 0);
    if output.write_all(&goodbye).await.is_ok() {
        drop(output.shutdown().await);
    }
    receiver.abort();
    shared.end(FailureKind::Lost, "the connection was closed".to_owned());
}
