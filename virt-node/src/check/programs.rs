//! Programs and files that guests need.

use std::fs;
use std::path::Path;
use std::process::Command;

use guest::found::{emulator, find, libvirt_driver, libvirt_file, ovmf_files};

use super::{Missing, Need, Tried};

const EMULATOR: &str = "qemu-system-x86_64";

/// The first line that a program prints for `--version`.
fn version(program: &Path) -> Result<String, String> {
    let output = Command::new(program).arg("--version").output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    match (output.status.success(), text.lines().next()) {
        (true, Some(line)) => Ok(line.to_owned()),
        (true, None) => Err("says nothing".to_owned()),
        (false, _) => Err(output.status.to_string()),
    }
}

pub(super) fn qemu() -> Tried {
    let install = "on Debian: apt install qemu-system-x86";
    let found = match emulator() {
        None => Err(Missing::new(format!("{EMULATOR} is not on the PATH"), install)),
        Some(program) => match version(&program) {
            Ok(line) => Ok(format!("{}: {line}", program.display())),
            Err(error) => Err(Missing::new(format!("{}: {error}", program.display()), install)),
        },
    };
    Tried { name: "qemu", purpose: "the guests' machine", need: Need::Required, found }
}

pub(super) fn libvirt() -> Tried {
    let install = "on Debian: apt install libvirt0 libvirt-daemon-driver-qemu (its daemon need not run)";
    let found = match (libvirt_file(), libvirt_driver()) {
        (Some(library), Some(_)) => {
            let file = fs::canonicalize(&library).unwrap_or(library);
            Ok(file.display().to_string())
        }
        (None, _) => Err(Missing::new("libvirt.so.0 is in none of the folders of libraries", install)),
        (Some(_), None) => Err(Missing::new("its driver for QEMU is missing", install)),
    };
    Tried { name: "libvirt", purpose: "starts QEMU", need: Need::Required, found }
}

pub(super) fn ovmf() -> Tried {
    let found = match ovmf_files(false) {
        Some((code, _)) => Ok(code),
        None => Err(Missing::new("not found", "for guests with efi, on Debian: apt install ovmf")),
    };
    Tried { name: "ovmf", purpose: "guests with EFI", need: Need::Optional, found }
}

pub(super) fn swtpm() -> Tried {
    let found = match (find("swtpm"), find("swtpm_setup")) {
        (Some(program), Some(_)) => Ok(program.display().to_string()),
        (None, _) | (_, None) => Err(Missing::new(
            "swtpm and swtpm_setup are not on the PATH",
            "for guests with tpm, on Debian: apt install swtpm swtpm-tools",
        )),
    };
    Tried { name: "swtpm", purpose: "guests with a trusted platform module", need: Need::Optional, found }
}
