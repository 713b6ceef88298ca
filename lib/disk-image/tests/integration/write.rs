//! The writer on real filesystems and devices: every alignment (`alignment`), both engines, refusals and a full disk.
//!
//! Needs root, for mounts and loop devices.

mod alignment;
mod refused;

use std::any::Any;
use std::collections::HashSet;
use std::error::Error as _;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use disk_image::write::{
    Direct, EngineKind, Options, Pool, Segment, Target, Ticket, Write, Writer, Written, data_runs,
};
use disk_image::{Error, Kind, Stop};
use places::guest::Dice;
use places::{Loop, Mount, run};

/// Opens a device exclusively.
fn open_alone(device: &Path) -> Target {
    places::alone(|| Target::block(device, true)).unwrap()
}

/// Counts how many tickets are out.
struct TicketsOut(Arc<AtomicUsize>);

impl TicketsOut {
    fn ticket(out: &Arc<AtomicUsize>) -> Ticket {
        out.fetch_add(1, Ordering::SeqCst);
        Arc::new(Self(out.clone()))
    }
}

impl Drop for TicketsOut {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn nothing() -> Ticket {
    Arc::new(()) as Arc<dyn Any + Send + Sync>
}

fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(below) = source {
        text = format!("{text}: {below}");
        source = below.source();
    }
    text
}

fn options(engine: EngineKind, direct: Direct) -> Options {
    Options { engine: Some(engine), direct, ..Options::default() }
}

fn all_options() -> Vec<Options> {
    let mut all = Vec::new();
    for engine in [EngineKind::IoUring, EngineKind::Pwrite] {
        for direct in [Direct::Try, Direct::Never] {
            all.push(options(engine, direct));
        }
    }
    all
}

fn check_disk(path: &Path, wanted: &[u8], what: &str) {
    let file = std::fs::File::open(path).unwrap();
    let mut found = vec![0; wanted.len()];
    file.read_exact_at(&mut found, 0).unwrap();
    if let Some(at) = (0..wanted.len()).find(|&i| wanted[i] != found[i]) {
        panic!("{what}: byte {at} is {:#x}, should be {:#x}", found[at], wanted[at]);
    }
}

/// Writes a disk of one repeated byte in whole buffers until it is done or fails.
fn fill(path: &Path, keep: bool, size: u64, options: &Options) -> Result<Written, Error> {
    let writer = Writer::open(Target::file(path, keep)?, size, options)?;
    let pool = Pool::new(4, 1 << 20);
    let out = Arc::new(AtomicUsize::new(0));
    let mut failed = None;
    for at in (0..size).step_by(pool.size()) {
        let mut buf = pool.acquire(&Stop::new())?;
        buf.fill(7);
        let segments = vec![Segment { at: 0, len: buf.len().min((size - at) as usize), guest: at }];
        if let Err(e) =
            writer.write(Write { bytes: Arc::new(buf), segments, ticket: TicketsOut::ticket(&out) })
        {
            failed = Some(e);
            break;
        }
    }
    if let Some(e) = failed {
        // For ever after, and no ticket is kept back.
        assert_eq!(writer.sync().unwrap_err().kind(), e.kind());
        assert_eq!(writer.zero(0..4096, nothing()).unwrap_err().kind(), e.kind());
        assert_eq!(writer.finish().unwrap_err().kind(), e.kind());
        assert_eq!(out.load(Ordering::SeqCst), 0);
        return Err(e);
    }
    let result = writer.finish();
    assert_eq!(out.load(Ordering::SeqCst), 0);
    result
}

#[test]
fn a_disk_full_midway_is_reported_and_the_retry_after_growing_succeeds() {
    for options in all_options() {
        let mount = Mount::on_loop("ext4", 24 << 20);
        let path = mount.path().join("disk.img");
        let size = 40 << 20;
        for keep in [false, true] {
            let error = fill(&path, keep, size, &options).unwrap_err();
            assert_eq!(error.kind(), Kind::NoSpace, "{}", chain(&error));
            assert!(error.to_string().contains("no space left on device"), "{error}");
            assert!(error.source().unwrap().to_string().contains("os error 28"), "{}", chain(&error));
        }
        // The leftover does not count against the space.
        let free = Target::file(&path, true).unwrap().capacity().unwrap();
        assert!(free > 12 << 20, "{free}");
        let reserved =
            fill(&path, false, size, &Options { preallocate: true, ..options.clone() }).unwrap_err();
        assert_eq!(reserved.kind(), Kind::NoSpace, "{}", chain(&reserved));
        assert!(reserved.to_string().contains("no space left on device"), "{reserved}");
        mount.grow(64 << 20);
        let written = fill(&path, true, size, &options).unwrap();
        assert_eq!(written.bytes, size);
        check_disk(&path, &vec![7; size as usize], "after growing");
    }
}

#[test]
fn blocks_of_the_existing_file_count_as_free_space() {
    let mount = Mount::memory("tmpfs", 8 << 20);
    let path = mount.path().join("disk.img");
    std::fs::write(&path, vec![1; 6 << 20]).unwrap();
    assert_eq!(Target::file(&path, true).unwrap().capacity().unwrap(), 8 << 20);
    assert_eq!(Target::file(&path, false).unwrap().capacity().unwrap(), 8 << 20);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
}

#[test]
fn sparse_disks_stay_sparse() {
    let xfs = Mount::on_loop("xfs", 320 << 20);
    let ext4 = tempfile::tempdir().unwrap();
    for folder in [xfs.path(), ext4.path()] {
        for options in all_options() {
            let path = folder.join("disk.img");
            let size = 64u64 << 20;
            let writer = Writer::open(Target::file(&path, false).unwrap(), size, &options).unwrap();
            let pool = Pool::new(4, 1 << 20);
            let mut dice = Dice(5);
            let mut pages = 0;
            for guest in (0..size).step_by(1 << 20) {
                let mut buf = pool.acquire(&Stop::new()).unwrap();
                buf.fill(0);
                for _ in 0..dice.next(12) {
                    let page = dice.next(256) as usize;
                    pages += u64::from(buf[page * 4096..][..4096].iter().all(|&b| b == 0));
                    buf[page * 4096 + dice.next(4096) as usize] = 9;
                }
                let mut runs = Vec::new();
                data_runs(&buf, guest, &mut runs);
                let segments = runs
                    .iter()
                    .map(|r| Segment { at: r.start, len: r.len(), guest: guest + r.start as u64 })
                    .collect();
                writer.write(Write { bytes: Arc::new(buf), segments, ticket: nothing() }).unwrap();
            }
            writer.zero(0..size, nothing()).unwrap();
            assert_eq!(writer.finish().unwrap().bytes, pages * 4096);
            let allocated = std::fs::metadata(&path).unwrap().blocks() * 512;
            // The filesystem's own tree of extents may take some blocks too.
            assert!(allocated <= pages * 4096 + (64 << 10), "{options:?}: {allocated} for {pages} pages");
        }
    }
}

#[test]
fn cached_writing_leaves_little_in_the_page_cache() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    for engine in [EngineKind::IoUring, EngineKind::Pwrite] {
        let size = 160 << 20;
        fill(&path, false, size, &options(engine, Direct::Never)).unwrap();
        let cached: u64 = run("fincore", &["-b", "-n", "-o", "RES", path.to_str().unwrap()]).parse().unwrap();
        assert!(cached <= 48 << 20, "{cached} bytes of {size} are cached");
    }
}

#[test]
fn a_pool_never_has_more_out_than_its_count() {
    let pool = Pool::new(3, 5000);
    let (out, most, seen) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(HashSet::new()));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..300 {
                    let mut buf = pool.acquire(&Stop::new()).unwrap();
                    most.fetch_max(out.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    assert_eq!(buf.len(), 5000);
                    assert_eq!(buf.as_ptr() as usize % 4096, 0);
                    seen.lock().unwrap().insert(buf.as_ptr() as usize);
                    buf.fill(1);
                    out.fetch_sub(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert!(most.load(Ordering::SeqCst) <= 3);
    assert!(seen.lock().unwrap().len() <= 3);
    assert_eq!((pool.count(), pool.size()), (3, 5000));
}

#[test]
fn a_stop_ends_waiting_for_a_buffer() {
    let pool = Pool::new(1, 4096);
    let (stop, held) = (Stop::new(), pool.acquire(&Stop::new()).unwrap());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| pool.acquire(&stop).map(|_| ()).unwrap_err());
        std::thread::sleep(Duration::from_millis(120));
        let asked = Instant::now();
        stop.set();
        assert_eq!(waiting.join().unwrap().kind(), Kind::Stopped);
        assert!(asked.elapsed() < Duration::from_secs(2));
    });
    drop(held);
    pool.acquire(&Stop::new()).unwrap();
}

#[test]
fn a_stop_ends_zeroing_and_reserving() {
    let mount = Mount::memory("ramfs", 0);
    let path = mount.path().join("disk.img");
    let stopped = Options { preallocate: true, ..Options::default() };
    stopped.stop.set();
    let error = Writer::open(Target::file(&path, false).unwrap(), 1 << 30, &stopped).unwrap_err();
    assert_eq!(error.kind(), Kind::Stopped);
}

#[test]
fn a_writer_that_is_given_up_lets_everything_go() {
    let folder = tempfile::tempdir().unwrap();
    for options in all_options() {
        let pool = Pool::new(16, 1 << 20);
        let out = Arc::new(AtomicUsize::new(0));
        let writer =
            Writer::open(Target::file(&folder.path().join("x"), false).unwrap(), 1 << 30, &options).unwrap();
        for i in 0..16 {
            let buf = pool.acquire(&Stop::new()).unwrap();
            let segments = vec![Segment { at: 0, len: 1 << 20, guest: i << 20 }];
            writer.write(Write { bytes: Arc::new(buf), segments, ticket: TicketsOut::ticket(&out) }).unwrap();
        }
        drop(writer);
        assert_eq!(out.load(Ordering::SeqCst), 0);
        let all: Vec<_> = (0..16).map(|_| pool.acquire(&Stop::new()).unwrap()).collect();
        assert_eq!(all.len(), 16);
    }
}

#[test]
fn targets_that_are_not_what_they_should_be_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("file"), b"kept").unwrap();
    std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
    run("mkfifo", &[at("pipe").to_str().unwrap()]);
    for (path, word) in [
        (folder.path().to_owned(), "folder"),
        (at("link"), "symbolic link"),
        (at("pipe"), "not a regular file"),
        (at("a/b"), "opening"),
    ] {
        let error = Target::file(&path, false).map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), Kind::Target);
        assert!(
            error.to_string().contains(word) && error.to_string().contains(path.to_str().unwrap()),
            "{error}"
        );
    }
    assert_eq!(std::fs::read(at("file")).unwrap(), b"kept");
    for path in [at("file"), PathBuf::from("/dev/null")] {
        let error = Target::block(&path, true).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("not a block device"), "{error}");
    }
    let mount = Mount::on_loop("ext4", 24 << 20);
    let error = Target::block(mount.device().unwrap(), true).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("in use"), "{error}");
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let device = Loop::new(1 << 20, 512);
    let error = Writer::open(open_alone(&device.device), (1 << 20) + 512, &Options::default()).unwrap_err();
    assert_eq!(error.kind(), Kind::TooLarge);
    assert!(error.to_string().contains("is larger than the reported available"), "{error}");
    let mount = Mount::on_loop("ext4", 24 << 20);
    let path = mount.path().join("x");
    let error = Writer::open(Target::file(&path, false).unwrap(), 64 << 40, &Options::default()).unwrap_err();
    assert_eq!(error.kind(), Kind::NoSpace);
    assert!(error.to_string().contains("largest file is too small"), "{}", chain(&error));
    // A sector that is there only in part cannot be written.
    let device = Loop::new((1 << 20) + 512, 4096);
    assert_eq!(open_alone(&device.device).capacity().unwrap(), 1 << 20);
}

#[test]
fn segments_outside_the_buffer_or_the_disk_are_refused_and_do_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let pool = Pool::new(2, 8192);
    let writer = Writer::open(Target::file(&path, false).unwrap(), 10_000, &Options::default()).unwrap();
    let bad = [(8000, 193, 0), (0, 1, 10_000), (0, 4096, 9000), (usize::MAX, 2, 0), (0, 2, u64::MAX)];
    for (at, len, guest) in bad {
        let bytes = Arc::new(pool.acquire(&Stop::new()).unwrap());
        let write = Write { bytes, segments: vec![Segment { at, len, guest }], ticket: nothing() };
        assert_eq!(writer.write(write).unwrap_err().kind(), Kind::Target);
    }
    assert!(writer.zero(9000..10_001, nothing()).is_err());
    writer.zero(9000..10_000, nothing()).unwrap();
    writer
        .write(Write {
            bytes: Arc::new(pool.acquire(&Stop::new()).unwrap()),
            segments: Vec::new(),
            ticket: nothing(),
        })
        .unwrap();
    writer.sync().unwrap();
    assert_eq!(writer.finish().unwrap().bytes, 0);
    check_disk(&path, &[0; 10_000], "an empty disk");
}

#[test]
fn mode_owner_and_length_are_set_on_the_open_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let target = Target::file(&path, false).unwrap();
    target.set_mode(0o660).unwrap();
    target.set_owner(107, 107).unwrap();
    target.set_len(1 << 20).unwrap();
    assert!(!target.is_block());
    let written = Writer::open(target, 5000, &Options::default()).unwrap().finish().unwrap();
    assert_eq!(written.bytes, 0);
    let meta = std::fs::metadata(&path).unwrap();
    // The earlier content is longer than the disk, and stays.
    assert_eq!((meta.mode() & 0o7777, meta.uid(), meta.gid(), meta.len()), (0o660, 107, 107, 1 << 20));
}

#[test]
fn zero_length_disks_are_fine() {
    let folder = tempfile::tempdir().unwrap();
    for options in all_options() {
        let path = folder.path().join("x");
        let writer = Writer::open(Target::file(&path, false).unwrap(), 0, &options).unwrap();
        writer.zero(0..0, nothing()).unwrap();
        writer.finish().unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
    }
}
