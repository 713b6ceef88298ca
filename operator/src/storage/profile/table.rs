//! The known properties of provisioners: tables in text files, one line for each.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::{CloneStrategy, Property};

/// Entries of a table by provisioner or `provisioner/variant`.
type Table = BTreeMap<&'static str, &'static str>;

static CLAIMS: LazyLock<Table> = LazyLock::new(|| read(include_str!("claims.txt")));
static CLONES: LazyLock<Table> = LazyLock::new(|| read(include_str!("clones.txt")));
static CRONS: LazyLock<Table> = LazyLock::new(|| read(include_str!("crons.txt")));
static MINIMUM: LazyLock<Table> = LazyLock::new(|| read(include_str!("minimum.txt")));

fn read(text: &'static str) -> Table {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(": ")).collect()
}

/// Claim properties of a provisioner, the preferred one first; `None` when it is not known.
pub(super) fn properties(key: &str) -> Option<Vec<Property>> {
    Some(CLAIMS.get(key)?.split(' ').filter_map(property).collect())
}

/// Every provisioner and variant with claim properties.
#[cfg(test)]
pub(super) fn keys() -> impl Iterator<Item = &'static str> {
    CLAIMS.keys().copied()
}

fn property(word: &str) -> Option<Property> {
    let (mode, kind) = word.split_once('/')?;
    let access = match mode {
        "rwx" => "ReadWriteMany",
        "rwo" => "ReadWriteOnce",
        "rox" => "ReadOnlyMany",
        _ => return None,
    };
    Some(Property { modes: vec![access.to_owned()], block: kind == "block" })
}

/// Whether the table knows a provisioner by its variants.
pub(super) fn has_variants(provisioner: &str) -> bool {
    CLAIMS.keys().any(|key| key.strip_prefix(provisioner).is_some_and(|rest| rest.starts_with('/')))
}

/// How a provisioner's volumes are cloned; `None` when the table has no entry.
pub(super) fn clone_strategy(key: &str) -> Option<CloneStrategy> {
    match *CLONES.get(key)? {
        "CsiClone" => Some(CloneStrategy::CsiClone),
        "Snapshot" => Some(CloneStrategy::Snapshot),
        _ => Some(CloneStrategy::Copy),
    }
}

/// Whether DataImportCrons keep snapshots.
pub(super) fn keeps_snapshots(key: &str) -> bool {
    CRONS.get(key).is_some_and(|format| *format == "Snapshot")
}

/// The smallest claim of a provisioner, bytes.
pub(super) fn minimum(key: &str) -> Option<u64> {
    api::quantity::bytes(MINIMUM.get(key)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_tables_is_understood() {
        assert_eq!(CLAIMS.len(), 73);
        for (key, words) in CLAIMS.iter() {
            assert_eq!(properties(key).unwrap().len(), words.split(' ').count(), "{key}");
        }
        for (key, word) in CLONES.iter() {
            assert!(["CsiClone", "Snapshot", "HostAssisted"].contains(word), "{key}");
            assert!(CLAIMS.contains_key(key), "{key} clones and has no claim properties");
        }
        assert!(
            CRONS.values().all(|word| *word == "Snapshot")
                && CRONS.keys().all(|key| CLAIMS.contains_key(key))
        );
        assert!(MINIMUM.keys().all(|key| minimum(key).is_some() && CLAIMS.contains_key(key)));
    }
}
