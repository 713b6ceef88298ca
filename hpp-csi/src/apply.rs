//! Does what was planned: one file per thing that changes. Every call may come again after it was cut short anywhere; it
//! then finds what is there and goes on.

pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod expand;
pub(crate) mod image;
pub(crate) mod publish;
pub(crate) mod snapshot;
pub(crate) mod stage;

use crate::error::Result;
use crate::folder::Folder;
use crate::id::Id;
use crate::pool::{Open, record_name, trash};
use crate::record::{self, Record, Shape};

/// What a volume is called while it is made.
fn volume_in_tmp(id: &Id) -> String {
    format!("v.{id}")
}

/// Writes a volume's record, over an older one; when this returns it is on the disk.
fn write_volume_record(open: &Open<'_>, id: &Id, record: &Record) -> Result<()> {
    write_record(open, &open.volume_records()?, id, &record::write(record)?)
}

/// Writes a record into `records`, over an older one; when this returns it is on the disk.
fn write_record(open: &Open<'_>, records: &Folder, id: &Id, bytes: &[u8]) -> Result<()> {
    let tmp = open.tmp()?;
    let name = format!("r.{id}");
    tmp.write(&name, bytes)?;
    tmp.replace(&name, records, record_name(id))?;
    records.sync()
}

/// Removes what an earlier try left under `name` in the folder of what is being made.
fn clear(open: &Open<'_>, tmp: &Folder, name: &str) -> Result<()> {
    if tmp.stat(name)?.is_some() {
        trash::discard(open, tmp, name)?;
    }
    Ok(())
}

/// The folder in which volumes of this shape are, and the same for its `fsync`.
fn home<'a>(open: &'a Open<'_>, blocks: &'a Folder, shape: Shape) -> &'a Folder {
    match shape {
        Shape::Folder | Shape::Loop => &open.root,
        Shape::Block => blocks,
    }
}
