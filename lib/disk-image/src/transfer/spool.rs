//! Early bytes of a stream that no table has claimed yet: a small window in memory, and, for a stream that is read once, a
//! sparse file in spare room when the window is full. Not a scratch copy of the image: tables and data that were recognised
//! as they passed are never here.
//!
//! ```text
//!  |  cluster E, claimed   | X |  F, claimed |  P, unclaimed  |      qcow2's packed clusters follow each other byte by
//!  |---sector---|---sector---|---sector---|---sector---|              byte; their lengths are known in sectors only
//!               └── seam ──┘                                         X may be there, between E's end and F's start
//! ```
//!
//! So the last sector of a claimed packed cluster is a *seam*: it is kept as well, with what follows when that is
//! unclaimed, else for a while, as a cluster that is smaller than a sector may begin and end in it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Spool;
use crate::error::{Error, Kind};
use crate::extent::RangeSet;
use crate::source::{Access, Facts, Source};

/// Bytes of a stream that are kept in memory before it is known what they are.
pub const WINDOW: usize = 4 << 20;
/// Bytes of seams kept in memory.
const SEAMS: usize = 1 << 20;
/// Overhead of a piece in memory in addition to its bytes.
const PIECE: usize = 64;
/// Separate ranges a file may hold; each takes memory.
const RANGES_MAX: usize = 256 << 10;

/// The unclaimed bytes so far.
pub(super) struct Unclaimed {
    kept: Kept,
    lost: Lost,
    folders: Vec<(PathBuf, u64)>,
}

/// Whether bytes were let go: what refers to them must be read again, or cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lost {
    No,
    /// There was no room but memory.
    NoRoom,
    /// There was this room, in bytes, and it was too little.
    TooLittle(u64),
}

impl Unclaimed {
    /// `spool` is used only for a stream that cannot be read again.
    pub(super) fn new(spool: &Spool, once: bool) -> Self {
        let folders = if once { spool.folders.clone() } else { Vec::new() };
        Self { kept: Kept::default(), lost: Lost::No, folders }
    }

    /// Keeps `bytes` of host offset `at`. Offsets ascend from call to call.
    pub(super) fn keep(&mut self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        // Unclaimed data may begin in the seam before it.
        if let Some((start, seam)) = self.kept.seams.take_before(at) {
            self.store(start, &seam)?;
        }
        self.store(at, bytes)
    }

    /// Keeps the seam `bytes` at `at` as long as there is room: claimed bytes on both sides of it.
    pub(super) fn keep_seam(&mut self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        match &mut self.kept.file {
            Some(file) if file.takes(bytes.len()) => file.put(at, bytes),
            Some(_) | None => {
                self.kept.seams.put(at, bytes, SEAMS);
                Ok(())
            }
        }
    }

    fn store(&mut self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        if self.kept.file.is_none() {
            if self.kept.window.takes(bytes.len(), WINDOW) {
                self.kept.window.put(at, bytes, WINDOW);
                return Ok(());
            }
            if let Some(mut file) = self.next_file((self.kept.window.held + self.kept.seams.held) as u64)? {
                for window in [std::mem::take(&mut self.kept.window), std::mem::take(&mut self.kept.seams)] {
                    for (at, bytes) in window.pieces {
                        file.put(at, &bytes)?;
                    }
                }
                self.kept.file = Some(file);
            } else if self.lost == Lost::No {
                self.lost = Lost::NoRoom;
            }
        }
        if !self.put(at, bytes)? {
            self.kept.window.put(at, bytes, WINDOW);
        }
        Ok(())
    }

    /// Puts bytes into the file; when its folder has no more room, it moves to the next folder that does.
    fn put(&mut self, at: u64, bytes: &[u8]) -> Result<bool, Error> {
        while let Some(mut file) = self.kept.file.take() {
            if file.takes(bytes.len()) {
                file.put(at, bytes)?;
                self.kept.file = Some(file);
                return Ok(true);
            }
            if let Some(mut next) = self.next_file(file.room)? {
                file.copy_to(&mut next)?;
                self.kept.file = Some(next);
            } else {
                self.lost = Lost::TooLittle(file.room);
                self.kept.file = Some(file);
                return Ok(false);
            }
        }
        Ok(false)
    }

    /// No byte before this is kept.
    pub(super) fn kept_from(&self) -> u64 {
        let in_file =
            self.kept.file.as_ref().and_then(|file| file.held.iter().next()).map(|range| range.start);
        let first = |window: &Window| window.pieces.keys().next().copied();
        let all = [in_file, first(&self.kept.window), first(&self.kept.seams)];
        all.into_iter().flatten().min().unwrap_or(u64::MAX)
    }

    /// How far from `range.start` on everything is kept, `range.end` at most.
    pub(super) fn kept_until(&self, range: &Range<u64>) -> u64 {
        self.kept.until(range)
    }

    /// Reads `range`, which is kept.
    pub(super) fn read(&self, range: &Range<u64>, out: &mut [u8]) -> Result<(), Error> {
        self.kept.read_at(range.start, out).map_err(|e| Error::target("cannot read the spool", e))
    }

    /// Lets everything in memory go: every table is known, so what is not claimed by now never will be.
    pub(super) fn clear(&mut self) {
        self.kept.window = Window::default();
        self.kept.seams = Window::default();
    }

    /// Why the rest cannot be read. The caller names the remedy.
    pub(super) fn gone(&self) -> Error {
        let room = match self.lost {
            Lost::No | Lost::NoRoom => "the source can be read only once".to_owned(),
            Lost::TooLittle(room) => format!("{room} bytes of spare room do not hold that data"),
        };
        Error::new(Kind::NotStreamable, format!("the image's tables come after its data, and {room}"))
    }

    /// All that is kept, as a source of ranges.
    pub(super) fn into_source(self, size: u64) -> SpoolSource {
        SpoolSource { kept: Arc::new(self.kept), size }
    }

    /// A nameless file in the next folder that takes one and has more than `least` bytes of room.
    fn next_file(&mut self, least: u64) -> Result<Option<SpoolFile>, Error> {
        let (mut last, mut most) = (None, None);
        while !self.folders.is_empty() {
            let (folder, room) = self.folders.remove(0);
            if room <= least {
                most = most.max(Some(room));
                continue;
            }
            match nameless(&folder) {
                Ok(file) => {
                    tracing::info!(folder = %folder.display(), room, "the image's tables come after its data: spooling");
                    return Ok(Some(SpoolFile { file, held: RangeSet::new(), room }));
                }
                Err(e) => last = Some(Error::target(format!("cannot spool in {}", folder.display()), e)),
            }
        }
        if let Some(room) = most {
            self.lost = Lost::TooLittle(room);
        }
        last.map_or(Ok(None), Err)
    }
}

/// A file without a name: gone with the process, however that ends.
pub(super) fn nameless(folder: &Path) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR)?.into())
}

/// Bytes at their own offsets, wherever they are kept.
#[derive(Default)]
struct Kept {
    window: Window,
    seams: Window,
    file: Option<SpoolFile>,
}

impl Kept {
    fn until(&self, range: &Range<u64>) -> u64 {
        let mut at = range.start;
        while at < range.end {
            let in_file = self.file.as_ref().and_then(|file| file.held.end_of(at));
            let next = [in_file, self.window.end_of(at), self.seams.end_of(at)].into_iter().flatten().max();
            match next {
                Some(next) => at = next.min(range.end),
                None => break,
            }
        }
        at
    }

    /// Fills `out` from offset `at` on; what was not kept becomes zero.
    fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        if let Some(file) = &self.file {
            while done < out.len() {
                match file.file.read_at(&mut out[done..], at + done as u64)? {
                    // Beyond the last byte that was kept.
                    0 => break,
                    n => done += n,
                }
            }
        }
        out[done..].fill(0);
        self.window.copy(at, out);
        self.seams.copy(at, out);
        Ok(())
    }
}

/// Pieces in memory, by offset.
#[derive(Default)]
struct Window {
    pieces: BTreeMap<u64, Vec<u8>>,
    /// Their total size in bytes.
    held: usize,
}

impl Window {
    fn takes(&self, len: usize, max: usize) -> bool {
        self.held.saturating_add(len + PIECE) <= max
    }

    /// Adds a piece; what came first goes when there would be more than `max` bytes.
    fn put(&mut self, at: u64, bytes: &[u8], max: usize) {
        let skip = bytes.len().saturating_sub(max.saturating_sub(PIECE));
        let (at, bytes) = (at + skip as u64, &bytes[skip..]);
        while !self.takes(bytes.len(), max)
            && let Some((_, old)) = self.pieces.pop_first()
        {
            self.held -= old.len() + PIECE;
        }
        self.held += bytes.len() + PIECE;
        if let Some(old) = self.pieces.insert(at, bytes.to_vec()) {
            self.held -= old.len() + PIECE;
        }
    }

    /// Takes the last piece out if it ends at `at`.
    fn take_before(&mut self, at: u64) -> Option<(u64, Vec<u8>)> {
        let last = self.pieces.last_entry().filter(|last| last.key() + last.get().len() as u64 == at)?;
        let (start, bytes) = last.remove_entry();
        self.held -= bytes.len() + PIECE;
        Some((start, bytes))
    }

    /// The end of the piece that holds `at`.
    fn end_of(&self, at: u64) -> Option<u64> {
        let (&start, bytes) = self.pieces.range(..=at).next_back()?;
        Some(start + bytes.len() as u64).filter(|&end| end > at)
    }

    /// Puts what it has of the bytes from `at` on into `out`.
    fn copy(&self, at: u64, out: &mut [u8]) {
        let end = at + out.len() as u64;
        let first = self.pieces.range(..=at).next_back().map_or(at, |(&start, _)| start);
        for (&start, bytes) in self.pieces.range(first..end) {
            let both = start.max(at)..end.min(start + bytes.len() as u64);
            if both.start < both.end {
                let index = |offset: u64, base: u64| usize::try_from(offset - base).unwrap_or(usize::MAX);
                out[index(both.start, at)..index(both.end, at)]
                    .copy_from_slice(&bytes[index(both.start, start)..index(both.end, start)]);
            }
        }
    }
}

/// A nameless sparse file that holds bytes at their own offsets.
struct SpoolFile {
    file: File,
    held: RangeSet,
    room: u64,
}

impl SpoolFile {
    /// Whether there is room for `len` more bytes.
    fn takes(&self, len: usize) -> bool {
        self.held.bytes().saturating_add(len as u64) <= self.room && self.held.len() < RANGES_MAX
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

/// The kept bytes, at their own offsets.
pub(super) struct SpoolSource {
    kept: Arc<Kept>,
    size: u64,
}

impl SpoolSource {
    /// How far from `range.start` on everything was kept, `range.end` at most.
    pub(super) fn kept_until(&self, range: &Range<u64>) -> u64 {
        self.kept.until(range)
    }
}

impl Source for SpoolSource {
    fn facts(&self) -> Facts {
        Facts { size: Some(self.size), access: Access::Ranges }
    }

    fn open(&self, range: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(SpoolReader { kept: self.kept.clone(), at: range.start, end: range.end }))
    }
}

/// Reads kept bytes; what was not kept reads as zero, so that readers may cross gaps. Ask
/// [`SpoolSource::kept_until`] first.
struct SpoolReader {
    kept: Arc<Kept>,
    at: u64,
    end: u64,
}

impl Read for SpoolReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let want = buf.len().min(usize::try_from(self.end.saturating_sub(self.at)).unwrap_or(usize::MAX));
        self.kept.read_at(self.at, &mut buf[..want])?;
        self.at += want as u64;
        Ok(want)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(unclaimed: &Unclaimed, range: Range<u64>) -> Option<Vec<u8>> {
        (unclaimed.kept_until(&range) == range.end).then(|| {
            let mut out = vec![0xee; usize::try_from(range.end - range.start).unwrap()];
            unclaimed.read(&range, &mut out).unwrap();
            out
        })
    }

    #[test]
    fn a_window_lets_the_oldest_go() {
        let mut kept = Unclaimed::new(&Spool::default(), true);
        for at in 0..6u64 {
            kept.keep(at << 20, &vec![u8::try_from(at).unwrap() + 1; 1 << 20]).unwrap();
        }
        assert_eq!(read(&kept, 0..10), None);
        assert_eq!(read(&kept, (5 << 20) - 1..(5 << 20) + 1), Some(vec![5, 6]));
        assert_eq!(kept.lost, Lost::NoRoom);
        // More than the window holds: its end.
        kept.keep(6 << 20, &vec![7; 5 << 20]).unwrap();
        assert_eq!(read(&kept, 6 << 20..(6 << 20) + 1), None);
        assert_eq!(read(&kept, (11 << 20) - 1..11 << 20), Some(vec![7]));
        assert!(kept.kept.window.held <= WINDOW);
    }

    #[test]
    fn seams_join_what_follows_them() {
        let mut kept = Unclaimed::new(&Spool::default(), true);
        kept.keep_seam(512, &[1; 512]).unwrap();
        kept.keep_seam(4096, &[2; 100]).unwrap();
        kept.keep(4196, &[3; 4]).unwrap();
        assert_eq!(read(&kept, 4195..4197), Some(vec![2, 3]));
        assert_eq!(read(&kept, 512..514), Some(vec![1, 1]));
        assert_eq!(read(&kept, 511..513), None);
        for at in 10..10_000u64 {
            kept.keep_seam(at * 1024, &[4; 300]).unwrap();
        }
        assert_eq!(read(&kept, 512..514), None, "the oldest seams go");
        assert!(kept.kept.seams.held <= SEAMS);
        assert_eq!(read(&kept, 4195..4200), Some(vec![2, 3, 3, 3, 3]), "what is unclaimed stays");
        assert_eq!(kept.lost, Lost::No, "a seam is nothing to be missed");
    }

    #[test]
    fn a_full_file_moves_on_and_too_little_space_is_reported() {
        let (small, large) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folders = vec![
            (small.path().to_owned(), 1 << 20),
            (small.path().to_owned(), 6 << 20),
            (large.path().to_owned(), 9 << 20),
        ];
        let mut kept = Unclaimed::new(&Spool { folders }, true);
        kept.keep_seam(3 << 20, &[9; 512]).unwrap();
        for at in 8..16u64 {
            kept.keep(at << 20, &vec![u8::try_from(at).unwrap(); 1 << 20]).unwrap();
        }
        assert_eq!(read(&kept, (9 << 20) - 1..(9 << 20) + 1), Some(vec![8, 9]));
        assert_eq!(read(&kept, 3 << 20..(3 << 20) + 1), Some(vec![9]));
        assert_eq!(kept.kept.file.as_ref().map(|file| file.room), Some(9 << 20));
        for at in 16..24u64 {
            kept.keep(at << 20, &vec![u8::try_from(at).unwrap(); 1 << 20]).unwrap();
        }
        // The file keeps what it has, the window what came last.
        assert_eq!(read(&kept, (9 << 20) - 1..(9 << 20) + 1), Some(vec![8, 9]));
        assert_eq!(read(&kept, (24 << 20) - 1..24 << 20), Some(vec![23]));
        assert_eq!(read(&kept, 18 << 20..(18 << 20) + 1), None);
        assert!(
            kept.gone().to_string().contains("9437184 bytes of spare room do not hold"),
            "{}",
            kept.gone()
        );
    }

    #[test]
    fn discarded_ranges_read_as_zero() {
        let mut kept = Unclaimed::new(&Spool::default(), true);
        kept.keep(10, &[1; 10]).unwrap();
        kept.keep_seam(30, &[2; 5]).unwrap();
        let source = kept.into_source(100);
        assert_eq!((source.kept_until(&(10..40)), source.kept_until(&(5..7))), (20, 5));
        let mut bytes = Vec::new();
        source.open(8..40).unwrap().read_to_end(&mut bytes).unwrap();
        let expected = [&[0; 2][..], &[1; 10], &[0; 10], &[2; 5], &[0; 5]].concat();
        assert_eq!(bytes, expected);
    }
}
