//! Archives through the program: what GNU tar makes of honest ones, and what hostile ones (`cases`) must not do.
//! Not here: disks, servers' faults.

mod cases;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cases::{Case, cases, file, folder, link, old_sparse, pax};
use places::run;

use crate::support::crash::{Random, Server, disk};
use crate::support::crash_place::Place;
use crate::support::{MIB, assert_exit, count, importer, names};

const SEED: u64 = 0x7461_7200_0000_0001;

/// An entry of a tree, as far as an archive describes it.
#[derive(Debug, PartialEq, Eq)]
struct Thing {
    kind: &'static str,
    mode: u32,
    modified: (i64, i64),
    links: u64,
    content: Vec<u8>,
}

/// Everything below `folder`, without itself.
fn tree(folder: &Path) -> BTreeMap<Vec<u8>, Thing> {
    let mut found = BTreeMap::new();
    let mut open = vec![folder.to_owned()];
    while let Some(at) = open.pop() {
        for entry in fs::read_dir(&at).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let kind = meta.file_type();
            let (kind, content) = if kind.is_dir() {
                open.push(path.clone());
                ("folder", Vec::new())
            } else if kind.is_symlink() {
                ("link", fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec())
            } else if kind.is_file() {
                ("file", fs::read(&path).unwrap())
            } else {
                (if kind.is_fifo() { "fifo" } else { "device" }, Vec::new())
            };
            let name = path.strip_prefix(folder).unwrap().as_os_str().as_bytes().to_vec();
            let links = if meta.is_dir() { 0 } else { meta.nlink() };
            let thing = Thing {
                kind,
                mode: meta.mode() & 0o7777,
                modified: (meta.mtime(), meta.mtime_nsec()),
                links,
                content,
            };
            found.insert(name, thing);
        }
    }
    found
}

/// In memory: an archive's import syncs the whole filesystem, and others write to the disk's.
fn quick(pod: bool) -> Place {
    Place::within(Path::new("/dev/shm"), pod)
}

/// The import of an archive: from a file by command line, or from a server as a pod.
fn import(place: &Place, archive: &[u8]) -> Output {
    if place.pod {
        let server = Server::start(vec![("/archive".to_owned(), Arc::new(archive.to_vec()))], f64::INFINITY);
        let mut command = place.command(&server.url("/archive"), 1 << 30, &[]);
        return command.env("IMPORTER_CONTENTTYPE", "archive").stderr(Stdio::piped()).output().unwrap();
    }
    let file = place.folder.path().join("archive");
    fs::write(&file, archive).unwrap();
    importer().arg(file).arg(place.data()).args(["--archive", "--force"]).output().unwrap()
}

/// The import's message, to a person or to the controller.
fn message(place: &Place, output: &Output) -> String {
    let message = fs::read_to_string(place.folder.path().join("dev/termination-log")).unwrap_or_default();
    if place.pod { message } else { String::from_utf8_lossy(&output.stderr).into_owned() }
}

#[test]
fn trees_are_those_that_gnu_tar_makes() {
    let folder = tempfile::tempdir().unwrap();
    let tree_of = folder.path().join("tree");
    let at = |name: &str| tree_of.join(name);
    fs::create_dir_all(at("closed/in")).unwrap();
    fs::write(at("closed/in/file"), "x").unwrap();
    fs::write(at("program"), "#!/bin/sh").unwrap();
    fs::write(at("private"), disk(3, SEED)).unwrap();
    fs::write(at("empty"), "").unwrap();
    fs::hard_link(at("private"), at("same")).unwrap();
    symlink("/etc/passwd", at("absolute")).unwrap();
    symlink("../closed", at("closed/up")).unwrap();
    symlink("closed", at("inside")).unwrap();
    let long = "n".repeat(90);
    fs::create_dir_all(at(&long).join(&long)).unwrap();
    fs::write(at(&long).join(&long).join(&long), "long").unwrap();
    fs::write(tree_of.join(OsStr::from_bytes(b"no \xff\xfe utf-8 \n line")), "bytes").unwrap();
    run("mkfifo", &[at("fifo").to_str().unwrap()]);
    // Holes at the start, in the middle, at the end; more parts than a header holds.
    let sparse = fs::File::create(at("sparse")).unwrap();
    for part in 1..40 {
        std::os::unix::fs::FileExt::write_all_at(&sparse, &[b'd'; 5000], part * 200_000).unwrap();
    }
    sparse.set_len(9_000_001).unwrap();
    for (name, mode) in
        [("program", 0o4755), ("private", 0o600), ("empty", 0o000), ("closed/in", 0o1777), ("closed", 0o555)]
    {
        fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    run("touch", &["-d", "@1234567890.123456789", at("program").to_str().unwrap()]);
    run("touch", &["-d", "@7", at("closed").to_str().unwrap(), at("closed/in").to_str().unwrap()]);
    run("touch", &["-h", "-d", "@1000000000", at("absolute").to_str().unwrap()]);

    let mut cells: usize = 0;
    for (first, (form, flags)) in [
        ("gnu", &["--format=gnu", "--sparse"][..]),
        ("gnu, full", &["--format=gnu"]),
        ("pax, sparse 0.0", &["--format=pax", "--sparse", "--sparse-version=0.0"]),
        ("pax, sparse 0.1", &["--format=pax", "--sparse", "--sparse-version=0.1"]),
        ("pax, sparse 1.0", &["--format=pax", "--sparse", "--sparse-version=1.0"]),
        ("ustar", &["--format=ustar", "--exclude=nnn*"]),
        ("v7", &["--format=v7", "--exclude=nnn*", "--exclude=fifo"]),
    ]
    .into_iter()
    .enumerate()
    {
        let path = folder.path().join("a.tar");
        let target = path.to_str().unwrap();
        run("tar", &[flags, &["-cf", target, "-C", tree_of.to_str().unwrap(), "."]].concat());
        let judge = tempfile::tempdir().unwrap();
        let by_tar = judge.path().to_str().unwrap();
        run("tar", &["--preserve-permissions", "--no-same-owner", "-xf", target, "-C", by_tar]);
        let wanted = tree(judge.path());
        assert!(wanted.len() > 10);
        let ways = [
            ("cat", false),
            ("cat", true),
            ("gzip -c", true),
            ("xz -1c", false),
            ("xz -1c", true),
            ("zstd -qc", true),
        ];
        for (index, (pack, pod)) in ways.into_iter().enumerate() {
            // All of them for the first form, two for each of the others.
            if first > 0 && index != 0 && index != 1 + first % 5 {
                continue;
            }
            let what = format!("{form}, {pack}, {}", if pod { "http" } else { "file" });
            run("sh", &["-c", &format!("{pack} < \"$0\" > \"$0.packed\""), target]);
            let place = quick(pod);
            let output = import(&place, &fs::read(folder.path().join("a.tar.packed")).unwrap());
            assert_exit(&output, 0, &format!("{what}: {}", message(&place, &output)));
            let found = tree(&place.data());
            for (name, thing) in &wanted {
                let name_shown = String::from_utf8_lossy(name);
                let ours = found.get(name).unwrap_or_else(|| panic!("{what}: {name_shown} is missing"));
                assert!(
                    ours == thing,
                    "{what}: {name_shown}: {} {:o} {:?} {}, by tar {} {:o} {:?} {}",
                    ours.kind,
                    ours.mode,
                    ours.modified,
                    ours.links,
                    thing.kind,
                    thing.mode,
                    thing.modified,
                    thing.links
                );
            }
            assert_eq!(found.len(), wanted.len(), "{what}");
            if flags.contains(&"--sparse") {
                let blocks = fs::metadata(place.data().join("sparse")).unwrap().blocks() * 512;
                assert!(blocks < MIB, "{what}: {blocks} bytes of a sparse file are allocated");
            }
            cells += 1;
        }
    }
    println!("archive: {cells} cells of form, compression and source equal what GNU tar unpacks");
}

/// Nothing but the volume may ever change.
fn assert_untouched(place: &Place, what: &str) {
    let root = place.folder.path();
    let allowed = ["archive", "data", "dev", "outside"];
    for name in names(root) {
        assert!(allowed.contains(&name.as_str()), "{what}: {name} appeared outside of the volume");
    }
    let outside = root.join("outside");
    assert_eq!(fs::read(&outside).unwrap(), b"precious", "{what}");
    let meta = fs::metadata(&outside).unwrap();
    assert_eq!((meta.nlink(), meta.mode() & 0o7777), (1, 0o640), "{what}");
    assert!(!Path::new("/tmp/escaped").exists(), "{what}");
}

fn guarded(pod: bool) -> Place {
    let place = quick(pod);
    let outside = place.folder.path().join("outside");
    fs::write(&outside, "precious").unwrap();
    fs::set_permissions(&outside, fs::Permissions::from_mode(0o640)).unwrap();
    place
}

#[test]
fn hostile_archives() {
    let mut refused = 0;
    let all = cases();
    for Case { name, archive, expect } in &all {
        let mut bytes = archive.concat();
        bytes.extend_from_slice(&[0; 1024]);
        if name.starts_with("a truncated") || name.starts_with("names without a") {
            bytes.truncate(bytes.len() - 1024);
        }
        for pod in [false, true] {
            let place = guarded(pod);
            let output = import(&place, &bytes);
            let said = message(&place, &output);
            let what = format!("{name}, {}: {said}", if pod { "pod" } else { "command line" });
            match expect {
                Ok(files) => {
                    assert_exit(&output, 0, &what);
                    for (file, content) in *files {
                        let found = fs::read_to_string(place.data().join(file));
                        assert_eq!(found.ok().as_deref(), Some(*content), "{what}: {file}");
                    }
                    assert!(!tree(&place.data()).is_empty(), "{what}");
                }
                Err(message) => {
                    let code = output.status.code();
                    let content =
                        said.contains("the archive is damaged") || said.contains("the archive is truncated");
                    let failed = match (pod, content) {
                        (true, _) => code == Some(1),
                        (false, true) => code == Some(4),
                        (false, false) => matches!(code, Some(1 | 4 | 5)),
                    };
                    assert!(failed, "{what}: exit {code:?}");
                    assert!(said.contains(message) && !said.is_empty(), "{what}: not \"{message}\"");
                    assert!(!pod || said.starts_with("Unable to process data: "), "{what}");
                    refused += u32::from(!pod);
                }
            }
            assert_untouched(&place, &what);
        }
    }
    println!(
        "archive: {} hostile and odd archives, twice each: {refused} fail, nothing outside is touched",
        all.len()
    );
}

#[test]
fn mutated_archives_stay_in_their_volume() {
    let seeds = [
        [folder("d"), link("d/l", b'2', "../x"), file("d/l/y", "a"), link("h", b'1', "d"), file("x", "ab")]
            .concat(),
        [pax(&[("path", b"d/name"), ("size", b"3"), ("mtime", b"7.5")]), file("x", "abc"), file("y", "z")]
            .concat(),
        [old_sparse(&[(0, 1), (600, 2)], 700, b"abc"), file("y", "z")].concat(),
        [
            pax(&[("GNU.sparse.size", b"90"), ("GNU.sparse.map", b"1,2,50,1")]),
            file("x", "abc"),
            file("y", "z"),
        ]
        .concat(),
    ];
    let mut random = Random(SEED);
    let mutants = count(400, 20_000);
    let (mut good, mut past) = (0, 0);
    for round in 0..mutants {
        let mut bytes = seeds[usize::try_from(random.next() % 4).unwrap()].clone();
        for _ in 0..=random.next() % 3 {
            let at = usize::try_from(random.next() % bytes.len() as u64).unwrap();
            bytes[at] = match random.next() % 3 {
                0 => *b"/.0179S"[..].get(usize::try_from(random.next() % 7).unwrap()).unwrap(),
                1 => bytes[at] ^ (1 << (random.next() % 8)),
                _ => u8::try_from(random.next() % 256).unwrap(),
            };
        }
        // Checksums are recomputed, as an attacker would.
        let mut at = 0;
        while at + 512 <= bytes.len() {
            let block = &mut bytes[at..at + 512];
            if &block[257..262] == b"ustar" {
                block[148..156].fill(b' ');
                let sum: u32 = block.iter().map(|&b| u32::from(b)).sum();
                block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            }
            at += 512;
        }
        bytes.extend_from_slice(&[0; 1024]);
        let place = guarded(false);
        let begin = Instant::now();
        let output = import(&place, &bytes);
        let what = format!("seed {SEED:#x} round {round}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(matches!(output.status.code(), Some(0 | 1 | 4)), "{what}: {}", output.status);
        assert!(begin.elapsed() < Duration::from_secs(10), "{what}");
        assert_untouched(&place, &what);
        good += u64::from(output.status.success());
        past += u64::from(!tree(&place.data()).is_empty());
    }
    println!(
        "archive: {mutants} mutants: {good} unpacked whole, {past} unpacked something, none left the volume"
    );
    assert!(past * 10 >= mutants, "the mutants get nowhere");
}

#[test]
fn many_members_take_little_memory() {
    let members = count(10_000, 1_000_000);
    let place = quick(false);
    let mut child =
        importer().arg("-").arg(place.data()).args(["--archive"]).stdin(Stdio::piped()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut input = child.stdin.take().unwrap();
    let feed = std::thread::spawn(move || {
        for index in 0..members / 2 {
            // Folders never opened again, with a file in each.
            input.write_all(&folder(&format!("{}/{index}", index / 1000))).unwrap();
            input.write_all(&file(&format!("{}/{index}/f", index / 1000), "")).unwrap();
        }
        input.write_all(&[0; 1024]).unwrap();
    });
    let mut peak = 0;
    let code = loop {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        peak = line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0).max(peak);
        if let Some(code) = child.try_wait().unwrap() {
            break code;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    feed.join().unwrap();
    assert!(code.success());
    assert_eq!(
        tree(&place.data()).values().filter(|thing| thing.kind == "file").count() * 2,
        usize::try_from(members).unwrap()
    );
    println!("archive: {members} members: peak RSS {} MiB", peak / 1024);
    assert!(peak > 0 && peak <= 64 << 10, "{peak} KiB");
}

#[test]
fn interrupted_archives_are_unpacked_again() {
    let source = tempfile::tempdir().unwrap();
    for index in 0..12 {
        let sub = source.path().join(format!("d{index}"));
        fs::create_dir(&sub).unwrap();
        fs::write(sub.join("f"), disk(2, SEED + index)).unwrap();
        fs::hard_link(sub.join("f"), sub.join("g")).unwrap();
        symlink("f", sub.join("l")).unwrap();
        fs::set_permissions(&sub, fs::Permissions::from_mode(0o555)).unwrap();
    }
    let archive = tempfile::tempdir().unwrap();
    let path = archive.path().join("a.tar");
    run("tar", &["-cf", path.to_str().unwrap(), "-C", source.path().to_str().unwrap(), "."]);
    let bytes = fs::read(&path).unwrap();
    let len = bytes.len() as u64;
    let wanted = tree(source.path());
    let server = Server::start(vec![("/a".to_owned(), Arc::new(bytes))], 60e6);
    let mut random = Random(SEED);
    let imports = count(6, 60);
    for round in 0..imports {
        let place = quick(true);
        let start = || {
            let mut command = place.command(&server.url("/a"), 1 << 30, &[]);
            command.env("IMPORTER_CONTENTTYPE", "archive");
            command
        };
        let moment = random.next() % len;
        server.take_sent();
        let mut child = start().spawn().unwrap();
        let begin = Instant::now();
        while server.sent() < moment && begin.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let what = format!("seed {SEED:#x} round {round}, killed after {moment} bytes");
        assert_exit(&start().stderr(Stdio::piped()).output().unwrap(), 0, &what);
        let found = tree(&place.data());
        assert_eq!(found.len(), wanted.len(), "{what}");
        for (name, thing) in &wanted {
            let ours = &found[name];
            assert!(
                ours.content == thing.content
                    && (ours.kind, ours.mode, ours.links, ours.modified.0)
                        == (thing.kind, thing.mode, thing.links, thing.modified.0),
                "{what}: {}",
                String::from_utf8_lossy(name)
            );
        }
    }
    println!("archive: {imports} imports killed and repeated from their start, all right");
}
