//! Imports from bad servers, through the program and into a pod's volume: a qcow2, a raw disk and a gzip-compressed one
//! from each. What can be survived ends with exit 0 and the right bytes; what cannot, with exit 1 and the cause, and
//! never with exit 0 and other bytes. Not here: each fault by itself, at the source (`http`).

use std::fs;
use std::io;
use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use places::{output, run};

use crate::http::server::{Answer, Connection, Request, Server, plain};
use crate::support::crash::disk;
use crate::support::{Pod, assert_exit, importer, names, text};

/// The disk's size in MiB, and the volume's.
const MIB: u64 = 24;
const SIZE: &str = "24Mi";
/// A volume that is too large for a length that is wrong to be what fails.
const ROOMY: &str = "64Mi";
const FORMS: [&str; 3] = ["qcow2", "raw", "raw.gz"];

/// One disk in every form.
struct Images {
    disk: Vec<u8>,
    forms: [(&'static str, Arc<Vec<u8>>); 3],
}

impl Images {
    fn new(seed: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let disk = disk(MIB, seed);
        fs::write(path("raw"), &disk).unwrap();
        run("qemu-img", &["convert", "-q", "-f", "raw", "-O", "qcow2", &path("raw"), &path("qcow2")]);
        run("sh", &["-c", "gzip -1 -n -c \"$0\" > \"$0.gz\"", &path("raw")]);
        let forms = FORMS.map(|form| (form, Arc::new(fs::read(path(form)).unwrap())));
        Self { disk, forms }
    }
}

type Handler = Box<dyn Fn(&Request, &mut dyn Connection) -> io::Result<()> + Send + Sync>;

fn served(answer: Answer) -> Handler {
    Box::new(move |request, out| answer.give(request, out))
}

/// Bytes after which a connection breaks.
const DROP: u64 = 3_000_000;

/// A server's fault with a file that an import survives.
fn survivable(data: &Arc<Vec<u8>>) -> Vec<(&'static str, Handler)> {
    let good = Answer::new(data);
    let counted = |answer: Answer| {
        let gets = AtomicU64::new(0);
        let handler: Handler = Box::new(move |request, out| {
            let n = if request.method == "GET" { gets.fetch_add(1, Ordering::SeqCst) + 1 } else { 0 };
            // Without ranges each answer has to get further, or the end could never be read.
            Answer { cut: DROP * n, ..answer.clone() }.give(request, out)
        });
        handler
    };
    let one_in_four = {
        let (answer, count) = (good.clone(), AtomicU64::new(0));
        let handler: Handler = Box::new(move |request, out| match count.fetch_add(1, Ordering::SeqCst) % 4 {
            0 => plain(out, "500 Internal Server Error", ""),
            1 => Err(io::ErrorKind::Other.into()),
            2 => plain(out, "429 Too Many Requests", "Retry-After: 0\r\n"),
            _ => answer.give(request, out),
        });
        handler
    };
    vec![
        ("drops every 3 MB", served(Answer { cut: DROP, ..good.clone() })),
        ("drops every 3 MB, no ranges", counted(Answer { ranges: false, ..good.clone() })),
        ("200 for a range", served(Answer { ranges: false, ..good.clone() })),
        ("no HEAD", served(Answer { head: false, ..good.clone() })),
        ("no length", served(Answer { head: false, length: false, ranges: false, ..good.clone() })),
        ("no length, drops", counted(Answer { head: false, length: false, ranges: false, ..good })),
        ("one good answer in four", one_in_four),
    ]
}

/// An import under the contract, from `handler` into a volume of `size`.
fn import(handler: Handler, size: &str) -> (Pod, Output) {
    let server = Server::start(handler);
    let pod = Pod::new();
    let ended = output(&mut pod.command(&server.url("/image"), size)).unwrap();
    (pod, ended)
}

fn assert_imported(pod: &Pod, ended: &Output, disk: &[u8], what: &str) {
    assert_exit(ended, 0, what);
    assert!(fs::read(pod.path("data/disk.img")).unwrap() == disk, "{what}: other bytes");
    assert_eq!(names(&pod.path("data")), ["disk.img"], "{what}");
    assert!(pod.message().contains("Import Complete"), "{what}: {}", pod.message());
}

#[test]
fn recoverable_server_faults_are_retried() {
    let images = Images::new(1);
    std::thread::scope(|scope| {
        for (form, data) in &images.forms {
            let disk = &images.disk;
            scope.spawn(move || {
                for (fault, handler) in survivable(data) {
                    let what = format!("{form}, {fault}");
                    let (pod, ended) = import(handler, SIZE);
                    assert_imported(&pod, &ended, disk, &what);
                    println!("survived: {what}");
                }
            });
        }
    });
}

/// Half of the file, nothing for a while, the rest; where ranges are asked for, of each of them.
fn stalling(data: &Arc<Vec<u8>>, silence: Duration) -> Handler {
    let answer = Answer { ranges: false, ..Answer::new(data) };
    let data = data.clone();
    Box::new(move |request, out| {
        if request.method == "HEAD" {
            return answer.give(request, out);
        }
        write!(out, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", data.len())?;
        let (front, rest) = data.split_at(data.len() / 2);
        out.write_all(front)?;
        std::thread::sleep(silence);
        out.write_all(rest)
    })
}

/// By command line, which can shorten the limit.
fn import_with(handler: Handler, target: &Path, flags: &[&str]) -> Output {
    let server = Server::start(handler);
    let mut command = importer();
    command.args([&server.url("/image"), target.to_str().unwrap()]).args(flags);
    output(&mut command).unwrap()
}

#[test]
fn stalls_up_to_the_limit_and_past_it() {
    let images = Images::new(2);
    std::thread::scope(|scope| {
        for (form, data) in &images.forms {
            let disk = &images.disk;
            scope.spawn(move || {
                let folder = tempfile::tempdir().unwrap();
                let target = folder.path().join("disk");
                let short = stalling(data, Duration::from_millis(1500));
                assert_exit(&import_with(short, &target, &["--stall", "20"]), 0, form);
                assert!(fs::read(&target).unwrap() == *disk, "{form}: other bytes");
                assert_eq!(names(folder.path()), ["disk"], "{form}");
                let long = stalling(data, Duration::from_secs(8));
                let ended = import_with(long, &target, &["--stall", "2", "--force"]);
                assert_exit(&ended, 1, form);
                let said = text(&ended.stderr);
                assert!(
                    said.contains("stalled at byte") && said.contains("nothing for 2 s"),
                    "{form}: {said}"
                );
            });
        }
    });
}

/// The file is another one after its first megabytes: the import starts again by itself, and the new one is imported.
#[test]
fn a_file_that_changes_is_imported_from_the_start() {
    let (old, new) = (Images::new(3), Images::new(4));
    std::thread::scope(|scope| {
        for ((form, before), (_, after)) in old.forms.iter().zip(&new.forms) {
            for ranges in [true, false] {
                let disk = &new.disk;
                scope.spawn(move || {
                    let what = format!("{form}, ranges {ranges}");
                    let first = Answer { ranges, cut: 2 * DROP, ..Answer::new(before) };
                    let second = Answer {
                        etag: Some("\"two\""),
                        modified: None,
                        cut: u64::MAX,
                        data: after.clone(),
                        ..first.clone()
                    };
                    let sent = AtomicU64::new(0);
                    let of_old = Arc::new(AtomicU64::new(0));
                    let seen = of_old.clone();
                    let handler: Handler = Box::new(move |request, out| {
                        let len = first.data.len() as u64;
                        let (start, end) = request.range(len).filter(|_| ranges).unwrap_or((0, len));
                        let bytes = if request.method == "GET" { (end - start).min(first.cut) } else { 0 };
                        if sent.fetch_add(bytes, Ordering::SeqCst) < 3 * DROP {
                            seen.fetch_add(bytes, Ordering::SeqCst);
                            return first.give(request, out);
                        }
                        second.give(request, out)
                    });
                    let (pod, ended) = import(handler, SIZE);
                    assert_imported(&pod, &ended, disk, &what);
                    let log = text(&ended.stderr);
                    assert!(log.contains("starting again with the new one"), "{what}: {log}");
                    assert!(of_old.load(Ordering::SeqCst) >= DROP, "{what}: nothing of the old one was read");
                    println!("survived: {what}, changed ETag");
                });
            }
        }
    });
}

/// A server's permanent fault, and the expected message.
fn hopeless(data: &Arc<Vec<u8>>) -> Vec<(&'static str, Handler, &'static str)> {
    let good = Answer::new(data);
    let len = data.len() as u64;
    let truncated = |ranges: bool| {
        let answer = Answer { ranges, ..good.clone() };
        let handler: Handler = Box::new(move |request, out| {
            let start = request.range(len).filter(|_| ranges).map_or(0, |(start, _)| start);
            Answer { cut: (len * 2 / 3).saturating_sub(start), ..answer.clone() }.give(request, out)
        });
        handler
    };
    let told = |length: u64| {
        let answer = Answer { ranges: false, length: false, ..good.clone() };
        let handler: Handler = Box::new(move |request, out| match request.method.as_str() {
            "HEAD" => write!(out, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"),
            _ => answer.give(request, out),
        });
        handler
    };
    let round: Handler = Box::new(|request, out| {
        let to = if request.path == "/image" { "/other" } else { "/image" };
        plain(out, "302 Found", &format!("Location: {to}\r\n"))
    });
    vec![
        ("truncated for good", truncated(true), "ends at byte"),
        ("truncated for good, no ranges", truncated(false), "ends at byte"),
        ("a length that is too long", told(len + 1), "ends at byte"),
        ("a length that is too short", told(len / 2), "more than the length it declared"),
        ("a redirect loop", round, "redirects lead in a circle"),
    ]
}

#[test]
fn unrecoverable_server_faults_fail() {
    let images = Images::new(5);
    std::thread::scope(|scope| {
        for (form, data) in &images.forms {
            for (fault, handler, cause) in hopeless(data) {
                scope.spawn(move || {
                    let what = format!("{form}, {fault}");
                    let (pod, ended) = import(handler, ROOMY);
                    assert_exit(&ended, 1, &what);
                    let message = pod.message();
                    assert!(
                        message.starts_with("Unable to ") && message.contains(cause),
                        "{what}: \"{message}\""
                    );
                    println!("failed: {what}: {message}");
                });
            }
        }
    });
}
