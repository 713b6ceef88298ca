//! Terminal access to a guest: the console and the screen; and the daemon as a systemd unit.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use api::launcher::FRAME_MAX;
use guests::Killed;
use rustix::fs::{Mode, OFlags, open};
use rustix::termios::{LocalModes, tcgetattr};

use crate::support::daemon::{
    self, Daemon, TIMEOUT, code, end_of, eventually, machine, output, peak, read_until,
};
use crate::support::sys::terminal;

/// `virt-node console` at a terminal.
fn console(daemon: &Daemon, terminal: &str) -> Killed {
    let end = || open(terminal, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
    daemon.started(&["console", "mine"], Stdio::from(end()), Stdio::from(end()))
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
    read_until(&mut said, "Connected to default/mine; the escape is ^]");
    eventually("a raw terminal", || is_raw(&first).then_some(()));
    // The guest echoes its input; Ctrl-C is the guest's.
    said.write_all(b"hello\x03").unwrap();
    read_until(&mut said, "hello\x03");
    // Another one has it then, and the first one's terminal is as it was.
    let (second, name) = terminal();
    let mut other = console(&daemon, &name);
    let mut told = File::from(second.try_clone().unwrap());
    read_until(&mut told, "the escape is ^]");
    assert!(end_of(&mut child.0, "the first one").success());
    assert_eq!(is_raw(&first), before);
    eventually("a raw terminal", || is_raw(&second).then_some(()));
    told.write_all(b"again").unwrap();
    read_until(&mut told, "again");
    told.write_all(b"\x1d").unwrap();
    assert!(end_of(&mut other.0, "the other").success());
    assert_eq!(is_raw(&second), before);
    daemon.says(&["delete", "mine", "--force"]);
    let gone = daemon.command(&["console", "mine"]);
    assert!(
        !gone.status.success()
            && String::from_utf8_lossy(&gone.stderr).contains("there is no VirtualMachine")
    );
}

#[test]
fn a_screen_is_at_a_port_for_one_viewer_after_the_other() {
    let daemon = Daemon::start();
    let image = daemon.image("disk.img", code::HALTS);
    daemon.run(&machine("mine", "Always", &format!("{{http: {{url: \"file://{}\"}}}}", image.display()), ""));
    let mut vnc = daemon.started(&["vnc", "mine"], Stdio::null(), Stdio::piped());
    let line = read_until(vnc.0.stdout.as_mut().unwrap(), "\n");
    let address = line.split_once(": ").unwrap().0.to_owned();
    for _ in 0..2 {
        let mut viewer = TcpStream::connect(&address).unwrap();
        viewer.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(read_until(&mut viewer, "\n"), "RFB 003.008\n");
        viewer.write_all(b"RFB 003.008\n").unwrap();
        let mut kinds = [0; 2];
        viewer.read_exact(&mut kinds).unwrap();
        assert_eq!(kinds, [1, 1], "one kind of security: none, on this machine's own port");
        sleep(Duration::from_millis(100));
    }
    drop(vnc);
    daemon.says(&["delete", "mine", "--force"]);
}

#[test]
fn the_unit_is_one_that_systemd_takes() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state of guests");
    let mut print = Command::new(env!("CARGO_BIN_EXE_virt-node"));
    print.args(["install-service", "--print", "--pod-network", "10.9.0.0/16", "--state"]).arg(&state);
    let output = output(&mut print);
    assert!(output.status.success() && !state.exists(), "{output:?}");
    let unit = folder.path().join("virt-node.service");
    fs::write(&unit, &output.stdout).unwrap();
    let verified = daemon::output(Command::new("systemd-analyze").arg("verify").arg(&unit));
    let told = String::from_utf8_lossy(&verified.stderr).into_owned();
    let about: Vec<&str> = told.lines().filter(|line| line.contains("virt-node.service")).collect();
    assert!(verified.status.success() && about.is_empty(), "{told}");
}

/// The calls of `install-service` with these arguments, recorded by a stand-in for systemd in the directory's `told`.
fn installed(folder: &Path, words: &[&str]) -> String {
    let script = "mount --bind \"$0/system\" /etc/systemd/system && cd \"$0\" && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).arg(folder);
    command.args([env!("CARGO_BIN_EXE_virt-node"), "install-service", "--state", "state"]).args(words);
    let path = format!("{}:{}", folder.join("bin").display(), std::env::var("PATH").unwrap());
    let output = output(command.env("PATH", path).stdin(Stdio::null()));
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_unit_is_installed_once_and_again_when_it_is_another() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["system", "bin"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    let systemctl = folder.path().join("bin/systemctl");
    fs::write(&systemctl, "#!/bin/sh\necho \"$@\" >> told\n").unwrap();
    fs::set_permissions(&systemctl, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let told = || {
        let told = fs::read_to_string(folder.path().join("told")).unwrap();
        fs::remove_file(folder.path().join("told")).unwrap();
        told
    };
    let before = "daemon-reload\nenable virt-node.service\n";
    assert!(installed(folder.path(), &["--dry-run"]).contains("[Service]"));
    assert!(!folder.path().join("told").exists());
    assert!(installed(folder.path(), &[]).contains("was written"));
    assert_eq!(told(), format!("{before}restart virt-node.service\n"));
    assert!(installed(folder.path(), &[]).contains("was there already"));
    assert_eq!(told(), format!("{before}start virt-node.service\n"));
    assert!(installed(folder.path(), &["--accelerator", "tcg"]).contains("was written"));
    assert_eq!(told(), format!("{before}restart virt-node.service\n"));
    let unit = fs::read_to_string(folder.path().join("system/virt-node.service")).unwrap();
    let state = folder.path().join("state");
    assert!(state.is_dir() && unit.contains(state.to_str().unwrap()), "an absolute path: {unit}");
    assert!(unit.contains("--accelerator=tcg"), "{unit}");
}

/// Writes to a slow reader until that ends. Returns how many bytes were taken.
fn flood(mut to: impl Write) -> u64 {
    let part = [b'y'; 64 << 10];
    let mut sent = 0;
    loop {
        match to.write(&part) {
            Ok(count @ 1..) => sent += u64::try_from(count).unwrap(),
            Ok(0) | Err(_) => return sent,
        }
    }
}

#[test]
fn flooding_and_flooded_consoles_block_no_other() {
    let daemon = Daemon::start();
    for (name, code) in [("floods", code::FLOODS), ("echoes", code::ECHOES)] {
        let image = daemon.image(&format!("{name}.img"), code);
        let source = format!("{{http: {{url: \"file://{}\"}}}}", image.display());
        daemon.run(&machine(name, "Always", &source, ""));
    }
    daemon.until_serial("floods", "xxxx");
    daemon.until_serial("echoes", "K");
    let before = peak(daemon.id());
    // The output of one has no reader, the other's is read; both are written to as fast as they take it.
    let mut deaf = daemon.started(&["console", "floods"], Stdio::piped(), Stdio::piped());
    let mut heard_all = daemon.started(&["console", "echoes"], Stdio::piped(), Stdio::piped());
    let writers = [&mut deaf, &mut heard_all].map(|console| {
        let stdin = console.0.stdin.take().unwrap();
        std::thread::spawn(move || flood(stdin))
    });
    let mut said = heard_all.0.stdout.take().unwrap();
    let reader = std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()).unwrap());
    // And another client sends invalid calls of the largest size to the same socket.
    let socket = daemon.state().join("virt-node.sock");
    let until = Instant::now() + Duration::from_secs(5);
    let sender = std::thread::spawn(move || {
        let mut call = u32::try_from(FRAME_MAX).unwrap().to_be_bytes().to_vec();
        call.resize(call.len() + FRAME_MAX, b' ');
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut sent = 0;
        while Instant::now() < until {
            stream.write_all(&call).unwrap();
            let mut head = [0; 4];
            stream.read_exact(&mut head).unwrap();
            let mut answer = vec![0; u32::from_be_bytes(head) as usize];
            stream.read_exact(&mut answer).unwrap();
            assert!(String::from_utf8_lossy(&answer).contains("invalid request"));
            sent += call.len();
        }
        sent
    });
    let mut slowest = Duration::ZERO;
    while !sender.is_finished() {
        let begun = Instant::now();
        assert_eq!((daemon.status("floods"), daemon.status("echoes")), ("Running".into(), "Running".into()));
        slowest = slowest.max(begun.elapsed());
    }
    let sent = sender.join().unwrap();
    let clients = [peak(deaf.0.id()), peak(heard_all.0.id())];
    // A new holder of a console has it at once, whatever is queued for the previous one.
    let mut next = daemon.started(&["console", "floods"], Stdio::piped(), Stdio::piped());
    read_until(next.0.stdout.as_mut().unwrap(), "xxxx");
    drop(deaf);
    let mut last = daemon.started(&["console", "echoes"], Stdio::piped(), Stdio::piped());
    end_of(&mut heard_all.0, "the console that was taken");
    last.0.stdin.as_mut().unwrap().write_all(b"again").unwrap();
    read_until(last.0.stdout.as_mut().unwrap(), "again");
    let taken = writers.map(|writer| writer.join().unwrap());
    let read = reader.join().unwrap();
    let grown = peak(daemon.id()) - before;
    println!(
        "{} MB of calls, slowest answer {slowest:?}; taken from who writes {taken:?}, read {read} bytes; \
         the daemon grew by {grown} MiB at most, its clients have {clients:?} MiB",
        sent / 1_000_000
    );
    let call = u64::try_from(FRAME_MAX >> 20).unwrap();
    assert!(grown < 4 * call + 16, "{grown} MiB");
    assert!(clients.iter().all(|peak| *peak < 64), "{clients:?} MiB");
    assert!(taken.iter().all(|bytes| *bytes < 64 << 20), "nobody keeps what is not taken: {taken:?}");
    assert!(slowest < Duration::from_secs(20), "{slowest:?}");
    drop((next, last));
    daemon.says(&["delete", "floods", "echoes", "--force"]);
}
