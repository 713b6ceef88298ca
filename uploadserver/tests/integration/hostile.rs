//! Hostile input: the archives of the importer's corpus, mutants of images and bombs are uploaded; and clients that trickle,
//! lie and smuggle run during a good upload.

#![allow(unreachable_pub, dead_code, reason = "small test data; corpora that other packages' tests have too")]

#[path = "../../../importer/tests/integration/archive/cases.rs"]
mod cases;
#[path = "../../../lib/disk-image/tests/integration/support/mutate.rs"]
mod mutate;

use std::collections::VecDeque;
use std::fs;
use std::net::TcpStream;
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use cases::{Case, cases};
use mutate::mutate;
use places::guest::Dice;
use places::run;

use crate::support::client::Client;
use crate::support::session::{TestListener, beside, crowded};
use crate::support::tls::Authority;
use crate::support::{CLIENT, MIB, Pod, Setup, count, sha256};

const UPLOAD: &str = "/v1beta1/upload";
const ARCHIVE: &str = "/v1beta1/upload-archive";

/// Nothing but the volume may ever change.
fn assert_untouched(pod: &Pod, what: &str) {
    let mut names: Vec<_> = fs::read_dir(pod.folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["ca.crt", "data", "dev", "log", "outside", "tls.crt", "tls.key"], "{what}");
    let outside = pod.path("outside");
    assert_eq!(fs::read(&outside).unwrap(), b"precious", "{what}");
    let meta = fs::metadata(&outside).unwrap();
    assert_eq!((meta.nlink(), meta.mode() & 0o7777), (1, 0o640), "{what}");
    assert!(!Path::new("/tmp/escaped").exists(), "{what}");
}

fn guarded() -> Pod {
    let pod = Pod::new();
    fs::write(pod.path("outside"), "precious").unwrap();
    fs::set_permissions(pod.path("outside"), fs::Permissions::from_mode(0o640)).unwrap();
    pod
}

#[test]
fn archives_of_the_importers_corpus() {
    let all = cases();
    let mut refused = 0;
    for Case { name, archive, expect } in &all {
        let mut bytes = archive.concat();
        bytes.extend_from_slice(&[0; 1024]);
        if name.starts_with("a truncated") || name.starts_with("names without a") {
            bytes.truncate(bytes.len() - 1024);
        }
        let mut pod = guarded();
        let answer = pod.client().request("POST", ARCHIVE, &[], &bytes);
        let what = format!("{name}: {answer:?}");
        match expect {
            Ok(files) => {
                assert_eq!(answer.status, 200, "{what}");
                pod.assert_uploaded();
                for (file, content) in *files {
                    let found = fs::read_to_string(pod.path("data").join(file));
                    assert_eq!(found.ok().as_deref(), Some(*content), "{what}: {file}");
                }
            }
            Err(words) => {
                assert!([400, 500].contains(&answer.status), "{what}");
                assert!(answer.body.contains(words), "{what}: not \"{words}\"");
                assert!(answer.body.starts_with("Saving stream failed: "), "{what}");
                assert!(pod.runs() && pod.message().is_empty(), "{what}");
                refused += 1;
            }
        }
        // The log is no file of the volume: what is in it may name what is outside.
        assert_untouched(&pod, name);
    }
    println!("{} hostile and odd archives: {refused} fail, nothing outside is touched", all.len());
    assert!(refused > 20);
}

/// A name, qemu's format if it is one, the bytes.
type Named = (&'static str, Option<&'static str>, Vec<u8>);

/// Images of one small disk.
fn images(folder: &Path) -> Vec<Named> {
    let text = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let mut disk = vec![0; 2 << 20];
    disk[..300_000].copy_from_slice(&Dice(1).bytes(300_000));
    disk[1 << 20..(1 << 20) + 100_000].copy_from_slice(&Dice(2).bytes(100_000));
    fs::write(text("raw"), &disk).unwrap();
    let mut all = Vec::new();
    for (name, format, options) in [
        ("qcow2", "qcow2", vec!["-o", "cluster_size=4k"]),
        ("qcow2 packed", "qcow2", vec!["-c", "-o", "compression_type=zstd"]),
        ("vmdk", "vmdk", vec![]),
        ("vmdk packed", "vmdk", vec!["-o", "subformat=streamOptimized"]),
        ("vhd", "vpc", vec!["-o", "force_size=on"]),
        // Small blocks: what is not hit is sent all the same.
        ("vhdx", "vhdx", vec!["-o", "block_size=1M"]),
        ("vdi", "vdi", vec![]),
    ] {
        let to = text(name);
        let raw = text("raw");
        let convert = ["convert", "-f", "raw", "-O", format];
        run("qemu-img", &[&convert[..], &options[..], &[raw.as_str(), to.as_str()][..]].concat());
        all.push((name, Some(format), fs::read(&to).unwrap()));
    }
    for (name, command) in [("gz", "gzip -1 -c"), ("xz", "xz -0 -c"), ("zst", "zstd -1 -q -c")] {
        run("sh", &["-c", &format!("{command} < '{}' > '{}'", text("raw"), text(name))]);
        all.push((name, None, fs::read(text(name)).unwrap()));
    }
    all
}

/// Results of mutants.
#[derive(Debug, Default)]
struct Tally {
    taken: usize,
    refused: usize,
    /// Of those that were taken.
    judged: usize,
}

#[test]
fn mutants_of_images() {
    let folder = tempfile::tempdir().unwrap();
    let images = images(folder.path());
    let parts = |image| {
        (0..count(8, 2000)).step_by(100).map(move |seed| (image, seed..count(8, 2000).min(seed + 100)))
    };
    let next = Mutex::new(images.iter().flat_map(parts));
    // Much of it is waiting: for disks, and for programs that begin and end.
    let tallies: Vec<Tally> = std::thread::scope(|scope| {
        let work = || -> Vec<Tally> {
            std::iter::from_fn(|| next.lock().unwrap().next())
                .map(|(image, seeds)| mutants_of(image, seeds))
                .collect()
        };
        let running: Vec<_> = (0..8).map(|_| scope.spawn(work)).collect();
        running.into_iter().flat_map(|one| one.join().unwrap()).collect()
    });
    let sum = |of: fn(&Tally) -> usize| tallies.iter().map(of).sum::<usize>();
    let (taken, refused, judged) = (sum(|one| one.taken), sum(|one| one.refused), sum(|one| one.judged));
    println!(
        "{} mutants: {refused} refused, {taken} taken, of which qemu-img judged {judged}",
        refused + taken
    );
    assert!(refused > 0 && judged > 0);
}

/// Mutants of one image, to one server as long as it lives: that is, until it has taken one.
fn mutants_of((name, format, base): &Named, seeds: Range<u64>) -> Tally {
    let folder = tempfile::tempdir().unwrap();
    let authority = Arc::new(Authority::new());
    let identity = Some(authority.sign(CLIENT));
    let server = || {
        let variables = vec![("UPLOAD_IMAGE_SIZE", (64 * MIB).to_string())];
        Pod::start(&Setup { authority: Some(authority.clone()), variables, ..Setup::default() })
    };
    let upload = |pod: &Pod, way: &str, image: &[u8]| {
        Client::new(pod.connect().unwrap(), identity.as_ref()).unwrap().request("POST", way, &[], image)
    };
    let mut tally = Tally::default();
    // The end of a server takes half a second; other work goes on.
    let mut ending = VecDeque::new();
    let mut pod = server();
    let places = [0..600, 0..8192.min(base.len()), 0..base.len()];
    for seed in seeds {
        let mut image = base.clone();
        let how = mutate(&mut image, &places, seed);
        let what = format!("{name}, mutant {seed} ({how})");
        let way = if seed % 2 == 0 { UPLOAD } else { "/v1beta1/upload-async" };
        let answer = upload(&pod, way, &image);
        if answer.status != 200 {
            assert!([400, 500].contains(&answer.status), "{what}: {answer:?}");
            assert!(answer.body.starts_with("Saving stream failed: "), "{what}: {answer:?}");
            assert!(pod.runs() && pod.message().is_empty(), "{what}");
            tally.refused += 1;
            continue;
        }
        tally.taken += 1;
        // The result equals that of qemu-img, where qemu-img reads the mutant in the same format.
        if let Some(format) = format.filter(|_| image.len() > 8 && image[..8] == base[..8]) {
            let (path, raw) = (folder.path().join("mutant"), folder.path().join("judged"));
            fs::write(&path, &image).unwrap();
            let convert = ["convert", "-f", format, "-O", "raw"];
            let judge = places::output(Command::new("qemu-img").args(convert).args([&path, &raw])).unwrap();
            if judge.status.success() {
                let size = fs::metadata(&raw).unwrap().len();
                assert_eq!(sha256(&pod.disk(), size), (sha256(&raw, size).0, true), "{what}");
                tally.judged += 1;
            }
        }
        ending.push_back(std::mem::replace(&mut pod, server()));
        if ending.len() > 4 {
            ending.pop_front().unwrap().assert_uploaded();
        }
    }
    // The image itself is taken after all of them.
    assert_eq!(upload(&pod, UPLOAD, base).status, 200, "{name}: {}", pod.log());
    ending.push_back(pod);
    ending.iter_mut().for_each(Pod::assert_uploaded);
    tally
}

#[test]
fn bombs() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let mut pod = Pod::of_size("64Mi");
    let mib = count(256, 16 << 10);
    for (name, command) in [("gz", "gzip -9 -c"), ("xz", "xz -0 -c"), ("zst", "zstd -1 -q -c")] {
        let disk = format!("head -c 1000000 /dev/urandom; head -c {mib}M /dev/zero | tr '\\0' '\\1'");
        run("sh", &["-c", &format!("( {disk} ) | {command} > '{}'", path(name))]);
        let answer = pod.client().request("POST", UPLOAD, &[], &fs::read(path(name)).unwrap());
        assert_eq!(answer.status, 400, "{name}: {answer:?}");
        assert!(answer.body.contains("larger than the reported available storage"), "{name}: {answer:?}");
        assert!(pod.runs() && pod.message().is_empty());
    }
}

#[test]
fn upload_succeeds_while_hostile_clients_use_the_server() {
    let mut pod = Pod::new();
    let identity = Some(pod.authority.sign(CLIENT));
    let port = pod.port();
    let connect = move || TcpStream::connect(("127.0.0.1", port)).unwrap();
    beside(&TestListener { connect: Box::new(connect), identity, bearer: None }, &mut pod);
}

#[test]
fn idle_connections_and_unfinished_heads_delay_no_upload_to_the_server() {
    let mut pod = Pod::new();
    let identity = Some(pod.authority.sign(CLIENT));
    let port = pod.port();
    let connect = move || TcpStream::connect(("127.0.0.1", port)).unwrap();
    let server = pod.process().id();
    let door = TestListener { connect: Box::new(connect), identity, bearer: None };
    println!("{}", crowded(&door, &mut pod, &[("server", server)]));
}
