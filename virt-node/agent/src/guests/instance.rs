//! The part of a VMI that the agent keeps.

use std::collections::BTreeMap;

use api::kubevirt::VirtualMachineInstanceSpec;
use serde::Deserialize;
use serde_json::Value;

/// The default of the seconds from a request to stop until a guest is killed.
const GRACE_SECONDS: u64 = 30;

/// A VMI of this node. A node has some hundreds at most, so the spec is kept.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Instance {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) deleting: bool,
    /// Seconds that a guest has to end.
    pub(crate) grace: u64,
    pub(crate) phase: Option<String>,
    /// UIDs of the pods that run it, and their nodes.
    pub(crate) active_pods: BTreeMap<String, String>,
    /// UIDs of the pods that hold volumes which come and go, by the volumes' names.
    pub(crate) attachments: BTreeMap<String, String>,
    pub(crate) spec: VirtualMachineInstanceSpec,
    /// The whole status, as it is written.
    pub(crate) status: Value,
}

impl Instance {
    /// The address at which the guest is reached; empty: it has none.
    pub(crate) fn address(&self) -> String {
        let interface = self.status.get("interfaces").and_then(|all| all.get(0));
        let address = interface.and_then(|one| one.get("ipAddress")).and_then(Value::as_str);
        address.unwrap_or_default().to_owned()
    }
}

/// A VMI as the API server writes it, as far as it is read.
#[derive(Debug, Deserialize)]
pub(crate) struct Written {
    metadata: Metadata,
    #[serde(default)]
    spec: VirtualMachineInstanceSpec,
    #[serde(default)]
    status: Value,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    namespace: String,
    name: String,
    #[serde(default)]
    uid: String,
    deletion_timestamp: Option<String>,
}

impl From<&Written> for Instance {
    fn from(written: &Written) -> Self {
        let Written { metadata, spec, status } = written;
        let pods = status.get("activePods").and_then(Value::as_object);
        let pods = pods.into_iter().flatten();
        let pods = pods.filter_map(|(uid, node)| Some((uid.clone(), node.as_str()?.to_owned())));
        let volumes = status.get("volumeStatus").and_then(Value::as_array).into_iter().flatten();
        let attachments = volumes.filter_map(|volume| {
            let pod = volume.pointer("/hotplugVolume/attachPodUID")?.as_str()?;
            Some((volume.get("name")?.as_str()?.to_owned(), pod.to_owned()))
        });
        let grace = spec.termination_grace_period_seconds;
        Self {
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
            uid: metadata.uid.clone(),
            deleting: metadata.deletion_timestamp.is_some(),
            grace: grace.unwrap_or(GRACE_SECONDS),
            phase: status.get("phase").and_then(Value::as_str).map(str::to_owned),
            active_pods: pods.collect(),
            attachments: attachments.collect(),
            spec: spec.clone(),
            status: status.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_vmi_is_read_as_far_as_it_is_needed() {
        let written: Written = serde_json::from_value(json!({
            "metadata": {"namespace": "n", "name": "a", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"domain": {}, "terminationGracePeriodSeconds": 5},
            "status": {"phase": "Running", "activePods": {"p": "node1"},
                "volumeStatus": [{"name": "root"}, {"name": "data", "hotplugVolume": {"attachPodUID": "h"}}], "later": {"x": 1}},
        }))
        .unwrap();
        let instance = Instance::from(&written);
        assert!(instance.deleting);
        assert_eq!((instance.grace, instance.phase.as_deref()), (5, Some("Running")));
        assert_eq!(instance.active_pods["p"], "node1");
        assert_eq!(instance.attachments, BTreeMap::from([("data".to_owned(), "h".to_owned())]));
        assert_eq!(instance.status["later"]["x"], 1);
        let bare: Written = serde_json::from_value(json!({"metadata": {"name": "a"}})).unwrap();
        assert_eq!((Instance::from(&bare).grace, Instance::from(&bare).phase), (30, None));
    }
}
