//! Byte streams to a guest: its console, screen and USB redirection channels, which are sockets of its QEMU, and its ports.
//!
//! QEMU serves one client of a console at a time. A new one takes over: the stream before it is closed, as upstream does. A
//! client of the screen that asks for `preserveSession` is refused instead. A client with a USB device gets a free channel, or
//! is refused when there is none.
//! All streams together have a part of the connections only.
//!
//! QEMU writes the bytes of a serial port one by one. Each piece is encrypted and framed again by agent, operator and API
//! server, so bytes of a console that closely follow others are gathered before they are sent.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use api::launch::{USB_CHANNELS, usb_channel};
use cluster::Key;
use serve::datagrams;
use serve::route::{Answer, Call};
use serve::upgrade::Stream;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional_with_sizes};
use tokio::net::{TcpStream, UdpSocket, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};

use super::{CONNECTIONS, Refused, flag, key};
use crate::error::{Error, Kind};
use crate::guests::controller::Controller;
use crate::pods::{PodDirectory, launcher};

/// Streams and the patterns of their paths.
pub(super) const STREAMS: [(&str, &str); 5] = [
    ("console", "console"),
    ("vnc", "vnc"),
    ("usbredir", "usbredir"),
    ("portforward", "portforward/{port}"),
    ("portforward", "portforward/{port}/{proto}"),
];
/// Most streams at once.
const MOST: usize = CONNECTIONS / 4 * 3;
/// The protocol's name in the Upgrade.
const PROTOCOL: &str = "ferrovirt-stream";
/// Bytes on their way in each direction.
const BUFFER: usize = 16 << 10;
/// How long bytes of a console that follow others are gathered: too short to be seen by a user who types.
const GATHER: Duration = Duration::from_millis(2);
/// How long a guest's port may take to accept.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long QEMU may take to let go of the client before.
const TAKE_OVER: Duration = Duration::from_millis(100);

/// The sender that ends each open stream, by guest and kind.
type Ends = HashMap<(Key, &'static str), oneshot::Sender<()>>;

/// Numbers of streams, for metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Open ones, by guest and kind.
    pub(crate) open: BTreeMap<(Key, &'static str), usize>,
    /// When the last of a guest was opened, in seconds since 1970.
    pub(crate) last: BTreeMap<Key, u64>,
}

/// Open streams.
#[derive(Clone, Debug)]
pub(crate) struct Sessions {
    open: Arc<Mutex<Open>>,
    places: Arc<Semaphore>,
}

impl Default for Sessions {
    fn default() -> Self {
        Self { open: Arc::default(), places: Arc::new(Semaphore::new(MOST)) }
    }
}

#[derive(Debug, Default)]
struct Open {
    ends: Ends,
    counts: Counts,
    /// Numbers of USB channels that have a client, by guest.
    channels: HashMap<Key, BTreeSet<u8>>,
}

/// An open stream: it is counted and has its place until this is dropped.
struct Counted {
    sessions: Sessions,
    of: (Key, &'static str),
    _place: OwnedSemaphorePermit,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut open = self.sessions.lock();
        if let Some(count) = open.counts.open.get_mut(&self.of) {
            *count -= 1;
        }
    }
}

/// A USB channel of a guest that has a client: it is free again when this is dropped.
#[derive(Debug)]
struct Channel {
    sessions: Sessions,
    key: Key,
    number: u8,
}

impl Drop for Channel {
    fn drop(&mut self) {
        let mut open = self.sessions.lock();
        if let Some(taken) = open.channels.get_mut(&self.key) {
            taken.remove(&self.number);
            if taken.is_empty() {
                open.channels.remove(&self.key);
            }
        }
    }
}

impl Sessions {
    /// The first USB channel of a guest without a client.
    fn channel(&self, key: &Key) -> Result<Channel, Refused> {
        let mut open = self.lock();
        let taken = open.channels.get(key);
        let free = (0..USB_CHANNELS).find(|number| taken.is_none_or(|taken| !taken.contains(number)));
        let number = free.ok_or_else(|| Refused::unavailable("All USB devices are in use."))?;
        open.channels.entry(key.clone()).or_default().insert(number);
        Ok(Channel { sessions: self.clone(), key: key.clone(), number })
    }

    /// Numbers of streams of guests that are still known; the others are forgotten.
    pub(crate) fn counts(&self, is_known: impl Fn(&Key) -> bool) -> Counts {
        let mut open = self.lock();
        open.counts.open.retain(|(key, _), count| *count > 0 || is_known(key));
        open.counts.last.retain(|key, _| is_known(key));
        open.counts.clone()
    }

    fn count(&self, of: (Key, &'static str), place: OwnedSemaphorePermit) -> Counted {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut open = self.lock();
        *open.counts.open.entry(of.clone()).or_default() += 1;
        open.counts.last.insert(of.0.clone(), now);
        Counted { sessions: self.clone(), of, _place: place }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a stream, until it is dropped.
    fn enter(&self) -> Result<OwnedSemaphorePermit, Refused> {
        Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            Refused::unavailable(format!(
                "the agent of this node has {MOST} open streams, the most; close one and try again"
            ))
        })
    }

    /// Takes over a guest's stream, unless it has a client and is to be preserved. The receiver resolves when another
    /// client takes it over; the flag reports whether there was a previous client.
    fn take_over(
        &self,
        of: (Key, &'static str),
        preserve: bool,
    ) -> Result<(oneshot::Receiver<()>, bool), Refused> {
        let mut open = self.lock();
        open.ends.retain(|_, end| !end.is_closed());
        if preserve && open.ends.contains_key(&of) {
            return Err(Refused::unavailable("Active VNC connection. Request denied."));
        }
        let (end, ended) = oneshot::channel();
        // Dropping the sender ends the stream before.
        let before = open.ends.insert(of, end).is_some();
        Ok((ended, before))
    }
}

/// Opens a stream; its bytes flow after the answer.
pub(super) async fn open(
    controller: &Arc<Controller>,
    sessions: &Sessions,
    name: &'static str,
    call: &mut Call,
) -> Result<Answer, Refused> {
    let key = key(call);
    let (instance, pod) = controller.pod_of(&key).map_err(|error| Refused::missing(error.chain()))?;
    let place = sessions.enter()?;
    // The operator asked the API server whether it runs, and may have read a later version than the agent's cache.
    if matches!(instance.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return Err(Refused::conflict("VMI is not running"));
    }
    if name == "portforward" {
        return forward(call, &instance.address(), || sessions.count((key.clone(), name), place)).await;
    }
    if name == "usbredir" {
        let channel = sessions.channel(&key)?;
        let socket = usb_channel(channel.number);
        let stream = connect(pod, socket, "No USB redirection channels are present.").await?;
        return upgrade(call, sessions.count((key, name), place), None, |client| async move {
            let copied = copy(client, stream).await;
            // QEMU's end is closed by now.
            drop(channel);
            copied
        });
    }
    let (socket, absent) = match name {
        "console" => ("serial0", "No serial consoles are present."),
        _ => ("vnc", "No graphics devices are present."),
    };
    let preserve = name == "vnc" && flag(call, "preserveSession");
    let (ended, before) = sessions.take_over((key.clone(), name), preserve)?;
    if before {
        tokio::time::sleep(TAKE_OVER).await;
    }
    let stream = connect(pod, socket.to_owned(), absent).await?;
    let counted = sessions.count((key, name), place);
    match name {
        "console" => upgrade(call, counted, Some(ended), |client| console(client, stream)),
        _ => upgrade(call, counted, Some(ended), |client| copy(client, stream)),
    }
}

/// Connects to a socket of the guest's QEMU. A guest without it is refused with the text `absent`.
async fn connect(
    pod: Arc<PodDirectory>,
    socket: String,
    absent: &'static str,
) -> Result<UnixStream, Refused> {
    let connected = tokio::task::spawn_blocking(move || launcher::connect_to(&pod, &socket)).await;
    let stream = connected.unwrap_or_else(|_| {
        Err(Error::new(
            Kind::System,
            "a connection to a launcher was aborted: the thread panicked; see the agent's log",
        ))
    });
    let stream = stream.map_err(|error| {
        if error.kind() == Kind::Launcher { Refused::bad(absent) } else { Refused::from(error) }
    })?;
    let failed = |error| Refused::from(Error::system("a guest's socket cannot be used", error));
    stream.set_nonblocking(true).map_err(failed)?;
    UnixStream::from_std(stream).map_err(failed)
}

/// Connects to a port of the guest: a stream by TCP, datagrams by UDP.
async fn forward(call: &mut Call, address: &str, count: impl FnOnce() -> Counted) -> Result<Answer, Refused> {
    let port: u16 =
        call.parameter("port").parse().map_err(|_| Refused::bad("the port is not a number up to 65535"))?;
    let address: IpAddr = address.parse().map_err(|_| Refused::bad("no network interfaces are present"))?;
    let to = SocketAddr::new(address, port);
    let unreachable =
        |error: &dyn std::fmt::Display| Refused::bad(format!("dialing VM: {address} port {port}: {error}"));
    match call.parameter("proto") {
        "" | "tcp" => match tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(to)).await {
            Ok(Ok(stream)) => upgrade(call, count(), None, |client| copy(client, stream)),
            Ok(Err(error)) => Err(unreachable(&error)),
            Err(error) => Err(unreachable(&error)),
        },
        "udp" => {
            let socket = connected(to).await.map_err(|error| unreachable(&error))?;
            upgrade(call, count(), None, |client| relay(client, socket))
        }
        other => Err(Refused::bad(format!("protocol {other} is not supported; use tcp or udp"))),
    }
}

/// A UDP socket that sends to `to` and receives from it alone.
async fn connected(to: SocketAddr) -> io::Result<UdpSocket> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(to).await?;
    Ok(socket)
}

/// Moves bytes until one end closes.
async fn copy(mut client: Stream, mut guest: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    copy_bidirectional_with_sizes(&mut client, &mut guest, BUFFER, BUFFER).await.map(|_| ())
}

/// Moves the bytes of a console until both ends have closed.
async fn console(client: Stream, guest: UnixStream) -> io::Result<()> {
    let (mut from_guest, mut to_guest) = tokio::io::split(guest);
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let typed = async {
        tokio::io::copy(&mut from_client, &mut to_guest).await?;
        to_guest.shutdown().await
    };
    let printed = async {
        gather(&mut from_guest, &mut to_client).await?;
        to_client.shutdown().await
    };
    tokio::try_join!(typed, printed).map(|((), ())| ())
}

/// Moves bytes of a guest to a client until the guest's end. The first after a pause are sent at once, those that follow
/// others within [`GATHER`] together; those before an error as well.
async fn gather(
    guest: &mut (impl AsyncRead + Unpin),
    client: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    let mut piece = Vec::with_capacity(BUFFER);
    let mut sent: Option<Instant> = None;
    let mut failed = None;
    let mut is_open = guest.read_buf(&mut piece).await? > 0;
    while is_open {
        if sent.is_some_and(|sent| sent.elapsed() < GATHER) {
            let until = Instant::now() + GATHER;
            while is_open && piece.len() < BUFFER && Instant::now() < until {
                let Ok(read) = timeout_at(until, guest.read_buf(&mut piece)).await else { break };
                match read {
                    Ok(length) => is_open = length > 0,
                    Err(error) => (is_open, failed) = (false, Some(error)),
                }
            }
        }
        client.write_all(&piece).await?;
        client.flush().await?;
        piece.clear();
        sent = Some(Instant::now());
        is_open = is_open && guest.read_buf(&mut piece).await? > 0;
    }
    failed.map_or(Ok(()), Err)
}

/// Moves datagrams until the client's stream ends. A datagram that the guest's port refuses is lost, as in any network.
async fn relay(client: impl AsyncRead + AsyncWrite, guest: UdpSocket) -> io::Result<()> {
    let (mut read, mut write) = tokio::io::split(client);
    let to_guest = async {
        let mut reader = datagrams::Reader::default();
        while let Some(datagram) = reader.next(&mut read).await? {
            drop(guest.send(&datagram).await);
        }
        Ok(())
    };
    let to_client = async {
        let mut datagram = vec![0; datagrams::LENGTH_MAX];
        loop {
            // An error tells of an earlier datagram that was refused.
            let Ok(length) = guest.recv(&mut datagram).await else { continue };
            datagrams::write(&mut write, datagram.get(..length).unwrap_or_default()).await?;
        }
    };
    tokio::select! {
        ended = to_guest => ended,
        ended = to_client => ended,
    }
}

/// Answers with the Upgrade; `work` has the client's stream until it ends, or another client takes the stream over.
fn upgrade<W: Future<Output = io::Result<()>> + Send>(
    call: &mut Call,
    counted: Counted,
    ended: Option<oneshot::Receiver<()>>,
    work: impl FnOnce(Stream) -> W + Send + 'static,
) -> Result<Answer, Refused> {
    let accepted = serve::upgrade::accept(call, PROTOCOL);
    let (answer, pending) = accepted.map_err(|refusal| Refused::bad(refusal.to_string()))?;
    tokio::spawn(async move {
        // A client that went away before is no error.
        let Ok((client, busy)) = pending.stream().await else { return };
        let taken = async {
            match ended {
                // An error means the same: the other end was dropped.
                Some(ended) => drop(ended.await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            moved = work(client) => {
                if let Err(error) = moved {
                    tracing::debug!(%error, "a stream to a guest broke");
                }
            }
            () = taken => {}
        }
        drop((busy, counted));
    });
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::io::ReadBuf;

    use super::*;

    #[tokio::test]
    async fn a_second_session_ends_the_first() {
        let sessions = Sessions::default();
        let take_over = |kind, preserve| sessions.take_over((Key::new("n", "a"), kind), preserve);
        let (first, before) = take_over("console", false).unwrap();
        assert!(!before);
        let (_other, before) = take_over("vnc", true).unwrap();
        assert!(!before, "another kind of stream is left alone");
        let (mut second, before) = take_over("console", false).unwrap();
        assert!(before);
        assert!(first.await.is_err(), "the first is over");
        assert!(second.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Empty));
        drop(second);
        assert!(!take_over("console", false).unwrap().1, "one that closed is forgotten");
    }

    #[test]
    fn a_session_of_the_screen_is_preserved_if_the_next_client_asks_for_it() {
        let sessions = Sessions::default();
        let take_over = |preserve| sessions.take_over((Key::new("n", "a"), "vnc"), preserve);
        let (mut first, _) = take_over(true).unwrap();
        let refused = take_over(true).unwrap_err();
        let refused = (refused.status.as_u16(), refused.message.as_str());
        assert_eq!(refused, (503, "Active VNC connection. Request denied."));
        assert!(first.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Empty));
        let (second, _) = take_over(false).unwrap();
        assert!(first.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Closed));
        drop(second);
        assert!(take_over(true).is_ok(), "the session before is over");
    }

    #[test]
    fn each_client_with_a_usb_device_has_a_channel_of_its_own() {
        let sessions = Sessions::default();
        let (key, other) = (Key::new("n", "a"), Key::new("n", "b"));
        let mut open: Vec<_> = (0..4).map(|_| sessions.channel(&key).unwrap()).collect();
        assert_eq!(open.iter().map(|channel| channel.number).collect::<Vec<_>>(), [0, 1, 2, 3]);
        let refused = sessions.channel(&key).unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.message.as_str()), (503, "All USB devices are in use."));
        assert_eq!(sessions.channel(&other).unwrap().number, 0, "another guest");
        drop(open.remove(2));
        assert_eq!(sessions.channel(&key).unwrap().number, 2, "the one that was closed");
        drop(open);
        assert!(sessions.lock().channels.is_empty(), "a guest without clients is forgotten");
    }

    #[test]
    fn streams_leave_connections_to_commands() {
        let sessions = Sessions::default();
        let mut open: Vec<_> = (0..192).map(|_| sessions.enter().unwrap()).collect();
        let refused = sessions.clone().enter().unwrap_err();
        assert_eq!(refused.status.as_u16(), 503);
        let text = "the agent of this node has 192 open streams, the most; close one and try again";
        assert_eq!(refused.message, text);
        open.pop();
        assert!(sessions.enter().is_ok());
    }

    #[test]
    fn streams_are_counted_while_they_are_open() {
        let (sessions, key) = (Sessions::default(), Key::new("n", "a"));
        let first = sessions.count((key.clone(), "portforward"), sessions.enter().unwrap());
        let second = sessions.count((key.clone(), "portforward"), sessions.enter().unwrap());
        let of = (key.clone(), "portforward");
        assert_eq!(sessions.counts(|_| true).open[&of], 2);
        drop(first);
        assert_eq!(sessions.counts(|_| false).open[&of], 1, "the guest is gone, its stream is not");
        drop(second);
        assert_eq!(sessions.counts(|_| true).open[&of], 0);
        assert_eq!(sessions.counts(|_| false), Counts::default(), "gone guests are forgotten");
    }

    /// A client that keeps the pieces which it is sent.
    #[derive(Default)]
    struct Pieces(Vec<Vec<u8>>);

    impl AsyncWrite for Pieces {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, piece: &[u8]) -> Poll<io::Result<usize>> {
            self.get_mut().0.push(piece.to_vec());
            Poll::Ready(Ok(piece.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn bytes_of_a_console_that_follow_others_are_sent_together() {
        const COUNT: usize = 20_000;
        let (mut guest, mut near) = tokio::io::duplex(256);
        let printed = async {
            guest.write_all(b"$").await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
            for _ in 0..COUNT {
                guest.write_all(b"x").await.unwrap();
            }
            drop(guest);
        };
        let mut client = Pieces::default();
        let begun = Instant::now();
        let ((), gathered) = tokio::join!(printed, gather(&mut near, &mut client));
        gathered.unwrap();
        assert_eq!(client.0[0], b"$", "the first byte waits for no other");
        assert_eq!(client.0.concat().len(), 1 + COUNT, "the last bytes as well");
        // Without gathering there would be one for each 256 bytes at least, however fast the machine is.
        let pauses = begun.elapsed().as_micros() / GATHER.as_micros();
        let full = COUNT / BUFFER;
        assert!(client.0.len() as u128 <= pauses + full as u128 + 2, "{} pieces", client.0.len());
    }

    /// A guest that prints a byte at each read, and whose console breaks then.
    struct Breaks(Vec<u8>);

    impl AsyncRead for Breaks {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            into: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let Some(byte) = self.get_mut().0.pop() else {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            };
            into.put_slice(&[byte]);
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn bytes_before_a_console_breaks_are_sent() {
        let mut client = Pieces::default();
        let broken = gather(&mut Breaks(b"cba".to_vec()), &mut client).await.unwrap_err();
        assert_eq!(broken.kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(client.0.concat(), b"abc");
    }

    #[tokio::test]
    async fn datagrams_reach_a_port_and_its_answers_come_back_after_a_refusal() {
        let guest = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let to = guest.local_addr().unwrap();
        drop(guest);
        let (mut client, near) = tokio::io::duplex(1 << 10);
        let relayed = tokio::spawn(relay(near, connected(to).await.unwrap()));
        // Nothing listens: the kernel reports the refusal at a later call.
        for _ in 0..2 {
            datagrams::write(&mut client, b"lost").await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let guest = UdpSocket::bind(to).await.unwrap();
        let mut reader = datagrams::Reader::default();
        let mut received = [0; 16];
        for sent in [&b"one"[..], b"", b"another"] {
            datagrams::write(&mut client, sent).await.unwrap();
            let (length, from) = guest.recv_from(&mut received).await.unwrap();
            assert_eq!(&received[..length], sent);
            guest.send_to(&[sent, b"!"].concat(), from).await.unwrap();
            assert_eq!(reader.next(&mut client).await.unwrap().unwrap(), [sent, b"!"].concat());
        }
        drop((client, reader));
        relayed.await.unwrap().unwrap();
    }
}
