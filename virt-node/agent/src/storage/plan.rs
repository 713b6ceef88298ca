//! Decides about a claim and about a PV. Pure, tested as tables.

use api::hostpath::LEGACY_PROVISIONER;

use super::conditions::MODIFYING;
use super::objects::{Claim, Class, FINALIZER, PROVISIONED_BY, Volume};

/// The next step for a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ForClaim {
    /// Nothing: it is another driver's or node's, or has what it asks for.
    Nothing,
    /// Another program fills it; an event reports that.
    LeaveToPopulator,
    /// It cannot be served as it is.
    Refuse(String),
    /// Its volume is made.
    Provision,
    /// Its volume grows to this many bytes.
    Expand(u64),
    /// Its volume gets the attributes of the VolumeAttributesClass of this name.
    Modify(String),
    /// A change to another VolumeAttributesClass was given up: its condition goes.
    Cancel,
}

/// Decides about a claim of the node `node`; `class` is its StorageClass, `volume` the PV that it is bound to.
pub(super) fn for_claim(
    claim: &Claim,
    class: Option<&Class>,
    volume: Option<&Volume>,
    driver: &str,
    node: &str,
) -> ForClaim {
    if !claim.spec.volume_name.is_empty() {
        let Some(volume) = volume.filter(|volume| is_of(volume, driver) && is_bound_to(volume, claim)) else {
            return ForClaim::Nothing;
        };
        return expansion(claim, volume).unwrap_or_else(|| modification(claim));
    }
    if claim.metadata.deletion_timestamp.is_some()
        || !claim.provisioner().is_some_and(|name| serves(driver, name))
        || claim.selected() != Some(node)
    {
        return ForClaim::Nothing;
    }
    let name = claim.spec.storage_class_name.as_deref().unwrap_or_default();
    match class {
        None => return ForClaim::Refuse(format!("storageclass.storage.k8s.io {name:?} not found")),
        Some(class) if !serves(driver, &class.provisioner) => return ForClaim::Nothing,
        Some(_) => {}
    }
    if let Some(source) = claim.source() {
        let group = source.api_group.as_deref().unwrap_or_default();
        let ours = matches!((group, source.kind.as_str()), ("snapshot.storage.k8s.io", "VolumeSnapshot"))
            || matches!((group, source.kind.as_str()), ("", "PersistentVolumeClaim"));
        if !ours {
            return ForClaim::LeaveToPopulator;
        }
        if source.namespace.as_ref().is_some_and(|namespace| *namespace != claim.metadata.namespace) {
            return ForClaim::Refuse("a data source in another namespace is not supported".to_owned());
        }
    }
    if claim.spec.selector.is_some() {
        return ForClaim::Refuse("claim Selector is not supported".to_owned());
    }
    match claim.requested() {
        None => ForClaim::Refuse("spec.resources.requests.storage is missing".to_owned()),
        Some(_) => ForClaim::Provision,
    }
}

/// Whether the driver makes the volumes of a provisioner: its own, and those of upstream's provisioner without CSI.
pub(super) fn serves(driver: &str, provisioner: &str) -> bool {
    provisioner == driver || provisioner == LEGACY_PROVISIONER
}

/// Whether a bound claim asks for more than it has. The API server allows that only where its class does.
fn expansion(claim: &Claim, volume: &Volume) -> Option<ForClaim> {
    let bytes = |text: Option<&String>| text.and_then(|text| api::quantity::bytes(text).ok());
    let (wanted, has) = (claim.requested()?, bytes(claim.status.capacity.get("storage"))?);
    let waits_for_kubelet = claim
        .status
        .allocated_resource_statuses
        .get("storage")
        .is_some_and(|status| matches!(status.as_str(), "NodeResizePending" | "NodeResizeInProgress"))
        && bytes(volume.spec.capacity.get("storage")).is_some_and(|size| size >= wanted);
    let is_infeasible = claim.status.allocated_resource_statuses.get("storage").map(String::as_str)
        == Some("ControllerResizeInfeasible")
        && bytes(claim.status.allocated_resources.get("storage")) == Some(wanted);
    let grows = claim.status.phase == "Bound" && wanted > has && !waits_for_kubelet && !is_infeasible;
    grows.then_some(ForClaim::Expand(wanted))
}

/// What a bound claim lacks of its VolumeAttributesClass, as csi-resizer decides (modify_volume.go).
fn modification(claim: &Claim) -> ForClaim {
    let of = |name: &Option<String>| name.clone().unwrap_or_default();
    let wanted = of(&claim.spec.volume_attributes_class_name);
    let has = of(&claim.status.current_volume_attributes_class_name);
    let Some(begun) = &claim.status.modify_volume_status else {
        return if wanted == has || wanted.is_empty() { ForClaim::Nothing } else { ForClaim::Modify(wanted) };
    };
    match (wanted.is_empty(), begun.status.as_str()) {
        // The driver may be at it: it goes on to the class that was wanted.
        (true, "InProgress") => ForClaim::Modify(begun.target_volume_attributes_class_name.clone()),
        (true, _) if claim.status.conditions.iter().any(|one| one["type"] == MODIFYING) => ForClaim::Cancel,
        (true, _) => ForClaim::Nothing,
        (false, _) => ForClaim::Modify(wanted),
    }
}

/// The next step for a PV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ForVolume {
    /// Nothing.
    Nothing,
    /// Its volume is deleted, then the PV.
    Remove,
    /// It must outlive its PV: the finalizer that holds the PV goes.
    Release,
    /// Its volume goes with it: the finalizer holds the PV until it did.
    Hold,
}

/// Decides about a PV.
pub(super) fn for_volume(volume: &Volume, driver: &str, node: &str) -> ForVolume {
    let made_by = volume.metadata.annotations.get(PROVISIONED_BY).map(String::as_str);
    if !is_of(volume, driver) || made_by != Some(driver) || !is_on(volume, node) {
        return ForVolume::Nothing;
    }
    let held = volume.metadata.finalizers.iter().any(|name| name == FINALIZER);
    let deletes = volume.spec.persistent_volume_reclaim_policy == "Delete";
    let going = volume.metadata.deletion_timestamp.is_some();
    match (volume.status.phase.as_str(), deletes) {
        (_, false) if held => ForVolume::Release,
        // A PV that goes without the finalizer is gone for us: its volume was deleted.
        ("Released", true) if held || !going => ForVolume::Remove,
        ("Bound", true) if !held && !going => ForVolume::Hold,
        _ => ForVolume::Nothing,
    }
}

fn is_of(volume: &Volume, driver: &str) -> bool {
    volume.spec.csi.as_ref().is_some_and(|csi| csi.driver == driver)
}

fn is_bound_to(volume: &Volume, claim: &Claim) -> bool {
    volume.metadata.name == claim.spec.volume_name
        && volume.spec.claim_ref.as_ref().is_some_and(|reference| {
            reference.uid == claim.metadata.uid
                && reference.name == claim.metadata.name
                && reference.namespace == claim.metadata.namespace
        })
}

/// Whether the PV can be used on the node: all requirements of some term name it. A PV without node affinity is of a shared
/// pool, and any node may serve it.
fn is_on(volume: &Volume, node: &str) -> bool {
    let terms =
        volume.spec.node_affinity.pointer("/required/nodeSelectorTerms").and_then(|terms| terms.as_array());
    let Some(terms) = terms else { return true };
    terms.iter().any(|term| {
        let all = term.get("matchExpressions").and_then(|all| all.as_array());
        all.is_some_and(|all| {
            all.iter().all(|one| {
                one.get("operator").and_then(|operator| operator.as_str()) == Some("In")
                    && one
                        .get("values")
                        .and_then(|values| values.as_array())
                        .is_some_and(|values| values.iter().any(|value| value.as_str() == Some(node)))
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::super::objects::SELECTED_NODE;
    use super::*;
    use api::hostpath::PROVISION_ON_NODE;
    use serde_json::{Value, json};

    const DRIVER: &str = "kubevirt.io.hostpath-provisioner";

    fn merge(into: &mut Value, from: &Value) {
        match (into, from) {
            (Value::Object(into), Value::Object(from)) => {
                for (key, value) in from {
                    merge(into.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
            (into, from) => *into = from.clone(),
        }
    }

    fn claim(changes: &Value) -> Claim {
        let mut object = json!({
            "metadata": {
                "name": "data", "namespace": "shop", "uid": "u1",
                "annotations": {
                    "volume.kubernetes.io/storage-provisioner": DRIVER,
                    "volume.kubernetes.io/selected-node": "node1",
                },
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "hostpath-csi",
                "resources": {"requests": {"storage": "1Gi"}},
            },
            "status": {"phase": "Pending"},
        });
        merge(&mut object, changes);
        serde_json::from_value(object).unwrap()
    }

    fn volume(changes: &Value) -> Volume {
        let mut object = json!({
            "metadata": {
                "name": "pvc-u1",
                "annotations": {"pv.kubernetes.io/provisioned-by": DRIVER},
                "finalizers": ["kubernetes.io/pv-protection", FINALIZER],
            },
            "spec": {
                "csi": {"driver": DRIVER, "volumeHandle": "pvc-u1"},
                "capacity": {"storage": "1Gi"},
                "persistentVolumeReclaimPolicy": "Delete",
                "claimRef": {"name": "data", "namespace": "shop", "uid": "u1"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "topology.hostpath.csi/node", "operator": "In", "values": ["node1"]},
                ]}]}},
            },
            "status": {"phase": "Bound"},
        });
        merge(&mut object, changes);
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_claim_is_served_by_its_driver_and_node_only() {
        let class = Class { provisioner: DRIVER.to_owned(), ..Class::default() };
        let source = |group: Value, kind: &str| json!({"spec": {"dataSource": {"apiGroup": group, "kind": kind, "name": "x"}}});
        let refused = |text: &str| ForClaim::Refuse(text.to_owned());
        for (changes, expected) in [
            (json!({}), ForClaim::Provision),
            (json!({"metadata": {"annotations": {SELECTED_NODE: "node2"}}}), ForClaim::Nothing),
            (
                json!({"metadata": {"annotations": {"volume.kubernetes.io/storage-provisioner": "other"}}}),
                ForClaim::Nothing,
            ),
            (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), ForClaim::Nothing),
            (json!({"spec": {"selector": {"matchLabels": {}}}}), refused("claim Selector is not supported")),
            (source(json!("snapshot.storage.k8s.io"), "VolumeSnapshot"), ForClaim::Provision),
            (source(Value::Null, "PersistentVolumeClaim"), ForClaim::Provision),
            (source(json!("cdi.kubevirt.io"), "VolumeImportSource"), ForClaim::LeaveToPopulator),
            (json!({"spec": {"volumeName": "pvc-u1"}}), ForClaim::Nothing),
            (
                json!({"spec": {"resources": {"requests": {"storage": "much"}}}}),
                refused("spec.resources.requests.storage is missing"),
            ),
        ] {
            let claim = claim(&changes);
            assert_eq!(for_claim(&claim, Some(&class), None, DRIVER, "node1"), expected, "{changes}");
        }
        let legacy = Class { provisioner: LEGACY_PROVISIONER.to_owned(), ..Class::default() };
        let by = "volume.kubernetes.io/storage-provisioner";
        for (annotations, expected) in [
            (json!({by: LEGACY_PROVISIONER}), ForClaim::Provision),
            (json!({by: LEGACY_PROVISIONER, SELECTED_NODE: "node2"}), ForClaim::Nothing),
            (
                json!({by: LEGACY_PROVISIONER, SELECTED_NODE: "", PROVISION_ON_NODE: "node1"}),
                ForClaim::Provision,
            ),
            (json!({by: LEGACY_PROVISIONER, SELECTED_NODE: ""}), ForClaim::Nothing),
        ] {
            let claim = claim(&json!({"metadata": {"annotations": annotations}}));
            assert_eq!(for_claim(&claim, Some(&legacy), None, DRIVER, "node1"), expected, "{annotations}");
        }
        let missing = for_claim(&claim(&json!({})), None, None, DRIVER, "node1");
        assert_eq!(missing, refused("storageclass.storage.k8s.io \"hostpath-csi\" not found"));
        let other = Class { provisioner: "other".to_owned(), ..Class::default() };
        assert_eq!(for_claim(&claim(&json!({})), Some(&other), None, DRIVER, "node1"), ForClaim::Nothing);
    }

    #[test]
    fn a_claim_gets_the_attributes_of_the_class_that_it_names() {
        let modify = |name: &str| ForClaim::Modify(name.to_owned());
        let begun = |state: &str| json!({"status": state, "targetVolumeAttributesClassName": "thick"});
        let conditions = json!([{"type": "ModifyingVolume", "status": "True"}]);
        for (wanted, status, expected) in [
            (Value::Null, json!({}), ForClaim::Nothing),
            (json!("thick"), json!({}), modify("thick")),
            (json!("thick"), json!({"currentVolumeAttributesClassName": "thick"}), ForClaim::Nothing),
            (json!("thin"), json!({"currentVolumeAttributesClassName": "thick"}), modify("thin")),
            (json!("thin"), json!({"modifyVolumeStatus": begun("InProgress")}), modify("thin")),
            (json!("thick"), json!({"modifyVolumeStatus": begun("Infeasible")}), modify("thick")),
            (
                json!("thick"),
                json!({"modifyVolumeStatus": begun("Pending"), "currentVolumeAttributesClassName": "thick"}),
                modify("thick"),
            ),
            (Value::Null, json!({"modifyVolumeStatus": begun("InProgress")}), modify("thick")),
            (json!(""), json!({"modifyVolumeStatus": begun("Infeasible")}), ForClaim::Nothing),
            (
                json!(""),
                json!({"modifyVolumeStatus": begun("Infeasible"), "conditions": conditions}),
                ForClaim::Cancel,
            ),
            (json!("thick"), json!({"capacity": {"storage": "512Mi"}}), ForClaim::Expand(1 << 30)),
        ] {
            let mut of = json!({
                "spec": {"volumeName": "pvc-u1", "volumeAttributesClassName": wanted},
                "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
            });
            merge(&mut of["status"], &status);
            let ours = volume(&json!({}));
            assert_eq!(for_claim(&claim(&of), None, Some(&ours), DRIVER, "node1"), expected, "{of}");
            let others = volume(&json!({"spec": {"claimRef": {"uid": "another"}}}));
            assert_eq!(for_claim(&claim(&of), None, Some(&others), DRIVER, "node1"), ForClaim::Nothing);
        }
    }

    #[test]
    fn a_bound_claim_that_asks_for_more_grows() {
        let bound = |changes: &Value| {
            let mut all = json!({
                "spec": {"volumeName": "pvc-u1", "resources": {"requests": {"storage": "2Gi"}}},
                "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
            });
            merge(&mut all, changes);
            claim(&all)
        };
        let pending = json!({"status": {"allocatedResourceStatuses": {"storage": "NodeResizePending"}}});
        let infeasible = json!({"status": {
            "allocatedResources": {"storage": "2Gi"},
            "allocatedResourceStatuses": {"storage": "ControllerResizeInfeasible"},
        }});
        let of_another = json!({"spec": {"claimRef": {"uid": "u2"}}});
        for (changes, of, expected) in [
            (json!({}), json!({}), ForClaim::Expand(2 << 30)),
            (json!({"spec": {"resources": {"requests": {"storage": "1Gi"}}}}), json!({}), ForClaim::Nothing),
            (pending.clone(), json!({"spec": {"capacity": {"storage": "2Gi"}}}), ForClaim::Nothing),
            (pending, json!({}), ForClaim::Expand(2 << 30)),
            (infeasible, json!({}), ForClaim::Nothing),
            (json!({}), of_another, ForClaim::Nothing),
            (json!({}), json!({"spec": {"csi": {"driver": "other"}}}), ForClaim::Nothing),
        ] {
            let (claim, volume) = (bound(&changes), volume(&of));
            assert_eq!(for_claim(&claim, None, Some(&volume), DRIVER, "node1"), expected, "{changes} {of}");
        }
    }

    #[test]
    fn a_released_volume_is_deleted_where_it_is() {
        let released = json!({"status": {"phase": "Released"}});
        let with = |mut changes: Value| {
            merge(&mut changes, &released);
            changes
        };
        let elsewhere = json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "topology.hostpath.csi/node", "operator": "In", "values": ["node2"]},
        ]}]}}}});
        for (changes, expected) in [
            (json!({}), ForVolume::Nothing),
            (json!({"metadata": {"finalizers": []}}), ForVolume::Hold),
            (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), ForVolume::Nothing),
            (released.clone(), ForVolume::Remove),
            (with(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})), ForVolume::Remove),
            (
                with(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": []}})),
                ForVolume::Nothing,
            ),
            (with(elsewhere), ForVolume::Nothing),
            (with(json!({"metadata": {"annotations": {PROVISIONED_BY: "other"}}})), ForVolume::Nothing),
            (json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}}), ForVolume::Release),
            (
                json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}, "metadata": {"finalizers": []}}),
                ForVolume::Nothing,
            ),
            (with(json!({"spec": {"nodeAffinity": null}})), ForVolume::Remove),
        ] {
            assert_eq!(for_volume(&volume(&changes), DRIVER, "node1"), expected, "{changes}");
        }
    }
}
