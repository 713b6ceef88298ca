//! The receiving side of a connection: each message goes to the reader that asked for it, in any order and in pieces. A
//! message that cannot be placed ends the connection. Not here: asking (`connection`).

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use disk_image::RangeSet;
use tokio::io::{AsyncRead, AsyncReadExt, BufReader};
use tokio::sync::oneshot;

use super::buffers::Buffer;
use super::failure::{Failure, FailureKind};
use super::wire::{self, Head, Kind as Chunk, Nonsense, ServerError, Status};

/// Pieces of one read's answer at most. qemu-nbd and nbdkit send one per extent.
const PIECES: usize = 4096;
/// Bytes read at once from small messages; longer data goes straight to its place.
const SMALL: usize = 4096;

/// State shared by the connection and its tasks.
#[derive(Debug)]
pub(super) struct Shared {
    /// By cookie; `None` once the connection is gone.
    pub(super) pending: Mutex<Option<HashMap<u64, Pending>>>,
    /// Why it is gone.
    pub(super) why: Mutex<Option<(FailureKind, String)>>,
    /// Bytes that arrived.
    pub(super) received: AtomicU64,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// The first reason counts. Dropping what is pending closes the askers' channels.
    pub(super) fn end(&self, trouble: FailureKind, what: String) {
        lock(&self.why).get_or_insert((trouble, what));
        let pending = lock(&self.pending).take();
        drop(pending);
    }
}

/// A request without its whole answer.
#[derive(Debug)]
pub(super) enum Pending {
    Read(Reading),
    Status {
        status: Status,
        error: Option<ServerError>,
        answer: oneshot::Sender<Result<Status, ServerError>>,
    },
}

/// A read, and where its bytes go.
#[derive(Debug)]
pub(super) struct Reading {
    range: Range<u64>,
    buffer: Buffer,
    /// Received parts of `range`.
    got: RangeSet,
    error: Option<ServerError>,
    answer: oneshot::Sender<Result<Buffer, ServerError>>,
}

impl Reading {
    pub(super) fn new(
        range: Range<u64>,
        buffer: Buffer,
        answer: oneshot::Sender<Result<Buffer, ServerError>>,
    ) -> Self {
        Self { range, buffer, got: RangeSet::new(), error: None, answer }
    }

    /// The place of a piece of the answer, which may come only once.
    fn place(&mut self, offset: u64, len: u64) -> Result<&mut [u8], Nonsense> {
        let piece = offset..offset.saturating_add(len);
        if piece.is_empty() || piece.start < self.range.start || piece.end > self.range.end {
            return Err(Nonsense(format!("data for {piece:?} answers a read of {:?}", self.range)));
        }
        if self.got.gaps(piece.clone()) != [piece.clone()] {
            return Err(Nonsense(format!("data for {piece:?} came twice")));
        }
        self.got.insert(piece.clone());
        if self.got.len() > PIECES {
            return Err(Nonsense(format!("a read of {:?} is answered in too many pieces", self.range)));
        }
        let index = |at: u64| usize::try_from(at - self.range.start).unwrap_or(usize::MAX);
        Ok(&mut self.buffer.bytes_mut()[index(piece.start)..index(piece.end)])
    }
}

impl Pending {
    /// Whether an answer that claims to be whole is.
    fn complete(&self) -> Result<(), Nonsense> {
        match self {
            Self::Read(Reading { range, got, error: None, .. }) if !got.contains(range) => {
                let bytes = got.bytes();
                Err(Nonsense(format!("a read of {range:?} is answered with {bytes} bytes")))
            }
            Self::Status { status, error: None, .. } if status.is_empty() => {
                Err(Nonsense("a block status reply without descriptors".to_owned()))
            }
            Self::Read(_) | Self::Status { .. } => Ok(()),
        }
    }

    /// Delivers the answer. The caller may be gone.
    fn hand_over(self) {
        match self {
            Self::Read(Reading { buffer, answer, error, .. }) => {
                drop(answer.send(error.map_or(Ok(buffer), Err)))
            }
            Self::Status { status, answer, error } => drop(answer.send(error.map_or(Ok(status), Err))),
        }
    }
}

/// The receiving side, which counts what comes.
pub(super) struct Input<R> {
    inner: BufReader<R>,
    shared: Arc<Shared>,
}

impl<R: AsyncRead + Unpin> Input<R> {
    pub(super) fn new(socket: R, shared: Arc<Shared>) -> Self {
        Self { inner: BufReader::with_capacity(SMALL, socket), shared }
    }

    async fn exact(&mut self, mut out: &mut [u8]) -> Result<(), Failure> {
        while !out.is_empty() {
            let n = self
                .inner
                .read(out)
                .await
                .map_err(|e| Failure::new(FailureKind::Lost, format!("the connection broke: {e}")))?;
            if n == 0 {
                return Err(Failure::new(FailureKind::Lost, "the server closed the connection"));
            }
            self.shared.received.fetch_add(n as u64, Ordering::Relaxed);
            out = &mut out[n..];
        }
        Ok(())
    }

    async fn read_array<const N: usize>(&mut self) -> Result<[u8; N], Failure> {
        let mut bytes = [0; N];
        self.exact(&mut bytes).await?;
        Ok(bytes)
    }
}

/// Places what comes until the connection ends.
pub(super) async fn receive(
    mut input: Input<impl AsyncRead + Unpin>,
    structured: bool,
    context: Option<u32>,
) {
    let failure = loop {
        if let Err(failure) = message(&mut input, structured, context).await {
            break failure;
        }
    };
    input.shared.end(failure.trouble, failure.error.to_string());
}

/// One message.
async fn message(
    input: &mut Input<impl AsyncRead + Unpin>,
    structured: bool,
    context: Option<u32>,
) -> Result<(), Failure> {
    let head = wire::head(&input.read_array().await?)?;
    let cookie = match head {
        Head::Simple { cookie, .. } | Head::Structured { cookie, .. } => cookie,
    };
    // Out of the map while its data comes; back again if there is more to come.
    let pending = lock(&input.shared.pending).as_mut().and_then(|map| map.remove(&cookie));
    let Some(mut pending) = pending else {
        return Err(Nonsense(format!("an answer to request {cookie}, which is not open")).into());
    };
    match body(input, &mut pending, head, structured, context).await {
        Ok(true) => pending.hand_over(),
        Ok(false) => {
            if let Some(map) = lock(&input.shared.pending).as_mut() {
                map.insert(cookie, pending);
            }
        }
        Err(failure) => {
            // Before the asker sees its channel close.
            input.shared.end(failure.trouble, failure.error.to_string());
            return Err(failure);
        }
    }
    Ok(())
}

/// The rest of a message after its head; returns whether it completes the answer.
async fn body(
    input: &mut Input<impl AsyncRead + Unpin>,
    pending: &mut Pending,
    head: Head,
    structured: bool,
    context: Option<u32>,
) -> Result<bool, Failure> {
    let done = match head {
        Head::Simple { error, .. } => {
            simple(input, pending, error, structured).await?;
            true
        }
        Head::Structured { .. } if !structured => {
            return Err(Nonsense("a structured answer without having agreed on it".to_owned()).into());
        }
        Head::Structured { done, kind, .. } => {
            let len = u32::from_be_bytes(input.read_array().await?);
            let chunk = wire::kind(kind, len, done)?;
            self::chunk(input, pending, chunk, len, context).await?;
            done
        }
    };
    if done {
        pending.complete()?;
    }
    Ok(done)
}

/// The only message of an answer.
async fn simple(
    input: &mut Input<impl AsyncRead + Unpin>,
    pending: &mut Pending,
    error: u32,
    structured: bool,
) -> Result<(), Failure> {
    let reported = (error != 0).then(|| ServerError { code: error, words: String::new() });
    match pending {
        Pending::Read(_) if structured => {
            return Err(Nonsense("a read is answered without structure".to_owned()).into());
        }
        Pending::Read(reading) => {
            if reported.is_none() {
                let range = reading.range.clone();
                input.exact(reading.place(range.start, range.end - range.start)?).await?;
            }
            reading.error = reported;
        }
        Pending::Status { error, .. } => match reported {
            Some(reported) => *error = Some(reported),
            None => return Err(Nonsense("a status is answered without one".to_owned()).into()),
        },
    }
    Ok(())
}

/// One of an answer's messages.
async fn chunk(
    input: &mut Input<impl AsyncRead + Unpin>,
    pending: &mut Pending,
    chunk: Chunk,
    len: u32,
    context: Option<u32>,
) -> Result<(), Failure> {
    match (chunk, pending) {
        (Chunk::None, _) => {}
        (Chunk::Data, Pending::Read(reading)) => {
            let offset = u64::from_be_bytes(input.read_array().await?);
            let place = reading.place(offset, u64::from(len) - 8)?;
            input.exact(place).await?;
        }
        (Chunk::Hole, Pending::Read(reading)) => {
            let (offset, len) = wire::hole(&input.read_array().await?)?;
            reading.place(offset, u64::from(len))?.fill(0);
        }
        (Chunk::Status, Pending::Status { status, .. }) => {
            let id = u32::from_be_bytes(input.read_array().await?);
            if Some(id) != context {
                return Err(Nonsense(format!("a status of context {id}, which was not agreed on")).into());
            }
            let mut left = usize::try_from(len - 4).unwrap_or(usize::MAX);
            let mut some = [0; SMALL];
            while left > 0 {
                let part = left.min(some.len());
                input.exact(&mut some[..part]).await?;
                status.add(&some[..part])?;
                left -= part;
            }
        }
        (Chunk::Error, pending) => {
            // At most ERROR_MAX bytes.
            let mut data = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
            input.exact(&mut data).await?;
            let reported = ServerError::parse(&data)?;
            let error = match pending {
                Pending::Read(reading) => &mut reading.error,
                Pending::Status { error, .. } => error,
            };
            error.get_or_insert(reported);
        }
        (Chunk::Data | Chunk::Hole, Pending::Status { .. }) | (Chunk::Status, Pending::Read(_)) => {
            return Err(Nonsense(format!("{chunk:?} is no answer to this request")).into());
        }
    }
    Ok(())
}
