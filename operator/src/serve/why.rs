//! `virtualmachines/NAME/why`: in words, why a VM does not run, or where it does. The words are made of the objects by
//! [`explain`] (pure); nothing is changed.

use std::sync::Arc;

use cluster::{Client, Key, Resource, Scope};
use http::StatusCode;
use serde_json::{Value, json};
use serve::route::{Call, json as json_answer};
use virt::machine::Strategy;

use super::Site;
use super::instance::INSTANCES;
use super::status::{Answered, Refusal};

const MACHINES: Resource = Resource::namespaced("kubevirt.io", "v1", "virtualmachines");
const PODS: Resource = Resource::namespaced("", "v1", "pods");
const CLAIMS: Resource = Resource::namespaced("", "v1", "persistentvolumeclaims");
const DATA_VOLUMES: Resource = Resource::namespaced("cdi.kubevirt.io", "v1beta1", "datavolumes");
/// Most volumes that are looked at.
const MOST_VOLUMES: usize = 64;

/// A VM and the objects that it depends on.
#[derive(Debug, Default)]
struct Facts {
    machine: Value,
    instance: Option<Value>,
    pods: Vec<Value>,
    volumes: Vec<Volume>,
}

/// A claim that the VM names, with what is there under that name.
#[derive(Debug, Default)]
struct Volume {
    name: String,
    claim: Option<Value>,
    data_volume: Option<Value>,
}

/// Answers a request.
pub(super) async fn handle(site: Arc<Site>, call: Call) -> Answered {
    site.gate.admit(&call, "virtualmachines", "why").await?;
    let (namespace, name) = (call.parameter("namespace"), call.parameter("name"));
    let facts = read(&site.client, namespace, name).await?;
    let facts = facts.ok_or_else(|| Refusal::absent("virtualmachine", name))?;
    let running = facts.instance.as_ref().is_some_and(|one| one["status"]["phase"] == "Running");
    let answer = json!({"running": running, "reasons": explain(&facts)});
    Ok(json_answer(StatusCode::OK, answer.to_string()))
}

async fn read(client: &Client, namespace: &str, name: &str) -> Result<Option<Facts>, Refusal> {
    let key = Key::new(namespace, name);
    let Some(machine) = client.find::<Value>(MACHINES, &key).await? else { return Ok(None) };
    let instance: Option<Value> = client.find(INSTANCES, &key).await?;
    let mut pods = Vec::new();
    if let Some(uid) = instance.as_ref().and_then(|one| one["metadata"]["uid"].as_str()) {
        let scope = Scope::all().namespace(namespace).labels(&format!("kubevirt.io/created-by={uid}"));
        pods = client.list(PODS, &scope).await?;
    }
    let mut volumes = Vec::new();
    for name in claims(&machine).into_iter().take(MOST_VOLUMES) {
        let key = Key::new(namespace, &name);
        let claim = client.find(CLAIMS, &key).await?;
        let data_volume = client.find(DATA_VOLUMES, &key).await?;
        volumes.push(Volume { name, claim, data_volume });
    }
    Ok(Some(Facts { machine, instance, pods, volumes }))
}

/// Names of the claims that a VM names; a DataVolume's claim has its name.
fn claims(machine: &Value) -> Vec<String> {
    let volumes = machine["spec"]["template"]["spec"]["volumes"].as_array();
    let named = |volume: &Value| {
        let name = volume["dataVolume"]["name"].as_str();
        name.or_else(|| volume["persistentVolumeClaim"]["claimName"].as_str()).map(str::to_owned)
    };
    volumes.into_iter().flatten().filter_map(named).collect()
}

/// Sentences, the most important first.
fn explain(facts: &Facts) -> Vec<String> {
    let mut said = Vec::new();
    let machine = &facts.machine;
    let instance = facts.instance.as_ref();
    if machine["metadata"]["deletionTimestamp"].is_string() {
        said.push("The VM is being deleted.".to_owned());
    }
    if let Some(failure) = condition(machine, "Failure", "True") {
        said.push(format!("The last step failed: {failure}."));
    }
    match instance {
        None => absent(facts, &mut said),
        Some(instance) => present(instance, &facts.pods, &mut said),
    }
    if condition(machine, "RestartRequired", "True").is_some() {
        said.push("A change of the template takes effect at the next start.".to_owned());
    }
    if said.is_empty() {
        said.push("Nothing stands in the way; the VM is started now.".to_owned());
    }
    said
}

/// Why there is no instance.
fn absent(facts: &Facts, said: &mut Vec<String>) {
    let machine = &facts.machine;
    let spec = &machine["spec"];
    let strategy = Strategy::of(spec["running"].as_bool(), spec["runStrategy"].as_str());
    let requests = machine["status"]["stateChangeRequests"].as_array().cloned().unwrap_or_default();
    let start = requests.iter().any(|request| request["action"] == "Start");
    let name = machine["metadata"]["name"].as_str().unwrap_or_default();
    match strategy {
        Strategy::Halted => said.push(format!("The VM is halted: `virtctl start {name}` starts it.")),
        Strategy::Manual if !start => {
            said.push(format!(
                "The run strategy is Manual and no start is requested: `virtctl start {name}` does that."
            ));
        }
        Strategy::Manual | Strategy::Always | Strategy::RerunOnFailure | Strategy::Once => {}
    }
    let failure = &machine["status"]["startFailure"];
    if let Some(count) = failure["consecutiveFailCount"].as_u64().filter(|count| *count > 0) {
        let retry = failure["retryAfterTimestamp"].as_str().unwrap_or("soon");
        said.push(format!("The last {count} starts failed; the next attempt is at {retry}."));
    }
    said.extend(facts.volumes.iter().filter_map(storage));
}

/// Why a volume is not ready.
fn storage(volume: &Volume) -> Option<String> {
    let name = &volume.name;
    if let Some(data) = &volume.data_volume {
        let phase = data["status"]["phase"].as_str().unwrap_or("Pending");
        if phase != "Succeeded" {
            let progress = data["status"]["progress"].as_str().filter(|text| *text != "N/A");
            let progress = progress.map(|text| format!(" ({text})")).unwrap_or_default();
            let why = condition(data, "Running", "False").map(|text| format!(": {text}")).unwrap_or_default();
            return Some(format!("DataVolume {name} is in phase {phase}{progress}{why}."));
        }
    }
    let Some(claim) = &volume.claim else {
        return Some(format!("PersistentVolumeClaim {name} does not exist."));
    };
    let phase = claim["status"]["phase"].as_str().unwrap_or("Pending");
    (phase != "Bound").then(|| {
        let class = claim["spec"]["storageClassName"].as_str().unwrap_or("none");
        format!("PersistentVolumeClaim {name} is {phase} (StorageClass {class}): `kubectl describe pvc {name}` shows why.")
    })
}

/// How far an instance is.
fn present(instance: &Value, pods: &[Value], said: &mut Vec<String>) {
    let phase = instance["status"]["phase"].as_str().unwrap_or("Pending");
    let node = instance["status"]["nodeName"].as_str().filter(|node| !node.is_empty());
    if instance["metadata"]["deletionTimestamp"].is_string() {
        said.push(format!("Its instance is being stopped (phase {phase})."));
    } else if phase == "Running" {
        let paused = condition(instance, "Paused", "True");
        let state = if paused.is_some() { "is paused" } else { "runs" };
        said.push(format!("The VM {state} on node {}.", node.unwrap_or("unknown")));
    } else {
        let place = node.map(|node| format!(" on node {node}")).unwrap_or_default();
        said.push(format!("Its instance is in phase {phase}{place}."));
    }
    for kind in ["Synchronized", "PodScheduled", "DataVolumesReady", "Provisioning"] {
        if let Some(text) = condition(instance, kind, "False") {
            said.push(format!("{kind} is False: {text}."));
        }
    }
    if phase == "Running" {
        return;
    }
    if pods.is_empty() && !matches!(phase, "Succeeded" | "Failed") {
        said.push("Its launcher pod does not exist yet.".to_owned());
    }
    for pod in pods {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        if let Some(text) = condition(pod, "PodScheduled", "False") {
            said.push(format!("Pod {name} is not scheduled: {text}."));
        }
        let status = &pod["status"];
        let all = ["initContainerStatuses", "containerStatuses"].map(|field| status[field].as_array());
        for container in all.into_iter().flatten().flatten() {
            let waiting = &container["state"]["waiting"];
            if let Some(reason) = waiting["reason"].as_str() {
                let text = waiting["message"].as_str().map(|text| format!(": {text}")).unwrap_or_default();
                let container = container["name"].as_str().unwrap_or_default();
                said.push(format!("Container {container} of pod {name} waits: {reason}{text}."));
            }
        }
    }
}

/// Reason and message of a condition that has this status.
fn condition(object: &Value, kind: &str, status: &str) -> Option<String> {
    let all = object["status"]["conditions"].as_array()?;
    let found = all.iter().find(|one| one["type"] == kind && one["status"] == status)?;
    let text = |field: &str| found[field].as_str().filter(|text| !text.is_empty());
    Some(match (text("reason"), text("message")) {
        (Some(reason), Some(message)) => format!("{reason}: {}", message.trim_end_matches('.')),
        (Some(text), None) | (None, Some(text)) => text.trim_end_matches('.').to_owned(),
        (None, None) => kind.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(strategy: &str, status: Value) -> Value {
        let mut object = json!({"metadata": {"name": "vm"}, "spec": {"runStrategy": strategy}});
        object["status"] = status;
        object
    }

    #[test]
    fn each_obstacle_is_named() {
        let machine_of =
            |strategy: &str, status: Value| Facts { machine: machine(strategy, status), ..Facts::default() };
        let volume = |claim: Value, data_volume: Value| {
            let some = |value: Value| (!value.is_null()).then_some(value);
            Facts {
                machine: machine("Always", json!({})),
                volumes: vec![Volume {
                    name: "root".into(),
                    claim: some(claim),
                    data_volume: some(data_volume),
                }],
                ..Facts::default()
            }
        };
        let instance = |status: Value, pods: Value| Facts {
            machine: machine("Always", json!({})),
            instance: Some(json!({"metadata": {}, "status": status})),
            pods: pods.as_array().cloned().unwrap_or_default(),
            ..Facts::default()
        };
        let waiting = json!([{"metadata": {"name": "p"}, "status": {"containerStatuses": [
            {"name": "compute", "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}]}}]);
        let unscheduled = json!([{"metadata": {"name": "p"}, "status": {"conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available."}]}}]);
        for (facts, expected) in [
            (machine_of("Halted", json!({})), "The VM is halted: `virtctl start vm` starts it."),
            (
                machine_of("Manual", json!({})),
                "The run strategy is Manual and no start is requested: `virtctl start vm` does that.",
            ),
            (
                machine_of("Manual", json!({"stateChangeRequests": [{"action": "Start"}]})),
                "Nothing stands in the way; the VM is started now.",
            ),
            (
                machine_of(
                    "Always",
                    json!({"startFailure": {"consecutiveFailCount": 3, "retryAfterTimestamp": "T"}}),
                ),
                "The last 3 starts failed; the next attempt is at T.",
            ),
            (
                machine_of(
                    "Always",
                    json!({"conditions": [
                    {"type": "Failure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota."}]}),
                ),
                "The last step failed: FailedCreate: exceeded quota.",
            ),
            (volume(Value::Null, Value::Null), "PersistentVolumeClaim root does not exist."),
            (
                volume(Value::Null, json!({"status": {"phase": "ImportInProgress", "progress": "42%"}})),
                "DataVolume root is in phase ImportInProgress (42%).",
            ),
            (
                volume(
                    json!({"spec": {"storageClassName": "fast"}, "status": {"phase": "Pending"}}),
                    Value::Null,
                ),
                "PersistentVolumeClaim root is Pending (StorageClass fast): `kubectl describe pvc root` shows why.",
            ),
            (instance(json!({"phase": "Running", "nodeName": "n1"}), json!([])), "The VM runs on node n1."),
            (
                instance(
                    json!({"phase": "Running", "nodeName": "n1", "conditions": [{"type": "Paused", "status": "True"}]}),
                    json!([]),
                ),
                "The VM is paused on node n1.",
            ),
            (instance(json!({"phase": "Pending"}), json!([])), "Its launcher pod does not exist yet."),
            (
                instance(json!({"phase": "Scheduling"}), waiting),
                "Container compute of pod p waits: ErrImagePull: no such image.",
            ),
            (
                instance(json!({"phase": "Scheduling"}), unscheduled),
                "Pod p is not scheduled: Unschedulable: 0/1 nodes are available.",
            ),
        ] {
            let said = explain(&facts);
            assert!(said.iter().any(|one| one == expected), "{expected}\n{said:?}");
        }
    }
}
