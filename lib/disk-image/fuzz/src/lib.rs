//! Reads an image held in memory to its end, as far as a fuzzer's patience goes. Not here: what the bytes should be.

#![forbid(unsafe_code)]

use disk_image::format::unpack::Unpacker;
use disk_image::format::{
    self, TableExtents, Layout, PACKED_MAX, PROLOGUE_MAX, Prologue, Scan, Scanned, Step, Table,
};
use disk_image::{Content, Error, Extent, Format, detect};

/// Bytes of tables and of data looked at per input.
const BYTES_MAX: u64 = 1 << 20;
/// Entries of a table handed over at once.
const SLICE: u64 = 509;

/// Opens `image` as `format` and reads its tables and data; the first byte decides whether its size is known.
///
/// # Panics
/// When a decoder breaks a promise of [`Layout`].
pub fn read(format: Format, image: &[u8]) {
    let Some((&mode, image)) = image.split_first() else {
        return;
    };
    detect(image);
    if let Ok(layout) = open(format, image, mode % 2 == 0) {
        let mut reading = Reading { image, layout: &*layout, left: BYTES_MAX, unit: Vec::new() };
        // An error is a good answer.
        let _ = match layout.scan() {
            Some(scan) => reading.walk(scan),
            None => reading.all(),
        };
    }
}

fn part(image: &[u8], start: u64, end: u64) -> &[u8] {
    let clip = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(image.len());
    &image[clip(start)..clip(end)]
}

fn open(format: Format, image: &[u8], size_known: bool) -> Result<Box<dyn Layout>, Error> {
    let mut prologue = Prologue::new(size_known.then_some(image.len() as u64));
    for _ in 0..64 {
        match format::open(format, &prologue)? {
            Step::Ready(layout) => return Ok(layout),
            Step::Need(range) => {
                assert!(range.start < range.end && range.end - range.start <= PROLOGUE_MAX);
                prologue.supply(range.start, part(image, range.start, range.end).to_vec());
            }
        }
    }
    panic!("still asking after 64 pieces");
}

struct Reading<'a> {
    image: &'a [u8],
    layout: &'a dyn Layout,
    left: u64,
    unit: Vec<u8>,
}

impl Reading<'_> {
    fn all(&mut self) -> Result<(), Error> {
        let root = self.layout.root();
        let mut leaves = Vec::new();
        self.table(&root, &mut |layout, first, bytes, found| {
            layout.read_root(first, bytes, found)?;
            leaves.append(&mut found.leaves);
            Ok(())
        })?;
        for leaf in leaves {
            self.table(&leaf.table, &mut |layout, first, bytes, found| {
                layout.read_leaf(&leaf, first, bytes, found)
            })?;
        }
        Ok(())
    }

    /// Reads forward what carries its own directory.
    fn walk(&mut self, mut scan: Box<dyn Scan>) -> Result<(), Error> {
        let (mut at, mut wanted) = (0, 1);
        while self.left > 0 {
            let end = self.image.len() as u64;
            let front = part(self.image, at, end);
            if front.len() < wanted {
                break;
            }
            self.left = self.left.saturating_sub(512);
            match scan.next(at, &front[..wanted])? {
                Scanned::Extent { extent, next } => {
                    assert!(next > at);
                    self.extent(&extent)?;
                    (at, wanted) = (next, 1);
                }
                Scanned::Skip(next) => {
                    assert!(next > at);
                    (at, wanted) = (next, 1);
                }
                Scanned::More(more) => {
                    assert!(more > wanted);
                    wanted = more;
                }
                Scanned::End => break,
            }
        }
        Ok(())
    }

    fn table(
        &mut self,
        table: &Table,
        read: &mut dyn FnMut(&dyn Layout, u64, &[u8], &mut TableExtents) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut first = 0;
        while first < table.entries && self.left > 0 {
            let last = table.entries.min(first + SLICE);
            let range = table.bytes_of(first..last);
            let bytes = part(self.image, range.start, range.end);
            if (bytes.len() as u64) < range.end - range.start {
                break;
            }
            self.left = self.left.saturating_sub(bytes.len() as u64);
            let mut found = TableExtents::default();
            read(self.layout, first, bytes, &mut found)?;
            for extent in &found.extents {
                self.extent(extent)?;
            }
            first = last;
        }
        Ok(())
    }

    fn extent(&mut self, extent: &Extent) -> Result<(), Error> {
        assert!(extent.len > 0);
        let end = extent.guest.checked_add(extent.len).expect("guest range overflows");
        assert!(end <= self.layout.virtual_size());
        if let Content::Plain { host } = extent.content {
            host.checked_add(extent.len).expect("host range overflows");
        }
        if let Content::Packed { host, len, codec } = extent.content {
            assert!(len <= self.layout.packed_max() && len <= PACKED_MAX && extent.len <= self.layout.unit());
            let bytes =
                part(self.image, host, host.checked_add(u64::from(len)).expect("host range overflows"));
            self.left = self.left.saturating_sub(self.layout.unit());
            if self.left > 0 {
                self.unit.resize(usize::try_from(self.layout.unit()).expect("64-bit"), 0);
                Unpacker::new()?.unpack(codec, extent.guest, bytes, &mut self.unit)?;
            }
        }
        Ok(())
    }
}
