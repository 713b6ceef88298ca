//! Whether guests run under KVM on this node: as configured, or by `guest::found`'s probe.

use std::path::Path;

use guest::found;

use crate::config::Emulation;

/// Whether guests run under KVM on this node.
pub(crate) fn is_usable(emulation: Emulation, emulator: &Path) -> bool {
    match emulation {
        Emulation::Always => false,
        Emulation::Never => true,
        Emulation::Probe => match found::kvm_with(emulator) {
            Ok(_) => true,
            Err(no) => {
                tracing::warn!(reason = no.reason, advice = no.advice, "KVM is not used");
                false
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_configured_is_not_probed() {
        let absent = Path::new("/nonexistent/qemu");
        assert!(is_usable(Emulation::Never, absent));
        assert!(!is_usable(Emulation::Always, absent));
        assert!(!is_usable(Emulation::Probe, absent));
    }
}
