//! Where a launcher pod may run, and how it is found on the network: fields that an instance shares with pods, the platform's
//! placement of guests, and labels of nodes that can run the guest, which virt-agent sets. With emulation those are the
//! emulator's.

use api::core::Toleration;
use api::kubevirt::VirtualMachineInstanceSpec;
use api::nodes::SCHEDULABLE;
use serde_json::{Value, json};

use super::{Settings, Unsupported};

/// Fields of an instance that a pod has under the same name with the same meaning.
const SHARED: [&str; 7] = [
    "affinity",
    "tolerations",
    "topologySpreadConstraints",
    "priorityClassName",
    "schedulerName",
    "dnsPolicy",
    "dnsConfig",
];

/// Rules of an affinity to nodes: terms of which one must match, and weighted preferences.
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
/// Conditions of a term; all of them must hold.
const CONDITIONS: [&str; 2] = ["matchExpressions", "matchFields"];

/// Models of processors that every node has in its own way.
const OF_EVERY_NODE: [&str; 3] = ["", "host-model", "host-passthrough"];

/// Adds selectors and shared fields to a pod's spec. `raw` is the instance's spec.
///
/// # Errors
/// For a model of a processor that the platform's configuration calls obsolete, and a label of nodes for which the platform
/// selects another value.
pub(super) fn place(
    pod: &mut Value,
    spec: &VirtualMachineInstanceSpec,
    raw: &Value,
    settings: &Settings,
) -> Result<(), Unsupported> {
    for field in SHARED {
        if let Some(value) = raw.get(field).filter(|value| !value.is_null()) {
            pod[field] = value.clone();
        }
    }
    if let Some(subdomain) = raw.get("subdomain").filter(|value| value.is_string()) {
        pod["subdomain"] = subdomain.clone();
    }
    let mut selector = node_selector(raw, settings)?;
    restrict(pod, settings);
    selector[SCHEDULABLE] = json!("true");
    selector["kubernetes.io/arch"] = json!(spec.architecture.as_deref().unwrap_or("amd64"));
    if virt::resolve::is_dedicated(spec) {
        selector["cpumanager"] = json!("true");
    }
    if raw.pointer("/domain/cpu/realtime").is_some() {
        selector["kubevirt.io/realtime"] = json!("");
    }
    let cpu = spec.domain.cpu.as_ref();
    let model = cpu.and_then(|cpu| cpu.model.as_deref()).unwrap_or_default();
    if !settings.emulation && settings.obsolete_models.contains(model) {
        let problem =
            format!("{model} is in obsoleteCPUModels of the KubeVirt object: give the VM a newer model");
        return Err(Unsupported::field("spec.domain.cpu.model", problem));
    }
    let mut select =
        |kind: &str, name: &str| selector[format!("{kind}.node.kubevirt.io/{name}")] = json!("true");
    if !OF_EVERY_NODE.contains(&model) {
        select("cpu-model", model);
    }
    for feature in cpu.iter().flat_map(|cpu| &cpu.features) {
        if matches!(feature.policy.as_deref(), None | Some("" | "require")) {
            select("cpu-feature", &feature.name);
        }
    }
    if let Some(machine) = spec.domain.machine.as_ref().filter(|machine| !machine.kind.is_empty()) {
        select("machine-type", &machine.kind);
    }
    pod["nodeSelector"] = selector;
    Ok(())
}

/// The instance's node selector with the platform's.
fn node_selector(raw: &Value, settings: &Settings) -> Result<Value, Unsupported> {
    let mut selector = json!(settings.node_selectors);
    for (name, value) in raw.get("nodeSelector").and_then(Value::as_object).into_iter().flatten() {
        selector[name] = value.clone();
    }
    for (name, value) in &settings.placement.node_selector {
        if let Some(own) = raw.get("nodeSelector").and_then(|own| own.get(name)).filter(|own| *own != value) {
            let problem = format!(
                "{name} is {own}, and spec.workloads.nodePlacement of the KubeVirt object places guests on nodes with \
                 {value:?}: no node has both"
            );
            return Err(Unsupported::field("spec.nodeSelector", problem));
        }
        selector[name] = json!(value);
    }
    Ok(selector)
}

/// Adds the platform's tolerations and affinity to nodes to a pod's own.
fn restrict(pod: &mut Value, settings: &Settings) {
    let placement = &settings.placement;
    // Those of every taint are meant for components that run on every node. A guest would be placed on a cordoned one, and
    // would stay on one that does not answer.
    let named = |one: &&Toleration| one.key.as_deref().is_some_and(|key| !key.is_empty());
    let ours: Vec<Value> = placement.tolerations.iter().filter(named).map(|one| json!(one)).collect();
    if !ours.is_empty() {
        pod["tolerations"] = list(&pod["tolerations"]).into_iter().chain(ours).collect();
    }
    let Some(wanted) = placement.affinity.as_ref().and_then(|one| one.node_affinity.as_ref()) else { return };
    let wanted = json!(wanted);
    let own = pod["affinity"]["nodeAffinity"].clone();
    if wanted[REQUIRED].is_object() {
        let (one, other) = (&wanted[REQUIRED], &own[REQUIRED]);
        let required = if other.is_object() { both(one, other) } else { one.clone() };
        pod["affinity"]["nodeAffinity"][REQUIRED] = required;
    }
    let preferred: Vec<Value> = [&own, &wanted].into_iter().flat_map(|one| list(&one[PREFERRED])).collect();
    if !preferred.is_empty() {
        pod["affinity"]["nodeAffinity"][PREFERRED] = json!(preferred);
    }
}

/// A selector of the nodes that both selectors match.
fn both(one: &Value, other: &Value) -> Value {
    // A term without conditions matches no node.
    let has_conditions = |term: &Value| CONDITIONS.iter().any(|field| !list(&term[*field]).is_empty());
    let terms_of = |selector: &Value| -> Vec<Value> {
        list(&selector["nodeSelectorTerms"]).into_iter().filter(has_conditions).collect()
    };
    let others = terms_of(other);
    let mut terms = Vec::new();
    for one in terms_of(one) {
        for other in &others {
            let mut term = json!({});
            for field in CONDITIONS {
                let conditions: Vec<Value> =
                    [&one, other].into_iter().flat_map(|term| list(&term[field])).collect();
                if !conditions.is_empty() {
                    term[field] = json!(conditions);
                }
            }
            terms.push(term);
        }
    }
    if terms.is_empty() {
        terms.push(json!({}));
    }
    json!({"nodeSelectorTerms": terms})
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}
