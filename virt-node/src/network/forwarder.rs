//! DNS for guests of a machine whose resolvers are all on its loopback, which no guest reaches: queries to the pod network's
//! gateway are forwarded, and answered. There is no cache, and only the ID of a query is changed.
//!
//! Not here: when it is needed ([`super::Resolvers`]), resolving.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use guest::clients::{Client, Clients};
use rustix::event::{PollFd, PollFlags, poll};
use socket2::{Domain, Socket, Type};

use super::pod::BRIDGE;
use crate::error::{Error, Kind};

/// Where names are asked for.
const PORT: u16 = 53;
/// Longest question or answer over UDP, in bytes.
const PACKET_MAX: usize = 4096;
/// Length of a DNS header.
const HEADER: usize = 12;
/// Most questions that wait for an answer, and most connections; the connection idle longest is closed for the next.
const WAITING_MAX: usize = 1024;
const CONNECTIONS_MAX: usize = 32;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// How long a question waits.
const TIMEOUT: Duration = Duration::from_secs(10);

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
    /// Another server listens there, or the address is not the machine's.
    pub fn start(gateway: IpAddr, local: IpAddr) -> Result<Self, Error> {
        Self::between(SocketAddr::new(gateway, PORT), SocketAddr::new(local, PORT), Some(BRIDGE))
    }

    /// Answers only packets that arrive through the interface `through`, where one is named: the gateway's address can be
    /// reached through the machine's other interfaces, too.
    fn between(gateway: SocketAddr, local: SocketAddr, through: Option<&str>) -> Result<Self, Error> {
        let failed = |error: io::Error| {
            Error::with(Kind::System, format!("cannot forward DNS queries from {gateway} to {local}"), error)
        };
        let packets = UdpSocket::from(bound(gateway, Type::DGRAM, through).map_err(failed)?);
        let listener = bound(gateway, Type::STREAM, through).map_err(failed)?;
        listener.listen(BACKLOG).map_err(failed)?;
        let listener = TcpListener::from(listener);
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

fn bound(address: SocketAddr, kind: Type, through: Option<&str>) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), kind, None)?;
    if kind == Type::STREAM {
        socket.set_reuse_address(true)?;
    }
    socket.bind_device(through.map(str::as_bytes))?;
    socket.bind(&address.into())?;
    Ok(socket)
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
    let mut connections = Clients::new(CONNECTIONS_MAX);
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
                waiting.retain(|_, one| one.since.elapsed() < TIMEOUT);
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
            && let Some(client) = connections.admit(stream)
        {
            // A client that was disconnected asks again; without a thread, it sees the end of its connection.
            let work = move || drop(serve_connection(&client, local));
            _ = thread::Builder::new().name("names tcp".to_owned()).spawn(work);
        }
    }
}

/// A connection's questions, one after the other. The resolver is connected to for the first of them.
fn serve_connection(client: &Client<TcpStream>, local: SocketAddr) -> io::Result<()> {
    let prepare = |stream: &TcpStream| {
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))
    };
    let mut stream = client.stream();
    stream.set_nonblocking(false)?;
    prepare(stream)?;
    let mut resolver = None;
    loop {
        let question = message(stream)?;
        let _busy = client.busy();
        if resolver.is_none() {
            let connected = TcpStream::connect_timeout(&local, TIMEOUT)?;
            prepare(&connected)?;
            resolver = Some(connected);
        }
        let Some(mut asked) = resolver.as_ref() else { return Ok(()) };
        asked.write_all(&question)?;
        let answer = message(asked)?;
        stream.write_all(&answer)?;
    }
}

/// A message over TCP with its length (RFC 1035, section 4.2.2).
fn message(mut stream: &TcpStream) -> io::Result<Vec<u8>> {
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

    /// An address that no other test uses: a port that was free a moment ago may be in use by now.
    fn address(of: u8) -> SocketAddr {
        SocketAddr::from(([127, 53, 0, of], 5300))
    }

    #[test]
    fn questions_come_back_with_their_own_numbers() {
        let resolver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let at = resolver.local_addr().unwrap();
        let tcp = TcpListener::bind(at).unwrap();
        let gateway = address(1);
        let _forwarder = Forwarder::between(gateway, at, Some("lo")).unwrap();
        let clients = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
        let question = |mark: u8| [&[0x12, 0x34][..], &[0; 10], &[mark]].concat();
        for (mark, client) in (1..).zip(&clients) {
            client.set_read_timeout(Some(TIMEOUT)).unwrap();
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
        assert_eq!(message(&server).unwrap(), [0, 3, 7, 8, 9]);
        server.write_all(&[0, 2, 5, 6]).unwrap();
        assert_eq!(message(&client).unwrap(), [0, 2, 5, 6]);
    }

    #[test]
    fn connections_that_ask_nothing_keep_no_client_out() {
        let resolver = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = resolver.local_addr().unwrap();
        thread::spawn(move || {
            for stream in resolver.incoming() {
                let stream = stream.unwrap();
                thread::spawn(move || {
                    while let Ok(question) = message(&stream) {
                        (&stream).write_all(&question).unwrap();
                    }
                });
            }
        });
        let gateway = address(5);
        let _forwarder = Forwarder::between(gateway, at, Some("lo")).unwrap();
        let count = if std::env::var_os("FERROVIRT_SOAK").is_some() { 1000 } else { 100 };
        let mut idle = Vec::new();
        for number in 0..count {
            let mut client = TcpStream::connect(gateway).unwrap();
            if number % 2 == 0 {
                client.write_all(&[0, 9, 1]).unwrap();
            }
            idle.push(client);
        }
        for _ in 0..5 {
            let begun = Instant::now();
            let mut client = TcpStream::connect(gateway).unwrap();
            client.set_read_timeout(Some(TIMEOUT)).unwrap();
            client.write_all(&[0, 2, 7, 8]).unwrap();
            assert_eq!(message(&client).unwrap(), [0, 2, 7, 8]);
            assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        }
    }

    #[test]
    fn clients_behind_another_interface_get_no_answer() {
        // In a network namespace of this thread's own, with an interface that no packet comes in through.
        let work = || {
            link::Namespace::leave().unwrap();
            let ip = |words: &str| {
                let done = std::process::Command::new("ip").args(words.split(' ')).status().unwrap();
                assert!(done.success(), "{words}");
            };
            ip("link set lo up");
            ip("link add other0 type veth peer name other1");
            let resolver = UdpSocket::bind("127.0.0.1:0").unwrap();
            let (gateway, at) = (address(4), resolver.local_addr().unwrap());
            let _forwarder = Forwarder::between(gateway, at, Some("other0")).unwrap();
            let client = UdpSocket::bind("127.0.0.1:0").unwrap();
            resolver.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
            drop(client.send_to(&[0; 20], gateway));
            assert!(resolver.recv_from(&mut [0; 64]).is_err(), "the question went on to the resolver");
            assert!(TcpStream::connect_timeout(&gateway, Duration::from_millis(300)).is_err());
        };
        thread::spawn(work).join().unwrap();
    }

    #[test]
    fn it_ends_with_its_owner() {
        let gateway = address(2);
        drop(Forwarder::between(gateway, address(3), None).unwrap());
        let until = Instant::now() + TIMEOUT;
        while UdpSocket::bind(gateway).is_err() {
            assert!(Instant::now() < until, "the port is free again");
            thread::sleep(Duration::from_millis(5));
        }
    }
}
