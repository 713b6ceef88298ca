//! Tests KVM by running a guest under it: the device alone proves nothing.

use std::fs;
use std::os::unix::fs::MetadataExt;

use guest::found;

use super::{Missing, Need, Tried};

const DEVICE: &str = "/dev/kvm";

/// Whether a guest of one sector runs under KVM, three times.
pub(super) fn kvm() -> Tried {
    let probe = || found::kvm().map_err(|none| Missing::new(none.reason, none.advice));
    // The probe runs as root, to which the file mode does not apply.
    let found = open_to_vms().and_then(|()| probe());
    Tried {
        name: "kvm",
        purpose: "guests run by the processor, not in software",
        need: Need::Optional,
        found,
    }
}

/// Whether VMs' users, which have no account but may be in the device's group, can open it.
pub(super) fn open_to_vms() -> Result<(), Missing> {
    let facts = fs::metadata(DEVICE);
    // One that is not there is reported by the probe.
    let Ok(facts) = facts else { return Ok(()) };
    judge(facts.mode() & 0o777, facts.gid())
}

fn judge(mode: u32, group: u32) -> Result<(), Missing> {
    if mode & 0o006 == 0o006 || found::group_of(mode, group).is_some() {
        return Ok(());
    }
    Err(Missing::new(
        format!(
            "{DEVICE} has mode {mode:o} and group {group}: permission denied for the VMs' users; guests run in software (TCG)"
        ),
        found::own_group(),
    ))
}

/// The group of the device, if its mode admits the group and not all users.
pub(super) fn group() -> Option<u32> {
    let facts = fs::metadata(DEVICE).ok()?;
    let mode = facts.mode();
    found::group_of(mode, facts.gid()).filter(|_| mode & 0o006 != 0o006)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second is a stock host: the VM's user gets the group.
    #[test]
    fn the_device_is_open_to_all_to_its_group_or_to_no_vm() {
        for (mode, group, good) in [
            (0o666, 0, true),
            (0o660, 104, true),
            (0o600, 104, false),
            (0o660, 0, false),
            (0o640, 104, false),
        ] {
            let judged = judge(mode, group);
            assert_eq!(judged.is_ok(), good, "{mode:o} {group}");
            if let Err(missing) = judged {
                assert!(missing.reason.contains("permission denied") && missing.advice.contains("chgrp kvm"));
            }
        }
    }
}
