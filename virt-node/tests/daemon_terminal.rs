//! What a person has of a guest at a terminal and beside it: the console, the screen, the daemon as a unit of systemd.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/daemon.rs"]
mod daemon;
#[path = "support/sys.rs"]
mod sys;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use daemon::{Daemon, code, eventually, kill, machine};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::Signal;
use rustix::termios::{LocalModes, tcgetattr};
use sys::terminal;

/// `virt-node console` at a terminal.
fn console(daemon: &Daemon, terminal: &str) -> Child {
    let end = || open(terminal, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
    Command::new(env!("CARGO_BIN_EXE_virt-node"))
        .args(["console", "mine", "--state"])
        .arg(daemon.state())
        .stdin(Stdio::from(end()))
        .stdout(Stdio::from(end()))
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Reads until what was read holds `text`.
fn until(file: &mut impl Read, text: &str) -> String {
    let mut read = Vec::new();
    while !String::from_utf8_lossy(&read).contains(text) {
        let mut byte = [0];
        file.read_exact(&mut byte).unwrap_or_else(|error| {
            panic!("{error}, not {text:?}: {}", String::from_utf8_lossy(&read));
        });
        read.extend(byte);
    }
    String::from_utf8(read).unwrap()
}

fn is_raw(terminal: &OwnedFd) -> bool {
    !tcgetattr(terminal).unwrap().local_modes.contains(LocalModes::ICANON)
}

#[test]
fn a_console_is_a_terminals_and_the_next_one_takes_it() {
    let daemon = Daemon::start();
    let image = daemon.image("disk.img", code::ECHOES);
    daemon.run(&machine("mine", "Always", &format!("{{http: {{url: \"file://{}\"}}}}", image.display()), ""));
    daemon.until_serial("mine", "K");
    let (first, name) = terminal();
    let before = is_raw(&first);
    let mut child = console(&daemon, &name);
    let mut said = File::from(first.try_clone().unwrap());
    until(&mut said, "Connected to default/mine; the escape is ^]");
    eventually("a raw terminal", || is_raw(&first).then_some(()));
    // The guest says what it hears; Ctrl-C is the guest's.
    said.write_all(b"hello\x03").unwrap();
    until(&mut said, "hello\x03");
    // Another one has it then, and the first one's terminal is as it was.
    let (second, name) = terminal();
    let mut other = console(&daemon, &name);
    let mut told = File::from(second.try_clone().unwrap());
    until(&mut told, "the escape is ^]");
    assert!(eventually("the first one's end", || child.try_wait().unwrap()).success());
    assert_eq!(is_raw(&first), before);
    eventually("a raw terminal", || is_raw(&second).then_some(()));
    told.write_all(b"again").unwrap();
    until(&mut told, "again");
    told.write_all(b"\x1d").unwrap();
    assert!(eventually("the end", || other.try_wait().unwrap()).success());
    assert_eq!(is_raw(&second), before);
    daemon.says(&["delete", "mine", "--force"]);
    let gone = daemon.command(&["console", "mine"]);
    assert!(!gone.status.success() && String::from_utf8_lossy(&gone.stderr).contains("does not run"));
}

#[test]
fn a_screen_is_at_a_port_for_one_viewer_after_the_other() {
    let daemon = Daemon::start();
    let image = daemon.image("disk.img", code::HALTS);
    daemon.run(&machine("mine", "Always", &format!("{{http: {{url: \"file://{}\"}}}}", image.display()), ""));
    let mut vnc = Command::new(env!("CARGO_BIN_EXE_virt-node"))
        .args(["vnc", "mine", "--state"])
        .arg(daemon.state())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(vnc.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.split_once(": ").unwrap().0.to_owned();
    for _ in 0..2 {
        let mut viewer = TcpStream::connect(&address).unwrap();
        viewer.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(until(&mut viewer, "\n"), "RFB 003.008\n");
        viewer.write_all(b"RFB 003.008\n").unwrap();
        let mut kinds = [0; 2];
        viewer.read_exact(&mut kinds).unwrap();
        assert_eq!(kinds, [1, 1], "one kind of security: none, on this machine's own port");
        sleep(Duration::from_millis(100));
    }
    kill(vnc.id(), Signal::KILL);
    vnc.wait().unwrap();
    daemon.says(&["delete", "mine", "--force"]);
}

#[test]
fn the_unit_is_one_that_systemd_takes() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state of guests");
    let output = Command::new(env!("CARGO_BIN_EXE_virt-node"))
        .args(["install-service", "--print", "--state"])
        .arg(&state)
        .output()
        .unwrap();
    assert!(output.status.success());
    let unit = folder.path().join("virt-node.service");
    std::fs::write(&unit, &output.stdout).unwrap();
    let verified = Command::new("systemd-analyze").arg("verify").arg(&unit).output();
    let verified = verified.unwrap_or_else(|error| panic!("systemd-analyze: {error}: run make deps"));
    let told = String::from_utf8_lossy(&verified.stderr).into_owned();
    let about: Vec<&str> = told.lines().filter(|line| line.contains("virt-node.service")).collect();
    assert!(verified.status.success() && about.is_empty(), "{told}");
}
