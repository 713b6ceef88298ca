//! Processes that outlive the daemon: each writes to a log that it holds locked while it lives, so that the next daemon
//! sees whether it is there without knowing its number.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::thread::set_no_new_privs;

use crate::error::{Error, Kind};
use crate::network;

/// Largest log that is appended to.
const LOG_MAX: u64 = 1 << 20;
/// How much of the end of a log is read, in bytes.
const WORDS_MAX: u64 = 64 << 10;
/// Looks for processes of a user that is to have none.
const ROUNDS_MAX: u32 = 200;

/// A program of ferrovirt: next to this one, or on the PATH.
pub(super) fn program(name: &str) -> PathBuf {
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(name)));
    beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(name))
}

/// One of our programs, with the PATH alone of this process's environment, and a descriptor that must stay open until it is
/// started. Started by its descriptor: its user may lack access to the directory, as where root built it at home.
pub(super) fn command(name: &str) -> (Command, Option<File>) {
    let program = program(name);
    let file = File::open(&program).ok();
    let mut command = match &file {
        Some(file) => Command::new(format!("/proc/self/fd/{}", file.as_raw_fd())),
        None => Command::new(&program),
    };
    command.arg0(name).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    (command, file)
}

/// That one of our programs cannot be started.
pub(super) fn unstarted(name: &str, error: io::Error) -> Error {
    let text = if error.kind() == io::ErrorKind::NotFound {
        format!("{name} is neither next to virt-node nor on the PATH")
    } else {
        format!("{name} cannot be started")
    };
    Error::with(Kind::System, text, error)
}

/// Whether the process of a log lives.
pub(super) fn lives(log: &Path) -> bool {
    let Ok(file) = File::open(log) else { return false };
    flock(&file, FlockOperation::NonBlockingLockShared).is_err()
}

/// Waits for the end of a log's process. Answers whether it ended in time.
pub(super) fn ended(log: &Path, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    while lives(log) {
        if Instant::now() >= until {
            return false;
        }
        thread::sleep(Duration::from_millis(20));
    }
    true
}

/// Starts a process, unless that of its log lives. It gains nothing by any program that it starts.
///
/// # Errors
/// It cannot be started; `AlreadyExists`: it lives.
pub(super) fn start(command: Command, log: &Path) -> io::Result<Child> {
    start_in(command, log, None)
}

/// The same in a network namespace, where one is named.
///
/// # Errors
/// As [`start`], or the namespace cannot be entered.
pub(super) fn start_in(mut command: Command, log: &Path, namespace: Option<&Path>) -> io::Result<Child> {
    let long = log.metadata().is_ok_and(|facts| facts.len() > LOG_MAX);
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(0o600);
    let file = options.open(log)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| io::ErrorKind::AlreadyExists)?;
    if long {
        file.set_len(0)?;
    }
    // A terminal's Ctrl-C is for the daemon.
    command.stdin(Stdio::null()).stderr(Stdio::from(file)).process_group(0);
    // Children inherit no_new_privs from the thread; the rest of this process is not affected.
    let mut spawn = move || {
        set_no_new_privs(true)?;
        command.spawn()
    };
    match namespace {
        None => {
            let thread = thread::Builder::new().name("start".to_owned()).spawn(spawn)?;
            thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
        }
        Some(namespace) => {
            let failed = |error| Error::with(Kind::System, namespace.display().to_string(), error);
            network::inside(namespace, move || spawn().map_err(failed)).map_err(io::Error::other)
        }
    }
}

/// Asks the process that has a log as its standard error to end. `false`: there is none.
pub(super) fn stop(log: &Path) -> io::Result<bool> {
    let log = log.canonicalize()?;
    let mut found = false;
    for entry in std::fs::read_dir("/proc")? {
        let id = entry?.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        let Some(id) = id.filter(|id| has(*id, &log)) else { continue };
        // It may just have ended, and another one may have its number now.
        let Ok(process) = pidfd_open(id, PidfdFlags::empty()) else { continue };
        if has(id, &log) {
            found |= pidfd_send_signal(&process, Signal::TERM).is_ok();
        }
    }
    Ok(found)
}

fn has(id: Pid, log: &Path) -> bool {
    std::fs::read_link(format!("/proc/{}/fd/2", id.as_raw_nonzero())).is_ok_and(|path| path == log)
}

/// Asks the process at the other end of a socket to end; one of another user is not what was looked for.
pub(super) fn stop_peer(stream: &UnixStream, user: u32) -> io::Result<()> {
    let peer = rustix::net::sockopt::socket_peercred(stream)?;
    if peer.uid.as_raw() != user {
        return Err(io::Error::other(format!("the socket is of user {}, not of {user}", peer.uid.as_raw())));
    }
    let process = pidfd_open(peer.pid, PidfdFlags::empty())?;
    Ok(pidfd_send_signal(&process, Signal::TERM)?)
}

/// Kills every process of a user that is ferrovirt's, whatever its processes made of themselves. Answers how many there were.
/// Only for a number that this daemon holds: [`super::ids::Ids::end_all_of`].
pub(super) fn end_all_of(user: u32) -> usize {
    let mut ended = 0;
    // Each may have started another one since it was seen.
    for _ in 0..ROUNDS_MAX {
        let processes: Vec<Pid> = all().filter(|id| users_of(*id).contains(&user)).collect();
        if processes.is_empty() {
            break;
        }
        for id in processes {
            let Ok(process) = pidfd_open(id, PidfdFlags::empty()) else { continue };
            // It may have ended, and its number be another's.
            if users_of(id).contains(&user) && pidfd_send_signal(&process, Signal::KILL).is_ok() {
                ended += 1;
            }
        }
        thread::sleep(Duration::from_millis(10));
    }
    ended
}

/// The users of all processes of the machine that `which` names.
pub(super) fn users(which: impl Fn(u32) -> bool) -> BTreeSet<u32> {
    all().flat_map(users_of).filter(|user| which(*user)).collect()
}

fn all() -> impl Iterator<Item = Pid> {
    let ids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    ids.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
}

/// The real, effective, saved and filesystem user of a process; none of one that has ended.
fn users_of(id: Pid) -> Vec<u32> {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{}/status", id.as_raw_nonzero())) else {
        return Vec::new();
    };
    let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    if line("State:").trim_start().starts_with(['Z', 'X']) {
        return Vec::new();
    }
    line("Uid:").split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// The last bytes of a log.
pub(super) fn end_of(log: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(log)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(WORDS_MAX)))?;
    dir::read_file(&file, 2 * WORDS_MAX)
}

/// The last lines of a log, for messages.
pub(super) fn last_words(log: &Path) -> String {
    let text = end_of(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines.iter().rev().take(2).rev().copied().collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_a_user_are_ended_and_no_others() {
        use std::os::unix::process::CommandExt as _;
        const OURS: u32 = 1_900_060_000;
        let sleep = |user: u32| {
            let mut command = Command::new("sleep");
            command.arg("60").uid(user).gid(user).spawn().unwrap()
        };
        let (mut ours, mut theirs) = (sleep(OURS), sleep(65_533));
        assert_eq!(end_all_of(OURS), 1);
        ours.wait().unwrap();
        assert!(theirs.try_wait().unwrap().is_none());
        theirs.kill().unwrap();
        theirs.wait().unwrap();
    }

    #[test]
    fn a_process_is_known_by_its_log() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        assert!(!lives(&log));
        let sleep = || {
            let mut command = Command::new("sh");
            command.args(["-c", "echo words >&2; exec sleep 60"]);
            command
        };
        let mut child = start(sleep(), &log).unwrap();
        assert!(lives(&log));
        assert_eq!(start(sleep(), &log).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert!(!ended(&log, Duration::from_millis(50)));
        assert!(stop(&log).unwrap());
        child.wait().unwrap();
        assert!(!stop(&log).unwrap());
        assert!(ended(&log, Duration::from_secs(10)));
        assert_eq!(last_words(&log), "words");
    }
}
