//! A forwarded port as virtctl writes it: `[PROTOCOL/]LOCAL[:GUEST]`.

use std::str::FromStr;

/// A port of this machine that leads to one of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarded {
    /// TCP; otherwise UDP.
    pub tcp: bool,
    /// The port of this machine; 0: a free one.
    pub local: u16,
    /// The port of the guest.
    pub guest: u16,
}

impl Forwarded {
    /// `tcp` or `udp`.
    pub fn protocol(self) -> &'static str {
        if self.tcp { "tcp" } else { "udp" }
    }
}

impl FromStr for Forwarded {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (protocol, ports) = text.split_once('/').unwrap_or(("tcp", text));
        let tcp = match protocol {
            "tcp" => true,
            "udp" => false,
            _ => return Err(format!("{protocol:?} is neither tcp nor udp")),
        };
        let (local, guest) = ports.split_once(':').unwrap_or((ports, ports));
        let port =
            |text: &str| text.parse::<u16>().map_err(|_| format!("{text:?} is not a port from 1 to 65535"));
        match (port(local)?, port(guest)?) {
            (_, 0) => Err("the guest's port must be from 1 to 65535".to_owned()),
            (local, guest) => Ok(Self { tcp, local, guest }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_written_as_virtctl_does() {
        let of = |text: &str| text.parse::<Forwarded>();
        let tcp = |local, guest| Ok(Forwarded { tcp: true, local, guest });
        assert_eq!(of("80"), tcp(80, 80));
        assert_eq!(of("8080:80"), tcp(8080, 80));
        assert_eq!(of("tcp/8080:80"), tcp(8080, 80));
        assert_eq!(of("0:80"), tcp(0, 80));
        assert_eq!(of("udp/5353:53"), Ok(Forwarded { tcp: false, local: 5353, guest: 53 }));
        for (text, part) in [
            ("sctp/80", "neither tcp nor udp"),
            ("80:0", "the guest's port must be from 1 to 65535"),
            ("0", "the guest's port must be from 1 to 65535"),
            ("65536", "not a port from 1 to 65535"),
            ("80:80:80", "not a port from 1 to 65535"),
            ("", "not a port from 1 to 65535"),
        ] {
            let error = of(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
