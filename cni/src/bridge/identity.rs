//! How an attachment is recognised on the host: by the alias of its link, and found fast by the link's name.

use sha2::{Digest, Sha512};

use crate::protocol::Attachment;

/// The kernel's limit of an alias, in bytes: IFALIASZ without its end.
const ALIAS_LIMIT: usize = 255;

/// How many names are tried. Two attachments have the same first one once in four thousand million pairs.
pub(crate) const NAMES: u8 = 4;

/// `<network>/<container>/<interface>`; beyond the kernel's limit `#<hash of the network>/<hash of the other two>`, which
/// is no network's alias, as `#` begins no name.
pub(crate) fn alias(network: &str, attachment: &Attachment) -> String {
    let Attachment { container, interface } = attachment;
    let plain = format!("{network}/{container}/{interface}");
    if plain.len() <= ALIAS_LIMIT {
        return plain;
    }
    format!("#{}/{}", hash(network, 16), hash(&format!("{container}/{interface}"), 16))
}

/// Whether `alias` is of an attachment to `network`.
pub(crate) fn is_of(alias: &str, network: &str) -> bool {
    match alias.strip_prefix('#') {
        Some(rest) => rest.split('/').next() == Some(hash(network, 16).as_str()) && rest.contains('/'),
        None => alias.split('/').next() == Some(network) && alias.matches('/').count() == 2,
    }
}

/// Whether `alias` is an attachment's at all.
pub(crate) fn is_one(alias: &str) -> bool {
    match alias.strip_prefix('#') {
        Some(rest) => rest.len() == 65 && rest.matches('/').count() == 1,
        None => alias.matches('/').count() == 2,
    }
}

/// The name of the host's link in the `turn`-th attempt: `veth` and eight digits, like the reference's, but derived from the
/// attachment, so that DEL need not search.
pub(crate) fn host_name(network: &str, attachment: &Attachment, turn: u8) -> String {
    let Attachment { container, interface } = attachment;
    format!("veth{}", hash(&format!("{network}/{container}/{interface}/{turn}"), 4))
}

/// Whether a link's name may be that of a host's end, ours or the reference's.
pub(crate) fn is_host_name(name: &str) -> bool {
    let digits = name.strip_prefix("veth").unwrap_or_default();
    digits.len() == 8 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The second name of the host's link. It stays when an administrator gives the link another first one.
pub(crate) fn second_name(network: &str, attachment: &Attachment) -> String {
    let Attachment { container, interface } = attachment;
    format!("cni{}", hash(&format!("{network}/{container}/{interface}"), 6))
}

/// The name of the port that a gateway's link in a VLAN ends at.
pub(crate) fn vlan_port_name(link: &str) -> String {
    format!("veth{}", hash(link, 4))
}

/// The first bytes of a SHA-512, as hexadecimal digits.
fn hash(text: &str, bytes: usize) -> String {
    Sha512::digest(text.as_bytes()).iter().take(bytes).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(container: &str) -> Attachment {
        Attachment { container: container.into(), interface: "net1".into() }
    }

    #[test]
    fn an_alias_identifies_its_network() {
        let alias = alias("net", &attachment("c1"));
        assert_eq!(alias, "net/c1/net1");
        assert!(is_of(&alias, "net"));
        for other in ["ne", "net/c1", "net1", "c1"] {
            assert!(!is_of(&alias, other), "{other}");
        }
        assert!(!is_of("net", "net") && !is_of("net/something", "net") && !is_of("net/a/b/c", "net"));
    }

    #[test]
    fn a_long_alias_is_hashed_and_still_identifies_its_network() {
        let long = alias("net", &attachment(&"c".repeat(300)));
        assert!(long.len() <= 255 && long.starts_with('#'));
        assert!(is_of(&long, "net") && !is_of(&long, "net2"));
        assert!(
            is_one(&long) && is_one("net/c1/net1") && !is_one("") && !is_one("#uplink") && !is_one("a/b")
        );
        assert_ne!(long, alias("net", &attachment(&"c".repeat(301))));
        assert_ne!(alias("net2", &attachment(&"c".repeat(300))), long);
    }

    #[test]
    fn names_fit_and_differ() {
        let names: Vec<String> = (0..NAMES).map(|turn| host_name("net", &attachment("c1"), turn)).collect();
        assert!(names.iter().all(|name| name.len() == 12 && name.starts_with("veth")));
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
        assert!(
            names.iter().all(|name| is_host_name(name)) && !is_host_name("veth0") && !is_host_name("eth0")
        );
        let second = second_name("net", &attachment("c1"));
        assert!(second.len() == 15 && second != second_name("net", &attachment("c2")));
    }
}
