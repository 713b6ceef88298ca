//! QEMU, firmware and KVM on the launcher's machine or in its pod, found as the user that the guest runs as: the daemon and
//! the agent are root and see more.
//!
//! Not here: which accelerator a guest gets.

use std::collections::BTreeMap;
use std::path::Path;

use api::launcher::{Facts, Kvm};

use ::guest::found;

/// Most disks that are looked at in one call.
pub(super) const PATHS_MAX: usize = 1024;

/// Gathers the facts; tries KVM unless `kvm_works` is known.
pub(super) fn gather(paths: &[String], kvm_works: Option<bool>) -> Facts {
    let emulator = found::emulator();
    let direct: BTreeMap<String, bool> = paths
        .iter()
        .filter_map(|path| Some((path.clone(), found::is_direct(Path::new(path)).ok()?)))
        .collect();
    Facts {
        machine: emulator.as_deref().and_then(|emulator| found::machine(emulator).ok()),
        kvm: kvm(emulator.as_deref(), kvm_works),
        emulator: emulator.map(|path| path.to_string_lossy().into_owned()),
        ovmf: found::ovmf_files(false),
        ovmf_secure: found::ovmf_files(true),
        direct,
    }
}

fn kvm(emulator: Option<&Path>, works: Option<bool>) -> Kvm {
    if let Err(none) = found::kvm_opens() {
        return Kvm { opens: false, works: false, reason: none.reason, advice: none.advice };
    }
    let (works, reason, advice) = match (works, emulator) {
        (Some(true), _) => (true, "KVM ran a test guest".to_owned(), String::new()),
        (Some(false), _) => (
            false,
            "/dev/kvm opens, but ran no test guest".to_owned(),
            "KVM is broken or nested; it is tested again after a reboot of the node".to_owned(),
        ),
        (None, None) => {
            (false, "/dev/kvm cannot be tested without QEMU".to_owned(), "install QEMU first".to_owned())
        }
        (None, Some(emulator)) => match found::kvm_with(emulator) {
            Ok(text) => (true, text, String::new()),
            Err(none) => (false, none.reason, none.advice),
        },
    };
    Kvm { opens: true, works, reason, advice }
}
