//! The features that guests find on this node: QEMU, its machine type, EFI firmware, and what libvirt reports of them. The
//! agent's image holds the same layers as the launcher's, so both find the same files under the same names.

use std::path::Path;

use api::launch::{Accelerator, System};
use api::launcher::capabilities::{CAPABILITIES, Capabilities};
use guest::found;
use virt::resolve::Host;

use super::cpu::Files;
use crate::error::{Error, Kind, Result};

/// The QEMU program.
pub(crate) const EMULATOR: &str = "/usr/bin/qemu-system-x86_64";

/// Longest report of libvirt's, in bytes.
const REPORT_MAX: u64 = 1 << 20;

/// Libvirt's report in the cache of `virt-launcher capabilities`; `None`: there is none that can be read.
pub(crate) fn capabilities(cache: &Path) -> Option<Capabilities> {
    let report = dir::Dir::find(cache).ok()??.read(CAPABILITIES, REPORT_MAX).ok()??;
    serde_json::from_slice(&report).ok()
}

/// Files of the node by which guests are placed.
pub(crate) fn files(kubelet: &Path) -> Files {
    let text = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    Files {
        cpuinfo: text("/proc/cpuinfo".as_ref()),
        cpu_manager: text(&kubelet.join("cpu_manager_state")),
        realtime: text("/proc/sys/kernel/sched_rt_runtime_us".as_ref()),
        ksm: text("/sys/kernel/mm/ksm/run".as_ref()),
    }
}

/// Looks up what there is. Guests run by KVM if `kvm`.
///
/// # Errors
/// QEMU cannot be run, or has no q35.
pub(crate) fn find(kvm: bool) -> Result<Host> {
    let machine = found::machine(Path::new(EMULATOR))
        .map_err(|error| Error::with(Kind::System, "cannot find QEMU's machine type", error))?;
    Ok(Host {
        accelerator: if kvm { Accelerator::Kvm } else { Accelerator::Tcg },
        emulator: EMULATOR.to_owned(),
        machine,
        ovmf: found::ovmf_files(false),
        ovmf_secure: found::ovmf_files(true),
        system: System::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_if_it_is_one() {
        let cache = tempfile::tempdir().unwrap();
        assert_eq!(capabilities(cache.path()), None);
        assert_eq!(capabilities(&cache.path().join("none")), None);
        let file = cache.path().join(CAPABILITIES);
        std::fs::write(&file, r#"{"machines": ["q35"], "later": 1}"#).unwrap();
        assert_eq!(capabilities(cache.path()).unwrap().machines, ["q35"]);
        std::fs::write(&file, "{").unwrap();
        assert_eq!(capabilities(cache.path()), None);
    }
}
