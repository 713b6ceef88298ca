//! One object on a server, read as [`disk_image::Source`]: what http, S3 and GCS have in common.
//!
//! A protocol says how to ask for bytes ([`Remote`]); this says when to ask again, from where, and whether what comes
//! is still the same object. It never hands on a byte that it cannot place. Not here: URLs, headers, signatures.
//!
//! ```text
//!            ┌────────── get(from own offset) ◄───── wait ◄──┐
//!  read ──►  │                 │ part                        │ broke, busy, cut short
//!            │   placed? same mark, same length? ──no──► Changed, or the whole again and skip
//!            └──────► chunk ──► caller                       │
//!                       └── end of part before its end ──────┘
//! ```
//!
//! Each reader has a lane of its own ([`Net::lane`]) with one connection on it; lanes are kept for the next reader.

use std::collections::hash_map::RandomState;
use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Read};
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use disk_image::{Access, Facts, Source};
use futures_util::{Stream, StreamExt};
use tokio::time::timeout;

use super::blocking::Net;
use super::retry::{self, Cause, Policy, Spell, Verdict, Why};
use super::tls::{Proxies, Trust};
use crate::error::{Error, Kind};

/// The object is no longer the one whose first bytes were read. What was imported so far is of no use; starting over
/// gives the new object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    what: String,
}

impl Changed {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into() }
    }

    /// The one in `error` or anywhere below it.
    pub fn find<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Self> {
        below(error).find_map(|error| error.downcast_ref::<Self>())
    }
}

/// `error` and everything below it.
pub(crate) fn below<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error: &&'a (dyn StdError + 'static)| {
        // An io::Error's source is what lies below the error it carries, not that error.
        match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inner) => Some(inner as &'a (dyn StdError + 'static)),
            None => error.source(),
        }
    })
}

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the source changed while it was read: {}", self.what)
    }
}

impl StdError for Changed {}

/// How long to wait for an answer to end that is of no more use.
const TO_END: Duration = Duration::from_secs(5);

/// How a server is reached: whom to trust, which way out, how patiently, how widely.
#[derive(Clone, Debug)]
pub struct Reach {
    /// Whom to trust.
    pub trust: Trust,
    /// Which way out.
    pub proxies: Proxies,
    /// Silence on an open connection, or while an answer is owed, that is an error.
    pub stall: Duration,
    /// When to try again.
    pub retry: Policy,
    /// Most connections at once; one at least is used.
    pub connections: usize,
}

impl Default for Reach {
    fn default() -> Self {
        Self {
            trust: Trust::default(),
            proxies: Proxies::default(),
            stall: Duration::from_secs(600),
            retry: Policy::default(),
            connections: 8,
        }
    }
}

/// What tells one version of an object from another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) etag: Option<String>,
    pub(crate) modified: Option<String>,
}

impl Mark {
    /// The entity tag if it stands for the very bytes.
    pub(crate) fn strong(&self) -> Option<&str> {
        self.etag.as_deref().filter(|tag| !tag.starts_with("W/"))
    }

    /// What says that `self`, seen now, is not the object first marked `first`. A partial answer may leave its marks
    /// out (RFC 9110, 15.3.7); a whole one may not lose what it had.
    fn differs(&self, first: &Self, whole: bool) -> Option<String> {
        match (first.strong(), self.strong()) {
            (Some(old), Some(new)) if old != new => return Some(format!("its ETag was {old} and is {new}")),
            (Some(_), Some(_)) => return None,
            (Some(old), None) if whole => return Some(format!("its ETag was {old} and is gone")),
            (Some(_) | None, None) | (None, Some(_)) => {}
        }
        match (&first.modified, &self.modified) {
            (Some(old), Some(new)) if old != new => Some(format!("Last-Modified was {old} and is {new}")),
            (Some(old), None) if whole && first.strong().is_none() => {
                Some(format!("Last-Modified was {old} and is gone"))
            }
            (Some(_) | None, Some(_) | None) => None,
        }
    }
}

/// A request for bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want {
    /// The first one.
    pub(crate) from: u64,
    /// The one after the last, if there is one.
    pub(crate) end: Option<u64>,
    /// Ask for just these; otherwise for the whole object.
    pub(crate) ranges: bool,
}

pub(crate) type BoxError = Box<dyn StdError + Send + Sync>;
pub(crate) type Body = Pin<Box<dyn Stream<Item = Result<Bytes, BoxError>> + Send>>;

/// An answer: bytes from `start` on.
pub(crate) struct Part {
    /// Offset in the object of the body's first byte.
    pub(crate) start: u64,
    /// Offset after the body's last byte, if declared.
    pub(crate) end: Option<u64>,
    /// The object's whole length, if declared.
    pub(crate) total: Option<u64>,
    /// Whether this is the whole object rather than a range.
    pub(crate) whole: bool,
    pub(crate) mark: Mark,
    pub(crate) body: Body,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The request failed.
    Failed(Cause, Error),
    /// The server does not do ranges after all: ask for the whole.
    NoRanges(String),
    /// The object is another one now.
    Changed(Changed),
}

/// A protocol.
pub(crate) trait Remote: Send + Sync + 'static {
    /// A client; each lane has one, used by one thread at a time.
    type Client: Send;

    /// The object's address without anything secret.
    fn name(&self) -> &str;

    /// Learns the marks of the object that was opened, which later requests may be conditional on.
    fn remember(&self, mark: &Mark);

    /// A client for a new lane.
    fn client(&self) -> Result<Self::Client, Error>;

    /// Asks once, without trying again.
    fn get(&self, client: &Self::Client, want: Want) -> impl Future<Output = Result<Part, Failure>>;
}

/// A runtime and the client that lives on it. The client goes first.
pub(crate) struct Lane<C> {
    client: C,
    net: Net,
}

impl<C> Lane<C> {
    pub(crate) fn new<R: Remote<Client = C>>(net: &Net, remote: &R) -> Result<Self, Error> {
        let net = net.lane().map_err(|e| Error::connect("cannot set up a connection", e))?;
        Ok(Self { client: remote.client()?, net })
    }

    pub(crate) fn client(&self) -> &C {
        &self.client
    }

    pub(crate) fn block_on<F: Future>(&self, future: F) -> Result<F::Output, Error> {
        self.net.block_on(future).map_err(|e| Error::with(Kind::Stopped, "stopped on request", e))
    }
}

/// The failures since the last new byte.
pub(crate) struct Attempts {
    policy: Policy,
    spell: Spell,
    since: Option<Instant>,
}

impl Attempts {
    pub(crate) fn new(policy: &Policy, begun: bool) -> Self {
        Self { policy: policy.clone(), spell: Spell { begun, ..Spell::default() }, since: None }
    }

    pub(crate) fn progress(&mut self) {
        self.spell = Spell { begun: true, ..Spell::default() };
        self.since = None;
    }

    pub(crate) fn failed(&mut self, cause: Cause) -> Verdict {
        let since = *self.since.get_or_insert_with(Instant::now);
        self.spell.elapsed = since.elapsed();
        self.spell.failures = self.spell.failures.saturating_add(1);
        if cause == Cause::Truncated {
            self.spell.truncations = self.spell.truncations.saturating_add(1);
        }
        retry::decide(&self.policy, cause, self.spell, jitter())
    }

    /// What has happened since the last new byte.
    pub(crate) fn spell(&self) -> Spell {
        self.spell
    }
}

/// From 0 to 1, good enough to spread clients in time.
fn jitter() -> f64 {
    let bits = RandomState::new().build_hasher().finish();
    u32::try_from(bits >> 32).map_or(0.5, |high| f64::from(high) / f64::from(u32::MAX))
}

/// The first answer, asked for as often as the policy allows. Asks for a single byte, to learn whether that works.
pub(crate) fn first<R: Remote>(lane: &Lane<R::Client>, remote: &R, reach: &Reach) -> Result<Part, Error> {
    first_of(lane, remote, reach, Want { from: 0, end: Some(1), ranges: true })
}

/// The first answer to `want`, which may end up as one for the whole object.
pub(crate) fn first_of<R: Remote>(
    lane: &Lane<R::Client>,
    remote: &R,
    reach: &Reach,
    mut want: Want,
) -> Result<Part, Error> {
    let mut attempts = Attempts::new(&reach.retry, false);
    let outcome: Result<Part, Error> = lane.block_on(async {
        loop {
            let Ok(answer) = timeout(reach.stall, remote.get(&lane.client, want)).await else {
                return Err(stalled(remote.name(), 0, reach.stall));
            };
            let (cause, error) = match answer {
                Ok(mut part) => {
                    // The one byte is of no use, but its answer must end for the connection to be used again.
                    while !part.whole
                        && let Ok(Some(Ok(_))) = timeout(TO_END, part.body.next()).await
                    {}
                    return Ok(part);
                }
                Err(Failure::NoRanges(_)) if want.ranges => {
                    want = Want { from: 0, end: None, ranges: false };
                    continue;
                }
                Err(Failure::NoRanges(what)) => (Cause::Server, Error::new(Kind::Connect, what)),
                Err(Failure::Changed(changed)) => {
                    (Cause::Server, Error::connect("cannot open the source", changed))
                }
                Err(Failure::Failed(cause, error)) => (cause, error),
            };
            match attempts.failed(cause) {
                Verdict::Wait(wait) => {
                    tracing::info!(source = remote.name(), error = %Chain(&error), ?wait, "trying again");
                    tokio::time::sleep(wait).await;
                }
                Verdict::GiveUp(Why::Final) => return Err(error),
                Verdict::GiveUp(Why::Patience | Why::Truncated) => {
                    let tries = attempts.spell.failures;
                    let seconds = attempts.spell.elapsed.as_secs();
                    let what = format!("cannot open {}: {tries} tries in {seconds} s", remote.name());
                    return Err(Error::connect(what, error));
                }
            }
        }
    })?;
    outcome
}

/// An open object on a server, whatever the protocol.
pub struct RemoteSource {
    source: Box<dyn Source>,
    identity: Option<String>,
}

impl RemoteSource {
    /// Opens by asking for the first byte.
    pub(crate) fn open<R: Remote>(net: &Net, remote: R, reach: Reach) -> Result<Self, Error> {
        let lane = Lane::new(net, &remote)?;
        let part = first(&lane, &remote, &reach)?;
        remote.remember(&part.mark);
        let size = part.total;
        Ok(Self::new(remote, net, reach, size, lane, part))
    }

    /// Takes what opening found out. `part` is the first answer, on `lane`.
    pub(crate) fn new<R: Remote>(
        remote: R,
        net: &Net,
        reach: Reach,
        size: Option<u64>,
        lane: Lane<R::Client>,
        part: Part,
    ) -> Self {
        let object = Object::new(remote, net, reach, size, lane, part);
        Self { identity: object.identity(), source: Box::new(object) }
    }

    /// Stable text of the address (nothing secret in it), the marks and the length, for a journal: equal only if it is
    /// the same object. `None` when the server gives no mark, as then nothing tells a new object of the same length
    /// from the old one.
    pub fn identity(&self) -> Option<&str> {
        self.identity.as_deref()
    }
}

impl fmt::Debug for RemoteSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteSource").field("facts", &self.facts()).finish_non_exhaustive()
    }
}

impl Source for RemoteSource {
    fn facts(&self) -> Facts {
        self.source.facts()
    }
    fn open(&self, range: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        self.source.open(range)
    }
    fn connections(&self) -> usize {
        self.source.connections()
    }
    fn part_size(&self) -> u64 {
        self.source.part_size()
    }
}

/// An object that was opened.
struct Object<R: Remote>(Arc<Shared<R>>);

struct Shared<R: Remote> {
    remote: R,
    net: Net,
    reach: Reach,
    size: Option<u64>,
    mark: Mark,
    ranges: AtomicBool,
    lanes: Mutex<Vec<Lane<R::Client>>>,
    /// The answer to the first question when it was the whole object: the first reader goes on with it.
    whole: Mutex<Option<(Lane<R::Client>, Part)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<R: Remote> Object<R> {
    fn new(remote: R, net: &Net, reach: Reach, size: Option<u64>, lane: Lane<R::Client>, part: Part) -> Self {
        let ranges = !part.whole && size.is_some();
        let mark = part.mark.clone();
        let (lanes, whole) = if part.whole {
            (Vec::new(), Some((lane, part)))
        } else {
            drop(part);
            (vec![lane], None)
        };
        Self(Arc::new(Shared {
            remote,
            net: net.clone(),
            reach,
            size,
            mark,
            ranges: AtomicBool::new(ranges),
            lanes: Mutex::new(lanes),
            whole: Mutex::new(whole),
        }))
    }

    fn identity(&self) -> Option<String> {
        use std::fmt::Write;
        let shared = &self.0;
        if shared.mark == Mark::default() {
            return None;
        }
        let mut text = shared.remote.name().to_owned();
        // Writing to a String cannot fail.
        let _ = write!(text, " length={:?}", shared.size);
        let _ = write!(text, " etag={:?} modified={:?}", shared.mark.etag, shared.mark.modified);
        Some(text)
    }
}

impl<R: Remote> Source for Object<R> {
    fn facts(&self) -> Facts {
        let ranges = self.0.ranges.load(Ordering::Relaxed);
        Facts { size: self.0.size, access: if ranges { Access::Ranges } else { Access::Again } }
    }

    fn open(&self, range: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        let shared = self.0.clone();
        let end = shared.size.map_or(range.end, |size| range.end.min(size));
        let ranges = shared.ranges.load(Ordering::Relaxed);
        let mut reader = Reader {
            at: range.start,
            end,
            part: None,
            chunk: Bytes::new(),
            seen: (range.start == 0 && !ranges).then(crc32fast::Hasher::new),
            skipped: crc32fast::Hasher::new(),
            attempts: Attempts::new(&shared.reach.retry, true),
            lane: None,
            clean: true,
            shared,
        };
        let whole = if range.start == 0 && !ranges { lock(&reader.shared.whole).take() } else { None };
        if let Some((lane, part)) = whole {
            reader.lane = Some(lane);
            reader.adopt(part);
        }
        Ok(Box::new(reader))
    }

    fn connections(&self) -> usize {
        if !self.0.ranges.load(Ordering::Relaxed) {
            return 1;
        }
        let parts = self.0.size.unwrap_or(0).div_ceil(self.part_size());
        self.0.reach.connections.min(usize::try_from(parts).unwrap_or(usize::MAX)).max(1)
    }

    fn part_size(&self) -> u64 {
        // Long enough that asking costs nothing, short enough that all connections have work to the end.
        let share = self.0.size.unwrap_or(0) / (4 * self.0.reach.connections.max(1) as u64);
        (share & !((1 << 20) - 1)).clamp(8 << 20, 16 << 20)
    }
}

/// A part that is being read.
struct Current {
    body: Body,
    /// Offset in the object of the next byte that comes.
    at: u64,
    /// Where the body should end, by its own length or the object's.
    end: Option<u64>,
    whole: bool,
}

struct Reader<R: Remote> {
    shared: Arc<Shared<R>>,
    // Before the lane: its connection belongs to the lane's runtime.
    part: Option<Current>,
    lane: Option<Lane<R::Client>>,
    /// Offset of the next byte to hand on, `chunk` aside.
    at: u64,
    end: u64,
    chunk: Bytes,
    /// Of everything handed on, when the source must be read again from its start after a break: what is skipped then
    /// must be the same.
    seen: Option<crc32fast::Hasher>,
    skipped: crc32fast::Hasher,
    attempts: Attempts,
    /// No half-read answer is on the lane.
    clean: bool,
}

impl<R: Remote> Read for Reader<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        if self.chunk.is_empty() {
            self.fill()?;
        }
        let n = buf.len().min(self.chunk.len());
        self.chunk.copy_to_slice(&mut buf[..n]);
        Ok(n)
    }
}

impl<R: Remote> Drop for Reader<R> {
    fn drop(&mut self) {
        let clean = self.clean && self.part.is_none();
        self.part = None;
        if let Some(lane) = self.lane.take()
            && clean
        {
            let mut lanes = lock(&self.shared.lanes);
            if lanes.len() < self.shared.reach.connections {
                lanes.push(lane);
            }
        }
    }
}

impl<R: Remote> Reader<R> {
    /// Gets the next chunk; leaves it empty at the end.
    fn fill(&mut self) -> io::Result<()> {
        if self.at >= self.end {
            return Ok(());
        }
        let lane = match self.lane.take() {
            Some(lane) => lane,
            None => {
                let idle = lock(&self.shared.lanes).pop();
                match idle {
                    Some(lane) => lane,
                    None => Lane::new(&self.shared.net, &self.shared.remote)?,
                }
            }
        };
        let outcome = lane.net.block_on(self.next(&lane.client));
        self.lane = Some(lane);
        match outcome {
            Ok(Ok(chunk)) => {
                self.chunk = chunk;
                Ok(())
            }
            Ok(Err(error)) | Err(error) => {
                self.clean = false;
                Err(error)
            }
        }
    }

    async fn next(&mut self, client: &R::Client) -> io::Result<Bytes> {
        let stall = self.shared.reach.stall;
        loop {
            if self.at >= self.end {
                return Ok(Bytes::new());
            }
            let Some(part) = &mut self.part else {
                self.ask(client).await?;
                continue;
            };
            let Ok(chunk) = timeout(stall, part.body.next()).await else {
                return Err(stalled(self.shared.remote.name(), self.at, stall).into());
            };
            match chunk {
                Some(Ok(chunk)) => {
                    let chunk = self.place(chunk)?;
                    if chunk.is_empty() {
                        continue;
                    }
                    self.attempts.progress();
                    self.at += chunk.len() as u64;
                    if let Some(seen) = &mut self.seen {
                        seen.update(&chunk);
                    }
                    self.complete().await?;
                    return Ok(chunk);
                }
                Some(Err(error)) => {
                    let reset = breaks(&*error);
                    let at = part.at;
                    self.part = None;
                    let cause = if reset || at != self.at { Cause::Network } else { Cause::Truncated };
                    let what = format!("the connection to {} broke at byte {at}", self.shared.remote.name());
                    self.wait(cause, Error::with(Kind::Process, what, error)).await?;
                }
                None => {
                    let (at, end, whole) = (part.at, part.end, part.whole);
                    self.part = None;
                    match end {
                        // It gave no length and ended by the rules: that is the end.
                        None if whole && at >= self.at => self.end = self.at,
                        // A server may give less than asked for, as long as it says so.
                        Some(end) if at == end && at >= self.at => {}
                        Some(_) | None => {
                            let cause = if at == self.at { Cause::Truncated } else { Cause::Network };
                            let what = format!("{} ended its answer at byte {at}", self.shared.remote.name());
                            self.wait(cause, Error::new(Kind::Process, what)).await?;
                        }
                    }
                }
            }
        }
    }

    /// Asks for what is missing.
    async fn ask(&mut self, client: &R::Client) -> io::Result<()> {
        let shared = self.shared.clone();
        let ranges = shared.ranges.load(Ordering::Relaxed);
        let want = Want { from: self.at, end: (self.end != u64::MAX).then_some(self.end), ranges };
        let Ok(answer) = timeout(shared.reach.stall, shared.remote.get(client, want)).await else {
            return Err(stalled(shared.remote.name(), self.at, shared.reach.stall).into());
        };
        match answer {
            Ok(part) => {
                if let Some(changed) = self.changed(&part) {
                    self.clean = false;
                    return Err(io::Error::other(changed));
                }
                if part.start > self.at || (part.start < self.at && !part.whole) {
                    let what = format!("{} answered with other bytes than asked for", shared.remote.name());
                    return self.wait(Cause::Server, Error::new(Kind::Process, what)).await;
                }
                if ranges && part.whole {
                    self.lose_ranges("it sends the whole file when asked for a part");
                }
                self.adopt(part);
                Ok(())
            }
            Err(Failure::NoRanges(what)) if ranges => {
                self.lose_ranges(&what);
                Ok(())
            }
            Err(Failure::NoRanges(what)) => self.wait(Cause::Server, Error::new(Kind::Process, what)).await,
            Err(Failure::Changed(changed)) => Err(io::Error::other(changed)),
            Err(Failure::Failed(cause, error)) => self.wait(cause, error).await,
        }
    }

    fn lose_ranges(&self, why: &str) {
        if self.shared.ranges.swap(false, Ordering::Relaxed) {
            let source = self.shared.remote.name();
            tracing::warn!(source, why, "ranges do not work there: going on with one stream from the start");
        }
    }

    /// Goes on with `part`, which starts at or before our offset.
    fn adopt(&mut self, part: Part) {
        let whole_end = if part.whole { self.shared.size } else { None };
        self.skipped = crc32fast::Hasher::new();
        self.part =
            Some(Current { body: part.body, at: part.start, end: part.end.or(whole_end), whole: part.whole });
    }

    fn changed(&self, part: &Part) -> Option<Changed> {
        let shared = &self.shared;
        if let (Some(old), Some(new)) = (shared.size, part.total)
            && old != new
        {
            return Some(Changed::new(format!("{} had {old} bytes and has {new}", shared.remote.name())));
        }
        let what = part.mark.differs(&shared.mark, part.whole)?;
        Some(Changed::new(format!("{}: {what}", shared.remote.name())))
    }

    /// The bytes of `chunk` that are for the caller: without what was handed on before a break, and not past the end.
    fn place(&mut self, mut chunk: Bytes) -> io::Result<Bytes> {
        let Some(part) = &mut self.part else { return Ok(Bytes::new()) };
        let start = part.at;
        part.at = part.at.saturating_add(chunk.len() as u64);
        if part.end.is_some_and(|end| part.at > end) {
            return Err(longer(self.shared.remote.name(), part.end).into());
        }
        if start < self.at {
            let skip = usize::try_from(self.at - start).unwrap_or(usize::MAX).min(chunk.len());
            let skipped = chunk.split_to(skip);
            if let Some(seen) = &self.seen {
                self.skipped.update(&skipped);
                if start + skip as u64 == self.at
                    && self.skipped.clone().finalize() != seen.clone().finalize()
                {
                    let name = self.shared.remote.name();
                    let what = format!("{name}: its first {} bytes are others than before", self.at);
                    return Err(io::Error::other(Changed::new(what)));
                }
            }
        }
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        chunk.truncate(left);
        Ok(chunk)
    }

    /// After the last byte: lets the answer end, so that the connection can be used again, and sees that nothing more
    /// comes.
    async fn complete(&mut self) -> io::Result<()> {
        if self.at < self.end {
            return Ok(());
        }
        let Some(part) = &mut self.part else { return Ok(()) };
        if part.end != Some(part.at) {
            // The answer has more than we want: a whole object where a range was asked for. Its connection is lost.
            self.clean = false;
            self.part = None;
            return Ok(());
        }
        match timeout(TO_END, part.body.next()).await {
            Ok(Some(Ok(more))) if !more.is_empty() => {
                return Err(longer(self.shared.remote.name(), part.end).into());
            }
            Ok(None) => {}
            Ok(Some(_)) | Err(_) => self.clean = false,
        }
        self.part = None;
        Ok(())
    }

    /// Waits as the policy says, or gives up.
    async fn wait(&mut self, cause: Cause, error: Error) -> io::Result<()> {
        let name = self.shared.remote.name();
        let spell = |attempts: &Attempts| (attempts.spell.failures, attempts.spell.elapsed.as_secs());
        match self.attempts.failed(cause) {
            Verdict::Wait(wait) => {
                tracing::debug!(source = name, at = self.at, error = %Chain(&error), ?wait, "trying again");
                if !wait.is_zero() {
                    tokio::time::sleep(wait).await;
                }
                Ok(())
            }
            Verdict::GiveUp(Why::Final) => Err(error.into()),
            Verdict::GiveUp(Why::Truncated) => {
                let declared = self.shared.size.map_or(String::new(), |size| format!(" of {size} declared"));
                let what = format!(
                    "{name} ends at byte {}{declared}: it is truncated there, or the server's length is wrong",
                    self.at
                );
                Err(Error::with(Kind::Process, what, error).into())
            }
            Verdict::GiveUp(Why::Patience) => {
                let (tries, seconds) = spell(&self.attempts);
                let what =
                    format!("no new byte of {name} after byte {}: {tries} tries in {seconds} s", self.at);
                Err(Error::with(Kind::Process, what, error).into())
            }
        }
    }
}

fn stalled(name: &str, at: u64, stall: Duration) -> Error {
    Error::new(
        Kind::Process,
        format!("{name} stalled at byte {at}: the server sent nothing for {} s", stall.as_secs_f32()),
    )
}

fn longer(name: &str, end: Option<u64>) -> Error {
    let declared = end.map_or(String::new(), |end| format!(" ({end} bytes)"));
    Error::new(Kind::Process, format!("{name} sends more than the length it declared{declared}"))
}

/// Whether a connection was broken off rather than ended.
fn breaks(error: &(dyn StdError + 'static)) -> bool {
    let mut kinds = below(error).filter_map(|error| error.downcast_ref::<io::Error>()).map(io::Error::kind);
    kinds.find(|kind| *kind != io::ErrorKind::Other).is_some_and(|kind| kind != io::ErrorKind::UnexpectedEof)
}

/// An error with everything below it, for a log line.
pub(crate) struct Chain<'a>(pub(crate) &'a (dyn StdError + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut next = self.0.source();
        while let Some(error) = next {
            write!(f, ": {error}")?;
            next = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(etag: &str, modified: &str) -> Mark {
        let given = |s: &str| (!s.is_empty()).then(|| s.to_owned());
        Mark { etag: given(etag), modified: given(modified) }
    }

    #[test]
    fn marks() {
        #[rustfmt::skip]
        let table = [
            // first, now, whole, differs
            (mark("", ""),           mark("", ""),           true,  false),
            (mark("\"a\"", ""),      mark("\"a\"", ""),      true,  false),
            (mark("\"a\"", ""),      mark("\"b\"", ""),      false, true),
            (mark("\"a\"", "mon"),   mark("\"a\"", "tue"),   true,  false),
            (mark("\"a\"", ""),      mark("", ""),           false, false),
            (mark("\"a\"", ""),      mark("", ""),           true,  true),
            (mark("W/\"a\"", "mon"), mark("W/\"b\"", "mon"), true,  false),
            (mark("W/\"a\"", "mon"), mark("W/\"a\"", "tue"), true,  true),
            (mark("", "mon"),        mark("", "tue"),        false, true),
            (mark("", "mon"),        mark("", ""),           true,  true),
            (mark("", "mon"),        mark("", ""),           false, false),
            (mark("", ""),           mark("\"n\"", "mon"),   true,  false),
        ];
        for (first, now, whole, want) in table {
            assert_eq!(now.differs(&first, whole).is_some(), want, "{first:?} {now:?} {whole}");
        }
    }

    #[test]
    fn a_change_is_found_below_other_errors() {
        let changed = || Changed::new("x");
        assert!(Changed::find(&changed()).is_some());
        let io = io::Error::other(changed());
        assert!(Changed::find(&io).is_some());
        let wrapped = disk_image::Error::from_source("reading", io::Error::other(changed()));
        assert!(Changed::find(&wrapped).is_some());
        let deep = Error::with(Kind::Process, "importing", io::Error::other(wrapped));
        assert!(Changed::find(&io::Error::other(deep)).is_some());
        assert!(Changed::find(&io::Error::other("no")).is_none());
    }
}
