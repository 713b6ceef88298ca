//! What guests find on this machine, looked up once: QEMU and its machine type, KVM, EFI.

use std::path::Path;
use std::process::Command;

use api::launch::Accelerator;

use super::state::State;
use crate::check::{self, programs};
use crate::error::{Error, Kind};
use crate::launcher::replace;
use crate::resolve::Host;

/// Looks at the machine. What KVM can do is tried once in a boot, unless an accelerator is asked for.
pub(super) fn look(state: &State, accelerator: Option<Accelerator>) -> Result<Host, Error> {
    let emulator = programs::emulator().ok_or_else(|| {
        Error::new(Kind::System, "QEMU is not on the PATH; on Debian: apt install qemu-system-x86")
    })?;
    let machine = machine(&emulator)?;
    Ok(Host {
        accelerator: accelerator.unwrap_or_else(|| tried(state)),
        emulator: emulator.to_string_lossy().into_owned(),
        machine,
        ovmf: programs::ovmf_files(false),
        ovmf_secure: programs::ovmf_files(true),
    })
}

/// Whether the whole machine is being shut down, as systemd says.
pub(super) fn is_stopping() -> bool {
    let output = Command::new("systemctl").arg("is-system-running").output();
    output.is_ok_and(|output| output.stdout.starts_with(b"stopping"))
}

/// What runs guests, by what was tried in this boot.
fn tried(state: &State) -> Accelerator {
    let path = state.path("kvm");
    let works = match std::fs::read_to_string(&path).as_deref() {
        Ok("works\n") => true,
        Ok("fails\n") => false,
        Ok(_) | Err(_) => {
            let works = check::kvm_works();
            // It is tried again then.
            drop(replace(&path, if works { b"works\n" } else { b"fails\n" }));
            works
        }
    };
    if works { Accelerator::Kvm } else { Accelerator::Tcg }
}

/// What `q35` stands for.
fn machine(emulator: &Path) -> Result<String, Error> {
    let failed = |error| Error::with(Kind::System, format!("{} cannot be run", emulator.display()), error);
    let output = Command::new(emulator).args(["-machine", "help"]).output().map_err(failed)?;
    let text = String::from_utf8_lossy(&output.stdout);
    alias(&text).ok_or_else(|| Error::new(Kind::System, format!("{} has no q35", emulator.display())))
}

/// Of `q35  Standard PC (…) (alias of pc-q35-7.2)` the last word.
fn alias(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("q35 "))?;
    Some(line.rsplit_once("(alias of ")?.1.trim_end_matches(')').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_type_has_its_version() {
        let text = "none                 empty machine\npc-q35-7.2           Standard PC\nq35                  Standard PC (Q35 + ICH9, 2009) (alias of pc-q35-7.2)\n";
        assert_eq!(alias(text).as_deref(), Some("pc-q35-7.2"));
        assert_eq!(alias("pc  x (alias of y)"), None);
    }
}
