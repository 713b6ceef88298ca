//! Imports over HTTP that are killed at any moment and run again: the bytes are right, little is fetched twice, and a
//! range is journaled only after its data is synced. Not here: the machine going down (`power_cut.rs`).

use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use places::run;

use crate::support::crash::{Files, Random, Server, disk};
use crate::support::crash_place::Place;
use crate::support::{MIB, assert_exit, count, names};

const SEED: u64 = 0x6b69_6c6c_6564_0001;

/// An image and what the bar allows to be fetched for it, beyond its own length.
struct Image {
    name: &'static str,
    wire: u64,
    /// Most bytes over the wire for `kills` kills and the run that ends well.
    bar: fn(u64, u64) -> u64,
}

/// "The image + 64 MiB + 10 %" for every restart.
fn resumes(wire: u64, kills: u64) -> u64 {
    wire + wire / 10 + kills * 64 * MIB
}

/// One gzip member has no place to go on from: each run reads it from its start.
fn restarts(wire: u64, kills: u64) -> u64 {
    wire * (kills + 1) + MIB
}

/// The disk in every form, and a server for them.
fn images(bytes: &[u8]) -> (Vec<Image>, Files) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let raw = path("raw");
    fs::write(&raw, bytes).unwrap();
    let jobs: [(&str, &[&str]); 4] = [
        ("qcow2", &["qemu-img", "convert", "-q", "-f", "raw", "-O", "qcow2", "-c"]),
        (
            "vmdk",
            &["qemu-img", "convert", "-q", "-f", "raw", "-O", "vmdk", "-o", "subformat=streamOptimized"],
        ),
        ("raw.xz", &["sh", "-c", "xz -0 -T2 --block-size=8MiB -c \"$0\" > \"$1\""]),
        ("raw.gz", &["sh", "-c", "gzip -1 -n -c \"$0\" > \"$1\""]),
    ];
    std::thread::scope(|scope| {
        for (name, command) in jobs {
            let (raw, out) = (raw.clone(), path(name));
            scope.spawn(move || run(command[0], &[&command[1..], &[&raw, &out]].concat()));
        }
    });
    let names = ["raw", "qcow2", "vmdk", "raw.xz", "raw.gz"];
    let files: Vec<_> =
        names.iter().map(|name| (format!("/{name}"), Arc::new(fs::read(path(name)).unwrap()))).collect();
    let images = names
        .iter()
        .zip(&files)
        .map(|(name, (_, data))| Image {
            name,
            wire: data.len() as u64,
            bar: if *name == "raw.gz" { restarts } else { resumes },
        })
        .collect();
    (images, files)
}

fn place_for(pod: bool) -> Place {
    Place::within(&std::env::temp_dir(), pod)
}

fn journal(place: &Place) -> PathBuf {
    place.data().join(".disk.img.import-journal")
}

/// The ranges a journal names.
fn journaled(path: &Path) -> Vec<(u64, u64)> {
    let text = fs::read_to_string(path).unwrap_or_default();
    // The last line may be torn.
    text.split_inclusive('\n').filter(|line| line.ends_with('\n')).flat_map(ranges_of).collect()
}

/// The ranges of one record, `{"seen":[…],"done":[[0,10],[20,30]]}`, quoted or not.
fn ranges_of(line: &str) -> Vec<(u64, u64)> {
    let Some((_, list)) = line.split_once("done") else { return Vec::new() };
    let numbers: Vec<u64> =
        list.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect();
    numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect()
}

/// Extents named in the journal are already on the disk.
fn assert_journaled_is_written(place: &Place, bytes: &[u8], what: &str) -> u64 {
    let mut all = 0;
    for (start, end) in journaled(&journal(place)) {
        let wanted = &bytes[usize::try_from(start).unwrap()..usize::try_from(end).unwrap()];
        let mut found = vec![0; wanted.len()];
        fs::File::open(place.disk()).unwrap().read_exact_at(&mut found, start).unwrap();
        assert!(found == wanted, "{what}: {start}..{end} is journaled and not written");
        all += end - start;
    }
    all
}

/// Whether the import was complete when it was killed: the journal is gone, and that is its last step.
fn finished(place: &Place, bytes: &[u8]) -> bool {
    names(&place.data()) == ["disk.img"] && fs::read(place.disk()).unwrap() == bytes
}

fn assert_whole(place: &Place, bytes: &[u8], what: &str) {
    assert!(fs::read(place.disk()).unwrap() == bytes, "{what}: wrong bytes");
    assert_eq!(names(&place.data()), ["disk.img"], "{what}");
}

#[test]
fn killed_imports_go_on_and_fetch_little_twice() {
    let bytes = disk(144, SEED);
    let size = bytes.len() as u64;
    let (images, files) = images(&bytes);
    let server = Server::start(files, 110e6);
    let mut random = Random(SEED);
    let kills = count(20, 200);
    let each = kills / images.len() as u64;
    for image in &images {
        let url = server.url(&format!("/{}", image.name));
        // How long it takes, so that the moments fill it.
        let place = place_for(false);
        let begin = Instant::now();
        assert!(place.command(&url, size, &[]).status().unwrap().success(), "{}", image.name);
        let long = begin.elapsed();
        assert_whole(&place, &bytes, image.name);
        let (mut killed, mut resumed, mut most) = (0, 0, 0);
        for round in 0..each {
            server.take_sent();
            let place = place_for(round % 2 == 1);
            // Now and then the second run is killed as well.
            let runs = if round % 4 == 3 { 2 } else { 1 };
            let mut what = format!("{} seed {SEED:#x} round {round}", image.name);
            let mut restarts = 0;
            for _ in 0..runs {
                let moment = long * u32::try_from(random.next() >> 40).unwrap() / (1 << 24);
                what += &format!(", killed after {moment:?}");
                let mut child = place.command(&url, size, &["--force"]).spawn().unwrap();
                std::thread::sleep(moment);
                killed += u32::from(child.try_wait().unwrap().is_none());
                drop(child.kill());
                child.wait().unwrap();
                if finished(&place, &bytes) {
                    // Between its last step and its exit, or before: nothing is left to resume.
                    what += " (finished)";
                    break;
                }
                restarts += 1;
                let journaled = assert_journaled_is_written(&place, &bytes, &what);
                resumed += u32::from(journaled > 0);
            }
            let mut last = place.command(&url, size, &["--force"]);
            if !finished(&place, &bytes) {
                assert_exit(&last.stderr(Stdio::piped()).output().unwrap(), 0, &what);
            }
            assert_whole(&place, &bytes, &what);
            let fetched = server.sent();
            let bar = (image.bar)(image.wire, restarts);
            assert!(fetched <= bar, "{what}: {fetched} bytes fetched, {bar} allowed");
            if restarts == 1 {
                most = most.max(fetched);
            }
        }
        println!(
            "killed: {}: {:.1} MiB, {each} rounds, {killed} processes killed, {resumed} of them had journaled something; both runs together fetched at most {:.1} MiB, allowed {:.1}{}",
            image.name,
            mib(image.wire),
            mib(most),
            mib((image.bar)(image.wire, 1)),
            if image.name == "raw.gz" {
                " (twice the image: one gzip member is read from its start)"
            } else {
                ""
            },
        );
        assert!(killed > 0, "{}: nothing was killed", image.name);
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn mib(bytes: u64) -> f64 {
    bytes as f64 / MIB as f64
}

/// `strace` before the importer's command, with its log in `log`.
fn traced(command: &Command, strace: &[&str], log: &Path) -> Command {
    let mut traced = Command::new("strace");
    traced.args(["-f", "-q", "-o"]).arg(log).args(strace).arg("--").arg(command.get_program());
    traced.args(command.get_args()).env_clear();
    traced.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
    traced.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    traced
}

/// Every call by which an import changes names, lengths, modes or durability is once the last one the process makes.
#[test]
fn killed_at_every_call_of_the_start_and_the_finish() {
    run("strace", &["--version"]);
    let bytes = disk(6, SEED);
    let server = Server::start(vec![("/raw".to_owned(), Arc::new(bytes.clone()))], f64::INFINITY);
    let url = server.url("/raw");
    let mut kills = Vec::new();
    for calls in [
        "fdatasync",
        "fsync",
        "unlink,unlinkat",
        "rename,renameat,renameat2",
        "ftruncate",
        "fallocate",
        "fchmod,fchmodat,fchown,fchownat",
        "flock",
    ] {
        for pod in [false, true] {
            for when in 1.. {
                let place = place_for(pod);
                let what = format!("killed at call {when} of {calls}, pod {pod}");
                if pod {
                    // Content left by an earlier import, longer than the disk, and nowhere zero.
                    fs::write(place.disk(), vec![0xee; bytes.len() * 2]).unwrap();
                }
                // Blocks are reserved for the one call that does it.
                let more: &[&str] =
                    if calls == "fallocate" { &["--force", "--preallocate"] } else { &["--force"] };
                let mut command = place.command(&url, bytes.len() as u64, more);
                if pod && calls == "fallocate" {
                    command.env("PREALLOCATION", "true");
                }
                let inject =
                    [&format!("-etrace={calls}"), &format!("-einject={calls}:signal=KILL:when={when}")];
                let log = place.folder.path().join("log");
                let status = traced(&command, &inject.map(String::as_str), &log).status().unwrap();
                let killed = status.signal() == Some(9);
                assert!(
                    killed || status.success(),
                    "{what}: {status}: {}",
                    fs::read_to_string(&log).unwrap()
                );
                assert_journaled_is_written(&place, &bytes, &what);
                let mut again = place.command(&url, bytes.len() as u64, &["--force"]);
                if killed {
                    assert_exit(&again.stderr(Stdio::piped()).output().unwrap(), 0, &what);
                }
                assert_whole(&place, &bytes, &what);
                if !killed {
                    kills.push((calls, when - 1));
                    break;
                }
                assert!(when < 100, "{what}: it never ends");
            }
        }
    }
    let all: usize = kills.iter().map(|(_, kills)| kills).sum();
    println!("killed: at each of {all} calls once: {kills:?} (command line, then contract)");
    // A short import is synced once, in the end: fdatasync is what longer ones remember ranges by.
    for calls in ["fsync", "unlink,unlinkat", "rename,renameat,renameat2", "fallocate"] {
        assert!(kills.iter().any(|&(name, kills)| name == calls && kills > 0), "no {calls} was met");
    }
}

/// A disk that needs most of a second for a sync must not have more fetched than the bar allows to be fetched again.
#[test]
fn slow_syncs_do_not_let_fetching_run_ahead() {
    run("strace", &["--version"]);
    let bytes = disk(128, SEED + 2);
    let server = Server::start(vec![("/raw".to_owned(), Arc::new(bytes.clone()))], 110e6);
    let place = place_for(false);
    let command = place.command(&server.url("/raw"), bytes.len() as u64, &[]);
    let log = place.folder.path().join("log");
    let slow = ["-e", "trace=fdatasync", "-e", "inject=fdatasync:delay_enter=700000"];
    let mut child = traced(&command, &slow, &log).spawn().unwrap();
    let mut most = 0;
    while child.try_wait().unwrap().is_none() {
        let sent = server.sent();
        // The journal is there from the first byte of the image to the last one's sync.
        if journal(&place).exists() {
            let found = journaled(&journal(&place));
            // Zeroes are fetched and journaled as well: the image is raw.
            let journaled: u64 = found.iter().map(|(start, end)| end - start).sum();
            if journal(&place).exists() {
                most = most.max(sent.saturating_sub(journaled));
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(child.wait().unwrap().success());
    assert_whole(&place, &bytes, "slow syncs");
    let bar = 64 * MIB + bytes.len() as u64 / 10;
    println!(
        "killed: with 0.7 s for each sync at most {:.1} MiB are fetched and not journaled, allowed {:.1}",
        mib(most),
        mib(bar)
    );
    assert!(most <= bar, "{most} bytes fetched and not journaled");
}

/// One system call of a trace: where in the log it began and ended, and its text.
#[derive(Debug)]
struct Call {
    name: String,
    text: String,
    began: usize,
    ended: usize,
}

/// How `strace` marks a call that another thread's call is shown before the end of.
const UNFINISHED: &str = " <unfinished ...>";

/// Calls of a log of `strace -f`, with those that were interrupted by other threads put together.
fn calls(log: &str) -> Vec<Call> {
    let mut open: Vec<(String, Call)> = Vec::new();
    let mut calls = Vec::new();
    for (at, line) in log.lines().enumerate() {
        let (pid, rest) = line.split_once(' ').unwrap();
        let rest = rest.trim_start();
        if let Some(resumed) = rest.strip_prefix("<... ") {
            let index = open.iter().position(|(of, _)| of == pid).unwrap();
            let (_, mut call) = open.remove(index);
            call.text.truncate(call.text.len() - UNFINISHED.len());
            call.text += resumed.split_once("resumed>").unwrap().1;
            call.ended = at;
            calls.push(call);
            continue;
        }
        let Some((name, _)) = rest.split_once('(') else { continue };
        let call = Call { name: name.to_owned(), text: rest.to_owned(), began: at, ended: at };
        if rest.ends_with(UNFINISHED) {
            open.push((pid.to_owned(), call));
        } else {
            calls.push(call);
        }
    }
    calls
}

/// Where and how much a `pwrite64(…, bytes, length, offset) = n` wrote.
fn written(call: &Call) -> (u64, u64) {
    let (arguments, result) = call.text.rsplit_once(" = ").unwrap();
    let offset = arguments.rsplit(", ").next().unwrap().trim_end_matches([')', ' ']);
    let start: u64 = offset.parse().unwrap_or_else(|_| panic!("{}", &call.text[call.text.len() - 200..]));
    (start, start + result.trim().parse::<u64>().unwrap())
}

#[test]
fn ranges_are_journaled_after_their_data_is_synced() {
    run("strace", &["--version"]);
    let bytes = disk(112, SEED + 1);
    let files = vec![("/raw".to_owned(), Arc::new(bytes.clone()))];
    let server = Server::start(files, 60e6);
    for engine in ["pwrite", "io_uring"] {
        let place = place_for(false);
        let command =
            place.command(&server.url("/raw"), bytes.len() as u64, &["--engine", engine, "--memory", "16Mi"]);
        let log = place.folder.path().join("log");
        let flags = ["-y", "-s", "16384", "-e", "trace=pwrite64,write,fdatasync", "-e", "signal=none"];
        assert!(traced(&command, &flags, &log).status().unwrap().success());
        assert_whole(&place, &bytes, engine);
        let log = fs::read(&log).unwrap();
        let calls = calls(&String::from_utf8_lossy(&log));
        let of = |name: &str, file: &str| {
            let file = format!("/{file}>");
            calls.iter().filter(|c| c.name == name && c.text.contains(&file)).collect::<Vec<_>>()
        };
        let writes: Vec<_> =
            of("pwrite64", "disk.img").iter().map(|call| (written(call), call.began, call.ended)).collect();
        let syncs = of("fdatasync", "disk.img");
        let records = of("write", ".disk.img.import-journal");
        let (mut ranges, mut before) = (0, 0);
        for record in records.iter().filter(|record| record.text.contains("done")) {
            assert!(!record.text.contains("\"..."), "a record is longer than what is traced of it");
            let sync = syncs.iter().rfind(|sync| sync.ended < record.began).expect("no sync before a record");
            assert!(sync.began > before, "{engine}: no sync since the record before");
            before = record.ended;
            for (start, end) in ranges_of(&record.text) {
                ranges += 1;
                if engine == "io_uring" {
                    // The ring's writes are not system calls; that they end before a range is known as written is
                    // the structure of the code: the ticket is dropped when the completion is taken from the ring.
                    continue;
                }
                let mut at = start;
                while at < end {
                    let next = writes
                        .iter()
                        .filter(|((from, to), _, ended)| *from <= at && at < *to && *ended < sync.began)
                        .map(|((_, to), _, _)| *to)
                        .max();
                    // Ranges not written by then must be zero.
                    let page = (at / 4096 + 1) * 4096;
                    let zero = bytes[usize::try_from(at).unwrap()..usize::try_from(page.min(end)).unwrap()]
                        .iter()
                        .all(|&b| b == 0);
                    assert!(next.is_some() || zero, "{at} of {start}..{end} is journaled and was not synced");
                    at = next.unwrap_or(page);
                }
            }
        }
        println!(
            "killed: {engine}: {} records with {ranges} ranges, each after a sync of its own{}",
            records.len().saturating_sub(1),
            if engine == "pwrite" { " that began after the last of its writes had ended" } else { "" }
        );
        assert!(
            ranges > 0,
            "{engine}: nothing was journaled: {} writes, {} syncs, {records:#?}",
            writes.len(),
            syncs.len()
        );
    }
}
