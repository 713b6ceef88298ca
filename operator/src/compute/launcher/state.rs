//! The claim for what a guest keeps besides its disks: made once, kept as long as its VM, or as an instance without one.
//! Pure.

use serde_json::{Value, json};

use super::name::{label_value, state_claim};
use crate::view::{Claim, Instance};

/// The need of an instance for such a claim.
#[derive(Clone, Copy, Debug)]
pub(in crate::compute) enum State<'a> {
    /// Nothing.
    Unneeded,
    /// It does not exist.
    Missing,
    /// It is being deleted, or belongs to another owner and ends with that.
    Going,
    /// This one.
    There(&'a Claim),
}

/// Kind, name and uid of what the claim of an instance belongs to.
fn owner(instance: &Instance) -> (&str, &str, &str) {
    let meta = &instance.metadata;
    match meta.controller().filter(|owner| owner.kind == "VirtualMachine") {
        Some(machine) => ("VirtualMachine", &machine.name, &machine.uid),
        None => ("VirtualMachineInstance", &meta.name, &meta.uid),
    }
}

/// The state of an instance's claim, from all claims that are labelled for it.
pub(in crate::compute) fn state<'a>(
    instance: &Instance,
    labelled: impl Iterator<Item = &'a Claim>,
) -> State<'a> {
    if !instance.spec.keeps_state {
        return State::Unneeded;
    }
    let (_, _, uid) = owner(instance);
    let ours = |claim: &Claim| {
        let controller = claim.metadata.controller();
        !claim.metadata.deleting() && controller.is_none_or(|owner| owner.uid == uid)
    };
    let mut going = false;
    let mut found: Option<&Claim> = None;
    for claim in labelled {
        going = true;
        let first = found.is_none_or(|other| claim.metadata.name < other.metadata.name);
        if ours(claim) && first {
            found = Some(claim);
        }
    }
    match found {
        Some(claim) => State::There(claim),
        None if going => State::Going,
        None => State::Missing,
    }
}

/// The claim, of a storage class.
pub(in crate::compute) fn claim(instance: &Instance, class: &str) -> Value {
    let meta = &instance.metadata;
    let (kind, name, uid) = owner(instance);
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": state_claim(&meta.name),
            "namespace": meta.namespace,
            "labels": {virt::state::LABEL: label_value(&meta.name)},
            "ownerReferences": [{
                "apiVersion": "kubevirt.io/v1", "kind": kind, "name": name, "uid": uid,
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "volumeMode": "Filesystem",
            "storageClassName": class,
            "resources": {"requests": {"storage": virt::state::SIZE}},
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(tpm: &Value, owners: &Value) -> Instance {
        serde_json::from_value(json!({
            "metadata": {"name": "vm", "namespace": "shop", "uid": "i", "ownerReferences": owners},
            "spec": {"domain": {"devices": {"tpm": tpm}}},
        }))
        .unwrap()
    }

    fn machine() -> Value {
        json!([{"kind": "VirtualMachine", "name": "vm", "uid": "m", "controller": true}])
    }

    #[test]
    fn a_claim_belongs_to_the_vm_and_is_of_the_named_class() {
        let made = claim(&instance(&json!({}), &machine()), "fast");
        assert_eq!(made["metadata"]["name"], "persistent-state-for-vm");
        assert_eq!(made["metadata"]["labels"], json!({"persistent-state-for": "vm"}));
        assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], "m");
        assert_eq!(made["spec"]["storageClassName"], "fast");
        let alone = claim(&instance(&json!({}), &json!([])), "fast");
        assert_eq!(alone["metadata"]["ownerReferences"][0]["kind"], "VirtualMachineInstance");
    }

    #[test]
    fn a_claim_of_another_owner_or_one_that_goes_is_not_used() {
        let of = |owner: &str, deleted: bool| -> Claim {
            let mut object = json!({"metadata": {"name": "persistent-state-for-vm-x",
                "ownerReferences": [{"kind": "VirtualMachine", "uid": owner, "controller": true}]}});
            if deleted {
                object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            serde_json::from_value(object).unwrap()
        };
        let needs = instance(&json!({"persistent": true}), &machine());
        for (claims, wanted) in [
            (vec![], "Missing"),
            (vec![of("m", false)], "There"),
            (vec![of("other", false)], "Going"),
            (vec![of("m", true)], "Going"),
            (vec![of("other", false), of("m", false)], "There"),
        ] {
            let found = format!("{:?}", state(&needs, claims.iter()));
            assert!(found.starts_with(wanted), "{found}, not {wanted}");
        }
        let without = instance(&json!({}), &machine());
        assert!(matches!(state(&without, [of("m", false)].iter()), State::Unneeded));
    }
}
