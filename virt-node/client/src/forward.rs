//! `port-forward`: ports of this machine that lead to ports of a guest, each connection over a WebSocket of its own; or one
//! connection on standard input and output, for ssh.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use cluster::websocket::Socket;
use futures_util::{SinkExt, StreamExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_tungstenite::tungstenite::Message;

use crate::console::at_terminal;
use crate::error::{Error, Kind, Result, failed, message_of, usage};
use crate::output::say;
use crate::port::Forwarded;
use crate::site::Site;
use crate::stream;
use crate::target::Target;

/// Connections at once, and senders of datagrams at once.
const CLIENTS_MAX: usize = 256;
/// How long a guest may be silent after its client has sent everything.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// How long a sender of datagrams is remembered without any.
const SILENCE: Duration = Duration::from_secs(120);
/// Longest datagram in bytes, and datagrams that wait for the connection.
const DATAGRAM_MAX: usize = 65_536;
const DATAGRAMS_WAITING: usize = 64;

fn path(port: Forwarded) -> String {
    format!("portforward/{}/{}", port.guest, port.protocol())
}

fn trouble(target: &Target, port: Forwarded) -> String {
    format!("Can't forward to {} port {} of {}/{}", port.protocol(), port.guest, target.short(), target.name)
}

/// Forwards until it is interrupted.
///
/// # Errors
/// A port of this machine cannot be used.
pub(crate) async fn forward(
    site: &Site,
    target: &Target,
    address: IpAddr,
    ports: &[Forwarded],
) -> Result<()> {
    let mut work = JoinSet::new();
    for port in ports.iter().copied() {
        let here = SocketAddr::new(address, port.local);
        let taken = |error| Error::with(Kind::System, format!("cannot listen at {here}"), error);
        let (site, target) = (site.clone(), target.clone());
        let bound = if port.tcp {
            let listener = TcpListener::bind(here).await.map_err(taken)?;
            let bound = listener.local_addr().map_err(taken)?;
            work.spawn(async move { connections(&listener, site, target, port).await });
            bound
        } else {
            let socket = UdpSocket::bind(here).await.map_err(taken)?;
            let bound = socket.local_addr().map_err(taken)?;
            work.spawn(async move { datagrams(Arc::new(socket), site, target, port).await });
            bound
        };
        say(&format!("forwarding {} {bound} to {}", port.protocol(), port.guest));
    }
    match work.join_next().await {
        Some(Ok(error)) => Err(Error::with(Kind::System, "forwarding of a port ended", error)),
        Some(Err(_)) | None => Err(Error::new(Kind::System, "forwarding of a port ended")),
    }
}

/// One connection on standard input and output, until one end is over.
///
/// # Errors
/// The guest cannot be reached.
pub(crate) async fn standard(site: &Site, target: &Target, port: Forwarded) -> Result<()> {
    if !port.tcp {
        return usage("--stdio is for tcp");
    }
    let socket = open(site, target, port).await.map_err(failed(trouble(target, port)))?;
    at_terminal(socket, false, Some(SILENCE_MAX)).await.map(|_| ())
}

async fn open(site: &Site, target: &Target, port: Forwarded) -> cluster::Result<Socket> {
    stream::open(site, target, &path(port)).await
}

/// Serves connections; gives the reason why it cannot any more.
async fn connections(listener: &TcpListener, site: Site, target: Target, port: Forwarded) -> std::io::Error {
    let places = Arc::new(Semaphore::new(CLIENTS_MAX));
    loop {
        let client = match listener.accept().await {
            Ok((client, _)) => client,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => continue,
            Err(error) => return error,
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            say(&format!("a connection was refused: {CLIENTS_MAX} are open already"));
            continue;
        };
        let (site, target) = (site.clone(), target.clone());
        tokio::spawn(async move {
            let _place = place;
            match open(&site, &target, port).await {
                Ok(socket) => drop(stream::join(socket, client, Some(SILENCE_MAX)).await),
                Err(error) => say(&format!("{}: {}", trouble(&target, port), message_of(&error))),
            }
        });
    }
}

/// Serves datagrams: each sender has a WebSocket, each datagram is one message.
async fn datagrams(socket: Arc<UdpSocket>, site: Site, target: Target, port: Forwarded) -> std::io::Error {
    let mut clients: BTreeMap<SocketAddr, mpsc::Sender<Vec<u8>>> = BTreeMap::new();
    let mut datagram = vec![0; DATAGRAM_MAX];
    loop {
        let (length, from) = match socket.recv_from(&mut datagram).await {
            Ok(received) => received,
            // The receiver of an earlier datagram has left.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => continue,
            Err(error) => return error,
        };
        let bytes = datagram.get(..length).unwrap_or_default().to_vec();
        clients.retain(|_, client| !client.is_closed());
        if !clients.contains_key(&from) && clients.len() < CLIENTS_MAX {
            let (sender, waiting) = mpsc::channel(DATAGRAMS_WAITING);
            clients.insert(from, sender);
            let (socket, site, target) = (Arc::clone(&socket), site.clone(), target.clone());
            tokio::spawn(async move {
                match open(&site, &target, port).await {
                    Ok(guest) => exchange(guest, waiting, &socket, from).await,
                    Err(error) => say(&format!("{}: {}", trouble(&target, port), message_of(&error))),
                }
            });
        }
        if let Some(client) = clients.get(&from) {
            // As in any network, a datagram is lost when there is no room.
            drop(client.try_send(bytes));
        }
    }
}

/// Passes datagrams of one sender to the guest and its answers back.
async fn exchange(guest: Socket, mut waiting: mpsc::Receiver<Vec<u8>>, socket: &UdpSocket, from: SocketAddr) {
    let (mut send, mut receive) = guest.split();
    loop {
        tokio::select! {
            bytes = waiting.recv() => match bytes {
                Some(bytes) => if send.send(Message::Binary(bytes.into())).await.is_err() { return },
                None => return,
            },
            message = receive.next() => match message {
                Some(Ok(Message::Binary(bytes))) => drop(socket.send_to(&bytes, from).await),
                Some(Ok(Message::Ping(_))) => if send.flush().await.is_err() { return },
                Some(Ok(Message::Text(_) | Message::Pong(_) | Message::Frame(_))) => {}
                None | Some(Ok(Message::Close(_)) | Err(_)) => return,
            },
            () = tokio::time::sleep(SILENCE) => return,
        }
    }
}
