//! Settings of launcher pods from the KubeVirt object, while it changes.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use api::core::LabelSelector;
use api::kubevirt::{ComponentPlacement, PermittedHostDevices};
use api::resource::LocalReference;
use cluster::{Cache, Client, Resource, Scope};
use serde::Deserialize;

use super::context::Context;
use super::launcher::{SKIP_HOOKS, Settings, percent};
use crate::view::{Age, Gates, WAITS, oldest};

/// The feature gate of images that the kubelet mounts.
const IMAGE_VOLUME: &str = "ImageVolume";

const KUBEVIRTS: Resource = Resource::namespaced("kubevirt.io", "v1", "kubevirts");

/// A KubeVirt object, as far as launcher pods depend on it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct KubeVirt {
    metadata: Metadata,
    spec: Spec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Metadata {
    #[serde(flatten)]
    age: Age,
    #[serde(rename = "deletionTimestamp")]
    deleted: Option<String>,
    annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    image_pull_policy: Option<String>,
    image_pull_secrets: Vec<LocalReference>,
    configuration: Configuration,
    workloads: ComponentPlacement,
    uninstall_strategy: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Configuration {
    developer_configuration: Developer,
    image_pull_policy: Option<String>,
    vm_rollout_strategy: Option<String>,
    virtual_machine_options: Options,
    vm_state_storage_class: Option<String>,
    default_runtime_class: Option<String>,
    additional_guest_memory_overhead_ratio: Option<String>,
    /// Models, and whether each is obsolete.
    #[serde(rename = "obsoleteCPUModels")]
    obsolete_cpu_models: BTreeMap<String, bool>,
    permitted_host_devices: Option<PermittedHostDevices>,
    #[serde(rename = "autoCPULimitNamespaceLabelSelector")]
    auto_cpu_limit_namespace_label_selector: Option<LabelSelector>,
    instancetype: Instancetype,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Instancetype {
    reference_policy: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Options {
    /// Set or not: it has no fields.
    disable_serial_console_log: Option<serde_json::Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Developer {
    use_emulation: Option<bool>,
    cpu_allocation_ratio: Option<u32>,
    memory_overcommit: Option<u32>,
    node_selectors: BTreeMap<String, String>,
    #[serde(flatten)]
    gates: Gates,
}

impl KubeVirt {
    /// Whether it is being deleted, and all workloads with it.
    fn removes_workloads(&self) -> bool {
        self.metadata.deleted.is_some() && self.spec.uninstall_strategy.as_deref() != Some(WAITS)
    }
}

impl From<&Self> for KubeVirt {
    fn from(read: &Self) -> Self {
        read.clone()
    }
}

/// Follows the KubeVirt object.
pub(super) fn follow(client: &Client) -> Cache<KubeVirt> {
    Cache::<KubeVirt>::builder().start::<KubeVirt>(client, KUBEVIRTS, &Scope::all())
}

/// The present settings: `base`, overridden by the KubeVirt object. There is one in a cluster; of several the oldest
/// counts.
pub(super) fn merged(base: &Settings, configuration: &Cache<KubeVirt>) -> Settings {
    let first = oldest(configuration.all(), |(_, object)| &object.metadata.age);
    first.map_or_else(|| base.clone(), |(_, object)| over(base, &object))
}

/// A text that is not empty.
fn given(text: &Option<String>) -> Option<String> {
    text.clone().filter(|text| !text.is_empty())
}

fn over(base: &Settings, object: &KubeVirt) -> Settings {
    let configuration = &object.spec.configuration;
    let developer = &configuration.developer_configuration;
    let policy = object.spec.image_pull_policy.as_ref().or(configuration.image_pull_policy.as_ref());
    Settings {
        image: base.image.clone(),
        pull_policy: policy.filter(|policy| !policy.is_empty()).or(base.pull_policy.as_ref()).cloned(),
        pull_secrets: object
            .spec
            .image_pull_secrets
            .iter()
            .map(|secret| secret.name.clone())
            .filter(|name| !name.is_empty())
            .chain(base.pull_secrets.iter().cloned())
            .collect(),
        emulation: developer.use_emulation.unwrap_or(base.emulation),
        cpu_allocation_ratio: developer.cpu_allocation_ratio.unwrap_or(base.cpu_allocation_ratio),
        memory_overcommit: developer.memory_overcommit.unwrap_or(base.memory_overcommit),
        live_update: configuration
            .vm_rollout_strategy
            .as_deref()
            .map_or(base.live_update, |one| one != "Stage"),
        image_volumes: developer.gates.has(IMAGE_VOLUME) || base.image_volumes,
        skip_backup_hooks: object.metadata.annotations.get(SKIP_HOOKS).is_some_and(|value| value == "true")
            || base.skip_backup_hooks,
        console_log: configuration.virtual_machine_options.disable_serial_console_log.is_none()
            && base.console_log,
        runtime_class: given(&configuration.default_runtime_class).or_else(|| base.runtime_class.clone()),
        overhead_percent: configuration
            .additional_guest_memory_overhead_ratio
            .as_deref()
            .and_then(percent)
            .unwrap_or(base.overhead_percent),
        obsolete_models: configuration
            .obsolete_cpu_models
            .iter()
            .filter(|(_, obsolete)| **obsolete)
            .map(|(model, _)| model.clone())
            .chain(base.obsolete_models.iter().cloned())
            .collect(),
        state_class: given(&configuration.vm_state_storage_class).or_else(|| base.state_class.clone()),
        host_devices: configuration.permitted_host_devices.clone(),
        node_selectors: developer.node_selectors.clone(),
        placement: object.spec.workloads.node_placement.clone().unwrap_or_default(),
        cpu_limit_namespaces: configuration
            .auto_cpu_limit_namespace_label_selector
            .clone()
            .or_else(|| base.cpu_limit_namespaces.clone()),
        expand_all: configuration.instancetype.reference_policy.as_deref() == Some("expandAll"),
        removing: object.removes_workloads(),
    }
}

/// Settings of a platform without a KubeVirt object: one that was removed with its workloads makes none again.
fn without(base: &Settings, before: &Settings) -> Settings {
    Settings { removing: before.removing, ..base.clone() }
}

/// Applies changes of the KubeVirt object. Pods that are created from then on follow them; all VMs follow at once how
/// they are to have their instance types. Replica sets and pools make what they lack when no removal goes on any more.
pub(super) async fn keep(
    context: Arc<Context>,
    configuration: Cache<KubeVirt>,
    base: Settings,
) -> Infallible {
    let mut changes = configuration.changes();
    loop {
        changes.next().await;
        let before = context.settings();
        let after = match configuration.all().is_empty() {
            true => without(&base, &before),
            false => merged(&base, &configuration),
        };
        let expand = after.expand_all && !before.expand_all;
        let resume = before.removing && !after.removing;
        context.set_settings(after);
        if resume {
            let (sets, pools) = (context.caches.replica_sets.all(), context.caches.pools.all());
            sets.into_iter().for_each(|(key, _)| context.queues.replica_sets.add(key));
            pools.into_iter().for_each(|(key, _)| context.queues.pools.add(key));
        }
        if expand {
            context.caches.machines.all().into_iter().for_each(|(key, _)| context.queues.machines.add(key));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removal_with_workloads_lasts_until_there_is_another_object() {
        let base = Settings::default();
        let removing = |metadata: serde_json::Value, spec: serde_json::Value| {
            let object = serde_json::json!({"metadata": metadata, "spec": spec});
            over(&base, &serde_json::from_value::<KubeVirt>(object).unwrap())
        };
        let deleted = || serde_json::json!({"name": "k", "deletionTimestamp": "2026-01-01T00:00:00Z"});
        let strategy = |name: &str| serde_json::json!({"uninstallStrategy": name});
        let going = removing(deleted(), strategy("RemoveWorkloads"));
        assert!(going.removing && removing(deleted(), strategy("")).removing);
        assert!(!removing(deleted(), strategy(WAITS)).removing, "its deletion waits for users");
        let stays = removing(serde_json::json!({"name": "k"}), strategy("RemoveWorkloads"));
        assert!(!stays.removing);
        assert!(without(&base, &going).removing && !without(&base, &stays).removing);
    }

    #[test]
    fn kubevirt_object_stands_over_the_defaults() {
        let base = Settings { image: "launcher".into(), ..Settings::default() };
        let object = |text: &str| serde_json::from_str::<KubeVirt>(text).unwrap();
        assert_eq!(over(&base, &object("{}")), base);
        let text = r#"{"spec": {"imagePullPolicy": "Always", "configuration": {"developerConfiguration":
            {"useEmulation": true, "cpuAllocationRatio": 1, "memoryOvercommit": 150}}}}"#;
        let merged = over(&base, &object(text));
        assert!(merged.emulation && merged.pull_policy.as_deref() == Some("Always"));
        let staged = object(r#"{"spec": {"configuration": {"vmRolloutStrategy": "Stage"}}}"#);
        assert!(merged.live_update && !over(&base, &staged).live_update);
        assert_eq!((merged.cpu_allocation_ratio, merged.memory_overcommit), (1, 150));
        let quiet =
            r#"{"spec": {"configuration": {"virtualMachineOptions": {"disableSerialConsoleLog": {}}}}}"#;
        assert!(merged.console_log && !over(&base, &object(quiet)).console_log);
        let gates =
            r#"{"spec": {"configuration": {"developerConfiguration": {"featureGates": ["ImageVolume"]}}}}"#;
        assert!(over(&base, &object(gates)).image_volumes && !base.image_volumes);
        let disabled = r#"{"spec": {"configuration": {"developerConfiguration":
            {"featureGates": ["ImageVolume"], "disabledFeatureGates": ["ImageVolume"]}}}}"#;
        assert!(!over(&base, &object(disabled)).image_volumes);
        let class = r#"{"spec": {"configuration": {"defaultRuntimeClass": "kata"}}}"#;
        assert_eq!(over(&base, &object(class)).runtime_class.as_deref(), Some("kata"));
        let devices = r#"{"spec": {"configuration": {"permittedHostDevices": {"pciHostDevices": [
            {"pciVendorSelector": "10DE:1EB8", "resourceName": "nvidia.com/T4"}]}}}}"#;
        let devices = over(&base, &object(devices)).host_devices.unwrap();
        assert_eq!(devices.pci_host_devices[0].resource_name, "nvidia.com/T4");
        let logins = object(r#"{"spec": {"imagePullSecrets": [{"name": "b"}, {}, {"name": "a"}]}}"#);
        assert!(over(&base, &logins).pull_secrets.iter().eq(["a", "b"]));
        let placed = r#"{"spec": {"workloads": {"nodePlacement": {"nodeSelector": {"a": "b"}}},
            "configuration": {"developerConfiguration": {"nodeSelectors": {"c": "d"}}}}}"#;
        let placed = over(&base, &object(placed));
        assert_eq!((&*placed.placement.node_selector["a"], &*placed.node_selectors["c"]), ("b", "d"));
        let none = object(r#"{"spec": {"configuration": {"permittedHostDevices": {}}}}"#);
        let none = over(&base, &none).host_devices;
        assert_eq!(none, Some(PermittedHostDevices::default()), "an empty list permits none");
        let limited = r#"{"spec": {"configuration": {"autoCPULimitNamespaceLabelSelector":
            {"matchLabels": {"limited": "true"}}}}}"#;
        let namespaces = over(&base, &object(limited)).cpu_limit_namespaces.unwrap();
        assert_eq!(namespaces.match_labels["limited"], "true");
        let obsolete =
            r#"{"spec": {"configuration": {"obsoleteCPUModels": {"486": true, "Penryn": false}}}}"#;
        let models = over(&base, &object(obsolete)).obsolete_models;
        assert_eq!(models.iter().map(String::as_str).collect::<Vec<_>>(), ["486"]);
        for (policy, expanded) in [("expandAll", true), ("expand", false), ("reference", false)] {
            let text = format!(
                r#"{{"spec": {{"configuration": {{"instancetype": {{"referencePolicy": "{policy}"}}}}}}}}"#
            );
            assert_eq!(over(&base, &object(&text)).expand_all, expanded, "{policy}");
        }
        for (ratio, percent) in [("1.5", 150), ("2", 200), ("0.5", 100), ("much", 100), ("NaN", 100)] {
            let text = format!(
                r#"{{"spec": {{"configuration": {{"additionalGuestMemoryOverheadRatio": "{ratio}"}}}}}}"#
            );
            assert_eq!(over(&base, &object(&text)).overhead_percent, percent, "{ratio}");
        }
        for (value, skipped) in [("true", true), ("false", false)] {
            let object =
                object(&format!(r#"{{"metadata": {{"annotations": {{"{SKIP_HOOKS}": "{value}"}}}}}}"#));
            assert_eq!(over(&base, &object).skip_backup_hooks, skipped, "{value}");
        }
    }
}
