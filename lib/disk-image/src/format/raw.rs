//! Raw: the image is the disk, ISO images included. Not here: VHD fixed, which is raw with a footer (see `vhd`).

use super::{Layout, Prologue, Step, Table, TableExtents};
use crate::detect::Format;
use crate::error::Error;

/// A disk stored as it is, from host offset 0.
#[derive(Debug)]
pub(crate) struct Raw {
    pub(crate) size: u64,
    pub(crate) format: Format,
}

/// Always ready. A stream of unknown size has virtual size `u64::MAX`: its reader takes the end as the size.
pub(super) fn open(prologue: &Prologue) -> Result<Step<Box<dyn Layout>>, Error> {
    Ok(Step::Ready(Box::new(Raw { size: prologue.size.unwrap_or(u64::MAX), format: Format::Raw })))
}

impl Layout for Raw {
    fn format(&self) -> Format {
        self.format
    }

    fn virtual_size(&self) -> u64 {
        self.size
    }

    fn unit(&self) -> u64 {
        512
    }

    fn root(&self) -> Table {
        Table { host: 0, entries: 0, entry_len: 8 }
    }

    fn root_guest(&self, _index: u64) -> u64 {
        self.size
    }

    fn read_root(&self, _first: u64, _bytes: &[u8], _found: &mut TableExtents) -> Result<(), Error> {
        Ok(())
    }
}
