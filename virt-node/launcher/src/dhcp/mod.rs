//! DHCP for the one guest on a bridge: it always gets the configuration that the network gave it. [`v4`] and [`v6`] make
//! answers of packets, pure; here are the sockets, in a thread for each interface of the launcher's worker.
//!
//! No capability is needed: the guest's namespace opens ports from 67 on to every user (see [`guest::network`]), and binding
//! to a link needs no privilege since Linux 5.7. Leases never end, so that a guest does not depend on an answer once it has
//! its address.
//!
//! Not here: addresses for more than one, router advertisements ([`guest::network::Advertiser`]).

mod v4;
mod v6;

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::thread;

use api::launch::Interface;
use link::netlink::{Link, Router};
use link::{Mac, interface_mac};
use rustix::event::{PollFd, PollFlags, poll};
use socket2::{Domain, Protocol, Socket, Type};

use crate::error::{Error, Kind};

/// Longest packet that is looked at, in bytes.
const PACKET_MAX: usize = 2048;
/// All DHCP servers on a link (RFC 8415, section 7.1).
const SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);

/// Responders by the name of their interface.
#[derive(Debug, Default)]
pub(crate) struct Responders(Mutex<BTreeMap<String, Responder>>);

/// A thread that answers. It ends when this is dropped.
#[derive(Debug)]
struct Responder {
    of: Interface,
    _stop: UnixStream,
}

/// The sockets of a thread.
struct Sockets {
    of: Interface,
    mac: Mac,
    v4: Option<UdpSocket>,
    v6: Option<UdpSocket>,
    stop: UnixStream,
}

impl Responders {
    /// Answers on these interfaces from now on, and on no others.
    ///
    /// # Errors
    /// A bridge is missing, or another server answers on it.
    pub(crate) fn set(&self, interfaces: &[Interface]) -> Result<(), Error> {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|_, responder| interfaces.contains(&responder.of));
        for one in interfaces.iter().filter(|one| one.dhcp.is_some()) {
            if !running.contains_key(&one.name) {
                running.insert(one.name.clone(), start(one)?);
            }
        }
        Ok(())
    }
}

fn start(one: &Interface) -> Result<Responder, Error> {
    let failed = |error: io::Error| {
        Error::with(Kind::System, format!("DHCP for the interface {} cannot be served", one.name), error)
    };
    let (ours, stop) = UnixStream::pair().map_err(failed)?;
    let dhcp = one.dhcp.as_ref();
    let link = dhcp.map_or("", |dhcp| dhcp.link.as_str());
    let sockets = Sockets {
        of: one.clone(),
        mac: interface_mac(&one.mac)?,
        v4: dhcp.filter(|dhcp| dhcp.v4.is_some()).map(|_| listen4(link)).transpose().map_err(failed)?,
        v6: dhcp.filter(|dhcp| dhcp.v6.is_some()).map(|_| listen6(link)).transpose()?,
        stop,
    };
    let thread = thread::Builder::new().name(format!("dhcp {link}"));
    thread.spawn(move || answer(&sockets)).map_err(failed)?;
    Ok(Responder { of: one.clone(), _stop: ours })
}

fn listen4(link: &str) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    // A worker that was killed a moment ago may still be there.
    socket.set_reuse_address(true)?;
    socket.bind_device(Some(link.as_bytes()))?;
    socket.set_broadcast(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, v4::SERVER).into())?;
    Ok(socket.into())
}

fn listen6(link: &str) -> Result<UdpSocket, Error> {
    let failed =
        |error: io::Error| Error::with(Kind::System, format!("DHCPv6 on {link} cannot be served"), error);
    let found = Link::all(&Router::open()?.ask(Link::get(link))?);
    let index = found.first().map(|link| link.index).unwrap_or_default();
    let open = || {
        let socket = Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_reuse_address(true)?;
        socket.set_only_v6(true)?;
        socket.bind_device(Some(link.as_bytes()))?;
        socket.set_nonblocking(true)?;
        socket.bind(&SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, v6::SERVER, 0, 0).into())?;
        socket.join_multicast_v6(&SERVERS, index)?;
        Ok(socket.into())
    };
    open().map_err(failed)
}

/// Until it is stopped.
fn answer(sockets: &Sockets) {
    let Sockets { of, mac, v4, v6, stop } = sockets;
    let mut packet = [0; PACKET_MAX];
    loop {
        let mut waiting = vec![PollFd::new(stop, PollFlags::IN)];
        waiting.extend(v4.iter().chain(v6).map(|socket| PollFd::new(socket, PollFlags::IN)));
        match poll(&mut waiting, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
        if waiting.first().is_some_and(|one| !one.revents().is_empty()) {
            return;
        }
        let Some(dhcp) = &of.dhcp else { return };
        // The guest repeats a request that could not be read or answered.
        if let Some(socket) = v4
            && let Ok((length, _)) = socket.recv_from(&mut packet)
            && let Some((reply, to)) =
                v4::answer(dhcp, *mac, of.mtu, packet.get(..length).unwrap_or_default())
        {
            _ = socket.send_to(&reply, to);
        }
        if let Some(socket) = v6
            && let Ok((length, SocketAddr::V6(from))) = socket.recv_from(&mut packet)
            && let Some(reply) = v6::answer(dhcp, *mac, packet.get(..length).unwrap_or_default())
        {
            _ = socket.send_to(&reply, from);
        }
    }
}
