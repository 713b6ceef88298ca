//! `nbd://`, `nbds://` (TLS) and `nbd+unix://` sources: the disk, or the image, that an NBD server exports.
//!
//! The content is the export's: `qemu-nbd -f qcow2` gives the disk inside an image, `-f raw` the image's own bytes, which
//! are then recognised like a file's. Holes that the server knows of are not fetched.
//!
//! ```text
//!  readers ──► requests in flight (each its own window) ──► least busy connection ──► server
//!     ▲ in order, from own offset                              │ lost: connect again, same size?
//!     └──────────────── answers, in any order ◄────────────────┘
//! ```
//!
//! NBD has no version mark: a restarted server may export other bytes of the same size, unseen. So nothing is resumed
//! by another process, and only a changed size is noticed after a reconnect. Not here: messages ([`wire`]), one
//! connection's life ([`connection`]), certificates of ours (servers that verify clients refuse us).

mod address;
mod answers;
mod buffers;
mod connection;
mod failure;
mod handshake;
mod wire;

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use disk_image::{Access, Facts, Source};
use tokio::time::timeout;

use self::address::Address;
use self::buffers::{Buffer, Buffers};
use self::connection::{Answer, Connection};
use self::failure::{Failure, FailureKind};
use self::handshake::Dial;
use self::wire::{BlockSize, ServerError};
use super::blocking::Net;
use super::remote::{Attempts, Chain, Changed, Reach, no_such_host, tell_retry};
use super::retry::{Cause, Verdict, Why};
use super::tls;
use crate::error::{Error, Kind};

/// Length of a request, in bytes, if the server takes it.
const REQUEST: u32 = 512 << 10;
/// Requests of one reader in flight; qemu-nbd and nbdkit work on 16 at once.
const WINDOW: usize = 16;
/// Buffers of all requests in flight. With one more for each of a few readers it stays below 24 MiB.
const MEMORY: usize = 16 << 20;
/// Readers when there is only one connection: one waits for data while the other opens its next part.
const SHARING: usize = 2;
/// A server that does not finish its handshake by then is asked again, or left.
const HANDSHAKE: Duration = Duration::from_secs(20);
/// The same for a connection that is only there for speed.
const EXTRA_HANDSHAKE: Duration = Duration::from_secs(5);
/// How long closing may take; it is a courtesy.
const GOODBYE: Duration = Duration::from_millis(300);
/// Bytes per status request. Lengths on the wire have 32 bits.
const STATUS: u64 = 1 << 30;
/// Status replies per call; a server that reports less with each is not asked again.
const STATUS_ANSWERS: usize = 16 << 10;

/// Export and options.
#[derive(Clone, Debug)]
pub struct Options {
    /// `nbd://HOST[:PORT]/EXPORT`, `nbds://…` or `nbd+unix:///EXPORT?socket=PATH`.
    pub url: String,
    /// How the server is reached. Trust concerns nbds only, proxies nothing; more connections than one are made only if
    /// the server allows several.
    pub reach: Reach,
}

impl Options {
    /// The defaults for `url`.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), reach: Reach::default() }
    }
}

/// An export of an NBD server.
pub struct NbdSource(Arc<Session>);

impl fmt::Debug for NbdSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NbdSource").field("name", &self.0.pool.name).finish_non_exhaustive()
    }
}

/// Opens by shaking hands; keeps the connection.
///
/// # Errors
/// [`Kind::Usage`] for an address that names nothing, [`Kind::Connect`] when the server cannot be reached, is no NBD
/// server, or does not have the export; [`Kind::Stopped`].
pub fn open(net: &Net, options: Options) -> Result<NbdSource, Error> {
    let address = Address::parse(&options.url)?;
    let tls = if address.tls {
        let mut config = tls::client_config(&options.reach.trust)?;
        config.alpn_protocols.clear();
        Some(Arc::new(config))
    } else {
        None
    };
    let reach = options.reach;
    let name = address.to_string();
    let dial = Dial { address, tls, patience: reach.stall.min(HANDSHAKE) };
    let first = net
        .block_on(first(&name, &dial, &reach))
        .map_err(|e| Error::with(Kind::Stopped, "stopped on request", e))??;
    let pool = Pool {
        name,
        dial,
        size: first.export.size,
        multi_conn: first.export.multi_conn,
        connections: Mutex::new(vec![Arc::new(first)]),
        dialing: tokio::sync::Mutex::new(()),
        growing: AtomicBool::new(false),
        buffers: Buffers::new(REQUEST as usize, MEMORY),
        reach,
    };
    Ok(NbdSource(Arc::new(Session { net: net.clone(), pool: Arc::new(pool) })))
}

/// The first connection, tried for as often as the policy allows.
async fn first(name: &str, dial: &Dial, reach: &Reach) -> Result<Connection, Error> {
    let mut attempts = Attempts::new(&reach.retry, false);
    loop {
        let failure = match Connection::dial(dial).await {
            Ok(connection) => return Ok(connection),
            Err(failure) => failure,
        };
        let cause = if no_such_host(&failure.error) { Cause::Final } else { cause(failure.trouble, false) };
        match attempts.failed(cause) {
            Verdict::Wait(wait) => {
                tell_retry(name, attempts.spell().failures, &failure.error, wait);
                tokio::time::sleep(wait).await;
            }
            Verdict::GiveUp(Why::Final) => {
                return Err(Error::connect(format!("cannot open {name}"), failure.error));
            }
            Verdict::GiveUp(Why::Patience | Why::Truncated) => {
                let (tries, seconds) = (attempts.spell().failures, attempts.spell().elapsed.as_secs());
                let what = format!("cannot open {name}: {tries} tries in {seconds} s");
                return Err(Error::connect(what, failure.error));
            }
        }
    }
}

/// The reaction to a failure. `begun`: the server has been seen to be right once, so a wrong one may be a server that is
/// only just starting.
fn cause(trouble: FailureKind, begun: bool) -> Cause {
    match trouble {
        FailureKind::Lost => Cause::Network,
        FailureKind::Nonsense | FailureKind::Refused if begun => Cause::Server,
        FailureKind::Nonsense | FailureKind::Refused | FailureKind::Changed | FailureKind::Stalled => {
            Cause::Final
        }
        // EPERM, EINVAL, EOVERFLOW, ENOTSUP: the same request has the same answer.
        FailureKind::Reported(1 | 22 | 75 | 95) => Cause::Final,
        // ENOMEM passes.
        FailureKind::Reported(12) => Cause::Busy(None),
        FailureKind::Reported(SHUTDOWN) => Cause::Network,
        // EIO and the like: an unreadable place is accepted after some attempts, not after minutes.
        FailureKind::Reported(_) => Cause::Truncated,
    }
}

/// ESHUTDOWN: the client is to leave.
const SHUTDOWN: u32 = 108;

/// The pool with its runtime; disconnects when the last reader is gone.
struct Session {
    net: Net,
    pool: Arc<Pool>,
}

impl Drop for Session {
    fn drop(&mut self) {
        let connections = std::mem::take(&mut *lock(&self.pool.connections));
        let goodbyes: Vec<_> =
            connections.iter().filter_map(|connection| connection.disconnected()).collect();
        drop(connections);
        let all = async {
            for goodbye in goodbyes {
                drop(goodbye.await);
            }
        };
        // Stopping or a late server: it sees the connection close.
        drop(self.net.block_on(async { timeout(GOODBYE, all).await }));
    }
}

/// The connections to one export.
struct Pool {
    name: String,
    dial: Dial,
    size: u64,
    multi_conn: bool,
    reach: Reach,
    connections: Mutex<Vec<Arc<Connection>>>,
    /// Held while connecting because there is no connection.
    dialing: tokio::sync::Mutex<()>,
    /// Connecting for speed, or having found that the server does not take more.
    growing: AtomicBool,
    buffers: Arc<Buffers>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// The least busy connection; `None` when there is none. Starts to make another one when all have a reader.
    fn pick(self: &Arc<Self>) -> Option<Arc<Connection>> {
        let mut connections = lock(&self.connections);
        connections.retain(|connection| connection.is_alive());
        // One holder is the pool, each further one a reader.
        let found = connections.iter().min_by_key(|connection| Arc::strong_count(connection))?.clone();
        let room = self.multi_conn && connections.len() < self.reach.connections;
        if room && Arc::strong_count(&found) > 2 && !self.growing.swap(true, Ordering::Relaxed) {
            tokio::spawn(self.clone().grow());
        }
        Some(found)
    }

    /// One more connection. Some servers allow several and then leave the second one waiting.
    async fn grow(self: Arc<Self>) {
        match timeout(EXTRA_HANDSHAKE, self.connect()).await {
            Ok(Ok(_)) => self.growing.store(false, Ordering::Relaxed),
            Ok(Err(failure)) => {
                let error = Chain(&failure.error).to_string();
                tracing::debug!(source = self.name, error, "no further connection");
            }
            Err(_) => tracing::debug!(source = self.name, "no further connection: no answer"),
        }
    }

    async fn connect(&self) -> Result<Arc<Connection>, Failure> {
        let made = Arc::new(Connection::dial(&self.dial).await?);
        if made.export.size != self.size {
            let what = format!("{} had {} bytes and has {}", self.name, self.size, made.export.size);
            let error = Error::with(
                Kind::Process,
                "the export was replaced by another one; start over",
                Changed::new(what),
            );
            return Err(Failure { trouble: FailureKind::Changed, error });
        }
        lock(&self.connections).push(made.clone());
        Ok(made)
    }

    /// A connection; made if there is none, by one reader for all.
    async fn connection(self: &Arc<Self>) -> Result<Arc<Connection>, Failure> {
        if let Some(found) = self.pick() {
            return Ok(found);
        }
        let _alone = self.dialing.lock().await;
        match self.pick() {
            Some(found) => Ok(found),
            None => self.connect().await,
        }
    }

    /// Waits for an answer.
    async fn answer<T>(&self, connection: &Connection, answer: &mut Answer<T>) -> Result<T, Failure> {
        let stall = self.reach.stall;
        let mut seen = connection.received();
        loop {
            match timeout(stall, &mut *answer).await {
                Ok(Ok(Ok(answer))) => return Ok(answer),
                Ok(Ok(Err(reported))) => return Err(self.reported(connection, &reported)),
                Ok(Err(_)) => return Err(connection.why()),
                Err(_) => {
                    // Others' answers may keep the connection busy.
                    let now = connection.received();
                    if now == seen {
                        let seconds = stall.as_secs_f32();
                        let what =
                            format!("the server left a request unanswered and sent nothing for {seconds} s");
                        connection.abandon(FailureKind::Stalled, &what);
                        return Err(Failure::new(FailureKind::Stalled, what));
                    }
                    seen = now;
                }
            }
        }
    }

    fn reported(&self, connection: &Connection, error: &ServerError) -> Failure {
        let words = if error.words.is_empty() { String::new() } else { format!(": {}", error.words) };
        let what = format!("the server reports {}{words}", error.name());
        if error.code == SHUTDOWN {
            connection.abandon(FailureKind::Lost, &what);
        }
        Failure::new(FailureKind::Reported(error.code), what)
    }

    /// Waits according to the policy, or gives up.
    async fn pause(&self, attempts: &mut Attempts, failure: Failure, at: u64) -> Result<(), Error> {
        let name = &self.name;
        let what = match attempts.failed(cause(failure.trouble, true)) {
            Verdict::Wait(wait) => {
                let error = Chain(&failure.error);
                tracing::debug!(source = name, at, %error, ?wait, "trying again");
                tokio::time::sleep(wait).await;
                return Ok(());
            }
            Verdict::GiveUp(Why::Final) => format!("cannot read {name} at byte {at}"),
            Verdict::GiveUp(Why::Truncated) => {
                format!("cannot read {name} at byte {at}, tried {} times", attempts.spell().failures)
            }
            Verdict::GiveUp(Why::Patience) => {
                let (tries, seconds) = (attempts.spell().failures, attempts.spell().elapsed.as_secs());
                format!("no new byte of {name} after byte {at}: {tries} tries in {seconds} s")
            }
        };
        Err(Error::with(Kind::Process, what, failure.error))
    }

    /// Data ranges of `within`, as far as the server reports them; `None` when it reports none.
    async fn data_ranges(self: &Arc<Self>, within: Range<u64>) -> Result<Option<Vec<Range<u64>>>, Error> {
        let mut attempts = Attempts::new(&self.reach.retry, true);
        let mut data: Vec<Range<u64>> = Vec::new();
        let mut at = within.start;
        let mut answers = 0;
        while at < within.end {
            let failure = match self.status(at..within.end).await {
                Ok(Some(status)) if status.known > at && answers < STATUS_ANSWERS => {
                    for range in status.data {
                        append(&mut data, range.start.max(at)..range.end.min(within.end));
                    }
                    at = status.known;
                    answers += 1;
                    attempts.progress();
                    continue;
                }
                Ok(None) if at == within.start => return Ok(None),
                Ok(None | Some(_)) => break,
                Err(failure) => failure,
            };
            if let FailureKind::Reported(code) = failure.trouble
                && code != SHUTDOWN
            {
                // Missing status is not an error: an unreadable place fails when it is read.
                tracing::debug!(source = self.name, at, error = %failure.error, "no block status");
                break;
            }
            self.pause(&mut attempts, failure, at).await?;
        }
        append(&mut data, at..within.end);
        Ok(Some(data))
    }

    async fn status(self: &Arc<Self>, range: Range<u64>) -> Result<Option<wire::Status>, Failure> {
        let connection = self.connection().await?;
        let block = connection.export.block;
        let range = self.aligned(range.start..range.end.min(range.start.saturating_add(STATUS)), block);
        match connection.status(range)? {
            Some(mut answer) => self.answer(&connection, &mut answer).await.map(Some),
            None => Ok(None),
        }
    }

    /// `range` with whole blocks, as far as the export has them.
    fn aligned(&self, range: Range<u64>, block: BlockSize) -> Range<u64> {
        let min = u64::from(block.min);
        range.start / min * min..range.end.next_multiple_of(min).min(self.size)
    }
}

/// Adds a range after those that are there.
fn append(data: &mut Vec<Range<u64>>, range: Range<u64>) {
    match data.last_mut() {
        _ if range.is_empty() => {}
        Some(last) if last.end >= range.start => last.end = range.end,
        Some(_) | None => data.push(range),
    }
}

impl Source for NbdSource {
    fn facts(&self) -> Facts {
        Facts { size: Some(self.0.pool.size), access: Access::Ranges }
    }

    fn open(&self, range: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        let pool = &self.0.pool;
        Ok(Box::new(Reader {
            session: self.0.clone(),
            connection: None,
            window: VecDeque::new(),
            current: None,
            at: range.start,
            next: range.start,
            end: range.end.min(pool.size),
            length: REQUEST,
            attempts: Attempts::new(&pool.reach.retry, true),
        }))
    }

    fn connections(&self) -> usize {
        let pool = &self.0.pool;
        let wanted = if pool.multi_conn { pool.reach.connections } else { SHARING };
        let parts = pool.size.div_ceil(self.part_size());
        wanted.min(pool.reach.connections).min(usize::try_from(parts).unwrap_or(usize::MAX)).max(1)
    }

    fn part_size(&self) -> u64 {
        let pool = &self.0.pool;
        let share = pool.size / (4 * pool.reach.connections.max(1) as u64);
        (share & !((1 << 20) - 1)).clamp(8 << 20, 16 << 20)
    }

    fn data_ranges(&self, within: Range<u64>) -> io::Result<Option<Vec<Range<u64>>>> {
        let pool = &self.0.pool;
        let within = within.start..within.end.min(pool.size);
        Ok(self.0.net.block_on(pool.data_ranges(within))??)
    }
}

/// A request in flight.
struct InFlight {
    /// Offset of its first byte.
    start: u64,
    answer: Answer<Buffer>,
}

/// Reads forward, a window of requests ahead.
struct Reader {
    session: Arc<Session>,
    connection: Option<Arc<Connection>>,
    /// In the order of their offsets.
    window: VecDeque<InFlight>,
    /// An answer that is being handed on, and the place in it.
    current: Option<(Buffer, usize)>,
    /// Offset of the next byte to hand on.
    at: u64,
    /// Offset of the next request.
    next: u64,
    end: u64,
    /// Length of requests: cut when a connection breaks before an answer is whole, so that one that breaks every few
    /// bytes still brings some; grown again with every answer.
    length: u32,
    attempts: Attempts,
}

impl Read for Reader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() || self.at >= self.end {
            return Ok(0);
        }
        if self.current.is_none() {
            let session = self.session.clone();
            session.net.block_on(self.advance())??;
        }
        let Some((buffer, place)) = &mut self.current else { return Ok(0) };
        let bytes = &buffer.bytes()[*place..];
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        let n = bytes.len().min(buf.len()).min(left);
        buf[..n].copy_from_slice(&bytes[..n]);
        *place += n;
        self.at += n as u64;
        if *place >= buffer.bytes().len() || self.at >= self.end {
            self.current = None;
        }
        Ok(n)
    }
}

impl Reader {
    /// Waits for the answer that has the next byte.
    async fn advance(&mut self) -> Result<(), Error> {
        let pool = self.session.pool.clone();
        loop {
            let failure = match self.step(&pool).await {
                Ok(current) => {
                    self.current = Some(current);
                    self.attempts.progress();
                    self.length = self.length.saturating_mul(2).min(REQUEST);
                    return Ok(());
                }
                Err(failure) => failure,
            };
            // Requests behind the failure are repeated.
            self.window.clear();
            self.next = self.at;
            if failure.trouble == FailureKind::Lost {
                let left = u32::try_from(self.end - self.at).unwrap_or(u32::MAX);
                self.length = (self.length.min(left) / 4).max(1);
            }
            pool.pause(&mut self.attempts, failure, self.at).await?;
        }
    }

    async fn step(&mut self, pool: &Arc<Pool>) -> Result<(Buffer, usize), Failure> {
        if self.connection.as_ref().is_some_and(|connection| !connection.is_alive()) {
            // Unless what it owes us has come before it went.
            let come = |asked: &InFlight| !asked.answer.is_empty();
            if !self.window.front().is_some_and(come) {
                self.window.clear();
                self.next = self.at;
                self.connection = None;
            }
        }
        let connection = match &self.connection {
            Some(connection) => connection.clone(),
            None => self.connection.insert(pool.connection().await?).clone(),
        };
        if connection.is_alive() {
            self.ask(pool, &connection)?;
        }
        let Some(front) = self.window.front_mut() else {
            return Err(Failure::new(FailureKind::Lost, "nothing was asked for"));
        };
        // It stays in the window: a caller that stops waiting may come back.
        let buffer = pool.answer(&connection, &mut front.answer).await?;
        let start = front.start;
        self.window.pop_front();
        let place = usize::try_from(self.at - start).unwrap_or(usize::MAX).min(buffer.bytes().len());
        Ok((buffer, place))
    }

    /// Fills the window.
    fn ask(&mut self, pool: &Pool, connection: &Connection) -> Result<(), Failure> {
        let block = connection.export.block;
        let unit = u64::from(block.request(self.length.min(REQUEST)));
        while self.window.len() < WINDOW && self.next < self.end {
            let stop = (self.next / unit + 1).saturating_mul(unit).min(self.end);
            let range = pool.aligned(self.next..stop, block);
            let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
            let first = self.window.is_empty();
            let Some(buffer) = pool.buffers.acquire(len, first) else { break };
            let answer = connection.read(range.clone(), buffer)?;
            self.window.push_back(InFlight { start: range.start, answer });
            self.next = range.end;
        }
        Ok(())
    }
}
