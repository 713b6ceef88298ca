//! Readers that fail, are dropped, or read ahead.

use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use disk_image::compress::{Limits, readahead};
use disk_image::{Access, Facts, Kind, Source};

use crate::compress::packed::{MemoryReader, content, every, pipe, unpack};

/// Fails with a connection reset at an offset.
struct Failing {
    bytes: Arc<[u8]>,
    at: usize,
}

impl Source for Failing {
    fn facts(&self) -> Facts {
        Facts { size: None, access: Access::Again }
    }

    fn open(&self, _: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        let good = MemoryReader { bytes: self.bytes.clone(), at: 0, end: self.at };
        Ok(Box::new(good.chain(FailingReader)))
    }
}

struct FailingReader;

impl Read for FailingReader {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server hung up"))
    }
}

#[test]
fn an_error_of_the_source_stays_the_sources() {
    let model = content(50_000, 17);
    for (compression, command) in every() {
        let packed = pipe(command, &model);
        for at in [0, 1, 5, 11, 12, 19, 30, packed.len() / 2, packed.len() - 1, packed.len()] {
            let source = Arc::new(Failing { bytes: packed[..].into(), at });
            let error = unpack(compression, source, Limits::default()).unwrap_err();
            assert_eq!(error.kind(), Kind::Source, "{command} at {at}: {error}");
            let below = std::error::Error::source(&error).unwrap().to_string();
            assert_eq!(below, "the server hung up", "{command} at {at}");
        }
    }
}

/// An endless reader that reports its drop.
struct Endless {
    pause: Duration,
    dropped: Arc<AtomicBool>,
}

impl Read for Endless {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        sleep(self.pause);
        buf.fill(0);
        Ok(buf.len())
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::Release);
    }
}

#[test]
fn a_dropped_reader_takes_its_thread_with_it() {
    for (pause, reads) in [(0, 0), (0, 3), (2000, 0)] {
        let dropped = Arc::new(AtomicBool::new(false));
        let pause = Duration::from_millis(pause);
        let endless = Endless { pause, dropped: dropped.clone() };
        let mut reader = readahead::read(Box::new(endless)).unwrap();
        for _ in 0..reads {
            reader.read_exact(&mut [0; 100]).unwrap();
        }
        let begin = Instant::now();
        drop(reader);
        assert!(begin.elapsed() < Duration::from_secs(1), "dropping waits for nobody");
        while !dropped.load(Ordering::Acquire) {
            assert!(begin.elapsed() < pause + Duration::from_secs(2), "the thread goes on");
            sleep(Duration::from_millis(1));
        }
    }
}

/// Counts its reads.
struct Counting(Arc<AtomicUsize>);

impl Read for Counting {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.fetch_add(1, Ordering::AcqRel);
        buf.fill(0);
        Ok(buf.len())
    }
}

#[test]
fn three_buffers_are_read_ahead_and_no_more() {
    let reads = Arc::new(AtomicUsize::new(0));
    let mut reader = readahead::read(Box::new(Counting(reads.clone()))).unwrap();
    for taken in 0..5 {
        let begin = Instant::now();
        while reads.load(Ordering::Acquire) < taken + 3 {
            assert!(begin.elapsed() < Duration::from_secs(10), "nothing is read ahead");
            sleep(Duration::from_millis(1));
        }
        sleep(Duration::from_millis(20));
        assert_eq!(reads.load(Ordering::Acquire), taken + 3, "more than three buffers");
        // The buffer in hand goes back when the next one is asked for.
        reader.read_exact(&mut vec![0; if taken == 0 { (256 << 10) + 1 } else { 256 << 10 }]).unwrap();
    }
}
