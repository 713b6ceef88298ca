//! Listening sockets and the options of accepted ones. Not here: what is served.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

/// Listens on `address`, without blocking. `[::]` means all addresses; where the kernel has no IPv6, it is `0.0.0.0`.
///
/// # Errors
/// When the address is in use or not the host's.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = match TcpListener::bind(address) {
        Err(error) if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) && no_ipv6(&error) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port()))
        }
        other => other,
    }?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Whether an address could not be bound because the kernel has no IPv6: EAFNOSUPPORT, or EADDRNOTAVAIL where it is
/// disabled by sysctl.
fn no_ipv6(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let known = [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL];
    known.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Sets what every connection has: no delay of small segments, and keep-alive probes, by which the kernel finds out within
/// two minutes that the peer is gone. An option that cannot be set is left out.
pub fn tune(stream: impl AsFd) {
    let _unneeded = sockopt::set_tcp_nodelay(&stream, true);
    let _unneeded = sockopt::set_socket_keepalive(&stream, true)
        .and_then(|()| sockopt::set_tcp_keepidle(&stream, Duration::from_secs(60)))
        .and_then(|()| sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(15)))
        .and_then(|()| sockopt::set_tcp_keepcnt(&stream, 4));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_an_error_and_no_reason_to_fall_back() {
        let first = listen((Ipv6Addr::UNSPECIFIED, 0).into()).unwrap();
        let taken = SocketAddr::from((Ipv6Addr::UNSPECIFIED, first.local_addr().unwrap().port()));
        assert_eq!(listen(taken).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn only_errors_of_a_kernel_without_ipv6_fall_back() {
        for (code, expected) in [(97, true), (99, true), (98, false), (13, false), (24, false)] {
            assert_eq!(no_ipv6(&io::Error::from_raw_os_error(code)), expected, "{code}");
        }
    }
}
