//! Names of launcher pods, and label values derived from an instance's name.

use sha2::{Digest, Sha256};

use super::Purpose;

/// Longest label value and host name.
const LABEL_MAX: usize = 63;
/// Start of every launcher pod's name. The eviction webhook selects pods by it.
const PREFIX: &str = "virt-launcher-";
/// Characters of the suffix.
const SUFFIX: usize = 5;
const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// The name of an instance's pod: the same whenever and by whichever replica it is created.
pub(in crate::compute) fn pod_name(instance: &str, uid: &str, purpose: Purpose) -> String {
    let attempt = match purpose {
        Purpose::Guest => "0",
        Purpose::Provision => "provision",
    };
    let digest = Sha256::new().chain_update(uid).chain_update("/").chain_update(attempt).finalize();
    let suffix = digest.iter().take(SUFFIX).map(|byte| char::from(BASE32[usize::from(byte % 32)]));
    let room = LABEL_MAX - PREFIX.len() - SUFFIX - 1;
    let cut = instance.get(..instance.len().min(room)).unwrap_or_default();
    format!("{PREFIX}{}-{}", cut.trim_end_matches(['-', '.']), suffix.collect::<String>())
}

/// The name of the claim for what a guest keeps besides its disks.
pub(super) fn state_claim(instance: &str) -> String {
    format!("{}-{}", virt::state::LABEL, label_value(instance))
}

/// The first label of a name, cut to 63 characters: a host name.
pub(super) fn host_name(name: &str) -> String {
    let label = name.split('.').next().unwrap_or_default();
    label.get(..label.len().min(LABEL_MAX)).unwrap_or_default().trim_end_matches('-').to_owned()
}

/// A name as a label value: itself, or a hash of it if it is longer than 63 characters.
pub(in crate::compute) fn label_value(name: &str) -> String {
    if name.len() <= LABEL_MAX {
        return name.to_owned();
    }
    Sha256::digest(name).iter().take(28).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_name_depends_on_uid_and_purpose_only() {
        let name = pod_name("web", "u1", Purpose::Guest);
        assert_eq!(name, pod_name("web", "u1", Purpose::Guest));
        assert!(name.starts_with("virt-launcher-web-") && name.len() == 23, "{name}");
        assert_ne!(name, pod_name("web", "u2", Purpose::Guest));
        assert_ne!(name, pod_name("web", "u1", Purpose::Provision));
    }

    #[test]
    fn long_names_fit_a_host_name() {
        let long = format!("{}-.{}", "a".repeat(41), "b".repeat(200));
        let name = pod_name(&long, "u", Purpose::Guest);
        assert!(name.len() <= 63 && !name.contains("-.") && !name.contains(".-"), "{name}");
        assert_eq!(label_value("short"), "short");
        assert_eq!(label_value(&long).len(), 56);
        assert_eq!(host_name("a.b.c"), "a");
        assert_eq!(host_name(&"x".repeat(70)).len(), 63);
    }
}
