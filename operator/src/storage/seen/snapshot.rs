//! VolumeSnapshot.

use serde_json::Value;

use super::meta::{Meta, text};

/// Annotation: volume mode of the claim that a snapshot was taken of.
const SOURCE_MODE: &str = "cdi.kubevirt.io/storage.import.sourceVolumeMode";

/// The fields read from a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Metadata.
    pub meta: Meta,
    /// `spec.volumeSnapshotClassName`; empty for none.
    pub class: String,
    /// `spec.source.persistentVolumeClaimName`; empty for a snapshot that was not taken here.
    pub claim: String,
    /// `status.readyToUse`.
    pub ready: bool,
    /// `status.restoreSize`, bytes; 0 while it is not known.
    pub size: u64,
    /// `status.error.message`; empty for none.
    pub error: String,
    /// Whether it is of a Block volume, where that is known.
    pub block: Option<bool>,
}

impl From<&Value> for Snapshot {
    fn from(object: &Value) -> Self {
        let (meta, status) = (Meta::from(object), &object["status"]);
        let size = status["restoreSize"].as_str().and_then(|size| api::quantity::bytes(size).ok());
        Self {
            class: text(&object["spec"]["volumeSnapshotClassName"]),
            claim: text(&object["spec"]["source"]["persistentVolumeClaimName"]),
            ready: status["readyToUse"] == true,
            size: size.unwrap_or(0),
            error: text(&status["error"]["message"]),
            block: meta.annotation(SOURCE_MODE).map(|mode| mode == "Block"),
            meta,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn snapshots_are_read() {
        let snapshot = Snapshot::from(&json!({
            "metadata": {"name": "s", "annotations": {SOURCE_MODE: "Block"}},
            "spec": {"volumeSnapshotClassName": "c", "source": {"persistentVolumeClaimName": "p"}},
            "status": {"readyToUse": true, "restoreSize": "1Gi"},
        }));
        assert_eq!((snapshot.ready, snapshot.size, snapshot.block), (true, 1 << 30, Some(true)));
        assert_eq!((snapshot.class.as_str(), snapshot.claim.as_str()), ("c", "p"));
    }
}
