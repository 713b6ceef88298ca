//! The worker is killed: the guest goes on, and the next worker takes over. Also: what a launcher leaves of privileges, and
//! how little its first process takes.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use api::launcher::{Answer, Cause, Request, State};
use api::names::QEMU_ID;
use rustix::process::Signal;

use crate::support::running::{Dice, HALTS, Launcher, TIMEOUT, command_line, eventually, kill, status_line};

/// How often something is killed.
fn rounds() -> u32 {
    if std::env::var_os("FERROVIRT_SOAK").is_some() { 20 } else { 5 }
}

/// The worker of a running guest is killed and followed by another one, which has all of the guest in its hands.
fn survives(mut launcher: Launcher) {
    launcher.launch(&launcher.document(HALTS));
    launcher.until_serial("K");
    let qemu = launcher.qemu().expect("QEMU is the first process's child");
    let mut dice = Dice(7);
    for _ in 0..rounds() {
        let worker = launcher.worker();
        kill(worker, Signal::KILL);
        let status = launcher.until(State::Running);
        assert!(status.uid.is_some());
        assert_ne!(launcher.worker(), worker);
        // Also while it opens libvirt.
        sleep(Duration::from_millis(dice.next(300)));
    }
    launcher.ask(Request::Pause).unwrap();
    kill(launcher.worker(), Signal::KILL);
    launcher.until(State::Paused);
    launcher.ask(Request::Unpause).unwrap();
    launcher.ask(Request::Reset).unwrap();
    launcher.until_serial("KK");
    assert_eq!(launcher.qemu(), Some(qemu), "{}", launcher.log());
    // The end is the new worker's to see, too.
    kill(launcher.worker(), Signal::KILL);
    kill(launcher.outer(), Signal::TERM);
    launcher.ends(Cause::Killed);
}

#[test]
fn a_guest_survives_its_worker() {
    survives(Launcher::new());
}

#[test]
fn a_guest_survives_its_worker_in_a_pod() {
    let words = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let launcher = Launcher::start(&words, None);
    assert_eq!(status_line(launcher.outer(), "NSpid").split_whitespace().last(), Some("1"));
    survives(launcher);
}

#[test]
fn a_worker_that_is_killed_while_it_starts_a_guest_leaves_one_or_none() {
    let mut dice = Dice(11);
    let mut cut = 0;
    for _ in 0..rounds() {
        let mut launcher = Launcher::new();
        let document = launcher.document(HALTS);
        let worker = launcher.worker();
        let mut client = launcher.client();
        // A start takes about half of it.
        let wait = Duration::from_millis(dice.next(200));
        let killer = std::thread::spawn(move || {
            sleep(wait);
            kill(worker, Signal::KILL);
        });
        cut += u32::from(client.launch(&document).is_err());
        killer.join().unwrap();
        // The starter repeats its request until there is an answer.
        eventually("the guest", || launcher.client().launch(&document).ok());
        assert_eq!(launcher.status().state, State::Running, "{}", launcher.log());
        launcher.until_serial("K");
        launcher.ask(Request::Kill).unwrap();
        launcher.ends(Cause::Killed);
    }
    println!("{cut} of {} starts were cut short", rounds());
}

#[test]
fn a_guest_that_ends_while_there_is_no_worker_is_lost() {
    let mut launcher = Launcher::new();
    launcher.launch(&launcher.document(HALTS));
    launcher.until_serial("K");
    let qemu = launcher.qemu().unwrap();
    kill(launcher.worker(), Signal::KILL);
    kill(qemu, Signal::KILL);
    let (_, exit) = launcher.end();
    // Which of both was gone first is the scheduler's business.
    assert!(matches!(exit.cause, Cause::Lost | Cause::Crashed), "{exit:?}");
    assert_eq!(exit.code, 1);
    // A restarted launcher gives the same answer, and starts nothing.
    launcher.again();
    assert_eq!(launcher.end().1, exit);
}

#[test]
fn a_guest_survives_the_first_process_and_is_found_by_the_next() {
    let mut launcher = Launcher::new();
    launcher.launch(&launcher.document(HALTS));
    launcher.until_serial("K");
    let (qemu, worker) = (launcher.qemu().unwrap(), launcher.worker());
    kill(launcher.outer(), Signal::KILL);
    eventually("the worker's end", || command_line(worker).is_empty().then_some(()));
    assert!(!command_line(qemu).is_empty(), "the guest goes on");
    launcher.again();
    launcher.until(State::Running);
    launcher.ask(Request::Kill).unwrap();
    launcher.ends(Cause::Killed);
    eventually("QEMU's end", || command_line(qemu).is_empty().then_some(()));
}

#[test]
fn a_request_to_end_reaches_a_worker_that_is_just_starting() {
    let mut launcher = Launcher::new();
    launcher.launch(&launcher.document(HALTS));
    launcher.until_serial("K");
    // Its signals are not waited for yet.
    kill(launcher.worker(), Signal::KILL);
    launcher.worker();
    kill(launcher.outer(), Signal::TERM);
    launcher.ends(Cause::Killed);
}

#[test]
fn a_grace_goes_on_under_the_next_worker() {
    let mut launcher = Launcher::new();
    launcher.launch(&launcher.document(HALTS));
    launcher.until_serial("K");
    let begun = Instant::now();
    launcher.ask(Request::Shutdown { grace_seconds: Some(5) }).unwrap();
    launcher.until(State::Stopping);
    // No client asks again, and the first process was not notified.
    for _ in 0..2 {
        kill(launcher.worker(), Signal::KILL);
        let status = launcher.status();
        assert!(matches!(status.state, State::Stopping | State::Ended), "{status:?}");
    }
    launcher.ends(Cause::Killed);
    assert!(begun.elapsed() >= Duration::from_secs(5), "not before: {:?}", begun.elapsed());
}

#[test]
fn a_launcher_without_a_guest_ends_when_it_is_asked() {
    let mut launcher = Launcher::new();
    launcher.until(State::Waiting);
    kill(launcher.outer(), Signal::TERM);
    let begun = Instant::now();
    let status = eventually("the end", || launcher.ended());
    assert_eq!(status.code(), Some(3), "{}", launcher.log());
    assert!(begun.elapsed() < TIMEOUT);
    assert!(!launcher.folder().join("exit.json").exists(), "there was no guest");
}

#[test]
fn nothing_of_a_guest_has_privileges() {
    let launcher = Launcher::new();
    launcher.launch(&launcher.document(HALTS));
    let (outer, worker, qemu) = (launcher.outer(), launcher.worker(), launcher.qemu().unwrap());
    let user = QEMU_ID.to_string();
    for process in [outer, worker, qemu] {
        for name in ["Uid", "Gid"] {
            let ids = status_line(process, name);
            assert!(
                ids.split_whitespace().all(|id| id == user),
                "{name} of {}: {ids}",
                command_line(process)
            );
        }
        assert_eq!(status_line(process, "Groups"), "");
        for name in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert_eq!(u64::from_str_radix(&status_line(process, name), 16), Ok(0), "{name}");
        }
        // CAP_NET_BIND_SERVICE is number 10.
        let bound = u64::from_str_radix(&status_line(process, "CapBnd"), 16).unwrap();
        assert_eq!(bound & !(1 << 10), 0, "{}", command_line(process));
        assert_eq!(status_line(process, "NoNewPrivs"), "1", "{}", command_line(process));
    }
    assert_eq!(status_line(qemu, "Seccomp"), "2", "QEMU is filtered");
    let maps = fs::read_to_string(format!("/proc/{outer}/maps")).unwrap();
    assert!(!maps.contains("libvirt"), "the first process has nothing of libvirt");
    let roll = fs::read_to_string(format!("/proc/{outer}/smaps_rollup")).unwrap();
    let private = roll.lines().filter(|line| line.starts_with("Private_"));
    let kib: u64 = private.map(|line| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()).sum();
    // The bar is that of an optimised program; the tables of this one, which the loader relocates, are larger.
    let most = if cfg!(debug_assertions) { 1280 } else { 1024 };
    assert!(kib < most, "{kib} KiB: {roll}");
    let Answer::Status(_) = launcher.ask(Request::Status).unwrap() else { panic!() };
}
