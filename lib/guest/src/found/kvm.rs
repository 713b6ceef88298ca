//! Tests KVM by running a guest under it: the device alone proves nothing.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::programs;

const DEVICE: &str = "/dev/kvm";
/// The guest's output on its serial port.
const LETTER: u8 = b'K';
/// `mov dx, 0x3f8; mov al, 'K'; out dx, al; hlt; jmp` to the halt.
const CODE: [u8; 9] = [0xba, 0xf8, 0x03, 0xb0, LETTER, 0xee, 0xf4, 0xeb, 0xfd];
const SECTOR: usize = 512;
/// A working KVM takes a tenth of this.
const TIMEOUT: Duration = Duration::from_secs(3);
/// A broken KVM may work now and then.
const TRIES: usize = 3;

/// Why KVM is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoKvm {
    /// The failed attempt.
    pub reason: String,
    /// The remedy.
    pub advice: String,
}

impl NoKvm {
    fn new(reason: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { reason: reason.into(), advice: advice.into() }
    }
}

/// Runs a guest of one sector three times under KVM, with the QEMU on PATH; the result as text.
///
/// # Errors
/// Why guests run in software.
pub fn kvm() -> Result<String, NoKvm> {
    let emulator = programs::emulator()
        .ok_or_else(|| NoKvm::new("/dev/kvm cannot be tested without QEMU", "install QEMU first"))?;
    kvm_with(&emulator)
}

/// Whether the device opens for this process's user and groups.
///
/// # Errors
/// Why not, such as "permission denied".
pub fn kvm_opens() -> Result<(), NoKvm> {
    let software = "guests run in software (TCG), many times slower";
    let Err(error) = fs::OpenOptions::new().read(true).write(true).open(DEVICE) else { return Ok(()) };
    let (reason, advice) = if error.kind() == io::ErrorKind::NotFound {
        let advice = format!(
            "switch virtualization on in the firmware, or nesting on this machine's host; till then {software}"
        );
        (format!("{DEVICE} does not exist"), advice)
    } else if error.kind() == io::ErrorKind::PermissionDenied {
        let group = fs::metadata(DEVICE).ok().and_then(|facts| group_of(facts.mode(), facts.gid()));
        let advice = match group {
            Some(group) => format!("the guests' user is not in group {group}, which owns it"),
            None => own_group(),
        };
        (format!("{DEVICE}: permission denied"), format!("{advice}; till then {software}"))
    } else {
        (format!("{DEVICE}: {error}"), format!("till it opens, {software}"))
    };
    Err(NoKvm::new(reason, advice))
}

/// The group that may use the device, by its mode and owner; none where that is root's.
pub fn group_of(mode: u32, group: u32) -> Option<u32> {
    (mode & 0o060 == 0o060 && group != 0).then_some(group)
}

/// The remedy for a device that no group but root's may use.
pub fn own_group() -> String {
    format!(
        "give it to a group of its own, as udev does: groupadd -f -r kvm; chgrp kvm {DEVICE}; chmod 0660 {DEVICE}"
    )
}

/// The same with this QEMU.
///
/// # Errors
/// Why guests run in software.
pub fn kvm_with(emulator: &Path) -> Result<String, NoKvm> {
    let software = "guests run in software (TCG), many times slower";
    kvm_opens()?;
    for round in 1..=TRIES {
        let boots = boots(emulator)
            .map_err(|error| NoKvm::new(format!("the probe cannot be started: {error}"), software))?;
        if !boots {
            let reason =
                format!("{DEVICE} opens, but a guest of one sector did not run (try {round} of {TRIES})");
            return Err(NoKvm::new(reason, format!("a broken or nested KVM; {software}")));
        }
    }
    Ok(format!("a guest of one sector ran {TRIES} times"))
}

/// Whether a guest of one sector runs under KVM.
fn boots(emulator: &Path) -> io::Result<bool> {
    let mut disk = tempfile::NamedTempFile::new()?;
    disk.write_all(&boot_sector())?;
    let mut child = Command::new(emulator)
        .args(["-accel", "kvm", "-m", "16", "-nodefaults", "-display", "none", "-no-reboot", "-serial"])
        .args(["stdio", "-drive"])
        .arg(format!("file={},format=raw,if=virtio,cache=unsafe", disk.path().display()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let letter = first_byte(&mut child);
    drop(child.kill());
    drop(child.wait());
    Ok(letter == Some(LETTER))
}

fn boot_sector() -> [u8; SECTOR] {
    let mut sector = [0; SECTOR];
    sector[..CODE.len()].copy_from_slice(&CODE);
    sector[SECTOR - 2..].copy_from_slice(&[0x55, 0xaa]);
    sector
}

/// The first byte that the child writes, if it comes in time.
fn first_byte(child: &mut Child) -> Option<u8> {
    let mut output = child.stdout.take()?;
    let (sender, receiver) = mpsc::channel();
    // The thread ends with the child, at the latest.
    let reader = thread::spawn(move || {
        let mut byte = [0];
        let read = output.read_exact(&mut byte).ok().map(|()| byte[0]);
        // After the timeout nothing is received any more.
        _ = sender.send(read);
    });
    let byte = receiver.recv_timeout(TIMEOUT).ok().flatten();
    drop(child.kill());
    drop(reader.join());
    byte
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_writes_the_letter_passes_and_others_do_not() {
        let place = tempfile::tempdir().unwrap();
        let program = |name: &str, script: &str| {
            use std::os::unix::fs::PermissionsExt;
            let path = place.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        assert!(boots(&program("good", "printf K; sleep 60")).unwrap());
        assert!(!boots(&program("bad", "printf X")).unwrap());
        assert!(!boots(&program("silent", "exit 1")).unwrap());
    }
}
