//! Programs and files that guests need.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Kind};

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
/// A program along PATH.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// The QEMU program.
pub fn emulator() -> Option<PathBuf> {
    find(EMULATOR)
}

fn library(name: &str) -> Option<PathBuf> {
    LIBRARIES.iter().map(|folder| Path::new(folder).join(name)).find(|file| file.exists())
}

/// libvirt.
pub fn libvirt_file() -> Option<PathBuf> {
    library("libvirt.so.0")
}

/// Its driver for QEMU.
pub fn libvirt_driver() -> Option<PathBuf> {
    library("libvirt/connection-driver/libvirt_driver_qemu.so")
}

/// OVMF's code and variables, for secure boot or not, if they are installed.
pub fn ovmf_files(secure: bool) -> Option<(String, String)> {
    let pairs: &[(&str, &str)] = if secure { &OVMF_SECURE } else { &OVMF };
    let there = |(code, variables): &&(&str, &str)| Path::new(code).exists() && Path::new(variables).exists();
    pairs.iter().find(there).map(|(code, variables)| ((*code).to_owned(), (*variables).to_owned()))
}

/// The machine type that the alias `q35` stands for.
///
/// # Errors
/// The program cannot be run, or has no such machine.
pub fn machine(emulator: &Path) -> Result<String, Error> {
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
