//! Settings of launcher pods from the KubeVirt object, while it changes.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use cluster::{Cache, Client, Resource, Scope};
use serde::Deserialize;

use super::context::Context;
use super::launcher::{SKIP_HOOKS, Settings};

const KUBEVIRTS: Resource = Resource::namespaced("kubevirt.io", "v1", "kubevirts");

/// A KubeVirt object, as far as launcher pods depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct KubeVirt {
    metadata: Metadata,
    spec: Spec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Metadata {
    annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    image_pull_policy: Option<String>,
    configuration: Configuration,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Configuration {
    developer_configuration: Developer,
    image_pull_policy: Option<String>,
    vm_rollout_strategy: Option<String>,
    virtual_machine_options: Options,
    vm_state_storage_class: Option<String>,
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

/// The present settings: `base`, overridden by the KubeVirt object. There is one in a cluster; of several the first by name
/// counts.
pub(super) fn merged(base: &Settings, configuration: &Cache<KubeVirt>) -> Settings {
    let all = configuration.all();
    let first = all.iter().min_by(|(one, _), (other, _)| one.cmp(other));
    first.map_or_else(|| base.clone(), |(_, object)| over(base, object))
}

fn over(base: &Settings, object: &KubeVirt) -> Settings {
    let configuration = &object.spec.configuration;
    let developer = &configuration.developer_configuration;
    let policy = object.spec.image_pull_policy.as_ref().or(configuration.image_pull_policy.as_ref());
    Settings {
        image: base.image.clone(),
        pull_policy: policy.filter(|policy| !policy.is_empty()).or(base.pull_policy.as_ref()).cloned(),
        emulation: developer.use_emulation.unwrap_or(base.emulation),
        cpu_allocation_ratio: developer.cpu_allocation_ratio.unwrap_or(base.cpu_allocation_ratio),
        memory_overcommit: developer.memory_overcommit.unwrap_or(base.memory_overcommit),
        live_update: configuration
            .vm_rollout_strategy
            .as_deref()
            .map_or(base.live_update, |one| one != "Stage"),
        skip_backup_hooks: object.metadata.annotations.get(SKIP_HOOKS).is_some_and(|value| value == "true")
            || base.skip_backup_hooks,
        console_log: configuration.virtual_machine_options.disable_serial_console_log.is_none()
            && base.console_log,
        state_class: configuration
            .vm_state_storage_class
            .clone()
            .filter(|class| !class.is_empty())
            .or_else(|| base.state_class.clone()),
    }
}

/// Applies changes of the KubeVirt object. They are followed by pods that are created from then on.
pub(super) async fn keep(
    context: Arc<Context>,
    configuration: Cache<KubeVirt>,
    base: Settings,
) -> Infallible {
    let mut changes = configuration.changes();
    loop {
        changes.next().await;
        context.set_settings(merged(&base, &configuration));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for (value, skipped) in [("true", true), ("false", false)] {
            let object =
                object(&format!(r#"{{"metadata": {{"annotations": {{"{SKIP_HOOKS}": "{value}"}}}}}}"#));
            assert_eq!(over(&base, &object).skip_backup_hooks, skipped, "{value}");
        }
    }
}
