//! The group for users of VMs that are not root: its members see objects, start and stop VMs, and have consoles and screens.
//! Objects are root's: a document may name files and devices of the machine, which the daemon opens as root.
//!
//! The mode of [`super::socket`] keeps all other users out. Not here: what members can do in a guest (docs/security.md).

use std::os::unix::net::UnixStream;

use api::kind::Kind;
use rustix::net::sockopt::socket_peercred;

use super::requests::Refused;
use crate::protocol::{RefusedKind, Request};

/// The group's name.
pub(crate) const GROUP: &str = "ferrovirt";
/// Longest file of groups, in bytes.
const FILE_MAX: u64 = 16 << 20;
/// Longest request of a member, in bytes; those that may be longer are root's.
const REQUEST_MAX: usize = 1 << 20;

/// The group's number, if this machine has the group.
pub(super) fn group() -> Option<u32> {
    let text = dir::read("/etc/group", FILE_MAX).ok().flatten()?;
    number(&String::from_utf8_lossy(&text))
}

fn number(groups: &str) -> Option<u32> {
    let mut lines = groups.lines().map(|line| line.split(':').collect::<Vec<_>>());
    lines.find_map(|fields| match fields[..] {
        [GROUP, _, number, ..] => number.parse().ok(),
        _ => None,
    })
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    Root,
    Member,
}

impl Peer {
    /// As the kernel reports it; in doubt it is not root.
    pub(super) fn of(stream: &UnixStream) -> Self {
        let is_root = socket_peercred(stream).is_ok_and(|peer| peer.uid.is_root());
        if is_root { Self::Root } else { Self::Member }
    }

    /// Whether it may send a request of this length; the refusal otherwise.
    pub(super) fn admit_length(self, length: usize) -> Result<usize, Refused> {
        if self == Self::Root || length <= REQUEST_MAX { Ok(length) } else { Err(refused()) }
    }

    /// Whether it may make this request; the refusal otherwise.
    pub(super) fn admit(self, request: &Request) -> Result<(), Refused> {
        let allowed = match request {
            Request::List
            | Request::Rows
            | Request::Events { .. }
            | Request::Power { .. }
            | Request::Stream { .. } => true,
            Request::Get(target) => {
                let kind = Kind::ALL.into_iter().find(|kind| kind.name() == target.kind);
                kind.is_none_or(is_for_members)
            }
            Request::Apply { .. }
            | Request::AddVolume { .. }
            | Request::RemoveVolume { .. }
            | Request::Delete { .. }
            | Request::Upload { .. } => false,
        };
        if self == Self::Root || allowed { Ok(()) } else { Err(refused()) }
    }
}

/// Whether members see objects of a kind.
fn is_for_members(kind: Kind) -> bool {
    match kind {
        Kind::VirtualMachine
        | Kind::VirtualMachineInstance
        | Kind::DataVolume
        | Kind::NetworkAttachmentDefinition
        | Kind::PersistentVolumeClaim
        | Kind::ConfigMap => true,
        Kind::Secret => false,
    }
}

fn refused() -> Refused {
    let text = format!(
        "members of the group {GROUP} list, start, stop and connect to VMs: run this command as root"
    );
    (RefusedKind::Failed, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Stream, Target, Verb};

    #[test]
    fn the_group_is_found_by_its_name() {
        let groups = "root:x:0:\nferrovirt-first:x:1900000000:\nferrovirt:x:991:ann,bob\n";
        assert_eq!(number(groups), Some(991));
        assert_eq!(number("root:x:0:\nferrovirt\n"), None);
    }

    #[test]
    fn members_see_everything_but_secrets_and_change_no_object() {
        let [namespace, name] = ["a", "b"].map(str::to_owned);
        let target = |kind: Kind| Target {
            kind: kind.name().to_owned(),
            namespace: namespace.clone(),
            name: name.clone(),
        };
        let upload = Request::Upload { namespace: namespace.clone(), name: name.clone() };
        let remove = Request::RemoveVolume {
            namespace: namespace.clone(),
            name: name.clone(),
            volume: "c".to_owned(),
            dry_run: true,
        };
        for request in [
            Request::Get(target(Kind::Secret)),
            Request::Apply { documents: Vec::new() },
            Request::Delete { targets: Vec::new(), grace_seconds: None },
            upload,
            remove,
        ] {
            assert!(Peer::Root.admit(&request).is_ok(), "{request:?}");
            assert!(Peer::Member.admit(&request).is_err(), "{request:?}");
        }
        for request in [
            Request::List,
            Request::Rows,
            Request::Get(target(Kind::VirtualMachine)),
            Request::Events { namespace: namespace.clone(), name: None, after: 0 },
            Request::Power { namespace: namespace.clone(), name: name.clone(), verb: Verb::Pause },
            Request::Stream { namespace: namespace.clone(), name: name.clone(), stream: Stream::Console },
        ] {
            assert!(Peer::Member.admit(&request).is_ok(), "{request:?}");
        }
    }

    #[test]
    fn only_root_sends_long_requests() {
        assert_eq!(Peer::Root.admit_length(REQUEST_MAX + 1), Ok(REQUEST_MAX + 1));
        assert_eq!(Peer::Member.admit_length(REQUEST_MAX), Ok(REQUEST_MAX));
        assert!(Peer::Member.admit_length(REQUEST_MAX + 1).is_err());
    }
}
