//! The driver killed, and failed by an injected error, at every system call of its verbs; then it is started again, the
//! call comes again, and all is undone: nothing half made is to be seen at any time, and nothing is left.
//!
//! A call of the driver runs on one thread. strace is attached to the threads that may take it and counts each one's system
//! calls by name, so that a system call is identified by its name and its number among those of that name: a first run lists
//! them all, and each is interrupted in a run of its own. By default every few calls, with FERROVIRT_SOAK every one.

mod cases;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use cases::{At, CONTROLLER, Case, GROUPS, INLINE, NODE, grouped, pause};

use crate::support::place::Place;
use crate::support::{Driver, GIB, count, names, one_pool, when_unused};

/// The threads that work on the disk: all that the runtime has started. The one that answers the socket is the process's.
fn threads(driver: &Driver) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{}/task", driver.id())).unwrap();
    let named = tasks.filter_map(|task| {
        let path = task.unwrap().path();
        let name = fs::read_to_string(path.join("comm")).ok()?;
        let number = path.file_name()?.to_str()?.parse::<u32>().ok()?;
        name.starts_with("tokio").then_some(number)
    });
    let numbers: Vec<u32> = named.collect();
    assert!(!numbers.is_empty(), "a thread that made a call");
    numbers
}

/// A running strace; it lets its tracee go when dropped.
struct Strace(Child);

impl Strace {
    fn attach(threads: &[u32], options: &[&str], report: &Path) -> Self {
        let mut child = Command::new("strace")
            .args(options)
            .args(threads.iter().flat_map(|thread| ["-p".to_owned(), thread.to_string()]))
            .arg("-o")
            .arg(report)
            .stderr(Stdio::piped())
            .spawn()
            .expect("strace; `make deps` installs it");
        let said: Vec<String> = BufReader::new(child.stderr.take().unwrap())
            .lines()
            .take(threads.len())
            .map(Result::unwrap)
            .collect();
        assert!(said.iter().all(|line| line.contains("attached")), "{said:?}");
        Self(child)
    }
}

impl Drop for Strace {
    fn drop(&mut self) {
        let id = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
        drop(self.0.wait());
    }
}

/// The calls in the order they were made: each by name, with its number among those of that name. Waiting for and waking
/// the runtime is left out: those are no calls of the verb's. So is sleeping, which cannot fail.
fn calls(trace: &str) -> Vec<(String, usize)> {
    let mut numbers = BTreeMap::new();
    let mut found = Vec::new();
    for line in trace.lines() {
        // Of several threads each line begins with its own.
        let rest = line.trim_start_matches(|one: char| one.is_ascii_digit());
        let (thread, line) = (line[..line.len() - rest.len()].to_owned(), rest.trim_start());
        let Some((name, rest)) = line.split_once('(') else { continue };
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            continue;
        }
        let number = numbers.entry((thread, name.to_owned())).or_insert(0);
        *number += 1;
        let waking = name == "write" && rest.contains(r#""\1\0\0\0\0\0\0\0", 8)"#);
        if !waking && !matches!(name, "futex" | "restart_syscall" | "clock_nanosleep") {
            found.push((name.to_owned(), *number));
        }
    }
    found
}

/// Makes a call of a new driver with its thread traced; gives the trace. Then the driver is killed.
fn traced(place: &Place, case: &Case, options: &[&str]) -> String {
    let (driver, client) = one_pool(place, case.pool);
    let at = At { client: &client, place };
    (case.before)(&at);
    client.available();
    pause();
    let report = place.beside("report").join("trace");
    let strace = Strace::attach(&threads(&driver), options, &report);
    // The answer does not matter: it counts as lost.
    drop((case.call)(&at));
    drop(strace);
    driver.kill();
    fs::read_to_string(report).unwrap()
}

/// Checks the invariants of an interrupted call, at once and after the driver's restart; then removes everything.
fn recovered(place: &Place, case: &Case) {
    let expected = [".hpp-csi", "golden", "snapshots", "v", INLINE];
    let seen = names(&place.pool());
    assert!(seen.iter().all(|name| expected.contains(&name.as_str())), "{seen:?}");
    (case.whole)(&place.pool());
    let (_driver, client) = one_pool(place, case.pool);
    let at = At { client: &client, place };
    let folders: Vec<String> = names(&place.pool())
        .into_iter()
        .chain(names(&place.pool().join(".hpp-csi/block")))
        .filter(|name| !name.starts_with(".hpp") && name != "snapshots")
        .collect();
    let mut listed = client.volumes();
    listed.sort();
    let mut folders_sorted = folders;
    folders_sorted.sort();
    assert_eq!(listed, folders_sorted);
    // Of a group's snapshots none is there without the group.
    let group = place.pool().join(".hpp-csi/groups/g.json").exists();
    assert_eq!(grouped(&place.pool()).is_empty(), !group);
    (case.whole)(&place.pool());
    when_unused(|| (case.call)(&at));
    (case.whole)(&place.pool());
    (case.after)(&at);
    at.undo();
    place.is_clean();
}

/// Does `work` for each of the items, in several places at a time. Gives what it gave, in order.
fn spread<T: Sync, R: Send>(places: &[Place], items: &[T], work: impl Fn(&Place, &T) -> R + Sync) -> Vec<R> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for place in places {
            scope.spawn(|| {
                while let Some((number, item)) =
                    items.iter().enumerate().nth(next.fetch_add(1, Ordering::Relaxed))
                {
                    let result = work(place, item);
                    done.lock().unwrap().insert(number, result);
                }
            });
        }
    });
    done.into_inner().unwrap().into_values().collect()
}

/// A call that is hit.
struct Hit<'a> {
    case: &'a Case,
    /// Which of the case's calls.
    index: usize,
    /// The system call, and which of that name.
    name: &'a str,
    number: usize,
    injected: &'static str,
}

impl Hit<'_> {
    /// False when there was no such call.
    fn make(&self, place: &Place) -> bool {
        let Self { case, index, name, number, injected } = self;
        println!("{}: call {index} ({name} {number}), {injected}", case.name);
        let inject = format!("inject={name}:{injected}:when={number}");
        let was_hit = || {
            let trace = traced(place, case, &["-e", &format!("trace={name}"), "-e", &inject]);
            recovered(place, case);
            trace.contains("killed by SIGKILL") || trace.contains("(INJECTED)")
        };
        // How much memory is asked for differs from run to run, and so may the thread.
        (0..4).any(|_| was_hit())
    }
}

/// Hits every `every`th system call of the cases.
fn hit(cases: &[Case], every: usize) {
    // Most of the time is the kernel's, waiting for the disk and for what sees a mount.
    let places: Vec<Place> = (0..4).map(|_| Place::new("xfs", 2 * GIB)).collect();
    let lists = spread(&places, cases, |place, case| {
        let listed = || {
            let list = calls(&traced(place, case, &[]));
            recovered(place, case);
            list
        };
        // A call may find its thread not waiting yet and take another one.
        let list = (0..4).map(|_| listed()).find(|list| list.len() > 10).unwrap_or_default();
        assert!(list.len() > 10, "{}: {list:?}", case.name);
        list
    });
    let mut hits = Vec::new();
    for (case, list) in cases.iter().zip(&lists) {
        for (index, (name, number)) in list.iter().enumerate().skip(hits.len() % every).step_by(every) {
            let injections = ["signal=KILL", "error=EIO", "error=ENOSPC"];
            hits.extend(injections.map(|injected| Hit { case, index, name, number: *number, injected }));
        }
    }
    let made = spread(&places, &hits, |place, hit| hit.make(place));
    for (case, list) in cases.iter().zip(&lists) {
        let of_case = || hits.iter().zip(&made).filter(|(hit, _)| hit.case.name == case.name);
        let all = of_case().count();
        let hit = of_case().filter(|(_, was_hit)| **was_hit).count();
        let beyond = all - hit;
        println!("{}: {} system calls, {hit} hits, {beyond} beyond the last call", case.name, list.len());
        assert!(beyond * 10 <= hit + 30, "{}: {beyond} of {all} not hit", case.name);
    }
    assert!(hits.len() > 20, "{}", hits.len());
}

#[test]
fn the_controller_is_cut_short_at_every_system_call() {
    hit(CONTROLLER, count(17, 1));
}

#[test]
fn the_node_is_cut_short_at_every_system_call() {
    hit(NODE, count(11, 1));
}

#[test]
fn groups_are_cut_short_at_every_system_call() {
    hit(GROUPS, count(29, 1));
}
