//! Early bytes of a stream that nobody has claimed yet: a small window in memory, and, for a stream that is read once,
//! a sparse file in spare room when the window is full. Not a scratch copy of the image: tables and data that were
//! recognised as they passed are never here.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use super::Spool;
use crate::error::{Error, Kind};
use crate::extent::RangeSet;
use crate::source::{Access, Facts, Source};

/// Bytes kept in memory.
const WINDOW: usize = 4 << 20;

/// The unclaimed bytes so far.
pub(super) struct Unclaimed {
    window: BTreeMap<u64, Vec<u8>>,
    held: usize,
    /// Some bytes were let go: what refers to them must be read again.
    lost: bool,
    folders: Vec<(PathBuf, u64)>,
    file: Option<SpoolFile>,
}

/// A nameless sparse file that holds bytes at their own offsets.
#[derive(Clone)]
pub(super) struct SpoolFile {
    file: Arc<File>,
    held: RangeSet,
    room: u64,
}

impl Unclaimed {
    /// `spool` is used only for a stream that cannot be read again.
    pub(super) fn new(spool: &Spool, once: bool) -> Self {
        let folders = if once { spool.folders.clone() } else { Vec::new() };
        Self { window: BTreeMap::new(), held: 0, lost: false, folders, file: None }
    }

    /// Keeps `bytes` of host offset `at`.
    pub(super) fn keep(&mut self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        if self.file.is_some() {
            return self.put(at, bytes);
        }
        if self.held + bytes.len() <= WINDOW {
            self.held += bytes.len();
            self.window.insert(at, bytes.to_vec());
            return Ok(());
        }
        let window = std::mem::take(&mut self.window);
        self.held = 0;
        self.file = self.next_file()?;
        if self.file.is_none() {
            self.lost = true;
            return Ok(());
        }
        for (at, bytes) in window {
            self.put(at, &bytes)?;
        }
        self.put(at, bytes)
    }

    /// Puts bytes into the file; when its folder has no more room, it moves to the next folder that does.
    fn put(&mut self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        while let Some(mut file) = self.file.take() {
            if file.takes(bytes.len()) {
                file.put(at, bytes)?;
                self.file = Some(file);
                break;
            }
            let Some(mut next) = self.next_file()? else {
                return Err(Error::new(
                    Kind::NotStreamable,
                    format!(
                        "the image's tables come after its data, and {} bytes of spare room do not hold that data",
                        file.room
                    ),
                ));
            };
            if next.room > file.room {
                file.copy_to(&mut next)?;
                self.file = Some(next);
            } else {
                self.file = Some(file);
            }
        }
        Ok(())
    }

    /// Reads `range` when all of it is kept.
    pub(super) fn read(&self, range: &Range<u64>) -> Result<Option<Vec<u8>>, Error> {
        let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        if let Some(file) = &self.file {
            if !file.held.contains(range) {
                return Ok(None);
            }
            let mut out = vec![0; len];
            file.file
                .read_exact_at(&mut out, range.start)
                .map_err(|e| Error::target("cannot read the spool", e))?;
            return Ok(Some(out));
        }
        if len > WINDOW {
            return Ok(None);
        }
        let mut out = Vec::with_capacity(len);
        let mut at = range.start;
        while at < range.end {
            let Some((&start, bytes)) = self.window.range(..=at).next_back() else {
                return Ok(None);
            };
            let from = usize::try_from(at - start).unwrap_or(usize::MAX);
            let Some(part) = bytes.get(from..).filter(|part| !part.is_empty()) else {
                return Ok(None);
            };
            let take = part.len().min(len - out.len());
            out.extend_from_slice(&part[..take]);
            at += take as u64;
        }
        Ok(Some(out))
    }

    /// Lets everything go: every table is known, so what is not claimed by now never will be.
    pub(super) fn clear(&mut self) {
        self.window.clear();
        self.held = 0;
    }

    /// Whether bytes were let go.
    pub(super) fn lost(&self) -> bool {
        self.lost
    }

    /// All that is kept, as a source of ranges.
    pub(super) fn into_source(mut self, size: u64) -> Result<Option<SpoolSource>, Error> {
        if self.file.is_none() && !self.lost {
            let window = std::mem::take(&mut self.window);
            return Ok(Some(SpoolSource { kept: Kept::Memory(Arc::new(window)), size }));
        }
        Ok(self.file.take().map(|file| SpoolSource { kept: Kept::File(file), size }))
    }

    /// A nameless file in the next folder that takes one.
    fn next_file(&mut self) -> Result<Option<SpoolFile>, Error> {
        let mut last = None;
        while !self.folders.is_empty() {
            let (folder, room) = self.folders.remove(0);
            match tempfile_in(&folder) {
                Ok(file) => {
                    tracing::info!(folder = %folder.display(), room, "the image's tables come after its data: spooling");
                    return Ok(Some(SpoolFile { file: Arc::new(file), held: RangeSet::new(), room }));
                }
                Err(e) => last = Some(Error::target(format!("cannot spool in {}", folder.display()), e)),
            }
        }
        last.map_or(Ok(None), Err)
    }
}

impl SpoolFile {
    /// Whether there is room for `len` more bytes.
    fn takes(&self, len: usize) -> bool {
        self.held.bytes().saturating_add(len as u64) <= self.room
    }

    fn put(&mut self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all_at(bytes, at).map_err(|e| Error::target("cannot write the spool", e))?;
        self.held.insert(at..at + bytes.len() as u64);
        Ok(())
    }

    fn copy_to(&self, other: &mut Self) -> Result<(), Error> {
        let mut buffer = vec![0; 64 << 10];
        for range in self.held.iter() {
            let mut at = range.start;
            while at < range.end {
                let len = buffer.len().min(usize::try_from(range.end - at).unwrap_or(usize::MAX));
                self.file
                    .read_exact_at(&mut buffer[..len], at)
                    .map_err(|e| Error::target("cannot read the spool", e))?;
                other.put(at, &buffer[..len])?;
                at += len as u64;
            }
        }
        Ok(())
    }
}

/// A file without a name: gone with the process, however that ends.
fn tempfile_in(folder: &std::path::Path) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR)?.into())
}

/// The kept bytes, at their own offsets.
pub(super) struct SpoolSource {
    kept: Kept,
    size: u64,
}

#[derive(Clone)]
enum Kept {
    Memory(Arc<BTreeMap<u64, Vec<u8>>>),
    File(SpoolFile),
}

impl Source for SpoolSource {
    fn facts(&self) -> Facts {
        Facts { size: Some(self.size), access: Access::Ranges }
    }

    fn open(&self, range: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(SpoolReader { kept: self.kept.clone(), at: range.start, end: range.end }))
    }
}

impl SpoolSource {
    /// Whether all of `range` was kept.
    pub(super) fn holds(&self, range: &Range<u64>) -> bool {
        match &self.kept {
            Kept::Memory(window) => {
                let mut held = RangeSet::new();
                for (&at, bytes) in window.range(..range.end) {
                    held.insert(at..at + bytes.len() as u64);
                }
                held.contains(range)
            }
            Kept::File(file) => file.held.contains(range),
        }
    }
}

/// Reads kept bytes; what was not kept reads as zero, so that readers may cross gaps. Ask [`SpoolSource::holds`] first.
struct SpoolReader {
    kept: Kept,
    at: u64,
    end: u64,
}

impl Read for SpoolReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let want = buf.len().min(usize::try_from(self.end.saturating_sub(self.at)).unwrap_or(usize::MAX));
        let buf = &mut buf[..want];
        match &self.kept {
            Kept::Memory(window) => {
                buf.fill(0);
                let end = self.at + want as u64;
                for (&start, bytes) in window.range(..end) {
                    let both = start.max(self.at)..end.min(start + bytes.len() as u64);
                    if both.start < both.end {
                        let index = |at: u64, base: u64| usize::try_from(at - base).unwrap_or(usize::MAX);
                        buf[index(both.start, self.at)..index(both.end, self.at)]
                            .copy_from_slice(&bytes[index(both.start, start)..index(both.end, start)]);
                    }
                }
            }
            Kept::File(file) => {
                let mut done = 0;
                while done < want {
                    match file.file.read_at(&mut buf[done..], self.at + done as u64)? {
                        // Beyond the last byte that was kept.
                        0 => {
                            buf[done..].fill(0);
                            break;
                        }
                        n => done += n,
                    }
                }
            }
        }
        self.at += want as u64;
        Ok(want)
    }
}
