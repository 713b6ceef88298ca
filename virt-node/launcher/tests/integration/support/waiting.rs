//! Waiting for what happens, never without end, and having it happen: at random, and to processes by their ids.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use guests::Killed;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

/// How long anything may take on a machine that is busy with other tests.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);
/// How long a command may take: an import, a start and a grace may be in it.
pub(crate) const LONG: Duration = Duration::from_secs(300);

/// Polls `found` until it returns a value.
pub(crate) fn eventually<T>(what: &str, found: impl FnMut() -> Option<T>) -> T {
    eventually_within(TIMEOUT, what, found)
}

/// The same of what may take longer.
pub(crate) fn eventually_within<T>(
    patience: Duration,
    what: &str,
    mut found: impl FnMut() -> Option<T>,
) -> T {
    let until = Instant::now() + patience;
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < until, "{what}: not in {patience:?}");
        sleep(Duration::from_millis(20));
    }
}

/// A command that goes on, until it is dropped at the latest.
pub(crate) fn started(command: &mut Command) -> Killed {
    Killed(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}: run make deps")))
}

/// The end of a child. One that does not come is made, and a failure.
pub(crate) fn end_of(child: &mut Child, what: &str) -> ExitStatus {
    end_within(child, what, LONG)
}

fn end_within(child: &mut Child, what: &str, patience: Duration) -> ExitStatus {
    let until = Instant::now() + patience;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() >= until {
            drop(child.kill());
            drop(child.wait());
            panic!("{what}: no end in {patience:?}");
        }
        sleep(Duration::from_millis(20));
    }
}

/// The output of a command until its end. Its children may continue to write.
pub(crate) fn output(command: &mut Command) -> Output {
    output_within(command, LONG)
}

/// The same of one that may take longer.
pub(crate) fn output_within(command: &mut Command, patience: Duration) -> Output {
    let (mut stdout, mut stderr) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
    let given = |file: &File| Stdio::from(file.try_clone().unwrap());
    command.stdout(given(&stdout)).stderr(given(&stderr));
    let status = end_within(&mut started(command).0, &format!("{command:?}"), patience);
    Output { status, stdout: all(&mut stdout), stderr: all(&mut stderr) }
}

fn all(file: &mut File) -> Vec<u8> {
    let mut text = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut text).unwrap();
    text
}

/// Whether something can be read, or the end was reached, before it is too late.
fn readable(from: &impl AsFd, until: Instant) -> bool {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left =
            Timespec { tv_sec: left.as_secs().try_into().unwrap(), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(from, PollFlags::IN)], Some(&left)) {
            Err(rustix::io::Errno::INTR) => {}
            ready => return ready.unwrap() > 0,
        }
    }
}

/// Reads until what was read holds `text`, and no byte more.
pub(crate) fn read_until(from: &mut (impl Read + AsFd), text: &str) -> String {
    let mut heard = Vec::new();
    let until = Instant::now() + TIMEOUT;
    while !heard.ends_with(text.as_bytes()) {
        let said = || String::from_utf8_lossy(&heard).into_owned();
        assert!(readable(from, until), "not {text:?} in {TIMEOUT:?}: {:?}", said());
        let mut byte = [0];
        from.read_exact(&mut byte).unwrap_or_else(|error| panic!("{error}, not {text:?}: {:?}", said()));
        heard.extend(byte);
    }
    String::from_utf8_lossy(&heard).into_owned()
}

/// Reads to the end.
pub(crate) fn rest(from: &mut (impl Read + AsFd)) -> String {
    let mut heard = Vec::new();
    let until = Instant::now() + TIMEOUT;
    loop {
        assert!(readable(from, until), "no end in {TIMEOUT:?}: {:?}", String::from_utf8_lossy(&heard));
        let mut part = [0; 4096];
        match from.read(&mut part).unwrap() {
            0 => return String::from_utf8_lossy(&heard).into_owned(),
            count => heard.extend(&part[..count]),
        }
    }
}

/// Processes with a path in their command line, or that work below it.
pub(crate) fn processes(path: &Path) -> Vec<(u32, String)> {
    let path = path.to_str().unwrap();
    let ids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let line = |id: u32| {
        let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        (id, String::from_utf8_lossy(&line).replace('\0', " "))
    };
    let below =
        |id: u32| std::fs::read_link(format!("/proc/{id}/cwd")).is_ok_and(|cwd| cwd.starts_with(path));
    ids.map(line).filter(|(id, line)| line.contains(path) || below(*id)).collect()
}

/// Ends all of them at once.
pub(crate) fn end_all(path: &Path) {
    // Processes started during a round are found in the next one.
    for _ in 0..100 {
        let found = processes(path);
        if found.is_empty() {
            return;
        }
        for (id, _) in found {
            kill(id, Signal::KILL);
        }
        sleep(Duration::from_millis(20));
    }
}

/// Ends a process by its id.
pub(crate) fn kill(process: u32, signal: Signal) {
    let id = rustix::process::Pid::from_raw(i32::try_from(process).unwrap()).unwrap();
    // It may just have gone.
    _ = rustix::process::kill_process(id, signal);
}

/// SplitMix64.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }
}
