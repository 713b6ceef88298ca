//! Programs and files that guests need.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Missing, Need, Tried};

const EMULATOR: &str = "qemu-system-x86_64";
/// Folders of libraries, as distributions have them.
const LIBRARIES: [&str; 3] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];
/// OVMF's code, and the variables that go with it, as distributions name them.
const OVMF: [(&str, &str); 4] = [
    ("/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"),
    ("/usr/share/OVMF/OVMF_CODE.fd", "/usr/share/OVMF/OVMF_VARS.fd"),
    ("/usr/share/edk2/ovmf/OVMF_CODE.fd", "/usr/share/edk2/ovmf/OVMF_VARS.fd"),
    ("/usr/share/edk2/x64/OVMF_CODE.4m.fd", "/usr/share/edk2/x64/OVMF_VARS.4m.fd"),
];
/// The same for secure boot.
const OVMF_SECURE: [(&str, &str); 3] = [
    ("/usr/share/OVMF/OVMF_CODE_4M.ms.fd", "/usr/share/OVMF/OVMF_VARS_4M.ms.fd"),
    ("/usr/share/OVMF/OVMF_CODE_4M.secboot.fd", "/usr/share/OVMF/OVMF_VARS_4M.ms.fd"),
    ("/usr/share/edk2/ovmf/OVMF_CODE.secboot.fd", "/usr/share/edk2/ovmf/OVMF_VARS.secboot.fd"),
];
/// User and group of guests.
const USER: u32 = api::names::QEMU_ID;

/// A program along PATH.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// The QEMU program.
pub(crate) fn emulator() -> Option<PathBuf> {
    find(EMULATOR)
}

/// The first line that a program says with `--version`.
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

fn library(name: &str) -> Option<PathBuf> {
    LIBRARIES.iter().map(|folder| Path::new(folder).join(name)).find(|file| file.exists())
}

/// libvirt.
pub(crate) fn libvirt_file() -> Option<PathBuf> {
    library("libvirt.so.0")
}

/// Its driver for QEMU.
pub(crate) fn libvirt_driver() -> Option<PathBuf> {
    library("libvirt/connection-driver/libvirt_driver_qemu.so")
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

/// OVMF's code and variables, for secure boot or not, if they are installed.
pub(crate) fn ovmf_files(secure: bool) -> Option<(String, String)> {
    let pairs: &[(&str, &str)] = if secure { &OVMF_SECURE } else { &OVMF };
    let there = |(code, variables): &&(&str, &str)| Path::new(code).exists() && Path::new(variables).exists();
    pairs.iter().find(there).map(|(code, variables)| ((*code).to_owned(), (*variables).to_owned()))
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

/// libvirt wants the user that QEMU runs as to have a name.
pub(super) fn user() -> Tried {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(USER)).then(|| name.to_owned())
    });
    let found = name.ok_or_else(|| {
        Missing::new(
            format!("no user has the number {USER}"),
            format!("groupadd --system --gid {USER} qemu; useradd --system --uid {USER} --gid {USER} --no-create-home qemu"),
        )
    });
    Tried { name: "user", purpose: "guests run as a user of their own", need: Need::Required, found }
}
