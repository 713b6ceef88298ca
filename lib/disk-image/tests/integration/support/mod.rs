//! Shared by the format tests: a reader of images held in memory that checks every promise a `Layout` makes while it reads,
//! a deterministic mutator, and the outside tools. Not here: anything the product uses.

#![allow(unreachable_pub, reason = "the module is private to each test binary")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "images in tests fit in memory"
)]

use std::borrow::Cow;
use std::ops::Range;

use disk_image::format::unpack::Unpacker;
use disk_image::format::{self, Layout, Leaf, PACKED_MAX, PROLOGUE_MAX, Prologue, Step, Table, TableExtents};
use disk_image::{Content, Error, Extent, Format, Kind};

pub mod images;
pub mod mutate;
pub mod qcow2;
pub mod sys;
pub mod tools;

/// Largest disk [`read_image`] builds in memory, in bytes.
pub const DISK_MAX: u64 = 1 << 30;

/// Full counts of the acceptance table (`FERROVIRT_SOAK=1`) instead of the small ones; same code, same seeds.
pub fn count(small: u64, soak: u64) -> u64 {
    if std::env::var("FERROVIRT_SOAK").is_ok_and(|v| v == "1") { soak } else { small }
}

/// How an image is driven.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether the decoder gets the image's size.
    pub size_known: bool,
    /// Entries of a table handed over at once.
    pub slice: u64,
    /// Stop quietly after this many bytes of tables.
    pub table_budget: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { size_known: true, slice: 1021, table_budget: u64::MAX }
    }
}

/// Opens an image held in memory, answering what the decoder asks for.
pub fn open(bytes: &[u8], format: Format, size_known: bool) -> Result<Box<dyn Layout>, Error> {
    let mut prologue = Prologue::new(size_known.then_some(bytes.len() as u64));
    for _ in 0..64 {
        match format::open(format, &prologue)? {
            Step::Ready(layout) => return Ok(layout),
            Step::Need(range) => {
                assert!(range.start < range.end, "asked for an empty range {range:?}");
                assert!(range.end - range.start <= PROLOGUE_MAX, "asked for {range:?}");
                prologue.supply(range.start, part(bytes, &range).to_vec());
                assert!(prologue.held() <= PROLOGUE_MAX, "{} bytes of prologue", prologue.held());
            }
        }
    }
    panic!("still asking after 64 pieces");
}

/// Opens an image held in memory and gives every extent to `sink`, in guest order, checking that they tile the disk; gives
/// the image back.
pub fn drive(
    bytes: &[u8],
    format: Format,
    options: &Options,
    sink: &mut dyn FnMut(&dyn Layout, &Extent) -> Result<(), Error>,
) -> Result<Box<dyn Layout>, Error> {
    drive_opened(bytes, open(bytes, format, options.size_known)?, options, sink)
}

/// The same of an image that is open.
fn drive_opened(
    bytes: &[u8],
    layout: Box<dyn Layout>,
    options: &Options,
    sink: &mut dyn FnMut(&dyn Layout, &Extent) -> Result<(), Error>,
) -> Result<Box<dyn Layout>, Error> {
    assert!(layout.unit().is_power_of_two(), "unit {}", layout.unit());
    assert!(layout.packed_max() <= PACKED_MAX, "packed_max {}", layout.packed_max());
    let mut state = State { bytes, layout: &*layout, options, sink, at: 0, table_bytes: 0 };
    if state.all()? {
        assert_eq!(state.at, layout.virtual_size(), "the extents do not cover the disk");
    }
    Ok(layout)
}

struct State<'a> {
    bytes: &'a [u8],
    layout: &'a dyn Layout,
    options: &'a Options,
    sink: &'a mut dyn FnMut(&dyn Layout, &Extent) -> Result<(), Error>,
    at: u64,
    table_bytes: u64,
}

impl<'a> State<'a> {
    fn all(&mut self) -> Result<bool, Error> {
        let root = self.layout.root();
        if root.entries == 0 {
            let size = self.layout.virtual_size();
            if size > 0 {
                let content = Content::Plain { host: root.host };
                self.extent(&Extent { guest: 0, len: size, content })?;
            }
            return Ok(true);
        }
        assert!(self.layout.root_guest(root.entries) >= self.layout.virtual_size());
        let mut first = 0;
        while first < root.entries {
            let last = root.entries.min(first + self.options.slice);
            let Some(slice) = self.table(&root, first..last)? else {
                return Ok(false);
            };
            let mut found = TableExtents::default();
            self.layout.read_root(first, slice, &mut found)?;
            if !self.root_slice(&found)? {
                return Ok(false);
            }
            first = last;
        }
        Ok(true)
    }

    /// Extents and leaves of a piece of the root table, merged by guest offset.
    fn root_slice(&mut self, found: &TableExtents) -> Result<bool, Error> {
        let mut leaves = found.leaves.iter().peekable();
        for extent in &found.extents {
            while let Some(leaf) = leaves.next_if(|l| self.layout.root_guest(l.index) < extent.guest) {
                if !self.leaf(leaf)? {
                    return Ok(false);
                }
            }
            self.extent(extent)?;
        }
        for leaf in leaves {
            if !self.leaf(leaf)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn leaf(&mut self, leaf: &Leaf) -> Result<bool, Error> {
        let mut first = 0;
        while first < leaf.table.entries {
            let last = leaf.table.entries.min(first + self.options.slice);
            let Some(slice) = self.table(&leaf.table, first..last)? else {
                return Ok(false);
            };
            let mut found = TableExtents::default();
            self.layout.read_leaf(leaf, first, slice, &mut found)?;
            assert!(found.leaves.is_empty(), "a leaf led to leaves");
            for extent in &found.extents {
                self.extent(extent)?;
            }
            first = last;
        }
        Ok(true)
    }

    /// The bytes of some entries; `None` when the budget is spent.
    fn table(&mut self, table: &Table, entries: Range<u64>) -> Result<Option<&'a [u8]>, Error> {
        let range = table.bytes_of(entries);
        self.table_bytes += range.end - range.start;
        if self.table_bytes > self.options.table_budget {
            return Ok(None);
        }
        let slice = part(self.bytes, &range);
        if (slice.len() as u64) < range.end - range.start {
            assert!(!self.options.size_known, "table at {range:?} past the end of {}", self.bytes.len());
            return Err(Error::new(Kind::Source, format!("the image ends before its table at {range:?}")));
        }
        Ok(Some(slice))
    }

    fn extent(&mut self, extent: &Extent) -> Result<(), Error> {
        let (unit, size) = (self.layout.unit(), self.layout.virtual_size());
        assert!(extent.len > 0, "empty extent");
        assert_eq!(extent.guest, self.at, "extents leave a gap or overlap");
        self.at = extent.guest.checked_add(extent.len).expect("guest range overflows");
        assert!(self.at <= size, "{extent:?} past the disk's end {size}");
        match extent.content {
            Content::Zero => {}
            Content::Plain { host } => {
                let end = host.checked_add(extent.len).expect("host range overflows");
                if end > self.bytes.len() as u64 {
                    assert!(!self.options.size_known, "{extent:?} past the end of {}", self.bytes.len());
                }
            }
            Content::Packed { host, len, .. } => {
                let end = host.checked_add(u64::from(len)).expect("host range overflows");
                assert!(len > 0 && len <= self.layout.packed_max(), "{extent:?}");
                assert!(extent.guest.is_multiple_of(unit) && extent.len <= unit, "{extent:?}");
                assert!(extent.len == unit || self.at == size, "{extent:?}");
                if end > self.bytes.len() as u64 {
                    assert!(!self.options.size_known, "{extent:?} past the end of {}", self.bytes.len());
                }
            }
        }
        (self.sink)(self.layout, extent)
    }
}

/// The bytes of `range` that exist.
pub fn part<'a>(bytes: &'a [u8], range: &Range<u64>) -> &'a [u8] {
    let len = bytes.len() as u64;
    &bytes[range.start.min(len) as usize..range.end.min(len) as usize]
}

/// Fetches extents one at a time; holds one unit at most.
pub struct Fetch {
    unpacker: Unpacker,
    unit: Vec<u8>,
}

impl Fetch {
    /// Nothing held yet.
    pub fn new() -> Self {
        Self { unpacker: Unpacker::new().unwrap(), unit: Vec::new() }
    }

    /// The bytes of an extent; `None` for zeroes.
    pub fn get<'a>(
        &'a mut self,
        bytes: &'a [u8],
        layout: &dyn Layout,
        extent: &Extent,
    ) -> Result<Option<&'a [u8]>, Error> {
        let Some(range) = extent.host_range() else {
            return Ok(None);
        };
        let stored = part(bytes, &range);
        match extent.content {
            Content::Zero => Ok(None),
            Content::Plain { .. } if stored.len() as u64 == extent.len => Ok(Some(stored)),
            Content::Plain { .. } => {
                Err(Error::new(Kind::Source, format!("the image ends before its data at {range:?}")))
            }
            Content::Packed { codec, .. } => {
                self.unit.resize(layout.unit() as usize, 0);
                self.unpacker.unpack(codec, extent.guest, stored, &mut self.unit)?;
                Ok(Some(&self.unit[..extent.len as usize]))
            }
        }
    }
}

/// Reads a whole image held in memory, with [`Options::default`].
pub fn read_image(bytes: &[u8], format: Format) -> Result<Vec<u8>, Error> {
    read_image_with(bytes, format, &Options::default())
}

/// The image with the changes of its own log.
pub fn changed(bytes: &[u8], format: Format, size_known: bool) -> Result<Cow<'_, [u8]>, Error> {
    let layout = open(bytes, format, size_known)?;
    let Some(overlay) = layout.overlay() else { return Ok(Cow::Borrowed(bytes)) };
    let mut bytes = bytes.to_vec();
    bytes.resize(overlay.size(bytes.len() as u64)? as usize, 0);
    overlay.apply(0, &mut bytes);
    Ok(Cow::Owned(bytes))
}

/// Reads a whole image held in memory.
pub fn read_image_with(bytes: &[u8], format: Format, options: &Options) -> Result<Vec<u8>, Error> {
    let bytes = &*changed(bytes, format, options.size_known)?;
    let size = open(bytes, format, options.size_known)?.virtual_size();
    assert!(size <= DISK_MAX, "a disk of {size} bytes is too large for a test");
    let mut disk = vec![0; size as usize];
    let mut fetch = Fetch::new();
    drive(bytes, format, options, &mut |layout, extent| {
        if let Some(data) = fetch.get(bytes, layout, extent)? {
            disk[extent.guest as usize..][..extent.len as usize].copy_from_slice(data);
        }
        Ok(())
    })?;
    Ok(disk)
}

/// Where two disks first differ, for a message that helps.
pub fn first_difference(ours: &[u8], theirs: &[u8]) -> Option<String> {
    if ours.len() != theirs.len() {
        return Some(format!("{} bytes, not {}", ours.len(), theirs.len()));
    }
    let at = ours.iter().zip(theirs).position(|(a, b)| a != b)?;
    Some(format!("byte {at} is {:#x}, not {:#x}", ours[at], theirs[at]))
}

/// Result of a run of mutants.
#[derive(Debug, Default)]
pub struct Survey {
    /// Mutants tried.
    pub mutants: u64,
    /// Refused by `open`.
    pub refused: u64,
    /// Opened, then found damaged in a table or in packed data.
    pub damaged: u64,
    /// Read to the end (or to the budgets) without complaint.
    pub read: u64,
    /// Largest number of bytes allocated at once while one mutant was read.
    pub peak: u64,
    /// Longest time one mutant took.
    pub slowest: std::time::Duration,
    /// Time all of them took, and making them.
    pub took: std::time::Duration,
}

/// Reads `count` mutants of `bases` (an image and the ranges worth damaging: header, tables), one after the other in
/// this thread, and checks: no panic, at most `peak_max` bytes allocated at once, no mutant slower than 10 s, at least
/// one in ten past `open`. The test binary's global allocator must be [`sys::Counting`].
pub fn survey(format: Format, bases: &[(Vec<u8>, Vec<Range<usize>>)], count: u64, peak_max: u64) -> Survey {
    survey_repaired(format, bases, count, peak_max, |_, _| ())
}

/// The same; `repair` (given the mutant and its seed) may put checksums right again, inside the places, so that the
/// damage gets past them.
pub fn survey_repaired(
    format: Format,
    bases: &[(Vec<u8>, Vec<Range<usize>>)],
    count: u64,
    peak_max: u64,
    repair: impl Fn(&mut Vec<u8>, u64),
) -> Survey {
    const TABLES: u64 = 4 << 20;
    const DATA: u64 = 8 << 20;
    let mut survey = Survey::default();
    let all = std::time::Instant::now();
    // Copied once, and after each mutant only where damage may be: large images make no difference.
    let mut images: Vec<Vec<u8>> = bases.iter().map(|(base, _)| base.clone()).collect();
    for seed in 0..count {
        let (base, places) = &bases[seed as usize % bases.len()];
        let image = &mut images[seed as usize % bases.len()];
        let what = mutate::mutate(image, places, seed);
        repair(image, seed);
        let image = &*image;
        let started = std::time::Instant::now();
        sys::reset_peak();
        let outcome = std::panic::catch_unwind(|| {
            let mut fetch = Fetch::new();
            let mut data = 0;
            let options = Options { size_known: seed % 4 != 0, slice: 1 + seed % 2000, table_budget: TABLES };
            let Ok(layout) = open(image, format, options.size_known) else {
                return (false, false);
            };
            let done = drive_opened(image, layout, &options, &mut |layout, extent| {
                if data < DATA {
                    data += fetch.get(image, layout, extent)?.map_or(0, |d| d.len() as u64);
                }
                Ok(())
            });
            (true, done.is_ok())
        });
        let peak = sys::peak();
        let took = started.elapsed();
        let Ok((opened, read)) = outcome else { panic!("mutant {seed} panics: {what}") };
        assert!(peak <= peak_max, "mutant {seed} allocates {peak} bytes: {what}");
        assert!(took.as_secs() < 10, "mutant {seed} takes {took:?}: {what}");
        survey.mutants += 1;
        survey.refused += u64::from(!opened);
        survey.damaged += u64::from(opened && !read);
        survey.read += u64::from(read);
        survey.peak = survey.peak.max(peak);
        survey.slowest = survey.slowest.max(took);
        let image = &mut images[seed as usize % bases.len()];
        image.extend_from_slice(&base[image.len()..]);
        for place in places {
            let around = place.start.saturating_sub(8)..(place.end + 64).min(base.len());
            if !around.is_empty() {
                image[around.clone()].copy_from_slice(&base[around]);
            }
        }
    }
    survey.took = all.elapsed();
    let past = survey.damaged + survey.read;
    assert!(past * 10 >= survey.mutants, "too few get past the header: {survey:?}");
    survey
}
