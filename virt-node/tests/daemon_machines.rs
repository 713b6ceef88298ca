//! Guests that need more of their machine than a disk: EFI with a TPM, a watchdog, a disk whose storage is full.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/daemon.rs"]
mod daemon;
#[path = "support/linux.rs"]
mod linux;
#[path = "support/waiting.rs"]
mod waiting;

use std::fs;
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::process::Command;

use api::names::QEMU_ID;
use daemon::{Daemon, bootable, code, eventually, machine, output};

/// A machine on a disk image.
fn on(image: &std::path::Path, name: &str) -> String {
    machine(name, "Always", &format!("{{http: {{url: \"file://{}\"}}}}", image.display()), "")
}

#[test]
fn linux_boots_by_efi_with_a_tpm_that_it_finds_again() {
    let daemon = Daemon::start();
    let image = daemon.path("linux.img");
    linux::disk(&image);
    let document = on(&image, "efi")
        .replace("64Mi}", "512Mi}")
        .replace("8Mi", "64Mi")
        .replace(
            "disks: [{name: root}]",
            "tpm: {persistent: true}, disks: [{name: root, disk: {bus: virtio}}]",
        )
        .replace(
            "        memory:",
            "        firmware: {bootloader: {efi: {secureBoot: false, persistent: true}}}\n        memory:",
        );
    daemon.run(&document);
    daemon.until_serial("efi", "guest: disks");
    let serial = daemon.serial("efi");
    assert!(serial.contains("guest: efi") && serial.contains("guest: tpm 2"), "{serial}");
    let uid = daemon.object("vm/efi").unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    let kept = daemon.names(&format!("guests/{uid}"));
    assert!(kept.iter().any(|name| name != "kept.json"), "EFI's variables are kept: {kept:?}");
    daemon.says(&["delete", "efi", "--force"]);
    assert_eq!(daemon.names("guests"), Vec::<String>::new());
    let swtpm = daemon.processes().into_iter().find(|(_, line)| line.contains("swtpm"));
    assert_eq!(swtpm, None);
}

#[test]
fn a_watchdog_that_barks_resets_its_guest() {
    let daemon = Daemon::start();
    let image = daemon.image("disk.img", code::WATCHED);
    let document =
        on(&image, "dog").replace("disks: [", "watchdog: {name: dog, i6300esb: {action: reset}}, disks: [");
    daemon.run(&document);
    daemon.until_serial("dog", "WW");
    assert!(daemon.says(&["events", "dog"]).contains("Watchdog"));
    assert_eq!(daemon.status("dog"), "Running");
    daemon.says(&["delete", "dog", "--force"]);
}

/// A small filesystem in memory, unmounted when dropped.
struct Small(PathBuf);

impl Small {
    fn mount(path: PathBuf, options: &str) -> Self {
        fs::create_dir(&path).unwrap();
        let small = Self(path);
        small.tool("mount", &["-t", "tmpfs", "-o", options, "tmpfs"]);
        small
    }

    fn tool(&self, name: &str, words: &[&str]) {
        let output = output(Command::new(name).args(words).arg(&self.0));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.0).output());
    }
}

#[test]
fn a_guest_whose_storage_is_full_stands_still_until_there_is_room() {
    let daemon = Daemon::start();
    // Unmounted before the daemon's folder is removed: declared later, dropped earlier.
    let small = Small::mount(daemon.path("small"), "size=8m,mode=755");
    let disk = small.0.join("disk.img");
    fs::write(&disk, bootable(code::FILLS)).unwrap();
    fs::File::options().write(true).open(&disk).unwrap().set_len(32 << 20).unwrap();
    chown(&disk, Some(QEMU_ID), Some(QEMU_ID)).unwrap();
    daemon.run(&format!(
        "\
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {{name: full}}
spec:
  runStrategy: Always
  template:
    spec:
      terminationGracePeriodSeconds: 0
      domain:
        memory: {{guest: 64Mi}}
        devices: {{disableHotplug: true, autoattachPodInterface: false, disks: [{{name: root}}]}}
      volumes:
      - {{name: root, hostDisk: {{path: \"{}\", type: Disk}}}}
",
        disk.display()
    ));
    daemon.until("full", "Paused");
    let run = daemon.object("vmi/full").unwrap();
    let conditions = run["status"]["conditions"].as_array().unwrap();
    let paused = conditions.iter().find(|one| one["type"] == "Paused").unwrap();
    assert_eq!(paused["reason"], "PausedIOError");
    // Without more room it stands still again.
    daemon.says(&["unpause", "full"]);
    eventually("the reason", || {
        let events = daemon.says(&["events", "full"]);
        (events.contains("IOerror") && events.contains("enospc")).then_some(())
    });
    daemon.until("full", "Paused");
    assert!(!daemon.serial("full").contains(['D', 'E']));
    small.tool("mount", &["-o", "remount,size=64m"]);
    daemon.says(&["unpause", "full"]);
    daemon.until_serial("full", "D");
    assert_eq!(daemon.status("full"), "Running");
    assert!(!daemon.serial("full").contains('E'), "the guest saw no error");
    daemon.says(&["delete", "full", "--force"]);
}
