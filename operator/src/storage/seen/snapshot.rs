//! VolumeSnapshot.

use serde_json::Value;

use super::meta::{Meta, text};

/// Annotation: volume mode of the claim that a snapshot was taken of.
pub const SOURCE_MODE: &str = "cdi.kubevirt.io/storage.import.sourceVolumeMode";

/// Label of a VolumeSnapshotContent: the node of its driver, where each node has a driver of its own.
pub const MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";

/// The fields read from a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Metadata.
    pub meta: Meta,
    /// `spec.volumeSnapshotClassName`; empty for none.
    pub class: String,
    /// `spec.source.persistentVolumeClaimName`; empty for a snapshot that was not taken here.
    pub claim: String,
    /// `status.boundVolumeSnapshotContentName`; empty while there is none.
    pub content: String,
    /// `status.readyToUse`.
    pub ready: bool,
    /// `status.restoreSize`, bytes; 0 while it is not known.
    pub size: u64,
    /// `status.error.message`; empty for none.
    pub error: String,
    /// Whether it is of a Block volume, where that is known.
    pub block: Option<bool>,
    /// The node whose storage has it; `None` where every node reaches it, or where that is not known.
    pub node: Option<String>,
}

fn is_block(mode: &str) -> bool {
    mode == "Block"
}

impl Snapshot {
    /// Adds the fields of its VolumeSnapshotContent: volume mode and node.
    pub fn complete(&mut self, content: &Value) {
        self.block = self.block.or_else(|| content["spec"]["sourceVolumeMode"].as_str().map(is_block));
        self.node = content["metadata"]["labels"][MANAGED_BY].as_str().map(str::to_owned);
    }
}

impl From<&Value> for Snapshot {
    fn from(object: &Value) -> Self {
        let (meta, status) = (Meta::from(object), &object["status"]);
        let size = status["restoreSize"].as_str().and_then(|size| api::quantity::bytes(size).ok());
        Self {
            class: text(&object["spec"]["volumeSnapshotClassName"]),
            claim: text(&object["spec"]["source"]["persistentVolumeClaimName"]),
            node: None,
            content: text(&status["boundVolumeSnapshotContentName"]),
            ready: status["readyToUse"] == true,
            size: size.unwrap_or(0),
            error: text(&status["error"]["message"]),
            block: meta.annotation(SOURCE_MODE).map(is_block),
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
        let mut snapshot = Snapshot::from(&json!({
            "metadata": {"name": "s", "annotations": {SOURCE_MODE: "Block"}},
            "spec": {"volumeSnapshotClassName": "c", "source": {"persistentVolumeClaimName": "p"}},
            "status": {"readyToUse": true, "restoreSize": "1Gi", "boundVolumeSnapshotContentName": "x"},
        }));
        assert_eq!((snapshot.ready, snapshot.size, snapshot.block), (true, 1 << 30, Some(true)));
        snapshot.complete(&json!({"spec": {"sourceVolumeMode": "Filesystem"}}));
        assert_eq!(snapshot.block, Some(true), "the annotation comes first");
        let texts = (snapshot.class.as_str(), snapshot.claim.as_str(), snapshot.content.as_str());
        assert_eq!(texts, ("c", "p", "x"));
        let mut other = Snapshot::default();
        other.complete(&json!({"spec": {}}));
        assert_eq!(other, Snapshot::default());
        other.complete(&json!({
            "metadata": {"labels": {MANAGED_BY: "node1"}}, "spec": {"sourceVolumeMode": "Filesystem"},
        }));
        assert_eq!((other.block, other.node.as_deref()), (Some(false), Some("node1")));
    }
}
