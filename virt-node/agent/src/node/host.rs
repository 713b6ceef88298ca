//! The features that guests find on this node: QEMU, its machine type, EFI firmware. The agent's image holds the same layers
//! as the launcher's, so both find the same files under the same names.

use std::path::Path;

use api::launch::Accelerator;
use guest::found;
use virt::resolve::Host;

use crate::error::{Error, Kind, Result};

/// The QEMU program.
pub(crate) const EMULATOR: &str = "/usr/bin/qemu-system-x86_64";

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
    })
}
