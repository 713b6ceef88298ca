//! The client that sends reviews under load: by TLS to either replica, and to the other when one refuses the connection. It
//! records for a failed request the replica and the time, and for a kill the requests in flight.
//!
//! A connection is used again as long as the kernel knows of no end of it. So whatever begins after a kill is complete is
//! refused by the dead replica, and answered by the other.
//!
//! Not here: the requests, and the meaning of replies ([`crate::macpool::load`]).

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_rustls::TlsConnector;

use crate::macpool::setup::{Place, Replica, until};

/// The name by which the API server calls the webhook.
const HOST: &str = "kubemacpool-service.kubemacpool-system.svc";
/// Requests at each replica at once, and connections that are kept: together fewer than it has places for (256), so that
/// it ends none.
const AT_ONCE: usize = 128;
const KEPT: usize = 64;

/// A request without a reply.
#[derive(Debug)]
pub(crate) struct Failed {
    /// The number of the replica that it was sent to last.
    replica: u16,
    sent: Instant,
    ended: Instant,
    why: String,
}

/// Two replicas as a client has them.
pub(crate) struct Client {
    connector: TlsConnector,
    replicas: [SocketAddr; 2],
    idle: [Mutex<Vec<Connection>>; 2],
    turns: [Semaphore; 2],
}

/// A connection.
struct Connection {
    /// The socket below it, to be looked at.
    socket: std::net::TcpStream,
    sender: SendRequest<Full<Bytes>>,
}

impl Connection {
    /// Whether it has neither ended on this machine nor received unexpected data.
    fn is_open(&self) -> bool {
        matches!(self.socket.peek(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}

impl Client {
    /// A client of replicas 0 and 1. It has no connection yet.
    pub(crate) fn new(replicas: [SocketAddr; 2]) -> Self {
        // Certificates change under the load: which of them is trusted is the API server's affair.
        let config = serve::trust::client(None).unwrap();
        let turns = [Semaphore::new(AT_ONCE), Semaphore::new(AT_ONCE)];
        Self { connector: TlsConnector::from(Arc::new(config)), replicas, idle: Default::default(), turns }
    }

    /// Posts a review of a machine to a replica, or to the other if that one refuses the connection.
    pub(crate) async fn post(&self, first: u16, review: &Value) -> Result<Value, Failed> {
        let body = Bytes::from(review.to_string());
        let mut replica = first;
        // Each replica may be killed while the request is under way.
        let sent = Instant::now();
        loop {
            let _turn = self.turns[usize::from(replica)].acquire().await.unwrap();
            match self.exchange(usize::from(replica), body.clone()).await {
                Ok(reply) => return Ok(reply),
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && replica == first => {
                    replica = 1 - first;
                }
                Err(error) => {
                    return Err(Failed { replica, sent, ended: Instant::now(), why: error.to_string() });
                }
            }
        }
    }

    async fn exchange(&self, to: usize, body: Bytes) -> io::Result<Value> {
        let mut line = self.line(to).await?;
        let request = Request::post("/mutate-virtualmachines").header("host", HOST).body(Full::new(body));
        let response = line.sender.send_request(request.unwrap()).await.map_err(io::Error::other)?;
        let status = response.status();
        let text = response.into_body().collect().await.map_err(io::Error::other)?.to_bytes();
        if status != StatusCode::OK {
            return Err(io::Error::other(format!("{status}: {}", String::from_utf8_lossy(&text))));
        }
        let mut idle = self.idle[to].lock().unwrap();
        if idle.len() < KEPT {
            idle.push(line);
        }
        Ok(serde_json::from_slice(&text)?)
    }

    /// A connection that is there and open, or a new one.
    async fn line(&self, to: usize) -> io::Result<Connection> {
        loop {
            let kept = self.idle[to].lock().unwrap().pop();
            let Some(mut line) = kept else { return self.open(to).await };
            if line.is_open() && line.sender.ready().await.is_ok() {
                return Ok(line);
            }
        }
    }

    async fn open(&self, to: usize) -> io::Result<Connection> {
        let stream = TcpStream::connect(self.replicas[to]).await?;
        stream.set_nodelay(true)?;
        let socket = stream.as_fd().try_clone_to_owned()?.into();
        let stream = self.connector.connect(ServerName::try_from(HOST).unwrap(), stream).await?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        tokio::spawn(async move { drop(connection.await) });
        Ok(Connection { socket, sender })
    }
}

/// A replica that was killed, and started again at once.
#[derive(Debug)]
pub(crate) struct Kill {
    replica: u16,
    began: Instant,
    /// The process is gone, and this machine's kernel has ended its connections.
    gone: Instant,
    /// It is ready again.
    back: Instant,
}

impl Kill {
    /// Kills a replica, and starts it again with these arguments.
    pub(crate) fn new(place: &Place, replica: Replica, more: &[&str]) -> (Self, Replica) {
        let (number, address) = (replica.number, replica.webhook());
        let began = Instant::now();
        replica.kill();
        until("its connections have ended", || (!is_connected(address)).then_some(()));
        let gone = Instant::now();
        let replica = place.start(number, more);
        (Self { replica: number, began, gone, back: Instant::now() }, replica)
    }

    /// Whether a request was sent to the killed replica before it was gone, and not answered when it was killed.
    fn met(&self, failed: &Failed) -> bool {
        failed.replica == self.replica && failed.sent < self.gone && failed.ended > self.began
    }

    /// Whether a request from `began` to `ended` overlaps with the time without the replica.
    pub(crate) fn covers(&self, began: Instant, ended: Instant) -> bool {
        began < self.back && ended > self.began
    }
}

/// Checks that all that failed was in flight at a kill. Gives how long before the kill's end the first of them was sent.
pub(crate) fn all_in_flight(failed: &[Failed], kills: &[Kill]) -> Duration {
    let mut longest = Duration::ZERO;
    for one in failed {
        let Some(kill) = kills.iter().find(|kill| kill.met(one)) else {
            panic!("not in flight at a kill: {}: {one:?}, {kills:?}", one.why)
        };
        longest = longest.max(kill.gone.duration_since(one.sent));
    }
    longest
}

/// Whether a process of this machine has a live connection to an address.
fn is_connected(address: SocketAddr) -> bool {
    let SocketAddr::V4(address) = address else { panic!("{address} is not of IPv4") };
    let host = u32::from_ne_bytes(address.ip().octets());
    let remote = format!("{host:08X}:{:04X}", address.port());
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let of = |line: &str| {
        let mut fields = line.split_ascii_whitespace().skip(2);
        // 01: established.
        fields.next() == Some(&remote) && fields.next() == Some("01")
    };
    table.lines().any(of)
}
