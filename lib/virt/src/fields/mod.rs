//! The treatment of each field of a VirtualMachine, its instance, a DataVolume and a claim: used, without effect, or
//! refused. No field is ignored in silence:
//!
//! - `used.txt` lists the fields of an instance's spec that the programs use; a path stands for all below it.
//! - The tables of [`rows`] have the reason why a field has no effect, or is refused, and where.
//! - A field that the types have and neither lists is reported as not supported yet.
//! - A field that the types do not have is unknown.
//!
//! To build a field: use it, move its path from the table to `used.txt`. Lists are written `[]`.
//!
//! Not here: rules between fields ([`crate::resolve`]).

mod rows;

use api::kind::Kind;

use crate::finding::Verdict;
use rows::{LATER, Where};

/// Fields of an instance's spec that the programs use.
const USED: &str = include_str!("used.txt");

/// Where a guest is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On one machine without a cluster: nothing is scheduled or moved.
    Machine,
    /// In a cluster.
    Cluster,
}

/// The treatment of a field that is not simply used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lot {
    /// The field that is meant, above or at the one that was asked for, with its indexes.
    pub path: String,
    /// How bad it is.
    pub verdict: Verdict,
    /// Why, and what to do.
    pub text: &'static str,
}

/// Paths at which a kind has an instance's spec.
fn instance_specs(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::VirtualMachine => Some("spec.template.spec."),
        Kind::VirtualMachineInstance => Some("spec."),
        Kind::DataVolume
        | Kind::PersistentVolumeClaim
        | Kind::NetworkAttachmentDefinition
        | Kind::Secret
        | Kind::ConfigMap => None,
    }
}

/// The treatment of a field, `known` if the types have it; `None`: it is used, or (not `known`) nothing is known of it.
pub fn lot(kind: Kind, place: Place, path: &str, known: bool) -> Option<Lot> {
    if path == "status" || path.starts_with("status.") {
        let text = "set by the program; ignored here";
        return Some(Lot { path: "status".to_owned(), verdict: Verdict::Ignored, text });
    }
    if path == "metadata.selfLink" {
        let text = "written by API servers before Kubernetes 1.20, not read";
        return Some(Lot { path: path.to_owned(), verdict: Verdict::Ignored, text });
    }
    let plain = without_indexes(path);
    let at = |length: usize| prefix(path, &plain[..length]);
    for (start, table) in rows::tables(kind) {
        let Some(rest) = plain.strip_prefix(start) else { continue };
        let here = |row: &rows::Row| match row.place {
            Where::Anywhere => true,
            Where::Machine => place == Place::Machine,
            Where::Cluster => place == Place::Cluster,
        };
        let mut rows = table.iter().filter(|row| is_below(rest, row.field)).peekable();
        if rows.peek().is_some() {
            // Elsewhere the field is used.
            return rows.find(|row| here(row)).map(|row| Lot {
                path: at(start.len() + row.field.len()),
                verdict: row.verdict,
                text: row.text,
            });
        }
    }
    let start = instance_specs(kind)?;
    let rest = plain.strip_prefix(start)?;
    if !known {
        return None;
    }
    let length = unused(rest)?;
    Some(Lot { path: at(start.len() + length), verdict: Verdict::Unsupported, text: LATER })
}

/// The length of the shortest start of a path below an instance's spec that nothing uses; `None`: it is used.
fn unused(path: &str) -> Option<usize> {
    if used().any(|one| is_below(path, one) || is_below(one, path)) {
        return None;
    }
    let ends = path.match_indices(['.', '[']).map(|(end, _)| end).chain([path.len()]);
    ends.into_iter().find(|end| !used().any(|one| is_below(one, &path[..*end])))
}

/// Fields of an instance's spec that the programs use, plain.
pub fn used() -> impl Iterator<Item = &'static str> {
    USED.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// Whether a path is `above` or below it.
fn is_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// `a[3].b` as `a[].b`.
fn without_indexes(path: &str) -> String {
    let mut plain = String::with_capacity(path.len());
    let mut inside = false;
    for c in path.chars() {
        match c {
            '[' => inside = true,
            ']' => inside = false,
            _ if inside => continue,
            _ => {}
        }
        plain.push(c);
    }
    plain
}

/// The start of `path` that is `plain` without its indexes.
fn prefix(path: &str, plain: &str) -> String {
    let mut end = plain.len();
    for (place, _) in path.match_indices(['.', '[']).chain([(path.len(), "")]) {
        if without_indexes(&path[..place]) == plain {
            end = place;
        }
        if without_indexes(&path[..place]).len() > plain.len() {
            break;
        }
    }
    path.get(..end).unwrap_or(path).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Verdict::{Error, Ignored, Unsupported};
    use serde_json::Value;

    /// Whether a schema has a field.
    fn has(schema: &Value, path: &str) -> bool {
        let mut place = schema;
        for step in path.split('.') {
            let (name, list) = step.strip_suffix("[]").map_or((step, false), |name| (name, true));
            let Some(next) = place["properties"].get(name) else { return false };
            place = if list { &next["items"] } else { next };
        }
        true
    }

    #[test]
    fn every_row_and_every_used_field_is_where_the_types_can_have_it() {
        for kind in Kind::ALL {
            let schema = kind.schema();
            for (start, table) in rows::tables(kind) {
                for row in *table {
                    let path = format!("{start}{}", row.field);
                    let above = path.rsplit_once('.').unwrap().0;
                    assert!(has(&schema, above), "{}: {path}: {above} is not there", kind.name());
                    assert!(!row.text.is_empty());
                }
            }
        }
        let schema = Kind::VirtualMachineInstance.schema();
        let mut before = "";
        for path in used() {
            assert!(has(&schema, &format!("spec.{path}")), "{path} is no field of the types");
            assert!(before < path, "{path} is not after {before}");
            assert!(before.is_empty() || !is_below(path, before), "{path} is below {before}");
            let of = |place| lot(Kind::VirtualMachineInstance, place, &format!("spec.{path}"), true);
            assert_eq!(of(Place::Cluster), None, "{path} is used and in a table");
            let only_in_clusters = path == "volumes[].containerDisk.path";
            assert_eq!(of(Place::Machine).is_some(), only_in_clusters, "{path} is used and in a table");
            before = path;
        }
    }

    #[test]
    fn a_row_covers_all_below_it_and_nothing_next_to_it() {
        let machine = Kind::VirtualMachine;
        for (path, known, wanted) in [
            ("spec.template.spec.affinity", false, Some((Ignored, 27))),
            ("spec.template.spec.affinity.nodeAffinity", true, Some((Ignored, 27))),
            ("spec.template.spec.affinityX", false, None),
            ("spec.template.spec.affinityX.y", true, Some((Unsupported, 28))),
            (
                "spec.template.spec.domain.devices.disks[12].changedBlockTracking",
                true,
                Some((Unsupported, 64)),
            ),
            ("spec.template.spec.domain.devices.disks[12].name", true, None),
            ("spec.template.spec.domain.devices.disks[12].names[3].x", true, Some((Unsupported, 49))),
            ("spec.dataVolumeTemplates[0].spec.sourceRef", false, Some((Error, 42))),
            ("spec.instancetype", false, Some((Error, 17))),
            ("spec.affinity", false, None),
            ("status.anything", false, Some((Ignored, 6))),
            ("nodeSelector", false, None),
        ] {
            let found = lot(machine, Place::Machine, path, known);
            assert_eq!(found.as_ref().map(|one| (one.verdict, one.path.len())), wanted, "{path}");
            assert!(found.is_none_or(|one| path.starts_with(&one.path)), "{path}");
        }
        let instance = Kind::VirtualMachineInstance;
        assert!(lot(instance, Place::Machine, "spec.affinity", true).is_some());
        assert_eq!(lot(instance, Place::Cluster, "spec.affinity", true), None, "the operator uses it");
        let later = lot(instance, Place::Cluster, "spec.evictionStrategy", true);
        assert_eq!(later.map(|lot| lot.verdict), Some(Unsupported));
        let account = lot(instance, Place::Cluster, "spec.serviceAccountName", true);
        assert!(account.is_some_and(|lot| lot.text.starts_with("used for clones")), "clones use it");
        let dedicated = |place| lot(instance, place, "spec.domain.cpu.dedicatedCpuPlacement", true);
        assert_eq!(dedicated(Place::Machine).map(|lot| lot.text), Some(LATER));
        assert_eq!(dedicated(Place::Cluster), None, "the launcher pins vCPUs");
    }
}
