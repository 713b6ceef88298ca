//! Defaults of new guests and levels of the process's log, from the KubeVirt object while it changes.

use std::convert::Infallible;
use std::sync::Arc;

use api::kubevirt::{InstancetypeConfiguration, LiveUpdateConfiguration, LogVerbosity, PermittedHostDevices};
use cluster::{Cache, Client, Resource, Scope};
use serde::Deserialize;
use virt::admission::{DefaultBinding, Settings};
use virt::resolve::Growth;

use crate::view::{Age, Gates, oldest};

const KUBEVIRTS: Resource = Resource::namespaced("kubevirt.io", "v1", "kubevirts");

/// Permissions of guests: limits of their specs besides the rules that hold everywhere.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Permitted {
    /// Devices of the host (`permittedHostDevices`); `None`: those of every device plugin.
    pub(super) devices: Option<PermittedHostDevices>,
    /// Bridges on the pod network (`network.permitBridgeInterfaceOnPodNetwork`).
    pub(super) pod_bridges: bool,
}

impl Default for Permitted {
    fn default() -> Self {
        Self { devices: None, pod_bridges: true }
    }
}

/// The form in which VMs keep their instance types and preferences (`instancetype.referencePolicy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ReferencePolicy {
    /// References, and revisions of the objects.
    #[default]
    Reference,
    /// Written into the template, unless a reference stands for a revision.
    Expand,
    /// Written into the template.
    ExpandAll,
}

/// A KubeVirt object, as far as defaults, permissions and levels depend on it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Configuration {
    metadata: Age,
    spec: Spec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Spec {
    configuration: Fields,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Fields {
    machine_type: Option<String>,
    cpu_model: Option<String>,
    architecture_configuration: Architectures,
    developer_configuration: Developer,
    instancetype: InstancetypeConfiguration,
    live_update_configuration: LiveUpdateConfiguration,
    network: Network,
    permitted_host_devices: Option<PermittedHostDevices>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Developer {
    log_verbosity: LogVerbosity,
    #[serde(flatten)]
    gates: Gates,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Architectures {
    default_architecture: Option<String>,
    amd64: Architecture,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Architecture {
    machine_type: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Network {
    default_network_interface: Option<String>,
    permit_bridge_interface_on_pod_network: Option<bool>,
}

impl From<&Self> for Configuration {
    fn from(read: &Self) -> Self {
        read.clone()
    }
}

/// Follows the KubeVirt object.
pub(super) fn follow(client: &Client) -> Cache<Configuration> {
    Cache::<Configuration>::builder().start::<Configuration>(client, KUBEVIRTS, &Scope::all())
}

/// The KubeVirt object now. There is one in a cluster; of several the oldest counts.
fn current(configuration: &Cache<Configuration>) -> Option<Arc<Configuration>> {
    oldest(configuration.all(), |(_, object)| &object.metadata).map(|(_, object)| object)
}

/// The settings now.
pub(super) fn settings(configuration: &Cache<Configuration>) -> Settings {
    current(configuration).map_or_else(Settings::default, |object| of(&object))
}

/// The permissions of guests now.
pub(super) fn permitted(configuration: &Cache<Configuration>) -> Permitted {
    current(configuration).map(|object| permitted_by(&object)).unwrap_or_default()
}

fn permitted_by(object: &Configuration) -> Permitted {
    let Fields { permitted_host_devices, network, .. } = &object.spec.configuration;
    Permitted {
        devices: permitted_host_devices.clone(),
        pod_bridges: network.permit_bridge_interface_on_pod_network.unwrap_or(true),
    }
}

/// The form in which VMs keep their instance types and preferences now.
pub(super) fn reference_policy(configuration: &Cache<Configuration>) -> ReferencePolicy {
    current(configuration).map(|object| reference_policy_of(&object)).unwrap_or_default()
}

fn reference_policy_of(object: &Configuration) -> ReferencePolicy {
    match object.spec.configuration.instancetype.reference_policy.as_deref() {
        Some("expand") => ReferencePolicy::Expand,
        Some("expandAll") => ReferencePolicy::ExpandAll,
        _ => ReferencePolicy::Reference,
    }
}

/// Whether a feature gate that is off by default is on now.
pub(super) fn gate(configuration: &Cache<Configuration>, name: &str) -> bool {
    current(configuration)
        .is_some_and(|object| object.spec.configuration.developer_configuration.gates.has(name))
}

/// Levels of the operator's parts. One process has upstream's virt-api, virt-controller and virt-operator; the last is all
/// of the rest.
fn levels(object: &Configuration) -> Vec<(&'static str, u8)> {
    let verbosity = &object.spec.configuration.developer_configuration.log_verbosity;
    let parts = [
        ("operator::serve", verbosity.of_api()),
        ("operator::compute", verbosity.of_controllers()),
        ("", verbosity.of_operator()),
    ];
    parts.into_iter().filter_map(|(part, level)| Some((part, level?))).collect()
}

/// Gives the process's log the levels of the KubeVirt object, whenever they change.
pub(super) async fn keep_levels(configuration: Cache<Configuration>) -> Infallible {
    let (mut changes, mut set) = (configuration.changes(), Vec::new());
    loop {
        let wanted = current(&configuration).map(|object| levels(&object)).unwrap_or_default();
        if wanted != set {
            serve::logs::set_levels(&wanted);
            tracing::info!(levels = ?wanted, "levels of the log are changed");
            set = wanted;
        }
        changes.next().await;
    }
}

fn of(object: &Configuration) -> Settings {
    let Fields {
        machine_type,
        cpu_model,
        architecture_configuration: architectures,
        developer_configuration: _,
        instancetype: _,
        live_update_configuration,
        network,
        permitted_host_devices: _,
    } = &object.spec.configuration;
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let base = Settings::default();
    let binding = match network.default_network_interface.as_deref() {
        Some("bridge") => DefaultBinding::Bridge,
        _ => base.binding,
    };
    Settings {
        machine: given(&architectures.amd64.machine_type)
            .or_else(|| given(machine_type))
            .unwrap_or(base.machine),
        architecture: given(&architectures.default_architecture).unwrap_or(base.architecture),
        cpu_model: given(cpu_model),
        binding,
        growth: growth(live_update_configuration),
    }
}

/// Limits of hotplug. Values that are not positive, or no quantity, count as not given.
fn growth(limits: &LiveUpdateConfiguration) -> Growth {
    let LiveUpdateConfiguration { max_cpu_sockets, max_guest, max_hotplug_ratio } = limits;
    let positive =
        |number: Option<i32>| number.and_then(|one| u32::try_from(one).ok()).filter(|one| *one > 0);
    Growth {
        sockets: positive(*max_cpu_sockets),
        memory: max_guest.as_ref().and_then(|one| one.bytes().ok()).filter(|one| *one > 0),
        ratio: positive(*max_hotplug_ratio).unwrap_or(Growth::default().ratio),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn kubevirt_object_stands_over_the_defaults() {
        let read = |configuration: Value| {
            let object = json!({"spec": {"configuration": configuration}});
            let Settings { machine, architecture, cpu_model, binding, growth: _ } =
                of(&serde_json::from_value(object).unwrap());
            (machine, architecture, cpu_model.unwrap_or_default(), binding)
        };
        let row = |machine: &str, model: &str, binding| {
            (machine.to_owned(), "amd64".to_owned(), model.to_owned(), binding)
        };
        for (configuration, expected) in [
            (json!({}), row("q35", "", DefaultBinding::Masquerade)),
            (json!({"machineType": "", "cpuModel": ""}), row("q35", "", DefaultBinding::Masquerade)),
            (
                json!({"machineType": "pc-q35-9.0", "cpuModel": "Haswell",
                    "network": {"defaultNetworkInterface": "bridge"}}),
                row("pc-q35-9.0", "Haswell", DefaultBinding::Bridge),
            ),
            (
                json!({"machineType": "old", "architectureConfiguration":
                    {"defaultArchitecture": "amd64", "amd64": {"machineType": "pc-q35-9.2"}}}),
                row("pc-q35-9.2", "", DefaultBinding::Masquerade),
            ),
        ] {
            assert_eq!(read(configuration.clone()), expected, "{configuration}");
        }
    }

    #[test]
    fn bridges_on_the_pod_network_are_permitted_unless_the_object_forbids_them() {
        for (network, expected) in [
            (json!({}), true),
            (json!({"permitBridgeInterfaceOnPodNetwork": true}), true),
            (json!({"permitBridgeInterfaceOnPodNetwork": false}), false),
        ] {
            let object = json!({"spec": {"configuration": {"network": network}}});
            let read = permitted_by(&serde_json::from_value(object).unwrap());
            assert_eq!(read, Permitted { pod_bridges: expected, ..Permitted::default() }, "{network}");
        }
    }

    #[test]
    fn references_are_kept_unless_the_object_expands_them() {
        for (instancetype, expected) in [
            (json!({}), ReferencePolicy::Reference),
            (json!({"referencePolicy": "reference"}), ReferencePolicy::Reference),
            (json!({"referencePolicy": "expand"}), ReferencePolicy::Expand),
            (json!({"referencePolicy": "expandAll"}), ReferencePolicy::ExpandAll),
        ] {
            let object = json!({"spec": {"configuration": {"instancetype": instancetype}}});
            let read = reference_policy_of(&serde_json::from_value(object).unwrap());
            assert_eq!(read, expected, "{instancetype}");
        }
    }

    #[test]
    fn limits_of_hotplug_are_the_objects_where_they_are_positive() {
        let all = json!({"maxCpuSockets": 8, "maxGuest": "64Gi", "maxHotplugRatio": 2});
        for (limits, sockets, memory, ratio) in [
            (json!({}), None, None, 4),
            (all, Some(8), Some(64 << 30), 2),
            (json!({"maxCpuSockets": 0, "maxGuest": "0", "maxHotplugRatio": 0}), None, None, 4),
            (json!({"maxCpuSockets": -1, "maxGuest": "lots", "maxHotplugRatio": -2}), None, None, 4),
        ] {
            let object = json!({"spec": {"configuration": {"liveUpdateConfiguration": limits}}});
            let read = of(&serde_json::from_value(object).unwrap()).growth;
            assert_eq!(read, Growth { sockets, memory, ratio }, "{limits}");
        }
    }

    #[test]
    fn parts_of_the_operator_have_levels_of_upstreams_components() {
        let levels = |verbosity: Value| {
            let developer = json!({"featureGates": ["Snapshot"], "logVerbosity": verbosity});
            let object = json!({"spec": {"configuration": {"developerConfiguration": developer}}});
            levels(&serde_json::from_value(object).unwrap())
        };
        assert_eq!(levels(json!({"virtHandler": 7, "nodeVerbosity": {"a": 3}})), []);
        assert_eq!(levels(json!({"virtAPI": 4})), [("operator::serve", 4)]);
        let all = levels(json!({"virtAPI": 2, "virtController": 5, "virtOperator": 3}));
        assert_eq!(all, [("operator::serve", 2), ("operator::compute", 5), ("", 3)]);
    }

    #[test]
    fn a_gate_is_on_if_it_is_listed_and_not_disabled() {
        let gates = |on: Value, off: Value| {
            let developer = json!({"featureGates": on, "disabledFeatureGates": off});
            json!({"spec": {"configuration": {"developerConfiguration": developer}}})
        };
        for (object, expected) in [
            (json!({}), false),
            (gates(json!(["VSOCK", "ObjectGraph"]), json!([])), true),
            (gates(json!(["ObjectGraph"]), json!(["ObjectGraph"])), false),
            (gates(json!(["objectgraph"]), json!([])), false),
        ] {
            let read: Configuration = serde_json::from_value(object.clone()).unwrap();
            let gates = &read.spec.configuration.developer_configuration.gates;
            assert_eq!(gates.has("ObjectGraph"), expected, "{object}");
        }
    }
}
