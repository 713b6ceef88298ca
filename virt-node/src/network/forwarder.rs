//! Names for guests of a machine whose resolvers are all on its loopback, where no guest reaches them: asked on the pod
//! network's gateway, handed on, answered. Nothing is kept and nothing but the number of a question is changed.
//!
//! Not here: when it is needed ([`super::Resolvers`]), resolving.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use crate::error::{Error, Kind};

/// Where names are asked for.
const PORT: u16 = 53;
/// Longest question or answer over UDP, in bytes.
const PACKET_MAX: usize = 4096;
/// What a packet has before its question.
const HEADER: usize = 12;
/// Most questions that wait for an answer, and most connections.
const WAITING_MAX: usize = 1024;
const CONNECTIONS_MAX: usize = 32;
/// How long a question waits.
const PATIENCE: Duration = Duration::from_secs(10);

/// A forwarder; it ends when this is dropped.
#[derive(Debug)]
pub struct Forwarder {
    whom: (IpAddr, IpAddr),
    _stop: UnixStream,
}

/// A question that waits for its answer.
struct Waiting {
    from: SocketAddr,
    /// Its number as it was asked.
    number: [u8; 2],
    since: Instant,
}

impl Forwarder {
    /// Answers at port 53 of `gateway`, by the resolver at port 53 of `local`.
    ///
    /// # Errors
    /// Somebody else answers there, or the address is not the machine's.
    pub fn start(gateway: IpAddr, local: IpAddr) -> Result<Self, Error> {
        Self::between(SocketAddr::new(gateway, PORT), SocketAddr::new(local, PORT))
    }

    fn between(gateway: SocketAddr, local: SocketAddr) -> Result<Self, Error> {
        let failed = |error: io::Error| {
            Error::with(Kind::System, format!("names cannot be forwarded from {gateway} to {local}"), error)
        };
        let packets = UdpSocket::bind(gateway).map_err(failed)?;
        let listener = TcpListener::bind(gateway).map_err(failed)?;
        let any = match local {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let resolver = UdpSocket::bind((any, 0)).map_err(failed)?;
        resolver.connect(local).map_err(failed)?;
        for socket in [&packets, &resolver] {
            socket.set_nonblocking(true).map_err(failed)?;
        }
        listener.set_nonblocking(true).map_err(failed)?;
        let (ours, stop) = UnixStream::pair().map_err(failed)?;
        let work = move || forward(&packets, &listener, &resolver, local, &stop);
        thread::Builder::new().name("names".to_owned()).spawn(work).map_err(failed)?;
        Ok(Self { whom: (gateway.ip(), local.ip()), _stop: ours })
    }

    /// The gateway and the resolver that it was started with.
    pub fn between_whom(&self) -> (IpAddr, IpAddr) {
        self.whom
    }
}

/// Until it is stopped. What cannot be read or sent is asked for again.
fn forward(
    packets: &UdpSocket,
    listener: &TcpListener,
    resolver: &UdpSocket,
    local: SocketAddr,
    stop: &UnixStream,
) {
    let mut waiting: BTreeMap<u16, Waiting> = BTreeMap::new();
    let mut next = 0_u16;
    let connections = Arc::new(AtomicUsize::new(0));
    let mut packet = [0; PACKET_MAX];
    loop {
        let mut polled = [
            PollFd::new(stop, PollFlags::IN),
            PollFd::new(packets, PollFlags::IN),
            PollFd::new(resolver, PollFlags::IN),
            PollFd::new(listener, PollFlags::IN),
        ];
        match poll(&mut polled, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
        if polled.first().is_some_and(|one| !one.revents().is_empty()) {
            return;
        }
        if let Ok((length, from)) = packets.recv_from(&mut packet)
            && let Some([first, second, rest @ ..]) =
                packet.get_mut(..length).filter(|packet| packet.len() >= HEADER)
        {
            if waiting.len() >= WAITING_MAX {
                waiting.retain(|_, one| one.since.elapsed() < PATIENCE);
            }
            // Numbers of different guests may be the same.
            next = next.wrapping_add(1);
            if waiting.len() < WAITING_MAX {
                waiting.insert(next, Waiting { from, number: [*first, *second], since: Instant::now() });
                let question = [&next.to_be_bytes()[..], rest].concat();
                _ = resolver.send(&question);
            }
        }
        if let Ok(length) = resolver.recv(&mut packet)
            && let Some([first, second, rest @ ..]) =
                packet.get(..length).filter(|packet| packet.len() >= HEADER)
            && let Some(asked) = waiting.remove(&u16::from_be_bytes([*first, *second]))
        {
            let answer = [&asked.number[..], rest].concat();
            _ = packets.send_to(&answer, asked.from);
        }
        if let Ok((stream, _)) = listener.accept()
            && connections.load(Ordering::Relaxed) < CONNECTIONS_MAX
        {
            connections.fetch_add(1, Ordering::Relaxed);
            let count = Arc::clone(&connections);
            let work = move || {
                // Who hung up, or asked nothing, asks again.
                drop(converse(stream, local));
                count.fetch_sub(1, Ordering::Relaxed);
            };
            if thread::Builder::new().name("names tcp".to_owned()).spawn(work).is_err() {
                connections.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

/// A connection's questions, one after the other.
fn converse(mut stream: TcpStream, local: SocketAddr) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    let mut resolver = TcpStream::connect_timeout(&local, PATIENCE)?;
    for one in [&stream, &resolver] {
        one.set_read_timeout(Some(PATIENCE))?;
        one.set_write_timeout(Some(PATIENCE))?;
    }
    loop {
        let question = message(&mut stream)?;
        resolver.write_all(&question)?;
        let answer = message(&mut resolver)?;
        stream.write_all(&answer)?;
    }
}

/// A message over TCP with its length (RFC 1035, section 4.2.2).
fn message(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut whole = length.to_vec();
    whole.resize(usize::from(u16::from_be_bytes(length)).saturating_add(2), 0);
    stream.read_exact(whole.get_mut(2..).unwrap_or_default())?;
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An address that no other test uses: a port that was free a moment ago may be somebody's by now.
    fn address(of: u8) -> SocketAddr {
        SocketAddr::from(([127, 53, 0, of], 5300))
    }

    #[test]
    fn questions_come_back_with_their_own_numbers() {
        let resolver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let at = resolver.local_addr().unwrap();
        let tcp = TcpListener::bind(at).unwrap();
        let gateway = address(1);
        let _forwarder = Forwarder::between(gateway, at).unwrap();
        let clients = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
        let question = |mark: u8| [&[0x12, 0x34][..], &[0; 10], &[mark]].concat();
        for (mark, client) in (1..).zip(&clients) {
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            client.send_to(&[1, 2, 3], gateway).unwrap();
            client.send_to(&question(mark), gateway).unwrap();
        }
        let mut packet = [0; 64];
        let mut asked = Vec::new();
        for _ in &clients {
            let (length, from) = resolver.recv_from(&mut packet).unwrap();
            asked.push((packet[..length].to_vec(), from));
        }
        assert_ne!(asked[0].0[..2], asked[1].0[..2]);
        // The last one first.
        for (packet, from) in asked.iter().rev() {
            resolver.send_to(packet, from).unwrap();
        }
        for (mark, client) in (1..).zip(&clients) {
            let (length, _) = client.recv_from(&mut packet).unwrap();
            assert_eq!(packet[..length], question(mark));
        }
        let mut client = TcpStream::connect(gateway).unwrap();
        client.write_all(&[0, 3, 7, 8, 9]).unwrap();
        let (mut server, _) = tcp.accept().unwrap();
        assert_eq!(message(&mut server).unwrap(), [0, 3, 7, 8, 9]);
        server.write_all(&[0, 2, 5, 6]).unwrap();
        assert_eq!(message(&mut client).unwrap(), [0, 2, 5, 6]);
    }

    #[test]
    fn it_ends_with_its_owner() {
        let gateway = address(2);
        drop(Forwarder::between(gateway, address(3)).unwrap());
        let until = Instant::now() + PATIENCE;
        while UdpSocket::bind(gateway).is_err() {
            assert!(Instant::now() < until, "the port is free again");
            thread::sleep(Duration::from_millis(5));
        }
    }
}
