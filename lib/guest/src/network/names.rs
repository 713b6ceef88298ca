//! Names of an interface's links, and generated Ethernet addresses: pure. The names are upstream's.

use std::path::Path;

use link::Mac;
use sha2::{Digest, Sha256};

/// Names of an interface's links in the guest's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The link that CNI makes.
    pub pod: String,
    /// The same where a bridge has taken it over.
    pub port: String,
    /// The bridge.
    pub bridge: String,
    /// The tap device.
    pub tap: String,
}

impl Names {
    /// Of the interface on the pod network, or on what takes its place.
    pub fn primary() -> Self {
        let of = str::to_owned;
        Self { pod: of("eth0"), port: of("eth0-nic"), bridge: of("k6t-eth0"), tap: of("tap0") }
    }

    /// Of the interface on a network of this name.
    pub fn secondary(network: &str) -> Self {
        Self::of(&format!("pod{}", &hash(&[network])[..11]))
    }

    /// Of the interface that CNI makes under this name.
    pub fn of(pod: &str) -> Self {
        let Some(hash) = pod.strip_prefix("pod") else { return Self::primary() };
        Self {
            pod: format!("pod{hash}"),
            port: format!("{hash}-nic"),
            bridge: format!("k6t-{hash}"),
            tap: format!("tap{hash}"),
        }
    }
}

/// SHA-256 of the parts, in hexadecimal.
fn hash(parts: &[&str]) -> String {
    digest(parts).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn digest(parts: &[&str]) -> Vec<u8> {
    Sha256::digest(parts.join("\0").as_bytes()).to_vec()
}

/// An Ethernet address made up of what it is for: the same each time, and another one on each machine.
pub fn mac(machine: &str, parts: &[&str]) -> Mac {
    let mut all = vec![machine];
    all.extend(parts);
    let mut bytes = [0; 6];
    bytes.iter_mut().zip(digest(&all)).for_each(|(byte, random)| *byte = random);
    Mac::local(bytes)
}

/// The identity of this machine: its id, or, where it has none, the directory of its guests.
pub fn machine(state: &Path) -> String {
    let id = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    if id.trim().is_empty() { state.display().to_string() } else { id.trim().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_upstreams_and_fit() {
        let names = Names::secondary("blue");
        // sha256("blue") begins so.
        assert_eq!(names.pod, "pod16477688c0e");
        for name in [names.pod, names.port, names.bridge, names.tap] {
            assert!(name.len() <= 15, "{name}");
        }
    }

    #[test]
    fn made_up_addresses_are_of_one_device_and_stay() {
        let one = mac("machine", &["default", "vm", "a"]);
        assert_eq!(one, mac("machine", &["default", "vm", "a"]));
        assert_eq!(one.0[0] & 3, 2, "{one}");
        for other in [mac("another", &["default", "vm", "a"]), mac("machine", &["default", "vma", ""])] {
            assert_ne!(one, other);
        }
    }
}
