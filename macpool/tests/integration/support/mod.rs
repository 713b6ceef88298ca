//! Reviews to ask with, and JSON Patches applied to what they are about.

use std::collections::HashMap;
use std::time::Duration;

use api::net::pool::{Pool, Stamp};
use api::net::{Mac, Range};
use macpool::namespaces::Policy;
use macpool::review::{Answer, Circumstances, Hook, Reply, Review};
use serde_json::{Value, json};

/// How long promises are kept in these tests.
pub(crate) const WAIT: Duration = Duration::from_secs(300);
/// The time in these tests, since the program's start.
pub(crate) const NOW: Duration = Duration::from_secs(1000);
/// The same for stamps.
pub(crate) const STAMP: Stamp = 1_790_000_000_500_000_000;
/// The same as the annotation has it.
pub(crate) const STAMP_TEXT: &str = "2026-09-21T14:13:20.5Z";

pub(crate) fn mac(text: &str) -> Mac {
    Mac::parse(text).unwrap()
}

/// A pool that owns all blocks, with the cursor at the range's start.
pub(crate) fn pool(start: &str, end: &str) -> Pool {
    let range = Range::parse(start, end).unwrap();
    Pool::alone(range, WAIT, range.first().bits())
}

/// A VirtualMachine with these interfaces; networks named "pod" are the pod network, others of Multus.
#[expect(clippy::needless_pass_by_value, reason = "callers write json!(…)")]
pub(crate) fn machine(name: &str, interfaces: Value) -> Value {
    let names = interfaces.as_array().unwrap().iter().filter_map(|interface| interface["name"].as_str());
    let networks: Vec<Value> = names
        .map(|name| match name {
            "pod" => json!({"name": name, "pod": {}}),
            _ => json!({"name": name, "multus": {"networkName": name}}),
        })
        .collect();
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"runStrategy": "Always", "template": {"spec": {
            "domain": {"devices": {
                "disks": [{"name": "d", "disk": {"bus": "virtio"}, "bootOrder": 1, "io": "native"}],
                "interfaces": interfaces,
            }},
            "networks": networks,
        }}},
    })
}

/// A pod with this text as its networks.
pub(crate) fn pod(name: &str, networks: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "annotations": {"k8s.v1.cni.cncf.io/networks": networks, "other": "kept"},
        },
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    })
}

pub(crate) fn create(object: &Value) -> Value {
    json!({
        "uid": "u-1",
        "operation": "CREATE",
        "namespace": "default",
        "name": object["metadata"]["name"],
        "object": object,
        "oldObject": null,
        "dryRun": false,
    })
}

pub(crate) fn update(old: &Value, new: &Value) -> Value {
    let mut request = create(new);
    request["operation"] = "UPDATE".into();
    request["oldObject"] = old.clone();
    request
}

pub(crate) fn review(request: &Value) -> Value {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
}

/// Sends a review, with other replicas' answers.
pub(crate) fn ask_with(
    pool: &mut Pool,
    hook: Hook,
    request: &Value,
    policy: Policy,
    answers: &HashMap<Mac, Answer>,
) -> Reply {
    let bytes = review(request).to_string();
    let review = Review::read(hook, bytes.as_bytes()).unwrap();
    review.decide(pool, &Circumstances { policy, stamp: STAMP, now: NOW, may_give: true, answers })
}

/// Asks a replica that is alone.
pub(crate) fn ask(pool: &mut Pool, hook: Hook, request: &Value, policy: Policy) -> Reply {
    ask_with(pool, hook, request, policy, &HashMap::new())
}

/// The object as the API server writes it: with the patch of an answer that allows.
///
/// # Panics
/// When it is refused, or the patch cannot be applied.
pub(crate) fn written(request: &Value, reply: &Reply) -> Value {
    assert!(reply.is_allowed(), "{:?}", reply.refused());
    let mut object = request["object"].clone();
    apply(&mut object, reply.patch()).unwrap();
    object
}

/// Applies a JSON Patch (RFC 6902) of add, replace and remove, as strictly as the RFC requires.
pub(crate) fn apply(object: &mut Value, patch: &[Value]) -> Result<(), String> {
    for one in patch {
        let path = one["path"].as_str().ok_or("no path")?;
        let (parent, key) = path.rsplit_once('/').ok_or("the whole document")?;
        let key = key.replace("~1", "/").replace("~0", "~");
        let parent = object.pointer_mut(parent).ok_or_else(|| format!("no parent of {path}"))?;
        let value = one.get("value").cloned();
        match (parent, one["op"].as_str()) {
            (Value::Object(map), Some("add")) => drop(map.insert(key, value.ok_or("no value")?)),
            (Value::Object(map), Some("replace")) => {
                *map.get_mut(&key).ok_or_else(|| format!("no {path}"))? = value.ok_or("no value")?;
            }
            (Value::Object(map), Some("remove")) => {
                drop(map.remove(&key).ok_or_else(|| format!("no {path}"))?);
            }
            (Value::Array(list), Some("remove")) => {
                let index: usize = key.parse().map_err(|_| format!("no index: {path}"))?;
                if index >= list.len() {
                    return Err(format!("no {path}"));
                }
                list.remove(index);
            }
            (_, op) => return Err(format!("{op:?} of {path}")),
        }
    }
    Ok(())
}

/// The addresses of a machine's interfaces, in order; null where there is none.
pub(crate) fn addresses(machine: &Value) -> Value {
    let interfaces = &machine["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"];
    interfaces.as_array().unwrap().iter().map(|interface| interface["macAddress"].clone()).collect()
}
