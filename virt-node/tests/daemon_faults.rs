//! The daemon, the importer, a launcher's worker and QEMU are killed, the machine loses its power, a file of the state is
//! torn: what is left is gone on with, and what objects say is true.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/daemon.rs"]
mod daemon;

use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use daemon::{Daemon, Dice, code, eventually, kill, machine};
use rustix::process::Signal;

/// How many times something is killed.
fn rounds() -> u64 {
    if std::env::var_os("FERROVIRT_SOAK").is_some() { 20 } else { 3 }
}

/// A machine whose disk is a file.
fn halting(daemon: &Daemon, name: &str, strategy: &str) -> String {
    let image = daemon.image("disk.img", code::HALTS);
    machine(name, strategy, &format!("{{http: {{url: \"file://{}\"}}}}", image.display()), "")
}

/// The QEMU of the folder's one guest.
fn qemu(daemon: &Daemon) -> Option<u32> {
    daemon.process("qemu-system")
}

#[test]
fn a_start_goes_on_after_the_daemon_is_killed_anywhere() {
    let mut daemon = Daemon::start();
    let mut dice = Dice(7);
    let file = daemon.path("vm.yaml");
    fs::write(&file, halting(&daemon, "mine", "Always")).unwrap();
    for _ in 0..rounds() {
        let mut run = Command::new(env!("CARGO_BIN_EXE_virt-node"))
            .args(["run", "--detach", file.to_str().unwrap(), "--state"])
            .arg(daemon.state())
            .output_later();
        sleep(Duration::from_millis(dice.next(4000)));
        daemon.end(Signal::KILL);
        drop(run.wait());
        daemon.again();
        daemon.run(&fs::read_to_string(&file).unwrap());
        daemon.until_serial("mine", "K");
        // It runs, and the daemon is killed: it goes on.
        let before = qemu(&daemon).unwrap();
        daemon.end(Signal::KILL);
        sleep(Duration::from_millis(200));
        assert_eq!(qemu(&daemon), Some(before));
        daemon.again();
        daemon.until("mine", "Running");
        daemon.says(&["pause", "mine"]);
        daemon.until("mine", "Paused");
        assert_eq!(qemu(&daemon), Some(before), "the same guest");
        daemon.says(&["delete", "mine", "--force"]);
        assert_eq!(daemon.names("run"), Vec::<String>::new());
        assert_eq!(daemon.names("claims"), Vec::<String>::new());
        assert_eq!(daemon.mounts(), Vec::<String>::new());
    }
}

/// Starts a command whose output nobody reads.
trait OutputLater {
    fn output_later(&mut self) -> std::process::Child;
}

impl OutputLater for Command {
    fn output_later(&mut self) -> std::process::Child {
        use std::process::Stdio;
        self.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }
}

#[test]
fn a_guest_survives_its_worker_and_its_launcher_and_comes_back_without_qemu() {
    let daemon = Daemon::start();
    daemon.run(&halting(&daemon, "mine", "Always"));
    daemon.until_serial("mine", "K");
    let before = qemu(&daemon).unwrap();
    for word in [" worker ", " run --capabilities"] {
        kill(daemon.process(word).unwrap(), Signal::KILL);
        eventually("another launcher", || {
            let answer = daemon.command(&["pause", "mine"]);
            answer.status.success().then_some(())
        });
        daemon.until("mine", "Paused");
        assert_eq!(qemu(&daemon), Some(before), "{word}");
        daemon.says(&["unpause", "mine"]);
        daemon.until("mine", "Running");
    }
    let run = daemon.object("vmi/mine").unwrap()["metadata"]["uid"].clone();
    kill(before, Signal::KILL);
    daemon.until("mine", "CrashLoopBackOff");
    daemon.until("mine", "Running");
    assert_ne!(daemon.object("vmi/mine").unwrap()["metadata"]["uid"], run);
    daemon.until_serial("mine", "K");
    daemon.says(&["delete", "mine", "--force"]);
}

#[test]
fn after_a_loss_of_power_guests_that_are_wanted_run_again_as_they_were() {
    let mut daemon = Daemon::start();
    daemon.run(&halting(&daemon, "always", "Always"));
    daemon.run(&halting(&daemon, "rerun", "RerunOnFailure"));
    daemon.run(&halting(&daemon, "manual", "Manual"));
    let uid = daemon.object("vm/always").unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    let kept = || fs::read_to_string(daemon.state().join("guests").join(&uid).join("kept.json")).unwrap();
    let before = kept();
    assert!(before.contains("pc-q35-"), "{before}");
    daemon.cut_power();
    // Another boot has another identity.
    fs::write(daemon.state().join("boot"), "before").unwrap();
    daemon.again();
    for name in ["always", "rerun"] {
        daemon.until(name, "Running");
        daemon.until_serial(name, "K");
    }
    assert_eq!(
        fs::read_to_string(daemon.state().join("guests").join(&uid).join("kept.json")).unwrap(),
        before
    );
    daemon.until("manual", "Stopped");
    for name in ["always", "rerun", "manual"] {
        daemon.says(&["delete", name, "--force"]);
    }
    assert_eq!(daemon.mounts(), Vec::<String>::new());
}

#[test]
fn a_state_that_is_torn_is_told_and_left_as_it_is() {
    let mut daemon = Daemon::start();
    daemon.run(&halting(&daemon, "mine", "Always"));
    daemon.end(Signal::KILL);
    let file = daemon.state().join("objects/VirtualMachine/default/mine");
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_virt-node"))
        .args(["serve", "--accelerator", "tcg", "--state"])
        .arg(daemon.state())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && told.contains("VirtualMachine/default/mine: torn"), "{told}");
    assert_eq!(fs::read(&file).unwrap(), &whole[..whole.len() / 2]);
    assert!(qemu(&daemon).is_some(), "the guest goes on");
    fs::write(&file, &whole).unwrap();
    daemon.again();
    daemon.until("mine", "Running");
    daemon.says(&["delete", "mine", "--force"]);
}

#[test]
fn an_import_goes_on_after_its_importer_is_killed() {
    let daemon = Daemon::start();
    // Large enough to be killed in the middle of it.
    let image = daemon.path("large.img");
    let mut content = vec![0x5a; 96 << 20];
    content[..code::HALTS.len()].copy_from_slice(code::HALTS);
    content[510..512].copy_from_slice(&[0x55, 0xaa]);
    fs::write(&image, content).unwrap();
    let file = daemon.path("vm.yaml");
    let source = format!("{{http: {{url: \"file://{}\"}}}}", image.display());
    fs::write(&file, machine("mine", "Always", &source, "").replace("8Mi", "96Mi")).unwrap();
    let mut run = Command::new(env!("CARGO_BIN_EXE_virt-node"))
        .args(["run", "--detach", file.to_str().unwrap(), "--state"])
        .arg(daemon.state())
        .output_later();
    let importer = eventually("the importer", || daemon.process("importer --size"));
    kill(importer, Signal::KILL);
    drop(run.wait());
    daemon.until("mine", "Running");
    daemon.until_serial("mine", "K");
    daemon.says(&["delete", "mine", "--force"]);
}
