//! PersistentVolume.

use serde_json::Value;

use super::meta::{Meta, bytes, text, texts};

/// The fields read from a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Metadata.
    pub meta: Meta,
    /// Namespace in `spec.claimRef`; empty without one.
    pub claim_namespace: String,
    /// Name in `spec.claimRef`; empty without one.
    pub claim_name: String,
    /// Id in `spec.claimRef`; empty without one.
    pub claim_uid: String,
    /// `spec.csi.driver`, or the annotation of the provisioner that made it; empty for others.
    pub driver: String,
    /// The one node that can reach it, when its node affinity names exactly one value.
    pub node: Option<String>,
    /// `spec.storageClassName`; empty for none.
    pub class: String,
    /// `spec.accessModes`.
    pub modes: Vec<String>,
    /// Whether `spec.volumeMode` is Block.
    pub block: bool,
    /// `spec.capacity.storage`, bytes; 0 when it cannot be read.
    pub capacity: u64,
    /// Whether `status.phase` is Available, and it is not being deleted.
    pub available: bool,
}

impl From<&Value> for Volume {
    fn from(object: &Value) -> Self {
        let (meta, claim) = (Meta::from(object), &object["spec"]["claimRef"]);
        let driver = match object["spec"]["csi"]["driver"].as_str() {
            Some(driver) => driver.to_owned(),
            None => meta.annotation("pv.kubernetes.io/provisioned-by").unwrap_or_default().to_owned(),
        };
        Self {
            claim_namespace: text(&claim["namespace"]),
            claim_name: text(&claim["name"]),
            claim_uid: text(&claim["uid"]),
            driver,
            node: node(&object["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]),
            class: text(&object["spec"]["storageClassName"]),
            modes: texts(&object["spec"]["accessModes"]),
            block: object["spec"]["volumeMode"] == "Block",
            capacity: bytes(&object["spec"]["capacity"]["storage"]),
            available: object["status"]["phase"] == "Available" && !meta.deleting,
            meta,
        }
    }
}

/// The only value of the only expression of a node affinity.
fn node(terms: &Value) -> Option<String> {
    let [term] = terms.as_array()?.as_slice() else { return None };
    let [expression] = term["matchExpressions"].as_array()?.as_slice() else { return None };
    let [value] = expression["values"].as_array()?.as_slice() else { return None };
    (expression["operator"] == "In").then(|| text(value))
}
