//! The record of a volume or snapshot: one small JSON file next to the data, never inside it. Unknown fields are rejected: a
//! newer driver's record is not interpreted.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Kind, Result};
use crate::id::Id;
use crate::request::Source;

/// Version of the records this code writes.
const VERSION: u32 = 1;
/// Longest record in bytes.
pub(crate) const RECORD_MAX: u64 = 16 << 10;
/// Longest record of a group.
pub(crate) const GROUP_RECORD_MAX: u64 = 256 << 10;

/// How the content of a volume or snapshot is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Shape {
    /// A folder that is mounted as it is.
    Folder,
    /// A file with a filesystem in it, mounted through a loop device.
    Loop,
    /// A file that becomes a block device.
    Block,
}

impl Shape {
    /// As it is written in a record.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Folder => "folder",
            Self::Loop => "loop",
            Self::Block => "block",
        }
    }
}

/// The source that a volume was created from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RecordSource {
    Volume(String),
    Snapshot(String),
}

impl RecordSource {
    pub(crate) fn of(source: &Source) -> Self {
        match source {
            Source::Volume(id) => Self::Volume(id.to_string()),
            Source::Snapshot(id) => Self::Snapshot(id.to_string()),
        }
    }
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Record {
    pub(crate) version: u32,
    pub(crate) shape: Shape,
    /// Bytes that were promised.
    pub(crate) capacity: u64,
    /// Seconds since 1970.
    pub(crate) created: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) source: Option<RecordSource>,
    /// Project of the quota that holds the capacity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) project: Option<u32>,
    /// Made for a pod; gone with it.
    #[serde(default)]
    pub(crate) inline: bool,
    /// Bytes of a block device's sector.
    #[serde(default = "smallest_sector")]
    pub(crate) sector: u32,
    /// Whether all its blocks are allocated and its own.
    #[serde(default, skip_serializing_if = "is_not")]
    pub(crate) thick: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_not(flag: &bool) -> bool {
    !flag
}

fn smallest_sector() -> u32 {
    512
}

impl Record {
    /// A plain volume, made at `created` (seconds since 1970).
    pub(crate) fn new(shape: Shape, capacity: u64, created: u64) -> Self {
        Self {
            version: VERSION,
            shape,
            capacity,
            created,
            source: None,
            project: None,
            inline: false,
            sector: smallest_sector(),
            thick: false,
        }
    }
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct SnapshotRecord {
    pub(crate) version: u32,
    pub(crate) shape: Shape,
    /// The volume it was taken of.
    pub(crate) source: String,
    /// Bytes a volume must have to hold it.
    pub(crate) capacity: u64,
    /// Bytes allocated when it was taken.
    pub(crate) used: u64,
    /// Nanoseconds since 1970.
    pub(crate) created: u64,
    /// The group it was taken in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<String>,
    /// Bytes of a block device's sector.
    #[serde(default = "smallest_sector")]
    pub(crate) sector: u32,
}

impl SnapshotRecord {
    /// A snapshot of `source`, taken now.
    pub(crate) fn new(source: &Id, shape: Shape, capacity: u64, used: u64) -> Self {
        Self {
            version: VERSION,
            shape,
            source: source.to_string(),
            capacity,
            used,
            created: u64::try_from(now().as_nanos()).unwrap_or(u64::MAX),
            group: None,
            sector: smallest_sector(),
        }
    }
}

/// Snapshots of several volumes, of one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct GroupRecord {
    version: u32,
    pub(crate) members: Vec<Member>,
    /// Nanoseconds since 1970.
    pub(crate) created: u64,
}

/// One snapshot of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Member {
    pub(crate) snapshot: String,
    /// The volume it is of.
    pub(crate) source: String,
}

impl GroupRecord {
    /// A group of `members`, taken now.
    pub(crate) fn new(members: Vec<Member>) -> Self {
        let created = u64::try_from(now().as_nanos()).unwrap_or(u64::MAX);
        Self { version: VERSION, members, created }
    }
}

/// Time since 1970.
pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A record as the bytes of its file.
pub(crate) fn write<T: Serialize>(record: &T) -> Result<Vec<u8>> {
    serde_json::to_vec(record)
        .map_err(|error| Error::new(Kind::Internal, format!("a record cannot be written: {error}")))
}

/// A volume's record from its file.
///
/// # Errors
/// When it is damaged or of a newer driver.
pub(crate) fn read_volume(bytes: &[u8]) -> Result<Record> {
    let record: Record = parse(bytes)?;
    known(record.version).map(|()| record)
}

/// A snapshot's record from its file.
///
/// # Errors
/// When it is damaged or of a newer driver.
pub(crate) fn read_snapshot(bytes: &[u8]) -> Result<SnapshotRecord> {
    let record: SnapshotRecord = parse(bytes)?;
    known(record.version).map(|()| record)
}

/// A group's record from its file.
///
/// # Errors
/// When it is damaged or of a newer driver.
pub(crate) fn read_group(bytes: &[u8]) -> Result<GroupRecord> {
    let record: GroupRecord = parse(bytes)?;
    known(record.version).map(|()| record)
}

fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T> {
    serde_json::from_slice(bytes)
        .map_err(|error| Error::new(Kind::Internal, format!("the record is damaged: {error}")))
}

fn known(version: u32) -> Result<()> {
    if version == VERSION {
        return Ok(());
    }
    Err(Error::new(Kind::Internal, format!("the record has version {version}, this driver knows {VERSION}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_as_they_were() {
        let mut record = Record::new(Shape::Block, 1 << 40, 5);
        record.source = Some(RecordSource::Snapshot("s".into()));
        record.project = Some(7);
        record.sector = 4096;
        record.thick = true;
        assert_eq!(read_volume(&write(&record).unwrap()).unwrap(), record);
        let mut snapshot = SnapshotRecord::new(&Id::read("v").unwrap(), Shape::Folder, 5, 4);
        snapshot.group = Some("g".into());
        assert_eq!(read_snapshot(&write(&snapshot).unwrap()).unwrap(), snapshot);
        let group = GroupRecord::new(vec![Member { snapshot: "s".into(), source: "v".into() }]);
        assert_eq!(read_group(&write(&group).unwrap()).unwrap(), group);
    }

    #[test]
    fn damaged_and_newer_records_are_rejected() {
        for bad in [&b""[..], b"{", b"null", br#"{"version":1,"shape":"folder","capacity":-1,"created":0}"#] {
            assert!(read_volume(bad).is_err());
        }
        let newer = write(&Record { version: 2, ..Record::new(Shape::Folder, 1, 0) }).unwrap();
        assert!(read_volume(&newer).unwrap_err().to_string().contains("version 2"));
    }
}
