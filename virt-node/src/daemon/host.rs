//! The machine as a VM's launcher finds it, as the VM's user: QEMU and its machine type, KVM, EFI.
//!
//! Not here: how it is found (package virt-launcher).

use std::process::Command;

use api::launch::{Accelerator, System};
use api::launcher::{Answer, Facts, Request};
use guest::Client;
use virt::resolve::Host;

use super::kept::Kept;
use super::state::State;
use crate::error::{Error, Kind};

/// Whether KVM ran a guest in this boot.
const RECORD: &str = "kvm";
/// Longest record, in bytes.
const RECORD_MAX: u64 = 64;

/// The machine, for one VM.
#[derive(Debug)]
pub(super) struct MachineFacts {
    pub(super) host: Host,
    /// Why the accelerator is that one, for people.
    pub(super) why: String,
    /// The launcher's answer.
    pub(super) facts: Facts,
}

/// Whether the whole machine is being shut down, according to systemd.
pub(super) fn is_stopping() -> bool {
    let output = Command::new("systemctl").arg("is-system-running").output();
    output.is_ok_and(|output| output.stdout.starts_with(b"stopping"))
}

/// Asks a launcher what it finds, and how the disks at these paths open. `wanted` is what a person decided, `kept` what a
/// guest that runs was started with. KVM is tried once in a boot.
///
/// # Errors
/// The launcher does not answer, or there is no QEMU.
pub(super) fn ask(
    state: &State,
    client: &mut Client,
    paths: Vec<String>,
    wanted: Option<Accelerator>,
    kept: Option<&Kept>,
) -> Result<MachineFacts, Error> {
    let failed = |error| Error::with(Kind::System, "the launcher cannot find QEMU, firmware and KVM", error);
    let decided = kept.and_then(|kept| kept.accelerator).or(wanted);
    let known = tried(state);
    let kvm_works = if decided.is_some() { known.or(Some(false)) } else { known };
    let answer = client.call(Request::Facts { paths, kvm_works }).map_err(failed)?;
    let Answer::Facts(facts) = answer else {
        return Err(Error::new(Kind::System, "the launcher sent an unexpected answer"));
    };
    if kvm_works.is_none() && facts.kvm.opens {
        // Without the record it is tried again.
        let word: &[u8] = if facts.kvm.works { b"works" } else { b"fails" };
        drop(dir::replace(state.path(RECORD), word, 0o600));
    }
    let (accelerator, why) = choose(decided, &facts);
    let emulator = facts.emulator.clone().ok_or_else(|| {
        Error::new(Kind::System, "QEMU is not on the PATH; on Debian: apt install qemu-system-x86")
    })?;
    let machine = facts
        .machine
        .clone()
        .ok_or_else(|| Error::new(Kind::System, format!("{emulator} has no machine type q35")))?;
    let (ovmf, ovmf_secure) = (facts.ovmf.clone(), facts.ovmf_secure.clone());
    Ok(MachineFacts {
        host: Host { accelerator, emulator, machine, ovmf, ovmf_secure, system: System::default() },
        why,
        facts,
    })
}

/// The accelerator of a guest, and why.
fn choose(decided: Option<Accelerator>, facts: &Facts) -> (Accelerator, String) {
    match decided {
        Some(decided) => (decided, String::new()),
        None if facts.kvm.works => (Accelerator::Kvm, facts.kvm.reason.clone()),
        None => (Accelerator::Tcg, format!("{}: {}", facts.kvm.reason, facts.kvm.advice)),
    }
}

/// Whether KVM ran a guest in this boot; `None`: it was not tried.
fn tried(state: &State) -> Option<bool> {
    let record = dir::read(state.path(RECORD), RECORD_MAX).ok()??;
    match record.trim_ascii_end() {
        b"works" => Some(true),
        b"fails" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use api::launcher::Kvm;

    use super::*;

    #[test]
    fn kvm_runs_guests_where_it_works_for_their_user_and_the_reason_is_given() {
        let kvm = |works, reason: &str| Facts {
            kvm: Kvm { opens: works, works, reason: reason.to_owned(), advice: "do this".to_owned() },
            ..Facts::default()
        };
        let denied = kvm(false, "/dev/kvm: permission denied");
        let (accelerator, why) = choose(None, &denied);
        assert_eq!((accelerator, why.as_str()), (Accelerator::Tcg, "/dev/kvm: permission denied: do this"));
        assert_eq!(choose(None, &kvm(true, "ran")), (Accelerator::Kvm, "ran".to_owned()));
        assert_eq!(choose(Some(Accelerator::Tcg), &kvm(true, "ran")).0, Accelerator::Tcg);
        assert_eq!(choose(Some(Accelerator::Kvm), &denied).0, Accelerator::Kvm);
    }
}
