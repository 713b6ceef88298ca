//! Parts of any length at any place, in random order, by every engine, onto files and devices of every kind.

use std::collections::HashSet;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use disk_image::Stop;
use disk_image::write::{Engine, EngineKind, Options, Pool, Segment, Target, Write, Writer, Written};
use places::guest::Dice;
use places::{Loop, Mount};

use crate::write::{TicketsOut, all_options, check_disk, open_alone};

/// How many disks of each kind are written: the environment variable selects the full count.
fn rounds() -> u64 {
    if std::env::var_os("FERROVIRT_SOAK").is_some_and(|soak| soak == "1") { 25 } else { 1 }
}

/// The treatment of a part of the disk.
pub(crate) enum Part {
    Data { guest: u64, bytes: Vec<u8> },
    Zero { guest: u64, len: u64 },
}

/// A disk's parts in random order, and what the disk must read as after them.
pub(crate) fn parts(dice: &mut Dice, disk: &mut [u8]) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut at = 0;
    while at < disk.len() {
        let len = match dice.next(5) {
            0 => dice.next(700) + 1,
            1 => (dice.next(20) + 1) * 512,
            2 => (dice.next(40) + 1) * 4096,
            3 => dice.next(200_000) + 1,
            _ => 4096 - (at as u64 % 4096),
        };
        let end = (at + len as usize).min(disk.len());
        match dice.next(6) {
            0 => {}
            1 => {
                disk[at..end].fill(0);
                parts.push(Part::Zero { guest: at as u64, len: (end - at) as u64 });
            }
            _ => {
                let seed = dice.next(1 << 30);
                let mut fill = Dice(seed);
                disk[at..end].fill_with(|| fill.next(256) as u8);
                parts.push(Part::Data { guest: at as u64, bytes: disk[at..end].to_vec() });
            }
        }
        at = end;
    }
    for i in (1..parts.len()).rev() {
        parts.swap(i, dice.next(i as u64 + 1) as usize);
    }
    parts
}

/// Writes `parts` from three threads, several segments to a buffer, at places in it that are as aligned as the guest
/// or not.
pub(crate) fn write_parts(writer: &Writer, parts: Vec<Part>, seed: u64) {
    let pool = Pool::new(5, 256 << 10);
    let tickets = Arc::new(AtomicUsize::new(0));
    let parts = Mutex::new(parts.into_iter());
    std::thread::scope(|scope| {
        for worker in 0..3 {
            let (pool, parts, tickets) = (&pool, &parts, &tickets);
            scope.spawn(move || {
                let mut dice = Dice(seed + worker);
                let stop = Stop::new();
                let mut buf = pool.acquire(&stop).unwrap();
                let (mut segments, mut used) = (Vec::new(), 0);
                loop {
                    let part = parts.lock().unwrap().next();
                    let (guest, bytes) = match part {
                        Some(Part::Zero { guest, len }) => {
                            writer.zero(guest..guest + len, TicketsOut::ticket(tickets)).unwrap();
                            continue;
                        }
                        Some(Part::Data { guest, bytes }) => (guest, bytes),
                        None => break,
                    };
                    let mut at = match dice.next(3) {
                        0 => used + dice.next(50) as usize,
                        _ => used.next_multiple_of(4096) + (guest % 4096) as usize,
                    };
                    if at + bytes.len() > buf.len() || dice.next(8) == 0 {
                        let full = std::mem::replace(&mut buf, pool.acquire(&stop).unwrap());
                        let segments = std::mem::take(&mut segments);
                        writer
                            .write(Write {
                                bytes: Arc::new(full),
                                segments,
                                ticket: TicketsOut::ticket(tickets),
                            })
                            .unwrap();
                        at = (guest % 4096) as usize;
                    }
                    buf[at..at + bytes.len()].copy_from_slice(&bytes);
                    segments.push(Segment { at, len: bytes.len(), guest });
                    used = at + bytes.len();
                }
                writer
                    .write(Write { bytes: Arc::new(buf), segments, ticket: TicketsOut::ticket(tickets) })
                    .unwrap();
            });
        }
    });
    let started = Instant::now();
    while tickets.load(Ordering::SeqCst) > 0 {
        assert!(started.elapsed() < Duration::from_secs(60), "tickets are never dropped");
        std::thread::sleep(Duration::from_millis(1));
    }
    writer.sync().unwrap();
}

/// Random parts onto a fresh and a kept file in `folder`; gives the engines that were used.
fn random_files(folder: &Path, seed: u64) -> Vec<Engine> {
    let mut dice = Dice(seed);
    let mut engines = Vec::new();
    for mut options in (0..rounds()).flat_map(|_| all_options()) {
        for (keep, preallocate) in [(false, false), (true, false), (false, true), (true, true)] {
            let what = format!("{options:?} keep {keep} preallocate {preallocate}");
            let path = folder.join("disk.img");
            let size = (2 << 20) + dice.next(3) * 512 + dice.next(2) * dice.next(512);
            let old = 1_500_000;
            std::fs::write(&path, vec![0xEE; old]).unwrap();
            let mut disk = vec![0; size as usize];
            if keep {
                disk[..old].fill(0xEE);
            }
            let parts = parts(&mut dice, &mut disk);
            let data =
                parts.iter().map(|part| if let Part::Data { bytes, .. } = part { bytes.len() } else { 0 });
            let (data, zero) = (
                data.sum::<usize>() as u64,
                parts
                    .iter()
                    .map(|part| if let Part::Zero { len, .. } = part { *len } else { 0 })
                    .sum::<u64>(),
            );
            options.preallocate = preallocate;
            let writer = Writer::open(Target::file(&path, keep).unwrap(), size, &options).unwrap();
            write_parts(&writer, parts, seed);
            let Written { bytes, zeroed, engine } = writer.finish().unwrap();
            assert_eq!((bytes, zeroed), (data, zero), "{what}");
            assert_eq!(std::fs::metadata(&path).unwrap().len(), size, "{what}");
            check_disk(&path, &disk, &what);
            assert_eq!(Some(engine.kind), options.engine, "{what}");
            if preallocate {
                let allocated = std::fs::metadata(&path).unwrap().blocks() * 512;
                assert!(allocated >= size, "{what}: {allocated} of {size} bytes are allocated");
            }
            engines.push(engine);
        }
    }
    engines
}

#[test]
fn any_alignment_on_ext4_or_whatever_holds_the_temporary_folder() {
    let folder = tempfile::tempdir().unwrap();
    let engines = random_files(folder.path(), 1);
    assert!(engines[..8].iter().any(|engine| engine.direct), "{engines:?}");
    assert!(engines.iter().any(|engine| engine.registered), "{engines:?}");
}

#[test]
fn any_alignment_on_ext4_on_a_loop_device() {
    let mount = Mount::on_loop("ext4", 64 << 20);
    let engines = random_files(mount.path(), 2);
    assert_eq!(engines.iter().map(|engine| engine.direct).collect::<HashSet<_>>().len(), 2, "{engines:?}");
}

#[test]
fn any_alignment_on_xfs() {
    let mount = Mount::on_loop("xfs", 320 << 20);
    let engines = random_files(mount.path(), 3);
    assert_eq!(engines.iter().map(|engine| engine.direct).collect::<HashSet<_>>().len(), 2, "{engines:?}");
}

#[test]
fn any_alignment_on_xfs_of_blocks_larger_than_pages() {
    for (block, seed) in [("16384", 6), ("65536", 7)] {
        let mount = Mount::on_loop_as("xfs", 320 << 20, &["-b", &format!("size={block}")]);
        let engines = random_files(mount.path(), seed);
        let direct: HashSet<_> = engines.iter().map(|engine| engine.direct).collect();
        assert_eq!(direct.len(), 2, "{block}: {engines:?}");
    }
}

#[test]
fn any_alignment_on_tmpfs() {
    let mount = Mount::memory("tmpfs", 64 << 20);
    random_files(mount.path(), 4);
}

#[test]
fn any_alignment_on_ramfs_which_refuses_direct_io_at_opening() {
    let mount = Mount::memory("ramfs", 0);
    for engine in random_files(mount.path(), 5) {
        assert!(!engine.direct, "{engine}");
        assert!(!engine.why.is_empty(), "{engine}");
    }
    // By trying, a ring without direct I/O is not chosen.
    let writer =
        Writer::open(Target::file(&mount.path().join("x"), false).unwrap(), 5000, &Options::default())
            .unwrap();
    let engine = writer.engine();
    assert_eq!(engine.kind, EngineKind::Pwrite);
    assert!(engine.to_string().contains("direct I/O is refused at opening"), "{engine}");
    writer.finish().unwrap();
}

/// Random parts onto a loop device full of old bytes.
fn random_devices(sector: u32, tail: u64, seed: u64) -> Vec<Engine> {
    let device = Loop::new((3 << 20) + tail, sector);
    random_device(&device, seed)
}

fn random_device(device: &Loop, seed: u64) -> Vec<Engine> {
    let mut dice = Dice(seed);
    let mut engines = Vec::new();
    for options in (0..rounds()).flat_map(|_| all_options()) {
        let target = open_alone(&device.device);
        let capacity = target.capacity().unwrap();
        let size = capacity - dice.next(9) * 512;
        let mut disk = vec![0xEE; capacity as usize];
        target.as_file().write_all_at(&disk, 0).unwrap();
        target.as_file().sync_all().unwrap();
        let parts = parts(&mut dice, &mut disk[..size as usize]);
        let writer = Writer::open(target, size, &options).unwrap();
        assert!(writer.is_block());
        write_parts(&writer, parts, seed);
        let engine = writer.finish().unwrap().engine;
        check_disk(&device.device, &disk, &format!("{options:?}"));
        assert_eq!(Some(engine.kind), options.engine);
        engines.push(engine);
    }
    engines
}

#[test]
fn any_alignment_on_devices_of_512_byte_sectors() {
    for tail in [0, 512, 3584] {
        let engines = random_devices(512, tail, 10 + tail);
        let direct: Vec<bool> = engines.iter().map(|engine| engine.direct).collect();
        assert_eq!(direct[..4], [true, false, true, false], "{engines:?}");
    }
}

#[test]
fn any_alignment_on_devices_of_4096_byte_sectors() {
    for tail in [0, 4096, 512] {
        let engines = random_devices(4096, tail, 20 + tail);
        let direct: Vec<bool> = engines.iter().map(|engine| engine.direct).collect();
        // The tails that fill no sector went through the page cache, all else did not.
        assert_eq!(direct[..4], [true, false, true, false], "{engines:?}");
    }
}

#[test]
fn direct_io_refused_at_a_write_goes_on_through_the_page_cache() {
    // Direct writes to it must be multiples of 16 KiB, which is unknown before an attempt.
    let engines = random_devices(16 << 10, 0, 30);
    for engine in &engines {
        assert!(!engine.direct, "{engine}");
    }
    assert!(engines[0].why.contains("direct I/O is refused at the write to"), "{}", engines[0]);
    assert!(engines[2].why.contains("direct I/O is refused at the write to"), "{}", engines[2]);
}

#[test]
fn a_device_that_cannot_punch_is_zeroed_all_the_same() {
    // A loop device over a file of a filesystem without holes to punch.
    let mount = Mount::memory("ramfs", 0);
    let backing = mount.path().join("backing");
    std::fs::write(&backing, vec![0; 3 << 20]).unwrap();
    let device = Loop::over(backing, 512, tempfile::tempdir().unwrap());
    random_device(&device, 40);
    drop(device);
}
