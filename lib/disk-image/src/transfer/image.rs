//! Opens an image: peeks at the front, takes one compression layer off, finds the disk of an OVA, reads the prologue. Writes nothing to the target;
//! the front of a stream that is read once goes to the spool when headers lie far from it.

use std::fmt;
use std::fs::File;
use std::io::{self, Cursor, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;

use super::ova;
use super::plan::{Way, way};
use super::spool::nameless;
use super::streamability;
use super::{Counted, Limits, Progress, Spool};
use crate::compress;
use crate::detect::{CONVERT_IMAGE, Compression, Detected, Format, HEAD, detect, foreign_by_end};
use crate::error::{Error, Kind};
use crate::format::{self, Layout, PROLOGUE_MAX, Prologue, Step};
use crate::overlay::Overlaid;
use crate::source::{Access, Facts, FileSource, Source, read_full, read_range};

/// The format to open.
pub struct Request {
    /// Where the bytes come from.
    pub source: Arc<dyn Source>,
    /// The format given by the user; else it is detected.
    pub format: Option<Format>,
    /// Bounds.
    pub limits: Limits,
    /// Counters; reading starts while opening.
    pub progress: Progress,
    /// Where the front of a stream that is read once may be kept when the image's headers lie far from its start.
    pub spool: Spool,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("format", &self.format).finish_non_exhaustive()
    }
}

/// An opened image.
pub struct Image {
    pub(super) source: Arc<dyn Source>,
    /// Size of the outermost source in bytes, if known.
    pub(super) wire_size: Option<u64>,
    pub(super) layout: Box<dyn Layout>,
    pub(super) way: Way,
    pub(super) limits: Limits,
    /// Where the headers end that had to be read to open it.
    pub(super) headers_end: u64,
    /// Possible meaning of a raw image's last sector before it is read.
    end: End,
    compression: Option<Compression>,
    file: Option<String>,
    foreign: Option<&'static str>,
    tar: bool,
    empty: bool,
}

/// Length of a fixed VHD's footer.
const FOOTER: u64 = 512;

/// Meaning of the last sector of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Part of the image.
    Known,
    /// Part of the disk, or the footer of a fixed VHD; it is seen when everything else was read.
    MayBeFooter,
    /// The footer of a fixed VHD, by the user's declaration.
    IsFooter,
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image")
            .field("layout", &self.layout)
            .field("way", &self.way)
            .field("compression", &self.compression)
            .finish_non_exhaustive()
    }
}

impl Image {
    /// The format, detected or given. What looks raw may turn out to be a fixed VHD where a stream ends
    /// ([`super::Report::format`]).
    pub fn format(&self) -> Format {
        match self.end {
            End::Known | End::MayBeFooter => self.layout.format(),
            End::IsFooter => Format::Vhd,
        }
    }

    /// The compression around it, or around the OVA that it comes from.
    pub fn compression(&self) -> Option<Compression> {
        self.compression
    }

    /// Name of the disk's file in the OVA that it comes from.
    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// Size of the virtual disk in bytes; `None` for a raw stream whose end is not known. Less than this only if the
    /// end, when it is met, turns out to be the footer of a fixed VHD.
    pub fn virtual_size(&self) -> Option<u64> {
        Some(self.layout.virtual_size()).filter(|&size| size != u64::MAX)
    }

    /// The smallest target with which an attempt makes sense: the virtual size, less the footer that its end may be.
    pub fn least_size(&self) -> Option<u64> {
        let footer = |end: &Range<u64>| may_end_in_footer(end.end);
        self.open_end().filter(footer).map(|end| end.start).or(self.virtual_size())
    }

    /// The end of a raw image of known size, when it has to be looked at before it is written: its last 512 bytes, and what
    /// is before them in their sector.
    pub(super) fn open_end(&self) -> Option<Range<u64>> {
        let size = self.virtual_size()?;
        (self.end != End::Known && size > FOOTER).then(|| (size - FOOTER) / FOOTER * FOOTER..size)
    }

    /// The end is met: `tail` is the last bytes of the image, a sector or all of them, and `size` its length. Gives the
    /// size of the disk if there is a footer.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] when an image declared as VHD has no footer; [`Kind::Refused`] when the end is a DMG's.
    pub(super) fn disk_before_footer(&self, tail: &[u8], size: u64) -> Result<Option<u64>, Error> {
        let end = tail.last_chunk().filter(|_| self.end != End::Known);
        if let Some(name) = end.filter(|_| self.end == End::MayBeFooter).and_then(foreign_by_end) {
            return Err(Error::refused(format!(
                "the content is {name}, not a disk image that can be read; {CONVERT_IMAGE}"
            )));
        }
        let footer = end.filter(|_| may_end_in_footer(size));
        let disk = footer.and_then(|footer| format::vhd::fixed_vhd(footer, size));
        if disk.is_none() && self.end == End::IsFooter {
            return Err(no_vhd());
        }
        Ok(disk)
    }

    /// How it will be read.
    pub fn way(&self) -> Way {
        self.way
    }

    /// Bytes that a stream of the image would give before the tables that locate them. Up to [`super::WINDOW`] it can be
    /// read as one stream from its start; above, that takes as much spare room. `None` when that cannot be determined
    /// without reading all of it, or its tables are too large to inspect. Reads the tables.
    ///
    /// # Errors
    /// When they cannot be read, or are damaged.
    pub fn late_bytes(&self) -> Result<Option<u64>, Error> {
        streamability::late(&*self.source, &*self.layout, self.headers_end)
    }

    /// There is not a single byte: a raw disk of no length, or an answer that did not come.
    pub fn is_empty(&self) -> bool {
        self.empty
    }

    /// Something known that is no disk image ("HTML", "zip", …), taken as raw.
    pub fn foreign(&self) -> Option<&'static str> {
        self.foreign
    }

    /// A warning about it, though it is read.
    pub fn note(&self) -> Option<&'static str> {
        self.layout.note()
    }

    /// A tar archive, taken as raw. The disk of an OVA is none.
    pub fn is_tar(&self) -> bool {
        self.tar
    }
}

/// Opens an image.
///
/// # Errors
/// [`Kind::Refused`], [`Kind::Corrupt`], [`Kind::Compression`], or [`Kind::Source`] when the front cannot be read.
pub fn open(request: Request) -> Result<Image, Error> {
    let Request { source, format, limits, progress, spool } = request;
    let Layers { mut compression, mut peeked, wire_size } = layers(source, &limits, &progress)?;
    let mut file = None;
    if format.is_none() && detect(&peeked.head) == Detected::Tar && ova::begins(&peeked.head) {
        let ova::Disk { name, source } = ova::disk(&peeked.source)?;
        file = Some(name);
        peeked = peek(source)?;
        // Two layers of compression would take two windows.
        if compression.is_none() {
            (compression, peeked) = unpacked(peeked, &limits)?;
        }
    }
    let Peeked { head, source, front } = peeked;
    let empty = head.is_empty();
    let (seen_format, mut foreign, tar) = match detect(&head) {
        Detected::Image(format) => (format, None, false),
        Detected::Tar => (Format::Raw, None, true),
        Detected::Foreign(name) => (Format::Raw, Some(name), false),
        Detected::Compressed(inner) if format.is_none() => {
            return Err(Error::refused(format!(
                "the image is compressed twice ({} inside); unpack it once before importing it",
                inner.name()
            )));
        }
        Detected::Compressed(_) => (Format::Raw, None, false),
    };
    // A fixed VHD looks raw from the front. An image declared raw is the disk to its last byte.
    let end_tells = match format {
        None => seen_format == Format::Raw,
        Some(Format::Vhd) => !head.starts_with(b"conectix"),
        Some(Format::Raw | Format::Qcow2 | Format::Vmdk | Format::Vhdx | Format::Vdi) => false,
    };
    let mut end = End::Known;
    let mut fixed = None;
    if end_tells {
        match last_sector(&*source)? {
            Some((bytes, size)) => {
                fixed = Some(size).filter(|size| may_end_in_footer(*size));
                fixed = fixed.and_then(|size| format::vhd::fixed_vhd(&bytes, size));
                foreign = foreign.or(foreign_by_end(&bytes));
            }
            None if format.is_some() && source.facts().size.is_some_and(|size| !may_end_in_footer(size)) => {
                return Err(no_vhd());
            }
            None if format.is_some() => end = End::IsFooter,
            None => end = End::MayBeFooter,
        }
    }
    let format = if end == End::IsFooter { Format::Raw } else { format.unwrap_or(seen_format) };
    let (layout, headers_end): (Box<dyn Layout>, _) = match fixed {
        Some(size) => (Box::new(format::raw::Raw { size, format: Format::Vhd }), 0),
        None => open_layout(format, &*source, head, front.as_deref(), &spool)?,
    };
    let source = match layout.overlay() {
        Some(overlay) => Arc::new(Overlaid::new(source, overlay.clone())?),
        None => source,
    };
    let facts = source.facts();
    let way = way(&facts.access, layout.format() == Format::Raw, facts.size.is_some());
    Ok(Image {
        source,
        wire_size,
        layout,
        way,
        limits,
        headers_end,
        end,
        compression,
        file,
        foreign,
        tar,
        empty,
    })
}

fn no_vhd() -> Error {
    Error::corrupt("not a VHD: its cookie is missing, at the front and at the end")
}

/// Whether an image of `size` bytes may be a disk with a footer behind it.
fn may_end_in_footer(size: u64) -> bool {
    size > FOOTER && size.is_multiple_of(FOOTER)
}

/// The content of one compression layer, for content that is no disk (an archive): the layer, if there is one, and a source
/// of its content. Counts the bytes read, as [`open`] does; `format` and `spool` have no meaning here.
///
/// # Errors
/// [`Kind::Compression`], or [`Kind::Source`] when the front cannot be read.
pub fn unwrap(request: Request) -> Result<(Option<Compression>, Arc<dyn Source>), Error> {
    let Request { source, format: _, limits, progress, spool: _ } = request;
    let Layers { compression, peeked, .. } = layers(source, &limits, &progress)?;
    Ok((compression, peeked.source))
}

/// A source with one compression layer taken off.
struct Layers {
    compression: Option<Compression>,
    peeked: Peeked,
    wire_size: Option<u64>,
}

fn layers(source: Arc<dyn Source>, limits: &Limits, progress: &Progress) -> Result<Layers, Error> {
    let counted: Arc<dyn Source> = Arc::new(Counted { inner: source, read: progress.reads() });
    let wire_size = counted.facts().size;
    let (compression, peeked) = unpacked(peek(counted)?, limits)?;
    Ok(Layers { compression, peeked, wire_size })
}

/// Takes one compression layer off, if there is one.
fn unpacked(peeked: Peeked, limits: &Limits) -> Result<(Option<Compression>, Peeked), Error> {
    match detect(&peeked.head) {
        Detected::Compressed(compression) => {
            let inner = compress::open(compression, peeked.source, limits.windows)?;
            Ok((Some(compression), peek(inner)?))
        }
        Detected::Image(_) | Detected::Tar | Detected::Foreign(_) => Ok((None, peeked)),
    }
}

/// Supplies what the decoder asks for until it is open. Gives where that ended as well.
fn open_layout(
    format: Format,
    source: &dyn Source,
    head: Vec<u8>,
    front: Option<&Replayed>,
    spool: &Spool,
) -> Result<(Box<dyn Layout>, u64), Error> {
    let facts = source.facts();
    let ranges = facts.access == Access::Ranges;
    // A stream's end is out of reach while it is opened: formats that keep a directory there are walked instead.
    let size = facts.size.filter(|_| ranges || format == Format::Raw);
    let mut prologue = Prologue::new(size);
    let mut headers_end = head.len() as u64;
    prologue.supply(0, head);
    // A decoder that asks again for what it was given has hit the image's end.
    let mut last = 0..0;
    loop {
        let need = match format::open(format, &prologue)? {
            Step::Ready(layout) => return Ok((layout, headers_end)),
            Step::Need(range) => range,
        };
        let len = need.end.saturating_sub(need.start);
        if need == last || len == 0 || prologue.held().saturating_add(len) > PROLOGUE_MAX {
            return Err(Error::corrupt(format!(
                "the {} image ends, or claims to have headers, at byte {}",
                format.name(),
                need.start
            )));
        }
        let end = facts.size.map_or(need.end, |size| need.end.min(size));
        let bytes = if ranges {
            read_up_to(source, need.start..end)?
        } else if need.end > PROLOGUE_MAX {
            match front.filter(|_| facts.access == Access::Once) {
                Some(front) => front.far(need.start..end, spool, format)?,
                None => read_far(source, need.start, len)?,
            }
        } else {
            // A stream: everything from its start, so that the peeked reader can be replayed.
            let mut bytes = read_up_to(source, 0..end)?;
            let from = usize::try_from(need.start).unwrap_or(usize::MAX).min(bytes.len());
            bytes.drain(..from);
            bytes
        };
        prologue.supply(need.start, bytes);
        headers_end = headers_end.max(need.end);
        last = need;
    }
}

/// The last sector of a source with a reachable end, and the source's size.
fn last_sector(source: &dyn Source) -> Result<Option<([u8; 512], u64)>, Error> {
    let Facts { size: Some(size), access: Access::Ranges } = source.facts() else {
        return Ok(None);
    };
    if size < FOOTER {
        return Ok(Some(([0; 512], size)));
    }
    let bytes = read_range(source, size - FOOTER, 512)
        .map_err(|e| Error::from_source("cannot read the image's end", e))?;
    Ok(bytes.first_chunk().map(|sector| (*sector, size)))
}

/// Reads `range`, less at the end of the source. `range` is bounded by [`PROLOGUE_MAX`].
fn read_up_to(source: &dyn Source, range: Range<u64>) -> Result<Vec<u8>, Error> {
    let failed = |e| Error::from_source("cannot read the image's headers", e);
    let len = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(0);
    let mut bytes = vec![0; len];
    let mut reader = source.open(range).map_err(failed)?;
    let got = read_full(&mut *reader, &mut bytes).map_err(failed)?;
    bytes.truncate(got);
    Ok(bytes)
}

/// Reads `len` bytes at `at`, less at the end, of a source that is read from its start, and can be again.
fn read_far(source: &dyn Source, at: u64, len: u64) -> Result<Vec<u8>, Error> {
    let failed = |e| Error::from_source("cannot read the image's headers", e);
    let mut reader = source.open(0..u64::MAX).map_err(failed)?;
    io::copy(&mut (&mut reader).take(at), &mut io::sink()).map_err(failed)?;
    let mut bytes = Vec::new();
    reader.take(len).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// A source that replays its first [`HEAD`] bytes after they were read.
struct Peeked {
    head: Vec<u8>,
    source: Arc<dyn Source>,
    /// The same source, when it is a stream.
    front: Option<Arc<Replayed>>,
}

fn peek(source: Arc<dyn Source>) -> Result<Peeked, Error> {
    let (source, front): (Arc<dyn Source>, _) = match source.facts().access {
        Access::Ranges | Access::Blocks(_) => (source, None),
        Access::Again | Access::Once => {
            let front = Arc::new(Replayed { inner: source, state: Mutex::default() });
            (front.clone(), Some(front))
        }
    };
    let head = read_up_to(&*source, 0..HEAD as u64)?;
    Ok(Peeked { head, source, front })
}

/// A stream whose front can be read several times: readers that end within [`PROLOGUE_MAX`] are served from a copy of
/// the front; the first reader that goes on takes the open stream over.
struct Replayed {
    inner: Arc<dyn Source>,
    state: Mutex<Front>,
}

#[derive(Default)]
struct Front {
    bytes: Vec<u8>,
    /// A longer front than `bytes`, when headers lie far from it.
    spooled: Option<Spooled>,
    reader: Option<Box<dyn Read + Send>>,
    taken: bool,
}

/// The first `len` bytes of a stream.
struct Spooled {
    file: File,
    len: u64,
    room: u64,
}

impl Replayed {
    /// Makes sure that the first `end` bytes are in the copy, as far as the stream has them.
    fn fill(&self, front: &mut Front, end: usize) -> io::Result<()> {
        if front.bytes.len() >= end {
            return Ok(());
        }
        let mut reader = match front.reader.take() {
            Some(reader) => reader,
            None if front.bytes.is_empty() => self.inner.open(0..u64::MAX)?,
            None => return Ok(()),
        };
        let had = front.bytes.len();
        front.bytes.resize(end, 0);
        let got = read_full(&mut *reader, &mut front.bytes[had..])?;
        front.bytes.truncate(had + got);
        front.reader = Some(reader);
        Ok(())
    }

    /// Reads `range`, less at the stream's end, which lies far from its start; all before it is spooled.
    fn far(&self, range: Range<u64>, spool: &Spool, format: Format) -> Result<Vec<u8>, Error> {
        let mut front = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = |e| Error::target("cannot spool the image's front", e);
        let mut spooled = match front.spooled.take() {
            Some(spooled) => spooled,
            None => {
                let (folder, room) = spool
                    .folders
                    .iter()
                    .find(|(_, room)| range.end <= *room)
                    .ok_or_else(|| far(&range, format))?;
                let file = nameless(folder).map_err(failed)?;
                file.write_all_at(&front.bytes, 0).map_err(failed)?;
                tracing::info!(folder = %folder.display(), room, "the image's headers are far from its start: spooling");
                Spooled { file, len: front.bytes.len() as u64, room: *room }
            }
        };
        if range.end > spooled.room {
            return Err(far(&range, format));
        }
        let reader =
            front.reader.as_mut().ok_or_else(|| Error::new(Kind::Source, "the stream was read already"))?;
        let mut buffer = vec![0; 256 << 10];
        while spooled.len < range.end {
            let want = buffer.len().min(usize::try_from(range.end - spooled.len).unwrap_or(usize::MAX));
            let got = read_full(&mut **reader, &mut buffer[..want])
                .map_err(|e| Error::from_source("cannot read the image's headers", e))?;
            spooled.file.write_all_at(&buffer[..got], spooled.len).map_err(failed)?;
            spooled.len += got as u64;
            if got < want {
                break;
            }
        }
        let end = range.end.min(spooled.len);
        let mut bytes = vec![0; usize::try_from(end.saturating_sub(range.start)).unwrap_or(0)];
        spooled.file.read_exact_at(&mut bytes, range.start).map_err(failed)?;
        front.spooled = Some(spooled);
        Ok(bytes)
    }
}

fn far(range: &Range<u64>, format: Format) -> Error {
    Error::new(
        Kind::NotStreamable,
        format!("the {} image keeps headers at byte {}, far from its start", format.name(), range.start),
    )
}

impl Source for Replayed {
    fn facts(&self) -> Facts {
        self.inner.facts()
    }

    fn open(&self, range: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        let mut front = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if range.start == 0 && range.end <= PROLOGUE_MAX && !front.taken {
            let end = usize::try_from(range.end).unwrap_or(0);
            self.fill(&mut front, end)?;
            let have = end.min(front.bytes.len());
            return Ok(Box::new(Cursor::new(front.bytes[..have].to_vec())));
        }
        if range.start == 0
            && !front.taken
            && let Some(reader) = front.reader.take()
        {
            front.taken = true;
            let bytes = std::mem::take(&mut front.bytes);
            if let Some(Spooled { file, len, .. }) = front.spooled.take() {
                return Ok(Box::new(FileSource::new(file)?.open(0..len)?.chain(reader)));
            }
            return Ok(Box::new(Cursor::new(bytes).chain(reader)));
        }
        front.taken = true;
        self.inner.open(range)
    }
}

impl Source for Counted {
    fn facts(&self) -> Facts {
        self.inner.facts()
    }

    fn open(&self, range: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(CountedReader { inner: self.inner.open(range)?, read: self.read.clone() }))
    }

    fn connections(&self) -> usize {
        self.inner.connections()
    }

    fn part_size(&self) -> u64 {
        self.inner.part_size()
    }

    fn data_ranges(&self, within: Range<u64>) -> io::Result<Option<Vec<Range<u64>>>> {
        self.inner.data_ranges(within)
    }
}

struct CountedReader {
    inner: Box<dyn Read + Send>,
    read: Arc<std::sync::atomic::AtomicU64>,
}

impl Read for CountedReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.read.fetch_add(n as u64, std::sync::atomic::Ordering::Relaxed);
        Ok(n)
    }
}
