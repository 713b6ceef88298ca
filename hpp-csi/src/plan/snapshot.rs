//! Decisions about snapshots and groups of them: whether one that is there is what a request means.
//!
//! Not here: how the content gets into one, which is as for volumes ([`super::volume::how`]).

use std::borrow::Borrow;

use crate::error::{Error, Kind, Result};
use crate::id::Id;
use crate::record::{GroupRecord, SnapshotRecord};

/// Checks that the snapshot `id` that is there is of the volume `source`.
///
/// # Errors
/// [`Kind::Exists`] when it is of another volume.
pub(crate) fn is_of(id: &Id, record: &SnapshotRecord, source: &Id) -> Result<()> {
    if record.source == source.as_str() {
        return Ok(());
    }
    Err(Error::new(Kind::Exists, format!("snapshot {id} exists already, of volume {}", record.source)))
}

/// Checks that the snapshot `id` may be deleted alone.
///
/// # Errors
/// [`Kind::Invalid`] when it is one of a group.
pub(crate) fn deletable(id: &Id, record: &SnapshotRecord) -> Result<()> {
    record.group.as_ref().map_or(Ok(()), |group| {
        Err(Error::new(Kind::Invalid, format!("snapshot {id} is part of the group snapshot {group}")))
    })
}

/// Checks that the group `id` that is there is of the volumes `sources`.
///
/// # Errors
/// [`Kind::Exists`] when it is of other volumes.
pub(crate) fn group_is_of(id: &Id, record: &GroupRecord, sources: &[Id]) -> Result<()> {
    let of: Vec<&str> = record.members.iter().map(|member| member.source.as_str()).collect();
    if are_the_same(&of, sources) {
        return Ok(());
    }
    Err(Error::new(Kind::Exists, format!("group snapshot {id} exists already, of {}", of.join(", "))))
}

/// Checks that the group `id` consists of `snapshots`.
///
/// # Errors
/// [`Kind::Invalid`] when it consists of others.
pub(crate) fn consists_of(id: &Id, record: &GroupRecord, snapshots: &[String]) -> Result<()> {
    let of: Vec<&str> = record.members.iter().map(|member| member.snapshot.as_str()).collect();
    if are_the_same(&of, snapshots) {
        return Ok(());
    }
    Err(Error::new(Kind::Invalid, format!("group snapshot {id} consists of {}", of.join(", "))))
}

/// Whether both lists have the same names, in any order.
fn are_the_same(some: &[&str], others: &[impl Borrow<str>]) -> bool {
    let mut some = some.to_vec();
    let mut others: Vec<&str> = others.iter().map(Borrow::borrow).collect();
    some.sort_unstable();
    others.sort_unstable();
    some == others
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Member, Shape};

    fn id(text: &str) -> Id {
        Id::read(text).unwrap()
    }

    #[test]
    fn a_snapshot_is_of_its_volume_and_group() {
        let record = SnapshotRecord::new(&id("v"), Shape::Folder, 5, 4);
        is_of(&id("s"), &record, &id("v")).unwrap();
        assert_eq!(is_of(&id("s"), &record, &id("w")).unwrap_err().kind(), Kind::Exists);
        deletable(&id("s"), &record).unwrap();
        let member = SnapshotRecord { group: Some("g".into()), ..record };
        assert_eq!(deletable(&id("s"), &member).unwrap_err().kind(), Kind::Invalid);
    }

    #[test]
    fn a_group_is_of_its_volumes_and_snapshots() {
        let member =
            |snapshot: &str, source: &str| Member { snapshot: snapshot.into(), source: source.into() };
        let record = GroupRecord::new(vec![member("s", "v"), member("t", "w")]);
        let sources = [id("w"), id("v")];
        group_is_of(&id("g"), &record, &sources).unwrap();
        assert_eq!(group_is_of(&id("g"), &record, &sources[..1]).unwrap_err().kind(), Kind::Exists);
        consists_of(&id("g"), &record, &["t".into(), "s".into()]).unwrap();
        assert_eq!(consists_of(&id("g"), &record, &["s".into()]).unwrap_err().kind(), Kind::Invalid);
    }

    #[test]
    fn lists_are_compared_without_their_order() {
        assert!(are_the_same(&["a", "b"], &["b", "a"]));
        assert!(!are_the_same(&["a", "b"], &["a"]));
        assert!(!are_the_same(&["a", "a"], &["a", "b"]));
        assert!(!are_the_same(&["a"], &[] as &[&str]));
    }
}
