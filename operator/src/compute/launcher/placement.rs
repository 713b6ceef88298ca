//! Where a launcher pod may run, and how it is found on the network: fields that an instance shares with pods, and labels of
//! nodes that can run its guest, which virt-agent sets. With emulation those are the emulator's.

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

/// Models of processors that every node has in its own way.
const OF_EVERY_NODE: [&str; 3] = ["", "host-model", "host-passthrough"];

/// Adds selectors and shared fields to a pod's spec. `raw` is the instance's spec.
///
/// # Errors
/// For a model of a processor that the platform's configuration calls obsolete.
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
    let mut selector =
        raw.get("nodeSelector").filter(|value| value.is_object()).cloned().unwrap_or(json!({}));
    selector[SCHEDULABLE] = json!("true");
    selector["kubernetes.io/arch"] = json!(spec.architecture.as_deref().unwrap_or("amd64"));
    if raw.pointer("/domain/cpu/dedicatedCpuPlacement") == Some(&json!(true)) {
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
