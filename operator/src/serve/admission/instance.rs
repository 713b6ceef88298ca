//! VirtualMachineInstances: defaults, first phase, and what users may not write. Pure.
//!
//! Instances have no status subresource: the platform writes status through the object itself, so users' edits of it are
//! put back here.

use api::kind::Kind;
use api::kubevirt::VirtualMachineInstance;
use cluster::review::{Answer, Request, difference};
use serde_json::Value;
use virt::admission::{self, Identity, Settings};
use virt::fields::Place;
use virt::finding::Finding;
use virt::validate;

use super::answer::{self, Cause, NOT_SUPPORTED};
use super::labels;
use super::machine::without_status;
use super::settings::Permitted;
use crate::fill::fill;

/// Fills in a new instance; puts back the status that a user edits. `now` is in seconds since 1970.
pub(super) fn mutate(
    request: &Request,
    own: bool,
    settings: &Settings,
    identity: &Identity,
    now: u64,
) -> Answer {
    let object = match request.operation.as_str() {
        "CREATE" => {
            let mut object = if own { request.object.clone() } else { without_status(&request.object) };
            fill::<VirtualMachineInstance>(&mut object, |instance| {
                admission::instance(instance, settings, identity, now);
            });
            object
        }
        "UPDATE" if !own => {
            let mut object = without_status(&request.object);
            if let (Some(status), Some(fields)) = (request.old_object.get("status"), object.as_object_mut()) {
                fields.insert("status".to_owned(), status.clone());
            }
            object
        }
        _ => return Answer::allow(),
    };
    Answer::allow().patch(difference(&request.object, &object))
}

/// Refuses a new preset: nothing would apply it.
pub(super) fn preset_refused() -> Answer {
    answer::refuse(&[Cause {
        reason: NOT_SUPPORTED,
        field: "kind".to_owned(),
        message: "VirtualMachineInstancePreset is deprecated and not applied by this release: use a \
                  VirtualMachineInstancetype or a VirtualMachinePreference"
            .to_owned(),
    }])
}

/// Refuses what cannot be run, and users' changes of what runs.
pub(super) fn validate(request: &Request, own: bool, permitted: &Permitted) -> Answer {
    let Request { object, old_object: old, .. } = request;
    if own {
        return Answer::allow();
    }
    if request.operation == "UPDATE" {
        let restricted = || Cause {
            reason: NOT_SUPPORTED,
            field: String::new(),
            message: "update of VMI object is restricted".to_owned(),
        };
        let spec = (object["spec"] != old["spec"]).then(restricted);
        let refused = spec.or_else(|| labels::changed(&old["metadata"], &object["metadata"]));
        return refused.map_or_else(Answer::allow, |cause| answer::refuse(&[cause]));
    }
    let (causes, findings) = check(object, permitted);
    answer::judge(causes, &findings)
}

/// The defects of a new instance.
pub(super) fn check(object: &Value, permitted: &Permitted) -> (Vec<Cause>, Vec<Finding>) {
    let mut causes: Vec<Cause> = labels::created(&object["metadata"], "metadata").into_iter().collect();
    causes.extend(answer::not_permitted(&object["spec"], "spec", permitted));
    let mut findings =
        validate::object(Kind::VirtualMachineInstance, &without_status(object), Place::Cluster);
    // On one machine an instance of a VM is left out of what is read; here it is created.
    findings.retain(|finding| finding.path != "metadata.ownerReferences");
    (causes, findings)
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use serde_json::json;

    use super::*;

    fn instance() -> Value {
        json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "a", "namespace": "n"},
            "spec": {"domain": {"memory": {"guest": "1Gi"}, "devices": {}}}})
    }

    fn with(pointer: &str, value: Value) -> Value {
        let mut object = instance();
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        object.pointer_mut(parent).unwrap()[name] = value;
        object
    }

    fn validated(request: &Request, own: bool) -> Answer {
        let card = json!({"pciVendorSelector": "10DE:1EB8", "resourceName": "nvidia.com/T4"});
        let devices = Some(serde_json::from_value(json!({"pciHostDevices": [card]})).unwrap());
        validate(request, own, &Permitted { devices, pod_bridges: false })
    }

    fn request(operation: &str, object: Value, old_object: Value) -> Request {
        Request { operation: operation.into(), object, old_object, ..Request::default() }
    }

    fn patch(request: &Request, own: bool) -> Value {
        let identity = Identity { uuid: "u".into(), serial: "s".into() };
        let response =
            mutate(request, own, &Settings::default(), &identity, 0).write("u")["response"].clone();
        assert_eq!(response["allowed"], true);
        response["patch"].as_str().map_or(json!([]), |text| {
            serde_json::from_slice(&base64::prelude::BASE64_STANDARD.decode(text).unwrap()).unwrap()
        })
    }

    fn at(patch: &Value, path: &str) -> Value {
        let found = patch.as_array().unwrap().iter().find(|one| one["path"] == path);
        found.map_or(Value::Null, |one| one["value"].clone())
    }

    #[test]
    fn new_instance_is_pending_whatever_status_a_user_gives_it() {
        let forged = with("/status", json!({"phase": "Running", "nodeName": "stolen"}));
        let made = patch(&request("CREATE", forged.clone(), Value::Null), false);
        assert_eq!(at(&made, "/status/phase"), "Pending");
        assert!(
            made.as_array().unwrap().contains(&json!({"op": "remove", "path": "/status/nodeName"})),
            "{made}"
        );
        let made = patch(&request("CREATE", instance(), Value::Null), false);
        assert_eq!(at(&made, "/status")["phase"], "Pending");
        assert_eq!(at(&made, "/metadata/finalizers"), json!(["foregroundDeleteVirtualMachine"]));
        assert_eq!(at(&made, "/spec/domain/firmware"), json!({"uuid": "u", "serial": "s"}));
        let made = patch(&request("CREATE", instance(), Value::Null), true);
        assert_eq!(at(&made, "/status")["phase"], "Pending", "the platform's instances begin like others");
    }

    #[test]
    fn edits_of_status_by_users_are_put_back() {
        let status = json!({"phase": "Running", "nodeName": "one"});
        let old = with("/status", status.clone());
        let forged =
            with("/status", json!({"phase": "Running", "nodeName": "two", "activePods": {"x": "two"}}));
        let expected = json!([
            {"op": "remove", "path": "/status/activePods"},
            {"op": "replace", "path": "/status/nodeName", "value": "one"},
        ]);
        assert_eq!(patch(&request("UPDATE", forged.clone(), old.clone()), false), expected);
        assert_eq!(patch(&request("UPDATE", forged.clone(), old.clone()), true), json!([]), "own account");
        assert_eq!(at(&patch(&request("UPDATE", instance(), old.clone()), false), "/status"), status);
        let removed = json!([{"op": "remove", "path": "/status"}]);
        assert_eq!(patch(&request("UPDATE", forged, instance()), false), removed);
        assert_eq!(patch(&request("UPDATE", old.clone(), old), false), json!([]));
    }

    #[test]
    fn users_change_neither_spec_nor_reserved_labels() {
        let node = json!({"kubevirt.io/nodeName": "one"});
        for (old, new, expected) in [
            (instance(), instance(), None),
            (instance(), with("/metadata/labels", json!({"a": "b"})), None),
            (
                instance(),
                with("/spec/domain/memory/guest", json!("2Gi")),
                Some("update of VMI object is restricted"),
            ),
            (
                with("/metadata/labels", node),
                instance(),
                Some(
                    "modification of the following reserved kubevirt.io/ labels on a VMI object is prohibited",
                ),
            ),
        ] {
            let request = request("UPDATE", new, old);
            let response = validated(&request, false).write("u")["response"].clone();
            assert_eq!(response["status"]["message"].as_str(), expected, "{response}");
            assert!(validated(&request, true).is_allowed(), "own account");
        }
    }

    #[test]
    fn new_instances_are_checked() {
        for (object, expected) in [
            (with("/status", json!({"phase": "Pending"})), None),
            (with("/spec/domain/bogus", json!(1)), Some("spec.domain.bogus: no such field")),
            (with("/spec/domain/devices/gpus", json!([{"name": "a", "deviceName": "nvidia.com/T4"}])), None),
            (
                with(
                    "/spec/domain/devices/hostDevices",
                    json!([{"name": "a", "deviceName": "nvidia.com/T5"}]),
                ),
                Some("HostDevice nvidia.com/T5 is not permitted in permittedHostDevices configuration"),
            ),
            (
                with("/spec/domain/cpu", json!({"isolateEmulatorThread": true})),
                Some("IsolateEmulatorThread should be only set in combination with DedicatedCPUPlacement"),
            ),
            (with("/spec/domain/cpu", json!({"cores": 2, "dedicatedCpuPlacement": true})), None),
            (
                with("/metadata/labels", json!({"kubevirt.io/nodeName": "n"})),
                Some("creation of the following reserved kubevirt.io/ labels on a VMI object is prohibited"),
            ),
            (
                with(
                    "/spec",
                    json!({"domain": {"memory": {"guest": "1Gi"}, "devices": {"interfaces": [{"name": "a",
                        "bridge": {}}]}}, "networks": [{"name": "a", "pod": {}}]}),
                ),
                Some("Bridge on pod network configuration is not enabled under kubevirt-config"),
            ),
        ] {
            let response =
                validated(&request("CREATE", object, Value::Null), false).write("u")["response"].clone();
            assert_eq!(response["status"]["message"].as_str(), expected, "{response}");
            assert_eq!(response["warnings"], Value::Null, "{response}");
        }
    }
}
