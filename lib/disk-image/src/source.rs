//! Where an image's bytes come from, and how they may be read.
//!
//! Programs implement [`Source`] for the network; [`FileSource`] is the local one. A source retries by itself: an
//! error that comes out of a reader is final for this run.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// How a source may be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// From any offset, several readers at once.
    Ranges,
    /// From the starts of these ranges (ascending, disjoint, covering the whole), several readers at once:
    /// the blocks of an .xz file. Elsewhere only by decoding from the start of the block.
    Blocks(Arc<[Range<u64>]>),
    /// From the start, again and again; one reader at a time.
    Again,
    /// From the start, once: a pipe, an upload.
    Once,
}

/// Properties of a source that are known before reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Bytes it will yield, if known.
    pub size: Option<u64>,
    /// How it may be read.
    pub access: Access,
}

/// Bytes to import from.
pub trait Source: Send + Sync {
    /// Properties known before reading.
    fn facts(&self) -> Facts;

    /// A forward reader from `range.start` to `range.end` (`u64::MAX` means to the end).
    ///
    /// A reader that reaches the end of the source before `range.end` gives `Ok(0)` there; the caller decides whether
    /// that is an error. With [`Access::Again`] and [`Access::Once`] only `range.start == 0` is cheap or possible.
    ///
    /// # Errors
    /// When the source cannot be opened there, after the source's own retries.
    fn open(&self, range: Range<u64>) -> io::Result<Box<dyn Read + Send>>;

    /// Largest useful number of readers at once.
    fn connections(&self) -> usize {
        1
    }

    /// How long a range one reader should take before it is opened again elsewhere, in bytes.
    fn part_size(&self) -> u64 {
        8 << 20
    }

    /// The ranges of `within` that may hold data, ascending; everything between them is known to read as zero. `None` when
    /// the source cannot report it. May be asked for a piece at a time.
    ///
    /// # Errors
    /// When asking the source fails.
    fn data_ranges(&self, within: Range<u64>) -> io::Result<Option<Vec<Range<u64>>>> {
        let _ = within;
        Ok(None)
    }
}

/// Fills `buf` from `reader`, stopping early only at the end; gives the bytes read.
///
/// # Errors
/// Any error of the reader except `Interrupted`.
pub fn read_full(reader: &mut dyn Read, buf: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match reader.read(&mut buf[done..]) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// Reads exactly `len` bytes at `at`; the caller has bounded `len`.
///
/// # Errors
/// `UnexpectedEof` when the source is shorter, else the reader's error.
pub fn read_range(source: &dyn Source, at: u64, len: usize) -> io::Result<Vec<u8>> {
    let end = at.checked_add(len as u64).ok_or(io::ErrorKind::InvalidInput)?;
    let mut buf = vec![0; len];
    let mut reader = source.open(at..end)?;
    let got = read_full(&mut *reader, &mut buf)?;
    if got < len {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("the source ends at byte {} of {len} wanted at offset {at}", got),
        ));
    }
    Ok(buf)
}

/// A stream that is read once, from its start: a pipe, an upload.
pub struct Once {
    what: &'static str,
    size: Option<u64>,
    reader: Mutex<Option<Box<dyn Read + Send>>>,
}

impl Once {
    /// A source of what `reader` gives, `size` bytes if that is known. `what` names it in errors.
    pub fn new(what: &'static str, size: Option<u64>, reader: Box<dyn Read + Send>) -> Self {
        Self { what, size, reader: Mutex::new(Some(reader)) }
    }
}

impl Source for Once {
    fn facts(&self) -> Facts {
        Facts { size: self.size, access: Access::Once }
    }

    fn open(&self, range: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        let refused =
            |how| io::Error::new(io::ErrorKind::Unsupported, format!("{} is read {how}", self.what));
        if range.start != 0 {
            return Err(refused("from its start only"));
        }
        let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(Box::new(reader.ok_or_else(|| refused("once only"))?.take(range.end)))
    }
}

/// A local file or block device.
#[derive(Debug)]
pub struct FileSource {
    file: Arc<File>,
    size: u64,
}

impl FileSource {
    /// Opens `path` for reading. Only regular files and block devices are taken.
    ///
    /// # Errors
    /// When it cannot be opened or is of another kind.
    pub fn open_path(path: &Path) -> io::Result<Self> {
        Self::new(File::open(path)?)
    }

    /// Takes an open file.
    ///
    /// # Errors
    /// When it is neither a regular file nor a block device.
    pub fn new(file: File) -> io::Result<Self> {
        let meta = file.metadata()?;
        let size = if meta.file_type().is_block_device() {
            rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))?
        } else if meta.is_file() {
            meta.len()
        } else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "neither a regular file nor a block device",
            ));
        };
        Ok(Self { file: Arc::new(file), size })
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl Source for FileSource {
    fn facts(&self) -> Facts {
        Facts { size: Some(self.size), access: Access::Ranges }
    }

    fn open(&self, range: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(FileReader { file: self.file.clone(), at: range.start, end: range.end.min(self.size) }))
    }

    fn connections(&self) -> usize {
        2
    }

    fn data_ranges(&self, within: Range<u64>) -> io::Result<Option<Vec<Range<u64>>>> {
        use rustix::fs::{SeekFrom, seek};
        let mut ranges = Vec::new();
        let end = within.end.min(self.size);
        let mut at = within.start;
        while at < end {
            let data = match seek(&*self.file, SeekFrom::Data(at)) {
                Ok(data) => data,
                Err(rustix::io::Errno::NXIO) => break,
                Err(rustix::io::Errno::INVAL) => return Ok(None),
                Err(e) => return Err(e.into()),
            };
            if data >= end {
                break;
            }
            let hole = seek(&*self.file, SeekFrom::Hole(data))?;
            ranges.push(data..hole.min(end));
            at = hole;
        }
        Ok(Some(ranges))
    }
}

struct FileReader {
    file: Arc<File>,
    at: u64,
    end: u64,
}

impl Read for FileReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.end.saturating_sub(self.at);
        let want = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if want == 0 {
            return Ok(0);
        }
        let n = self.file.read_at(&mut buf[..want], self.at)?;
        self.at += n as u64;
        Ok(n)
    }
}
