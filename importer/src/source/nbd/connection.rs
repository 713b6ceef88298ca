//! One connection to an NBD server: handshake, then many requests in flight and their answers in any order.
//!
//! ```text
//!  read() status() ──► pending by cookie ◄──────── receive task ◄── socket
//!         └──────────► send task ──► socket            └─► each asker's channel
//! ```
//!
//! A server that breaks the protocol loses the connection: nothing after the break can be placed. Every asker then
//! finds its channel closed and the reason in [`Connection::why`]. Not here: when to connect again (`mod`).

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use disk_image::RangeSet;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::address::{Address, Server};
use super::buffers::Buffer;
use super::wire::{
    self, Command, Export, Head, Info, Kind as Chunk, Nonsense, Opt, OptError, REQUEST, Reply, ServerError,
    Status,
};
use crate::error::{Error, Kind};

/// Exports named when the one that was asked for is not there.
const NAMED: usize = 8;
/// Replies to one option at most.
const REPLIES: usize = 1024;
/// Pieces of one read's answer at most. qemu-nbd and nbdkit send one per extent.
const PIECES: usize = 4096;
/// Bytes read at once from small messages; longer data goes straight to its place.
const SMALL: usize = 4096;

/// Why something failed, as far as trying again depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The connection was not made, or is gone.
    Lost,
    /// The server breaks the protocol.
    Nonsense,
    /// The server does not want us, or not this export.
    Refused,
    /// The export is another one now.
    Changed,
    /// The server reports this error for a request.
    Reported(u32),
    /// Nothing came for too long.
    Stalled,
}

/// A failure in words.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) trouble: Trouble,
    pub(super) error: Error,
}

impl Failure {
    pub(super) fn new(trouble: Trouble, what: impl Into<String>) -> Self {
        Self { trouble, error: Error::new(Kind::Connect, what) }
    }

    fn with(trouble: Trouble, what: impl Into<String>, error: io::Error) -> Self {
        Self { trouble, error: Error::connect(what, error) }
    }
}

impl From<Nonsense> for Failure {
    fn from(Nonsense(what): Nonsense) -> Self {
        Self::new(Trouble::Nonsense, format!("the server breaks the NBD protocol: {what}"))
    }
}

/// What a connection needs to be made.
#[derive(Debug)]
pub(super) struct Dial {
    pub(super) address: Address,
    pub(super) tls: Option<Arc<rustls::ClientConfig>>,
    /// For all of the handshake.
    pub(super) patience: Duration,
}

trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Socket for T {}
type Stream = Box<dyn Socket>;

/// An established connection. Dropping it says goodbye to the server.
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

/// What the connection and its tasks share.
#[derive(Debug)]
struct Shared {
    /// By cookie; `None` once the connection is gone.
    pending: Mutex<Option<HashMap<u64, Pending>>>,
    /// Why it is gone.
    why: Mutex<Option<(Trouble, String)>>,
    /// Bytes that arrived.
    received: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request's answer, or the error the server reports instead.
pub(super) type Answer<T> = oneshot::Receiver<Result<T, ServerError>>;

#[derive(Debug)]
enum Pending {
    Read(Reading),
    Status {
        status: Status,
        error: Option<ServerError>,
        answer: oneshot::Sender<Result<Status, ServerError>>,
    },
}

#[derive(Debug)]
struct Reading {
    range: Range<u64>,
    buffer: Buffer,
    /// What of `range` has come.
    got: RangeSet,
    error: Option<ServerError>,
    answer: oneshot::Sender<Result<Buffer, ServerError>>,
}

impl Reading {
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

impl Connection {
    /// Connects, shakes hands and starts the tasks, on the runtime that polls this.
    pub(super) async fn dial(dial: &Dial) -> Result<Self, Failure> {
        let late = || {
            let seconds = dial.patience.as_secs_f32();
            let what = format!(
                "no NBD handshake within {seconds} s; the server may be busy with another client and take no second one"
            );
            Err(Failure::new(Trouble::Lost, what))
        };
        timeout(dial.patience, Self::negotiate(dial)).await.unwrap_or_else(|_| late())
    }

    async fn negotiate(dial: &Dial) -> Result<Self, Failure> {
        let mut talk = Talk { stream: connect(&dial.address.server).await? };
        let export = &dial.address.export;
        let flags = talk.greet().await?;
        let fixed = flags & wire::FIXED_NEWSTYLE != 0;
        if let Some(config) = &dial.tls {
            if !fixed {
                return Err(Failure::new(Trouble::Refused, "the server is too old for TLS"));
            }
            talk = talk.start_tls(config, &dial.address.server).await?;
        }
        let padded = flags & wire::NO_ZEROES == 0;
        if !fixed {
            let export = talk.export_name(export, padded).await?;
            return Ok(Self::start(talk.stream, export, false, None));
        }
        let structured = matches!(talk.ask(Opt::StructuredReply, &[]).await?.as_slice(), [Reply::Ack]);
        let mut context = None;
        if structured {
            for reply in talk.ask(Opt::SetMetaContext, &wire::allocation_of(export)).await? {
                if let Reply::MetaContext(id) = reply {
                    context = Some(id);
                }
            }
        }
        let export = match talk.go(export).await? {
            Some(export) => export,
            None => talk.export_name(export, padded).await?,
        };
        Ok(Self::start(talk.stream, export, structured, context))
    }

    fn start(stream: Stream, export: Export, structured: bool, context: Option<u32>) -> Self {
        let (read, write) = tokio::io::split(stream);
        let shared = Arc::new(Shared {
            pending: Mutex::new(Some(HashMap::new())),
            why: Mutex::default(),
            received: AtomicU64::new(0),
        });
        let (send, requests) = mpsc::unbounded_channel();
        let input = Input { inner: BufReader::with_capacity(SMALL, read), shared: shared.clone() };
        let receiver = tokio::spawn(receive(input, structured, context));
        let sender = tokio::spawn(transmit(write, requests, shared.clone(), receiver));
        let (next, sender) = (AtomicU64::new(1), Mutex::new(Some(sender)));
        Self { export, context, shared, send, next, sender }
    }

    /// Asks for `range`, whose length is `buffer`'s.
    pub(super) fn read(&self, range: Range<u64>, buffer: Buffer) -> Result<Answer<Buffer>, Failure> {
        let (answer, receiver) = oneshot::channel();
        let (offset, len) = (range.start, length(&range));
        let reading = Reading { range, buffer, got: RangeSet::new(), error: None, answer };
        self.submit(Command::Read, offset, len, Pending::Read(reading))?;
        Ok(receiver)
    }

    /// Asks what of `range` holds data; `None` if the server cannot tell. `range` is shorter than 4 GiB.
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
        let (trouble, what) = why.unwrap_or((Trouble::Lost, "the connection was closed".to_owned()));
        Failure::new(trouble, what)
    }

    /// Bytes that arrived, to see whether any still do.
    pub(super) fn received(&self) -> u64 {
        self.shared.received.load(Ordering::Relaxed)
    }

    /// Gives up on it: whoever waits for an answer learns so.
    pub(super) fn abandon(&self, trouble: Trouble, what: &str) {
        self.shared.end(trouble, what.to_owned());
    }

    /// What to wait for after dropping it, for the server to have heard the goodbye.
    pub(super) fn farewell(&self) -> Option<JoinHandle<()>> {
        lock(&self.sender).take()
    }
}

impl Shared {
    /// The first reason counts. Dropping what is pending closes the askers' channels.
    fn end(&self, trouble: Trouble, what: String) {
        lock(&self.why).get_or_insert((trouble, what));
        let pending = lock(&self.pending).take();
        drop(pending);
    }
}

fn length(range: &Range<u64>) -> u32 {
    // Callers bound it.
    u32::try_from(range.end.saturating_sub(range.start)).unwrap_or(u32::MAX)
}

async fn connect(server: &Server) -> Result<Stream, Failure> {
    match server {
        Server::Tcp(host, port) => {
            let failed = |e| Failure::with(Trouble::Lost, format!("cannot connect to {host} port {port}"), e);
            let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(failed)?;
            // Neither is worth an error: small requests at once, and a word when the peer is gone for good.
            drop(stream.set_nodelay(true));
            let _ = rustix::net::sockopt::set_socket_keepalive(&stream, true);
            Ok(Box::new(stream))
        }
        Server::Unix(path) => {
            let failed = |e| Failure::with(Trouble::Lost, format!("cannot connect to {}", path.display()), e);
            Ok(Box::new(UnixStream::connect(path).await.map_err(failed)?))
        }
    }
}

/// The handshake's conversation: one question at a time.
struct Talk {
    stream: Stream,
}

fn broke(error: io::Error) -> Failure {
    Failure::with(Trouble::Lost, "the connection broke during the NBD handshake", error)
}

impl Talk {
    async fn take<const N: usize>(&mut self) -> Result<[u8; N], Failure> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).await.map_err(broke)?;
        Ok(bytes)
    }

    async fn give(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.stream.write_all(bytes).await.map_err(broke)?;
        self.stream.flush().await.map_err(broke)
    }

    /// The server's flags, answered.
    async fn greet(&mut self) -> Result<u16, Failure> {
        let magic = u64::from_be_bytes(self.take().await?);
        if magic != wire::GREETING {
            return Err(Failure::new(Trouble::Nonsense, "the server does not speak NBD"));
        }
        match u64::from_be_bytes(self.take().await?) {
            wire::NEWSTYLE => {}
            wire::OLDSTYLE => {
                return Err(Failure::new(
                    Trouble::Refused,
                    "the server speaks oldstyle NBD, which is out of use; a server of this century is needed",
                ));
            }
            _ => return Err(Failure::new(Trouble::Nonsense, "the server does not speak NBD")),
        }
        let flags = u16::from_be_bytes(self.take().await?);
        let ours = u32::from(flags & (wire::FIXED_NEWSTYLE | wire::NO_ZEROES));
        self.give(&ours.to_be_bytes()).await?;
        Ok(flags)
    }

    async fn start_tls(
        mut self,
        config: &Arc<rustls::ClientConfig>,
        server: &Server,
    ) -> Result<Self, Failure> {
        match self.ask(Opt::StartTls, &[]).await?.as_slice() {
            [Reply::Ack] => {}
            [Reply::Error(_, words)] => {
                let what = format!("the server offers no TLS ({words}); use nbd:// if that is acceptable");
                return Err(Failure::new(Trouble::Refused, what));
            }
            _ => return Err(Nonsense("TLS is neither granted nor refused".to_owned()).into()),
        }
        let host = match server {
            Server::Tcp(host, _) => host.clone(),
            Server::Unix(_) => "localhost".to_owned(),
        };
        let name = rustls::pki_types::ServerName::try_from(host)
            .map_err(|_| Failure::new(Trouble::Refused, "the server's name cannot be in a certificate"))?;
        let connector = tokio_rustls::TlsConnector::from(config.clone());
        let stream = connector.connect(name, self.stream).await.map_err(|e| {
            // A certificate does not become valid by asking again; a broken connection may be whole then.
            let final_ = e.get_ref().is_some_and(|inner| inner.is::<rustls::Error>());
            let trouble = if final_ { Trouble::Refused } else { Trouble::Lost };
            Failure::with(trouble, "TLS with the server failed", e)
        })?;
        Ok(Self { stream: Box::new(stream) })
    }

    /// All replies to an option, the last one an end (`Ack` or `Error`).
    async fn ask(&mut self, opt: Opt, data: &[u8]) -> Result<Vec<Reply>, Failure> {
        self.give(&wire::option(opt, data)).await?;
        let mut replies = Vec::new();
        loop {
            let (kind, len) = wire::reply_head(&self.take().await?, opt)?;
            let mut data = vec![0; len];
            self.stream.read_exact(&mut data).await.map_err(broke)?;
            let reply = wire::reply(kind, &data)?;
            if let Reply::Error(OptError::TlsRequired, _) = reply {
                let what = "the server wants TLS: use nbds:// instead of nbd://";
                return Err(Failure::new(Trouble::Refused, what));
            }
            let end = match &reply {
                Reply::Ack | Reply::Error(..) => true,
                Reply::Server(_) | Reply::Info(_) | Reply::MetaContext(_) => false,
            };
            replies.push(reply);
            if end {
                return Ok(replies);
            }
            if replies.len() >= REPLIES {
                return Err(Nonsense(format!("{REPLIES} replies to one option")).into());
            }
        }
    }

    /// Chooses the export; `None` if the server does not know how to be asked so.
    async fn go(&mut self, export: &str) -> Result<Option<Export>, Failure> {
        let mut facts = None;
        let mut block = wire::BlockSize::default();
        for reply in self.ask(Opt::Go, &wire::go(export)).await? {
            match reply {
                Reply::Info(Info::Export { size, flags }) => facts = Some((size, flags)),
                Reply::Info(Info::BlockSize(sizes)) => block = sizes,
                Reply::Info(Info::Other) | Reply::Server(_) | Reply::MetaContext(_) => {}
                Reply::Ack => {
                    let Some((size, flags)) = facts else {
                        return Err(Nonsense("the export's size is not told".to_owned()).into());
                    };
                    return Ok(Some(Export::checked(size, flags, block)?));
                }
                Reply::Error(OptError::Unsupported, _) => return Ok(None),
                Reply::Error(OptError::UnknownExport, words) => {
                    return Err(self.unknown_export(export, &words).await);
                }
                Reply::Error(OptError::Shutdown, _) => {
                    return Err(Failure::new(Trouble::Lost, "the server is shutting down"));
                }
                Reply::Error(error, words) => {
                    let what = format!("the server refuses the export \"{export}\": {words} ({error:?})");
                    return Err(Failure::new(Trouble::Refused, what));
                }
            }
        }
        Err(Nonsense("the choice of the export has no answer".to_owned()).into())
    }

    /// What to do about an export that is not there.
    async fn unknown_export(&mut self, export: &str, words: &str) -> Failure {
        let replies = self.ask(Opt::List, &[]).await.unwrap_or_default();
        let listed: Vec<String> = replies
            .into_iter()
            .filter_map(|reply| match reply {
                Reply::Server(name) => Some(name),
                Reply::Ack | Reply::Info(_) | Reply::MetaContext(_) | Reply::Error(..) => None,
            })
            .collect();
        let words = if words.is_empty() { String::new() } else { format!(" ({words})") };
        if listed.iter().any(|name| name == export) {
            let which = match export {
                "" => "its default export".to_owned(),
                export => format!("the export \"{export}\""),
            };
            let what = format!(
                "the server lists {which} and does not give it{words}: look at the server, or name another export after the last slash of the address"
            );
            return Failure::new(Trouble::Refused, what);
        }
        let names: Vec<String> = listed.iter().take(NAMED).map(|name| format!("\"{name}\"")).collect();
        let offer = match names.as_slice() {
            [] => "it does not say which ones it has".to_owned(),
            names => format!("it has {}", names.join(", ")),
        };
        let what = format!(
            "the server has no export \"{export}\"{words}: name another one after the last slash of the address; {offer}"
        );
        Failure::new(Trouble::Refused, what)
    }

    /// Chooses the export the old way, which has no answer but its facts.
    async fn export_name(&mut self, export: &str, padded: bool) -> Result<Export, Failure> {
        self.give(&wire::option(Opt::ExportName, export.as_bytes())).await?;
        let mut facts = [0; 10];
        self.stream.read_exact(&mut facts).await.map_err(|e| {
            let what = format!(
                "the server closed the connection when asked for the export \"{export}\": does it have it?"
            );
            Failure::with(Trouble::Lost, what, e)
        })?;
        let facts = wire::export_facts(&facts)?;
        if padded {
            self.take::<124>().await?;
        }
        Ok(facts)
    }
}

/// Sends requests until the connection is dropped, then says goodbye.
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
            shared.end(Trouble::Lost, format!("the connection broke: {error}"));
        }
    }
    // The server may be gone already, and need not answer.
    let goodbye = wire::request(Command::Disconnect, 0, 0, 0);
    if output.write_all(&goodbye).await.is_ok() {
        drop(output.shutdown().await);
    }
    receiver.abort();
    shared.end(Trouble::Lost, "the connection was closed".to_owned());
}

/// The receiving side, which counts what comes.
struct Input<R> {
    inner: BufReader<R>,
    shared: Arc<Shared>,
}

impl<R: AsyncRead + Unpin> Input<R> {
    async fn exact(&mut self, mut out: &mut [u8]) -> Result<(), Failure> {
        while !out.is_empty() {
            let n = self
                .inner
                .read(out)
                .await
                .map_err(|e| Failure::new(Trouble::Lost, format!("the connection broke: {e}")))?;
            if n == 0 {
                return Err(Failure::new(Trouble::Lost, "the server closed the connection"));
            }
            self.shared.received.fetch_add(n as u64, Ordering::Relaxed);
            out = &mut out[n..];
        }
        Ok(())
    }

    async fn take<const N: usize>(&mut self) -> Result<[u8; N], Failure> {
        let mut bytes = [0; N];
        self.exact(&mut bytes).await?;
        Ok(bytes)
    }
}

/// Places what comes until the connection ends.
async fn receive(mut input: Input<impl AsyncRead + Unpin>, structured: bool, context: Option<u32>) {
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
    let head = wire::head(&input.take().await?)?;
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

/// What follows a head; whether the answer is whole with it.
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
            let len = u32::from_be_bytes(input.take().await?);
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
            let offset = u64::from_be_bytes(input.take().await?);
            let place = reading.place(offset, u64::from(len) - 8)?;
            input.exact(place).await?;
        }
        (Chunk::Hole, Pending::Read(reading)) => {
            let (offset, len) = wire::hole(&input.take().await?)?;
            reading.place(offset, u64::from(len))?.fill(0);
        }
        (Chunk::Status, Pending::Status { status, .. }) => {
            let id = u32::from_be_bytes(input.take().await?);
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

impl Pending {
    /// Whether an answer that claims to be whole is.
    fn complete(&self) -> Result<(), Nonsense> {
        match self {
            Self::Read(Reading { range, got, error: None, .. }) if !got.contains(range) => {
                let bytes = got.bytes();
                Err(Nonsense(format!("a read of {range:?} is answered with {bytes} bytes")))
            }
            Self::Status { status, error: None, .. } if status.is_empty() => {
                Err(Nonsense("a status says nothing".to_owned()))
            }
            Self::Read(_) | Self::Status { .. } => Ok(()),
        }
    }

    /// Hands the answer over. Whoever asked may have left.
    fn hand_over(self) {
        match self {
            Self::Read(Reading { buffer, answer, error, .. }) => {
                drop(answer.send(error.map_or(Ok(buffer), Err)))
            }
            Self::Status { status, answer, error } => drop(answer.send(error.map_or(Ok(status), Err))),
        }
    }
}
