//! The daemon, the importer, a launcher's worker and QEMU are killed, the machine loses its power, a file of the state is
//! torn: the rest is resumed, and the objects report the truth.

use std::fs;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::daemon::{Daemon, Dice, code, end_of, eventually, kill, machine};

/// How many times something is killed.
fn rounds() -> u64 {
    if std::env::var_os("FERROVIRT_SOAK").is_some() { 20 } else { 3 }
}

/// A VM whose disk is a file.
fn halting(daemon: &Daemon, name: &str, strategy: &str) -> String {
    let image = daemon.image("disk.img", code::HALTS);
    machine(name, strategy, &format!("{{http: {{url: \"file://{}\"}}}}", image.display()), "")
}

/// The QEMU of the folder's one guest.
fn qemu(daemon: &Daemon) -> Option<u32> {
    daemon.process("qemu-system")
}

/// Nothing of the folder's one guest is left.
fn is_gone(daemon: &Daemon) {
    daemon.says(&["delete", "mine", "--force"]);
    for folder in ["run", "claims", "guests"] {
        assert_eq!(daemon.names(folder), Vec::<String>::new(), "{folder}");
    }
    assert_eq!((daemon.mounts(), qemu(daemon)), (Vec::<String>::new(), None));
}

/// The VM `mine` runs as its objects report: QEMU is there, obeys, and is the same one afterwards.
fn is_true(daemon: &Daemon) -> u32 {
    let found = eventually("a guest that runs", || {
        let runs = daemon.object("vmi/mine")?["status"]["phase"] == "Running";
        (runs && daemon.status("mine") == "Running").then(|| qemu(daemon))?
    });
    daemon.until_serial("mine", "K");
    for (verb, status) in [("pause", "Paused"), ("unpause", "Running")] {
        eventually(status, || {
            // A worker that was just killed does not answer; what it did is seen all the same.
            daemon.command(&[verb, "mine"]);
            (daemon.status("mine") == status).then_some(())
        });
    }
    assert_eq!(qemu(daemon), Some(found), "the same guest");
    found
}

/// Starts the machine of a document and, at a random moment after there is a process with this word, kills it. The
/// machine's document is run again then, as a person would. Answers whether there was something to kill.
fn killed_in_a_start(daemon: &Daemon, document: &str, word: &str, wait: Duration) -> bool {
    let file = daemon.path("vm.yaml");
    fs::write(&file, document).unwrap();
    let words = ["run", "--detach", file.to_str().unwrap()];
    let mut run = daemon.started(&words, Stdio::null(), Stdio::null());
    let process = eventually(word, || daemon.process(word));
    sleep(wait);
    let there = daemon.process(word) == Some(process);
    kill(process, Signal::KILL);
    // Either the failure or a running guest may be reported by now.
    end_of(&mut run.0, "run");
    there
}

#[test]
fn a_start_goes_on_after_the_daemon_is_killed_anywhere() {
    let mut daemon = Daemon::start();
    let mut dice = Dice(7);
    let file = daemon.path("vm.yaml");
    let document = halting(&daemon, "mine", "Always");
    fs::write(&file, &document).unwrap();
    for _ in 0..rounds() {
        let words = ["run", "--detach", file.to_str().unwrap()];
        let mut run = daemon.started(&words, Stdio::null(), Stdio::null());
        sleep(Duration::from_millis(dice.next(4000)));
        daemon.end(Signal::KILL);
        end_of(&mut run.0, "run");
        daemon.again();
        daemon.run(&document);
        daemon.until_serial("mine", "K");
        // It runs, and the daemon is killed: it goes on.
        let before = qemu(&daemon).unwrap();
        daemon.end(Signal::KILL);
        sleep(Duration::from_millis(dice.next(400)));
        assert_eq!(qemu(&daemon), Some(before));
        daemon.again();
        assert_eq!(is_true(&daemon), before, "the same guest");
        is_gone(&daemon);
    }
}

#[test]
fn an_import_goes_on_after_its_importer_is_killed_anywhere() {
    let daemon = Daemon::start();
    let mut dice = Dice(8);
    // Large enough to be killed in the middle of it.
    let image = daemon.path("large.img");
    let mut content: Vec<u8> = (0..24 << 20).flat_map(|word: u32| word.to_le_bytes()).collect();
    content[..code::HALTS.len()].copy_from_slice(code::HALTS);
    content[510..512].copy_from_slice(&[0x55, 0xaa]);
    fs::write(&image, &content).unwrap();
    let source = format!("{{http: {{url: \"file://{}\"}}}}", image.display());
    let document = machine("mine", "Always", &source, "").replace("8Mi", "96Mi");
    let mut cut = 0;
    for _ in 0..rounds() {
        let wait = Duration::from_millis(dice.next(600));
        cut += u32::from(killed_in_a_start(&daemon, &document, "importer --size", wait));
        is_true(&daemon);
        let volume = daemon.object("dv/mine-root").unwrap();
        assert_eq!(volume["status"]["phase"], "Succeeded");
        assert_eq!(volume["status"]["progress"], "100.0%");
        let claim = daemon.object("pvc/mine-root").unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
        let disk = daemon.state().join("claims").join(claim).join("data/disk.img");
        assert!(fs::read(disk).unwrap() == content, "the disk is the image");
        is_gone(&daemon);
    }
    println!("{cut} of {} imports were cut short", rounds());
}

#[test]
fn a_guest_starts_and_survives_though_its_worker_is_killed_anywhere() {
    let daemon = Daemon::start();
    let mut dice = Dice(9);
    let document = halting(&daemon, "mine", "Always");
    for _ in 0..rounds() {
        killed_in_a_start(&daemon, &document, " worker ", Duration::from_millis(dice.next(1000)));
        let before = is_true(&daemon);
        kill(daemon.process(" worker ").unwrap(), Signal::KILL);
        sleep(Duration::from_millis(dice.next(400)));
        assert_eq!(is_true(&daemon), before, "the same guest");
        is_gone(&daemon);
    }
}

#[test]
fn a_guest_recovers_from_a_kill_of_qemu_at_any_step() {
    let daemon = Daemon::start();
    let mut dice = Dice(10);
    let document = halting(&daemon, "mine", "Always");
    for _ in 0..rounds() {
        killed_in_a_start(&daemon, &document, "qemu-system", Duration::from_millis(dice.next(1500)));
        let before = is_true(&daemon);
        let run = daemon.object("vmi/mine").unwrap()["metadata"]["uid"].clone();
        kill(before, Signal::KILL);
        daemon.until("mine", "CrashLoopBackOff");
        assert!(daemon.says(&["events", "mine"]).contains("crashed"));
        // It recovers by itself; `start` tries it at once, which may be a moment too late.
        daemon.command(&["start", "mine"]);
        assert_ne!(is_true(&daemon), before);
        assert_ne!(daemon.object("vmi/mine").unwrap()["metadata"]["uid"], run);
        is_gone(&daemon);
    }
}

#[test]
fn a_guest_survives_its_launchers_first_process() {
    let daemon = Daemon::start();
    daemon.run(&halting(&daemon, "mine", "Always"));
    let before = is_true(&daemon);
    kill(daemon.process(" run --capabilities").unwrap(), Signal::KILL);
    assert_eq!(is_true(&daemon), before, "the same guest");
    is_gone(&daemon);
}

#[test]
fn a_guest_that_crashed_comes_back_by_itself() {
    let daemon = Daemon::start();
    daemon.run(&halting(&daemon, "mine", "Always"));
    let before = is_true(&daemon);
    kill(before, Signal::KILL);
    daemon.until("mine", "CrashLoopBackOff");
    assert_ne!(is_true(&daemon), before);
    is_gone(&daemon);
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
fn a_machine_that_is_switched_off_has_its_guests_end_first_and_run_again_afterwards() {
    let mut daemon = Daemon::start();
    daemon.run(&halting(&daemon, "always", "Always"));
    daemon.run(&halting(&daemon, "rerun", "RerunOnFailure"));
    // The output of systemd at shutdown.
    let systemctl = daemon.path("bin/systemctl");
    fs::create_dir(daemon.path("bin")).unwrap();
    fs::write(&systemctl, "#!/bin/sh\necho stopping\n").unwrap();
    fs::set_permissions(&systemctl, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(daemon.end(Signal::TERM), Some(0), "{}", daemon.log());
    assert_eq!((qemu(&daemon), daemon.process("virt-launcher")), (None, None), "their grace is a second");
    fs::remove_file(&systemctl).unwrap();
    fs::write(daemon.state().join("boot"), "before").unwrap();
    daemon.again();
    for name in ["always", "rerun"] {
        daemon.until(name, "Running");
        daemon.until_serial(name, "K");
        daemon.says(&["delete", name, "--force"]);
    }
}

#[test]
fn a_torn_state_is_reported_and_left_as_it_is() {
    let mut daemon = Daemon::start();
    daemon.run(&halting(&daemon, "mine", "Always"));
    daemon.end(Signal::KILL);
    let file = daemon.state().join("objects/VirtualMachine/default/mine");
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let output = daemon.command(&["serve", "--accelerator", "tcg"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(1) && told.contains("VirtualMachine/default/mine: not valid JSON"),
        "{told}"
    );
    assert_eq!(fs::read(&file).unwrap(), &whole[..whole.len() / 2]);
    assert!(qemu(&daemon).is_some(), "the guest goes on");
    fs::write(&file, &whole).unwrap();
    daemon.again();
    daemon.until("mine", "Running");
    daemon.says(&["delete", "mine", "--force"]);
}

#[test]
fn the_volumes_driver_is_started_again_when_it_is_killed() {
    let daemon = Daemon::start();
    let driver = eventually("the driver", || daemon.process("hpp-csi"));
    kill(driver, Signal::KILL);
    daemon.run(&halting(&daemon, "mine", "Always"));
    daemon.until_serial("mine", "K");
    assert!(daemon.process("hpp-csi").is_some_and(|other| other != driver));
    is_gone(&daemon);
}

/// An escaped QEMU can stop its launcher: `delete --force` waited for an answer for ever.
#[test]
fn a_guest_with_a_hung_launcher_is_deleted_in_time() {
    let daemon = Daemon::start();
    daemon.run(&halting(&daemon, "mine", "Always"));
    is_true(&daemon);
    let user = daemon.user("mine").to_string();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(status) = fs::read_to_string(entry.path().join("status")) else { continue };
        let uids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
        if uids.split_whitespace().any(|uid| uid == user) {
            kill(entry.file_name().to_str().unwrap().parse().unwrap(), Signal::STOP);
        }
    }
    let begun = Instant::now();
    is_gone(&daemon);
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    assert!(daemon.says(&["events"]).contains("Killing"));
}
