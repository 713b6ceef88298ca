//! `virt-node port-forward`: ports of this machine that lead to a guest's, or one connection on standard input and output,
//! for `ssh` and other programs.
//!
//! The guest is reached at the first address of its status, as a person would, from here and not through the daemon: its
//! list of ports holds, and the daemon's rights are not used. The daemon is asked for that address at each connection, so that
//! ports stay where they are when the guest is started again.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use api::kind::Kind;
use serde_json::Value;

use super::relay::{End, join};
use super::{Daemon, Named, say, text};
use crate::error::{Error, Kind as ErrorKind};
use guest::framing::{self, Counted};
use virt_client::port::Forwarded;

/// Limit of connections, and of senders of datagrams, of one command.
const CLIENTS_MAX: usize = 256;
/// How long a guest may take to accept a connection.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Idle timeout after which the sender of a datagram is dropped.
const SILENCE: Duration = Duration::from_secs(120);
/// Longest datagram, in bytes.
const DATAGRAM_MAX: usize = 65_536;

/// Which guest, of which daemon.
struct Guest {
    daemon: Daemon,
    namespace: String,
    named: Named,
}

impl Guest {
    /// Its first address, now.
    ///
    /// # Errors
    /// It does not run, or has none that this machine knows.
    fn address(&self) -> Result<IpAddr, Error> {
        let Self { daemon, namespace, named } = self;
        let no = |said: &str| Error::new(ErrorKind::Content, format!("{namespace}/{}: {said}", named.name));
        let target = named.target(Kind::VirtualMachineInstance, namespace);
        let run = daemon.another()?.object(&target)?.ok_or_else(|| no("no guest runs"))?;
        address(&run).map_err(no)
    }
}

/// Where the guest of a run is reached.
fn address(run: &Value) -> Result<IpAddr, &'static str> {
    if text(run, "/status/phase") != "Running" {
        return Err("the guest does not run");
    }
    let conditions = run.pointer("/status/conditions").and_then(Value::as_array);
    let paused = |one: &Value| one["type"] == "Paused" && one["status"] == "True";
    if conditions.is_some_and(|all| all.iter().any(paused)) {
        return Err("the guest is paused: unpause it");
    }
    let first = text(run, "/status/interfaces/0/ipAddress");
    first.parse().map_err(|_| "its first interface has no address known to this machine")
}

/// `virt-node port-forward`, until it is interrupted.
///
/// # Errors
/// There is no such guest, it has no address, or a port is taken.
pub(crate) fn forward(
    daemon: Daemon,
    namespace: &str,
    named: &Named,
    address: IpAddr,
    ports: &[Forwarded],
) -> Result<(), Error> {
    let guest = Arc::new(of(daemon, namespace, named)?);
    // An unreachable guest is reported now, and not to the first client.
    guest.address()?;
    let count = Arc::new(AtomicUsize::new(0));
    let (gone, ended) = channel();
    for one in ports {
        let here = SocketAddr::new(address, one.local);
        let failed = |error| {
            Error::with(ErrorKind::System, format!("cannot listen on {here} ({})", one.protocol()), error)
        };
        let (guest, count, gone, port) = (Arc::clone(&guest), Arc::clone(&count), gone.clone(), one.guest);
        let bound = if one.tcp {
            let listener = TcpListener::bind(here).map_err(failed)?;
            let bound = listener.local_addr().map_err(failed)?;
            let work = move || gone.send(connections(&listener, &guest, port, &count));
            framing::spawn("tcp", move || drop(work())).map_err(failed)?;
            bound
        } else {
            let socket = Arc::new(UdpSocket::bind(here).map_err(failed)?);
            let bound = socket.local_addr().map_err(failed)?;
            let work = move || gone.send(datagrams(&socket, &guest, port));
            framing::spawn("udp", move || drop(work())).map_err(failed)?;
            bound
        };
        say(&format!("forwarding {} {bound} to {}", one.protocol(), one.guest))?;
    }
    drop(gone);
    let error = ended.recv().unwrap_or_else(|_| io::ErrorKind::Other.into());
    Err(Error::with(ErrorKind::System, "forwarding of a port ended", error))
}

/// `virt-node port-forward --stdio`: one connection, until the guest ends it.
///
/// # Errors
/// There is no such guest, or no server listens on the port.
pub(crate) fn join_standard(
    daemon: Daemon,
    namespace: &str,
    named: &Named,
    port: Forwarded,
) -> Result<(), Error> {
    if !port.tcp {
        return Err(Error::new(ErrorKind::Usage, "--stdio is for tcp"));
    }
    let stream = connect(&of(daemon, namespace, named)?, port.guest)?;
    let failed = |error| Error::with(ErrorKind::System, "the connection to the guest broke", error);
    // The standard input may never end, and has no receiver any more.
    join(End::standard().map_err(failed)?, End::socket(stream).map_err(failed)?).map(drop).map_err(failed)
}

fn of(daemon: Daemon, namespace: &str, named: &Named) -> Result<Guest, Error> {
    match named.kind {
        None | Some(Kind::VirtualMachine | Kind::VirtualMachineInstance) => {
            Ok(Guest { daemon, namespace: namespace.to_owned(), named: named.clone() })
        }
        Some(kind) => Err(Error::new(ErrorKind::Usage, format!("a {} has no ports", kind.name()))),
    }
}

fn connect(guest: &Guest, port: u16) -> Result<TcpStream, Error> {
    let to = SocketAddr::new(guest.address()?, port);
    TcpStream::connect_timeout(&to, TIMEOUT)
        .map_err(|error| Error::with(ErrorKind::System, format!("the guest does not answer at {to}"), error))
}

/// Logs the error of one client; the others are served.
fn print_error(error: &Error) {
    // A closed output is ignored.
    _ = say(&error.chain());
}

/// Every connection to `listener` is joined with one to the guest. Answers why there can be no more.
fn connections(listener: &TcpListener, guest: &Arc<Guest>, port: u16, count: &Arc<AtomicUsize>) -> io::Error {
    loop {
        let client = match listener.accept() {
            Ok((client, _)) => client,
            // The client has disconnected already.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
            Err(error) => return error,
        };
        if count.load(Ordering::Acquire) >= CLIENTS_MAX {
            print_error(&Error::new(
                ErrorKind::System,
                format!("more than {CLIENTS_MAX} connections: one is closed"),
            ));
            continue;
        }
        let (counted, guest) = (Counted::new(count), Arc::clone(guest));
        let work = move || {
            let _counted = counted;
            let joined = connect(&guest, port).and_then(|stream| {
                let failed =
                    |error| Error::with(ErrorKind::System, "the connection to the guest broke", error);
                let asks = join(End::socket(client).map_err(failed)?, End::socket(stream).map_err(failed)?);
                // It ends when the client does, which counts until then.
                drop(asks.map_err(failed)?.join());
                Ok(())
            });
            joined.unwrap_or_else(|error| print_error(&error));
        };
        if let Err(error) = framing::spawn("connection", work) {
            return error;
        }
    }
}

/// Sends every datagram that arrives on `socket` to the guest, and returns the answers to their senders. Returns the error
/// that ends it.
fn datagrams(socket: &Arc<UdpSocket>, guest: &Guest, port: u16) -> io::Error {
    let mut clients: BTreeMap<SocketAddr, Arc<UdpSocket>> = BTreeMap::new();
    let (silent, silence) = channel();
    let mut datagram = vec![0; DATAGRAM_MAX];
    loop {
        let (length, from) = match socket.recv_from(&mut datagram) {
            Ok(received) => received,
            // The receiver of an answer is gone.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
            Err(error) => return error,
        };
        for gone in silence.try_iter() {
            clients.remove(&gone);
        }
        if !clients.contains_key(&from) && clients.len() < CLIENTS_MAX {
            let address = guest.address().map(|address| SocketAddr::new(address, port));
            let failed = |error| {
                let text = format!("cannot forward UDP datagrams to port {port} of the guest");
                Error::with(ErrorKind::System, text, error)
            };
            match address.and_then(|to| answers(socket, from, to, silent.clone()).map_err(failed)) {
                Ok(client) => drop(clients.insert(from, client)),
                Err(error) => print_error(&error),
            }
        }
        if let (Some(client), Some(bytes)) = (clients.get(&from), datagram.get(..length)) {
            // As any network, this one loses some.
            _ = client.send(bytes);
        }
    }
}

/// A socket to the guest; its answers go back to `from`, until the guest is silent.
fn answers(
    socket: &Arc<UdpSocket>,
    from: SocketAddr,
    to: SocketAddr,
    silent: Sender<SocketAddr>,
) -> io::Result<Arc<UdpSocket>> {
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let guest = Arc::new(UdpSocket::bind((any, 0))?);
    guest.connect(to)?;
    guest.set_read_timeout(Some(SILENCE))?;
    let (back, answers) = (Arc::clone(socket), Arc::clone(&guest));
    let work = move || {
        let mut datagram = vec![0; DATAGRAM_MAX];
        loop {
            match answers.recv(&mut datagram) {
                Ok(length) => drop(back.send_to(datagram.get(..length).unwrap_or_default(), from)),
                // The port has no listener yet.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(_) => break,
            }
        }
        // The other end is gone with the command.
        _ = silent.send(from);
    };
    thread::Builder::new().name("answers".to_owned()).spawn(work)?;
    Ok(guest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn answers_go_back_to_their_senders() {
        let socket = || UdpSocket::bind("127.0.0.1:0").unwrap();
        let (front, guest, clients) = (Arc::new(socket()), socket(), [socket(), socket()]);
        let (silent, _silence) = channel();
        let mut datagram = [0; 8];
        for (mark, client) in (1..).zip(&clients) {
            client.set_read_timeout(Some(TIMEOUT)).unwrap();
            let from = client.local_addr().unwrap();
            let to_guest = answers(&front, from, guest.local_addr().unwrap(), silent.clone()).unwrap();
            to_guest.send(&[mark]).unwrap();
            let (length, from) = guest.recv_from(&mut datagram).unwrap();
            guest.send_to(&datagram[..length], from).unwrap();
            let (length, from) = client.recv_from(&mut datagram).unwrap();
            assert_eq!((&datagram[..length], from), (&[mark][..], front.local_addr().unwrap()));
        }
    }

    #[test]
    fn a_guest_is_reached_while_it_runs() {
        let run = |phase: &str, paused: &str, address: Value| {
            json!({"status": {
                "phase": phase,
                "conditions": [{"type": "Paused", "status": paused}],
                "interfaces": [{"name": "default", "ipAddress": address}],
            }})
        };
        assert_eq!(address(&run("Running", "False", json!("10.1.0.2"))), Ok([10, 1, 0, 2].into()));
        for (run, part) in [
            (run("Scheduled", "False", json!("10.1.0.2")), "does not run"),
            (run("Running", "True", json!("10.1.0.2")), "paused"),
            (run("Running", "False", json!(null)), "no address"),
            (json!({"status": {"phase": "Running"}}), "no address"),
        ] {
            assert!(address(&run).unwrap_err().contains(part), "{run}");
        }
    }
}
