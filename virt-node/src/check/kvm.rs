//! KVM, by running a guest under it: the device's presence says nothing.

use std::fs;
use std::io::{self, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::{Missing, Need, Tried};
use crate::check::programs;

const DEVICE: &str = "/dev/kvm";
/// What the guest writes to its serial port.
const LETTER: u8 = b'K';
/// `mov dx, 0x3f8; mov al, 'K'; out dx, al; hlt; jmp` to the halt.
const CODE: [u8; 9] = [0xba, 0xf8, 0x03, 0xb0, LETTER, 0xee, 0xf4, 0xeb, 0xfd];
const SECTOR: usize = 512;
/// A working KVM takes a tenth of this.
const PATIENCE: Duration = Duration::from_secs(3);
/// A broken KVM may work now and then.
const TRIES: usize = 3;

/// Whether a guest of one sector runs under KVM, three times.
pub(super) fn kvm() -> Tried {
    let found = probe();
    Tried {
        name: "kvm",
        purpose: "guests run by the processor, not in software",
        need: Need::Optional,
        found,
    }
}

fn probe() -> Result<String, Missing> {
    let software = "guests run in software (TCG), many times slower";
    let Some(emulator) = programs::emulator() else {
        return Err(Missing::new("cannot be tried without QEMU", "install QEMU first"));
    };
    if let Err(error) = fs::OpenOptions::new().read(true).write(true).open(DEVICE) {
        let advice = if error.kind() == io::ErrorKind::NotFound {
            format!(
                "switch virtualization on in the firmware, or nesting on this machine's host; till then {software}"
            )
        } else if error.kind() == io::ErrorKind::PermissionDenied {
            "run as root, or as a member of the group kvm".to_owned()
        } else {
            format!("till it opens, {software}")
        };
        return Err(Missing::new(format!("{DEVICE}: {error}"), advice));
    }
    let failed = |error: io::Error| Missing::new(format!("the probe cannot be started: {error}"), software);
    let mut disk = tempfile::NamedTempFile::new().map_err(failed)?;
    disk.write_all(&boot_sector()).map_err(failed)?;
    for round in 1..=TRIES {
        let mut child = Command::new(&emulator)
            .args([
                "-accel",
                "kvm",
                "-m",
                "16",
                "-nodefaults",
                "-display",
                "none",
                "-no-reboot",
                "-serial",
                "stdio",
            ])
            .arg("-drive")
            .arg(format!("file={},format=raw,if=virtio,cache=unsafe", disk.path().display()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let letter = first_byte(&mut child);
        drop(child.kill());
        drop(child.wait());
        if letter != Some(LETTER) {
            let reason =
                format!("{DEVICE} opens, but a guest of one sector did not run (try {round} of {TRIES})");
            return Err(Missing::new(reason, format!("a broken or nested KVM; {software}")));
        }
    }
    Ok(format!("a guest of one sector ran {TRIES} times"))
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
        // Nobody listens any more after the patience.
        _ = sender.send(read);
    });
    let byte = receiver.recv_timeout(PATIENCE).ok().flatten();
    drop(child.kill());
    drop(reader.join());
    byte
}
