//! A source in memory that is read in a chosen way, with short reads as a network gives them.

use std::io::{self, Cursor, Read};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use disk_image::{Access, Facts, Source, Stop};

/// Bytes in memory, read in a chosen way.
pub(crate) struct Memory {
    bytes: Arc<Vec<u8>>,
    access: Access,
    pub(crate) sized: bool,
    opened: AtomicBool,
    /// Set to stop after that many bytes were given.
    pub(crate) stop_after: Option<(Stop, u64)>,
    pub(crate) given: Arc<AtomicU64>,
}

impl Memory {
    pub(crate) fn new(bytes: Vec<u8>, access: Access) -> Self {
        let (opened, given) = (AtomicBool::new(false), Arc::default());
        Self { bytes: Arc::new(bytes), access, sized: true, opened, stop_after: None, given }
    }
}

impl Source for Memory {
    fn facts(&self) -> Facts {
        Facts { size: self.sized.then_some(self.bytes.len() as u64), access: self.access.clone() }
    }

    fn open(&self, range: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        if self.access == Access::Once && self.opened.swap(true, Ordering::SeqCst) {
            return Err(io::Error::other("read twice"));
        }
        assert!(self.access == Access::Ranges || range.start == 0, "a stream is read from its start");
        let len = self.bytes.len() as u64;
        let (start, end) = (range.start.min(len) as usize, range.end.min(len) as usize);
        let bytes = self.bytes[start..end].to_vec();
        Ok(Box::new(MemoryReader {
            inner: Cursor::new(bytes),
            stop: self.stop_after.clone(),
            given: self.given.clone(),
        }))
    }

    fn connections(&self) -> usize {
        4
    }

    fn part_size(&self) -> u64 {
        1 << 20
    }
}

struct MemoryReader {
    inner: Cursor<Vec<u8>>,
    stop: Option<(Stop, u64)>,
    given: Arc<AtomicU64>,
}

impl Read for MemoryReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        // Short reads, as a network gives them.
        let want = buf.len().min(100_000);
        let n = self.inner.read(&mut buf[..want])?;
        let given = self.given.fetch_add(n as u64, Ordering::SeqCst) + n as u64;
        if let Some((stop, after)) = &self.stop
            && given >= *after
            && !stop.is_set()
        {
            stop.set();
            // Long enough to be noticed before the rest is given.
            std::thread::sleep(std::time::Duration::from_millis(300));
        }
        Ok(n)
    }
}
