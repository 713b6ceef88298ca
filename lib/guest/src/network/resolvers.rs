//! DNS resolvers for guests: the machine's own resolvers, except those on its loopback, which a guest cannot reach.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

/// Most that are handed out: what C libraries look at.
const MOST: usize = 3;

/// Resolvers and search domains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolvers {
    /// Addresses; none where the machine has none that a guest can reach: then names are forwarded by the pod network's
    /// gateway to `local`.
    pub addresses: Vec<IpAddr>,
    /// Domains.
    pub search: Vec<String>,
    /// Resolvers on the machine's loopback.
    pub local: Vec<IpAddr>,
}

impl Resolvers {
    /// Reads resolv.conf(5), such as the one that the kubelet gives a pod.
    pub fn parse(text: &str) -> Self {
        parse(text)
    }
}

/// The machine's: `/etc/resolv.conf`, or, where that has only a stub of systemd-resolved, what is behind it.
pub fn host_resolvers() -> Resolvers {
    let read = |path: &str| fs::read_to_string(Path::new(path)).unwrap_or_default();
    choose(&read("/etc/resolv.conf"), &read("/run/systemd/resolve/resolv.conf"))
}

/// Of the first text, or of the second where the first has only local ones.
fn choose(first: &str, second: &str) -> Resolvers {
    let mut found = parse(first);
    if found.addresses.is_empty() {
        let behind = parse(second);
        found.addresses = behind.addresses;
        if found.search.is_empty() {
            found.search = behind.search;
        }
    }
    found
}

/// Reads resolv.conf(5).
fn parse(text: &str) -> Resolvers {
    let mut found = Resolvers::default();
    for line in text.lines().take(1000) {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("nameserver"), Some(address)) => {
                // A link after % has no meaning in a guest.
                let Ok(address) = address.parse::<IpAddr>() else { continue };
                let into = if address.is_loopback() { &mut found.local } else { &mut found.addresses };
                if into.len() < MOST && !address.is_unspecified() {
                    into.push(address);
                }
            }
            (Some("search" | "domain"), Some(first)) => {
                found.search = std::iter::once(first).chain(words).take(6).map(str::to_owned).collect();
                // "." is no domain to search in.
                found.search.retain(|domain| domain != ".");
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_never_handed_out() {
        let stub = "# x\nnameserver 127.0.0.53\nnameserver ::1\nsearch a.example b.example\noptions edns0\n";
        let behind = "nameserver 192.0.2.1\nnameserver 2001:db8::1\nnameserver fe80::1%eth0\nsearch .\n";
        let found = choose(stub, behind);
        assert_eq!(found.addresses, ["192.0.2.1".parse::<IpAddr>().unwrap(), "2001:db8::1".parse().unwrap()]);
        assert_eq!(found.search, ["a.example", "b.example"]);
        assert_eq!(found.local.len(), 2);
        let only = choose(stub, "");
        assert!(only.addresses.is_empty() && only.local.len() == 2);
        assert_eq!(choose(behind, stub).addresses, found.addresses);
        assert_eq!(choose("nameserver 0.0.0.0\nnameserver x\nnameserver", ""), Resolvers::default());
    }
}
