//! VHDX images that were not closed cleanly, by every way of reading: the disk equals what `qemu-img` reads from a copy that
//! `qemu-img check -r all` has repaired, or from one in which the test itself has put the log's changes into their places.
//! Refusals that need one image each are in `formats_hostile`.

use std::path::Path;

use disk_image::{Access, Kind};
use tempfile::TempDir;

use crate::support::images::{
    Change, LogEntry, VHDX_HEADERS, VhdxPlaces, le32, le64, put, put_in_log, set_log_id, sum_vhdx,
};
use crate::support::mutate::Rng;
use crate::support::{count, tools};
use crate::transfer::memory::Memory;
use crate::transfer::{once, text};

/// Ways of reading, and whether the length is known.
const WAYS: [(Access, bool); 4] =
    [(Access::Ranges, true), (Access::Again, true), (Access::Once, true), (Access::Once, false)];

/// The disk, or the kind of failure, which is the same by every way.
fn imported(dir: &TempDir, image: &[u8], what: &str) -> Result<Vec<u8>, Kind> {
    let out = dir.path().join("out.img");
    let mut results = WAYS.map(|(access, sized)| {
        let mut source = Memory::new(image.to_vec(), access);
        source.sized = sized;
        once(source, &out)
            .map(|_| std::fs::read(&out).unwrap())
            .map_err(|error| (error.kind(), error.to_string()))
    });
    for (result, (access, sized)) in results[1..].iter().zip(&WAYS[1..]) {
        let same = match (&results[0], result) {
            (Ok(one), Ok(other)) => one == other,
            (Err(_), Err(_)) => true,
            _ => false,
        };
        let shown =
            |result: &Result<Vec<u8>, (Kind, String)>| result.as_ref().map(Vec::len).map_err(Clone::clone);
        assert!(
            same,
            "{what} {access:?} sized {sized}: {:?}, by ranges {:?}",
            shown(result),
            shown(&results[0])
        );
    }
    std::mem::replace(&mut results[0], Ok(Vec::new())).map_err(|(kind, _)| kind)
}

/// The disk of a copy that qemu has repaired; `None` when it cannot.
fn repaired(dir: &TempDir, image: &[u8]) -> Option<Vec<u8>> {
    let path = dir.path().join("repaired.vhdx");
    std::fs::write(&path, image).unwrap();
    tools::attempt("qemu-img", &["check", "-q", "-f", "vhdx", "-r", "all", text(&path)]);
    tools::qemu_try_raw("vhdx", &path)
}

/// A write that qemu logs, and then fails to put into the block table at `bat`.
fn interrupted(path: &Path, bat: usize, write: &str) {
    let file = format!(
        r#"json:{{"driver":"vhdx","file":{{"driver":"blkdebug","image":{{"driver":"file","filename":"{}"}},
        "inject-error":[{{"event":"none","iotype":"write","sector":{},"errno":5,"once":false}}]}}}}"#,
        text(path),
        bat / 512
    );
    let output = tools::attempt("qemu-io", &["-c", write, &file]);
    let answer =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(answer.contains("Input/output error"), "{answer}");
}

#[test]
fn logs_that_qemu_leaves_are_replayed() {
    let dir = TempDir::new().unwrap();
    for (n, (options, write)) in [
        ("block_size=1M", "write -P 5 1M 64k"),
        ("block_size=1M,log_size=4M", "write -P 5 700k 2M"),
        ("block_size=16M", "write -P 5 20M 1M"),
    ]
    .into_iter()
    .enumerate()
    {
        let path = dir.path().join(format!("{n}.vhdx"));
        tools::run("qemu-img", &["create", "-q", "-f", "vhdx", "-o", options, text(&path), "40M"]);
        tools::run(
            "qemu-io",
            &["-f", "vhdx", "-c", "write -P 1 100k 300k", "-c", "write -P 2 39M 4k", text(&path)],
        );
        let clean = std::fs::read(&path).unwrap();
        interrupted(&path, VhdxPlaces::of(&clean).bat, write);
        let image = std::fs::read(&path).unwrap();
        // qemu itself reads it only after a repair.
        assert!(tools::qemu_try_raw("vhdx", &path).is_none(), "{options}: qemu sees a clean image");
        let disk = imported(&dir, &image, options).unwrap();
        assert!(Some(&disk) == repaired(&dir, &image).as_ref(), "{options}: other bytes");
        assert!(disk[..39 << 20].contains(&5), "{options}: the interrupted write is missing");
    }
}

/// Entries and their place in the log.
#[derive(Debug)]
struct Log {
    start: usize,
    entries: Vec<LogEntry>,
    /// Entries at the front that the last one's tail leaves out.
    skipped: usize,
    torn: bool,
}

const ID: [u8; 16] = [0x5c; 16];

/// A guest's image, with the places of its blocks.
fn guest(dir: &TempDir) -> (Vec<u8>, Vec<u64>) {
    let path = dir.path().join("guest.vhdx");
    tools::run("qemu-img", &["create", "-q", "-f", "vhdx", "-o", "block_size=1M", text(&path), "8M"]);
    let writes = ["write -P 1 0 1M", "write -P 2 2M 70000", "write -P 3 5M 1M", "write -P 4 6M 300k"];
    let args: Vec<_> = writes.iter().flat_map(|write| ["-c", write]).collect();
    tools::run("qemu-io", &[&["-f", "vhdx"][..], &args, &[text(&path)]].concat());
    let image = std::fs::read(path).unwrap();
    let bat = VhdxPlaces::of(&image).bat;
    let blocks = (0..8).map(|n| le64(&image, bat + 8 * n) as u64).filter(|entry| entry & 7 == 6);
    let blocks = blocks.map(|entry| entry >> 20 << 20).collect();
    (image, blocks)
}

/// A block table's first sector: the blocks, and sometimes one behind the image's end, in any order.
fn table(image: &[u8], blocks: &[u64], grown: bool, rng: &mut Rng) -> Vec<u8> {
    let bat = VhdxPlaces::of(image).bat;
    let mut places: Vec<Option<u64>> = blocks.iter().copied().map(Some).collect();
    places.push(grown.then_some(image.len() as u64));
    places.resize(8, None);
    for n in (1..8).rev() {
        places.swap(n, rng.below(n as u64 + 1) as usize);
    }
    let mut sector = image[bat..bat + 4096].to_vec();
    for (n, place) in places.into_iter().enumerate() {
        put(&mut sector, 8 * n, &place.map_or(0, |place| place | 6).to_le_bytes());
    }
    sector
}

fn random_log(image: &[u8], blocks: &[u64], rng: &mut Rng) -> Log {
    let bat = VhdxPlaces::of(image).bat as u64;
    let start = rng.below(256) as usize * 4096;
    let first = 1 + rng.below(1 << 40);
    let grown = rng.one_in(3);
    let (mut at, mut entries) = (start, Vec::new());
    for n in 0..rng.within(1..5) {
        let many = if rng.one_in(6) { 140 } else { 8 };
        let mut changes: Vec<_> = (0..rng.below(many))
            .map(|_| {
                let place = rng.pick(blocks) + rng.below(256) * 4096;
                match rng.below(5) {
                    0 => Change::Zero(place, rng.below(4) * 4096),
                    1 => Change::Data(bat, table(image, blocks, grown, rng)),
                    _ => Change::Data(place, rng.bytes(4096)),
                }
            })
            .collect();
        if grown {
            changes.push(Change::Data(image.len() as u64 + 8192, rng.bytes(4096)));
        }
        let last = image.len() as u64 + if grown { 100_000 } else { 0 };
        let (flushed, tail) = (image.len() as u64, start as u32);
        let entry = LogEntry { id: ID, sequence: first + n, tail, flushed, last, changes };
        at += entry.bytes().len();
        entries.push(entry);
    }
    assert!(at - start < 1 << 20, "the log is full");
    let skipped = rng.below(entries.len() as u64) as usize * usize::from(rng.one_in(4));
    let before: usize = entries[..skipped].iter().map(|entry| entry.bytes().len()).sum();
    let newest = entries.last_mut().unwrap();
    newest.tail = ((start + before) % (1 << 20)) as u32;
    Log { start, entries, skipped, torn: rng.one_in(2) }
}

/// The image with the log in it.
fn dirty(image: &[u8], log: &Log) -> Vec<u8> {
    let mut dirty = image.to_vec();
    assert_eq!(le32(image, VHDX_HEADERS[0] + 68), 1 << 20);
    set_log_id(&mut dirty, ID);
    let mut at = log.start;
    for entry in &log.entries {
        put_in_log(&mut dirty, at, &entry.bytes());
        at += entry.bytes().len();
    }
    if log.torn {
        let last = log.entries.last().unwrap();
        let mut torn = LogEntry { sequence: last.sequence + 1, ..last.clone() }.bytes();
        *torn.last_mut().unwrap() ^= 1;
        torn.truncate(((1 << 20) - (at - log.start)) / 4096 * 4096);
        put_in_log(&mut dirty, at, &torn);
    }
    dirty
}

/// The image with the log's changes in their places, and an empty log.
fn replayed(image: &[u8], log: &Log) -> Vec<u8> {
    let mut image = image.to_vec();
    set_log_id(&mut image, [0; 16]);
    for entry in &log.entries[log.skipped..] {
        for change in &entry.changes {
            let (host, content) = match change {
                Change::Data(host, content) => (*host as usize, content.clone()),
                Change::Zero(host, len) => (*host as usize, vec![0; *len as usize]),
            };
            image.resize(image.len().max(host + content.len()), 0);
            put(&mut image, host, &content);
        }
        image.resize(image.len().max((entry.last as usize).next_multiple_of(1 << 20)), 0);
    }
    image
}

#[test]
fn every_arrangement_of_entries_is_replayed() {
    let dir = TempDir::new().unwrap();
    let (image, blocks) = guest(&dir);
    let path = dir.path().join("replayed.vhdx");
    let mut judged_by_qemu = 0;
    for seed in 0..count(12, 600) {
        let mut rng = Rng::new(seed);
        let log = random_log(&image, &blocks, &mut rng);
        let what = format!("seed {seed}, start {}, skipped {}, torn {}", log.start, log.skipped, log.torn);
        let dirty = dirty(&image, &log);
        let disk = imported(&dir, &dirty, &what).unwrap_or_else(|kind| panic!("{what}: {kind:?}"));
        std::fs::write(&path, replayed(&image, &log)).unwrap();
        assert!(disk == tools::qemu_raw("vhdx", &path), "{what}: other bytes");
        // qemu's own replay starts at the front of the log and leaves tails out.
        let end: usize = log.entries.iter().map(|entry| entry.bytes().len()).sum::<usize>() + log.start;
        if log.skipped == 0 && end < 1 << 20 {
            assert!(Some(disk) == repaired(&dir, &dirty), "{what}: other bytes than qemu's");
            judged_by_qemu += 1;
        }
    }
    assert!(judged_by_qemu > 0);
}

#[test]
fn damaged_logs_have_one_verdict_by_every_way() {
    let dir = TempDir::new().unwrap();
    let (image, blocks) = guest(&dir);
    let (mut read, mut refused, mut agreed) = (0, 0, 0);
    for seed in 0..count(30, 2_000) {
        let mut rng = Rng::new(seed ^ 0x6c6f67);
        let mut log = random_log(&image, &blocks, &mut rng);
        log.entries.truncate(1 + rng.below(2) as usize);
        (log.skipped, log.start, log.torn) = (0, 0, false);
        for entry in &mut log.entries {
            entry.tail = 0;
        }
        let mut mutant = dirty(&image, &log);
        let start = le64(&image, VHDX_HEADERS[0] + 72);
        let len = log.entries[0].bytes().len();
        // In the header, a descriptor, a data sector, or the file's end.
        let (from, to) = *rng.pick(&[(8, 64), (64, 160), (4096, 4112), (4092, 4096)]);
        if rng.one_in(8) {
            mutant.truncate(mutant.len() - 4096 * (1 + rng.below(600) as usize));
        } else {
            let at = start + rng.within(from..to) as usize;
            mutant[at] ^= 1 << rng.below(8);
        }
        if !rng.one_in(4) && mutant.len() > start + len {
            sum_vhdx(&mut mutant, start..start + len);
        }
        let ours = imported(&dir, &mutant, &format!("mutant {seed}"));
        match &ours {
            Ok(_) => read += 1,
            Err(kind) => {
                refused += 1;
                assert!([Kind::Corrupt, Kind::Source].contains(kind), "mutant {seed}: {kind:?}");
            }
        }
        if let (Ok(disk), Some(judge)) = (ours, repaired(&dir, &mutant)) {
            assert!(disk == judge, "mutant {seed}: other bytes than qemu's");
            agreed += 1;
        }
    }
    assert!(
        read > 0 && refused > 0 && agreed > 0,
        "{read} read, {refused} refused, {agreed} as qemu reads them"
    );
}
