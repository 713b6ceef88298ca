//! Whether a volume is well: what is wrong, or what one should know.

use crate::amount::display;
use crate::config::Enforce;
use crate::error::Result;
use crate::pool::{Open, Volume};
use crate::record::Shape;

/// A volume's condition in CSI's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) abnormal: bool,
    pub(crate) message: String,
}

/// Inspects a volume and reports all defects, not only the first.
pub(crate) fn of(open: &Open<'_>, volume: &Volume) -> Result<Condition> {
    inspect(open, volume, true)
}

/// The same without looking at devices: for lists of many volumes.
pub(crate) fn quick(open: &Open<'_>, volume: &Volume) -> Result<Condition> {
    inspect(open, volume, false)
}

fn inspect(open: &Open<'_>, volume: &Volume, devices: bool) -> Result<Condition> {
    let mut wrong = Vec::new();
    let mut notes = Vec::new();
    let pool = &open.pool.config.name;
    if open.read_only() {
        wrong.push(format!("pool {pool} is read-only"));
    }
    let (size, free) = open.size_and_free();
    if free < open.pool.config.reserve.of(size) {
        wrong.push(format!("pool {pool} is nearly full: {} of {} are free", display(free), display(size)));
    }
    if let Some(file) = open.image(volume)? {
        let length = file.metadata().map_or(0, |metadata| metadata.len());
        if let Some(record) = volume.record.as_ref().filter(|record| length < record.capacity) {
            wrong.push(format!("the volume's file has {length} of {} bytes", record.capacity));
        }
        let attached = if devices { open.pool.devices.all(&file)? } else { Vec::new() };
        for found in attached.iter().filter(|found| !found.direct) {
            notes.push(format!("{} goes through the page cache", found.path().display()));
        }
    } else if volume.shape != Shape::Folder {
        wrong.push("the volume's file is missing".to_owned());
    }
    if volume.shape == Shape::Folder {
        match open.enforce() {
            Some(Enforce::Quota) if volume.record.as_ref().is_some_and(|record| record.project.is_some()) => {
            }
            None => wrong.push(format!(
                "pool {pool}: the filesystem does not enforce project quota: mount it with prjquota, or set \"enforce\": \
                 \"loop\""
            )),
            Some(_) => notes.push("its capacity is not enforced".to_owned()),
        }
    }
    if volume.record.is_none() {
        notes.push("adopted: it was not created by this driver".to_owned());
    }
    let abnormal = !wrong.is_empty();
    let message = if abnormal {
        wrong.join("; ")
    } else {
        notes.insert(0, "healthy".to_owned());
        notes.join("; ")
    };
    Ok(Condition { abnormal, message })
}
