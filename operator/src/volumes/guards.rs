//! Finalizers of sources: a claim or VolumeSnapshot stays while volumes are made of it, as csi-provisioner keeps it. The
//! finalizer is set before a node begins, and removed when no claim is left that waits for a copy; also one that a stopped
//! csi-provisioner left. Where stock csi-provisioner makes the volumes, it sets the finalizers.

use cluster::Result;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::control::Controller;
use super::sources::Source;
use crate::storage::seen::Meta;

/// A source, and what is made of it.
#[derive(Clone, Copy, Debug, Default)]
struct Guarded {
    /// It has the finalizer.
    guarded: bool,
    /// It is being deleted: the API server refuses new finalizers.
    deleting: bool,
    /// A claim waits for a copy.
    wanted: bool,
    /// A node makes a copy, or is about to.
    begun: bool,
    /// Stock csi-provisioner sets the finalizer.
    stock: bool,
}

/// Whether the finalizer is set or removed; `None`: neither.
fn change(source: Guarded) -> Option<bool> {
    match source {
        Guarded { guarded: false, deleting: false, begun: true, stock: false, .. } => Some(true),
        Guarded { guarded: true, wanted: false, begun: false, .. } => Some(false),
        _ => None,
    }
}

impl Controller {
    /// Sets or removes the finalizer of a source; `begins`: a node is about to make a copy.
    pub(super) async fn guard(&self, source: &Source, begins: bool) -> Result<()> {
        let found = match source {
            Source::Claim(key) => {
                self.claims.get(key).filter(|one| one.ours).map(|one| (one.guarded, one.deleting))
            }
            Source::Snapshot(key) => self.snapshots.get(key).map(|one| (one.guarded, one.deleting)),
        };
        let Some((guarded, deleting)) = found else { return Ok(()) };
        let copies = self.claims.by(self.by_source, &source.entry());
        let begun = copies.iter().any(|(_, copy)| copy.ours && copy.label.is_some());
        let (wanted, begun, stock) = (!copies.is_empty(), begins || begun, self.is_stock());
        let Some(set) = change(Guarded { guarded, deleting, wanted, begun, stock }) else { return Ok(()) };
        let (resource, key, finalizer) = source.parts();
        let Some(object) = self.client.find::<Value>(resource, key).await? else { return Ok(()) };
        let meta = Meta::from(&object);
        if meta.finalizers.iter().any(|one| one == finalizer) == set || (set && meta.deleting) {
            return Ok(());
        }
        let mut all = meta.finalizers;
        all.retain(|one| one != finalizer);
        if set {
            all.push(finalizer.to_owned());
        }
        let patch = json!({"metadata": {"resourceVersion": meta.version, "finalizers": all}});
        self.client.merge_patch::<IgnoredAny>(resource, key, &patch).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_guarded_from_the_begin_of_a_copy_until_none_is_wanted() {
        let none = Guarded::default();
        let wanted = Guarded { wanted: true, ..none };
        let begun = Guarded { begun: true, ..wanted };
        for (source, expected) in [
            (none, None),
            // A claim that waits for its first pod keeps no source.
            (wanted, None),
            (begun, Some(true)),
            (Guarded { stock: true, ..begun }, None),
            (Guarded { deleting: true, ..begun }, None),
            (Guarded { guarded: true, ..begun }, None),
            (Guarded { guarded: true, deleting: true, ..begun }, None),
            (Guarded { guarded: true, ..wanted }, None),
            (Guarded { guarded: true, ..none }, Some(false)),
            (Guarded { guarded: true, deleting: true, ..none }, Some(false)),
            (Guarded { guarded: true, stock: true, ..none }, Some(false)),
        ] {
            assert_eq!(change(source), expected, "{source:?}");
        }
    }
}
