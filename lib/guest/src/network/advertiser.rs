//! Router advertisements (RFC 4861) for a guest behind masquerade with IPv6: DHCPv6 has no word for the way out. They are sent
//! by the daemon, since a raw socket needs a capability that a launcher has not; what is advertised holds for 18 hours, so a
//! guest does not notice a daemon that is away.
//!
//! Not here: addresses of guests, which DHCPv6 gives.

use std::io::{self, Read};
use std::net::{Ipv6Addr, SocketAddrV6};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use ipnet::Ipv6Net;
use link::netlink::{Link, Router};
use link::{Mac, Namespace};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, Socket, Type};

use super::Nic;
use crate::error::{Error, Kind};

/// All nodes and all routers on a link.
const NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// ICMPv6 types.
const SOLICITATION: u8 = 133;
const ADVERTISEMENT: u8 = 134;
/// The interval of unsolicited advertisements.
const INTERVAL: Duration = Duration::from_secs(600);
/// The largest router lifetime, in seconds.
const LIFETIME: u16 = u16::MAX;

/// Advertises until it is dropped.
#[derive(Debug)]
pub struct Advertiser {
    _stop: UnixStream,
}

impl Advertiser {
    /// Advertises the gateway of an interface that has one ([`Nic::router`]), in the guest's namespace; none for others.
    ///
    /// # Errors
    /// The interface is not attached, or the kernel gives no raw socket: it takes CAP_NET_RAW.
    pub fn start(namespace: &Path, nic: &Nic) -> Result<Option<Self>, Error> {
        let (Some(network), Some(dhcp)) = (nic.router, nic.tap.dhcp.as_ref()) else { return Ok(None) };
        let failed = |error: io::Error| {
            Error::with(Kind::System, format!("no router is advertised on {}", dhcp.link), error)
        };
        let (socket, index, message) = Namespace::open(namespace)?.on_a_thread(|| {
            let found = Link::all(&Router::open()?.ask(Link::get(&dhcp.link))?);
            let bridge = found.into_iter().next().ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
            let message = advertisement(network, bridge.mac.unwrap_or(Mac([0; 6])), bridge.mtu);
            Ok::<_, Error>((listen(&dhcp.link, bridge.index).map_err(failed)?, bridge.index, message))
        })?;
        let (ours, stop) = UnixStream::pair().map_err(failed)?;
        let work = move || advertise(&socket, index, &message, &stop);
        thread::Builder::new().name("router".to_owned()).spawn(work).map_err(failed)?;
        Ok(Some(Self { _stop: ours }))
    }
}

fn listen(link: &str, index: u32) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::ICMPV6))?;
    socket.bind_device(Some(link.as_bytes()))?;
    socket.set_nonblocking(true)?;
    // Receivers drop an advertisement with a smaller hop limit as routed.
    socket.set_multicast_hops_v6(255)?;
    socket.set_multicast_loop_v6(false)?;
    socket.join_multicast_v6(&ROUTERS, index)?;
    Ok(socket)
}

/// Sends advertisements at the start, on solicitation, and at intervals.
fn advertise(socket: &Socket, index: u32, message: &[u8], stop: &UnixStream) {
    let to = SocketAddrV6::new(NODES, 0, 0, index).into();
    let Ok(interval) = Timespec::try_from(INTERVAL) else { return };
    let mut room = [0; 256];
    let mut asked = true;
    loop {
        if asked {
            // A link that is down has no receiver.
            _ = socket.send_to(message, &to);
        }
        let mut waiting = [PollFd::new(stop, PollFlags::IN), PollFd::new(socket, PollFlags::IN)];
        match poll(&mut waiting, Some(&interval)) {
            Ok(0) => asked = true,
            Ok(_) if waiting.first().is_some_and(|one| !one.revents().is_empty()) => return,
            Ok(_) | Err(rustix::io::Errno::INTR) => {
                let mut socket = socket;
                let read = socket.read(&mut room);
                asked = read.is_ok_and(|length| length > 0) && room.first() == Some(&SOLICITATION);
            }
            Err(_) => return,
        }
    }
}

/// The message (RFC 4861, section 4.2); the kernel fills in its checksum.
fn advertisement(network: Ipv6Net, mac: Mac, mtu: u32) -> Vec<u8> {
    // Managed: addresses and the rest are DHCPv6's to give.
    let mut message = vec![ADVERTISEMENT, 0, 0, 0, 64, 0xc0];
    message.extend(LIFETIME.to_be_bytes());
    // Reachable time and retransmission: unsaid.
    message.extend([0; 8]);
    // Source link-layer address, MTU, prefix: on the link, not for addresses that a guest makes up.
    message.extend([1, 1]);
    message.extend(mac.0);
    message.extend([5, 1, 0, 0]);
    message.extend(mtu.to_be_bytes());
    message.extend([3, 4, network.prefix_len(), 0x80]);
    message.extend([0xff; 8]);
    message.extend([0; 4]);
    message.extend(network.trunc().network().octets());
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_advertisement_is_of_whole_options() {
        let message = advertisement("fd10:0:2::/120".parse().unwrap(), Mac([2, 0, 0, 0, 0, 0]), 1400);
        assert_eq!(message.len(), 16 + 8 + 8 + 32);
        assert_eq!(message[..6], [134, 0, 0, 0, 64, 0xc0]);
        assert_eq!(message[24..32], [5, 1, 0, 0, 0, 0, 5, 120]);
        assert_eq!((message[32], message[33], message[34]), (3, 4, 120));
    }
}
