//! Settings of `HyperConverged` that have no effect, for its status. Pure.

use api::hyperconverged::v1::HyperConverged;
use api::hyperconverged::{ANNOTATION, Gate, Stage};
use serde_json::{Value, json};

use super::input::{plain, value};

/// Settings without an effect, with the value that asks for nothing (null: any value asks for something), by path in v1.
pub const WITHOUT: [(&str, &str); 16] = [
    // No quota that knows guests.
    ("deployment.applicationAwareConfig.allowApplicationAwareClusterResourceQuota", "false"),
    ("deployment.applicationAwareConfig.enable", "false"),
    ("deployment.applicationAwareConfig.namespaceSelector", "null"),
    ("deployment.applicationAwareConfig.vmiCalcConfigName", "\"DedicatedVirtualResources\""),
    // The node agent attaches networks itself: pods need no resources for them.
    ("deployment.deployNetworkResourcesInjector", "true"),
    // SSP reports a status only: no tokens, no templates, no boot images yet.
    ("deployment.deployVmConsoleProxy", "false"),
    ("workloadSources.commonBootImageNamespace", "null"),
    ("workloadSources.commonTemplatesNamespace", "null"),
    ("workloadSources.dataImportCronTemplates", "null"),
    ("workloadSources.enableCommonBootImageImport", "true"),
    ("workloadSources.enableMultiArchBootImageImport", "false"),
    // No DNS server for secondary networks.
    ("networking.kubeSecondaryDNSNameServerIP", "null"),
    // Metrics of guests are exported whole.
    ("observability.workloads.allowedMetrics", "null"),
    // Imports use no scratch volume.
    ("storage.scratchSpaceStorageClass", "null"),
    // An eviction deletes the pod of a guest: guests do not move. Children get the strategy that is usual upstream.
    ("virtualization.evictionStrategy", "\"None\""),
    // Upstream dropped the policy highBurst.
    ("virtualization.tuningPolicy", "\"annotation\""),
];

/// Gates without an effect: nothing reads them, or what they switch on does not exist.
const GATES: [&str; 10] = [
    "alignCPUs",
    "containerPathVolumes",
    "decentralizedLiveMigration",
    "deployKubeSecondaryDNS",
    "deployObservabilityController",
    "downwardMetrics",
    "enableMultiArchBootImageImport",
    "incrementalBackup",
    "persistentReservation",
    "template",
];

/// The settings of an object that have no effect and ask for one, by path.
pub fn ignored(owner: &HyperConverged) -> Vec<String> {
    let spec = plain(&value(&owner.spec));
    let mut found = Vec::new();
    for (path, default) in WITHOUT {
        let set = path.split('.').fold(&spec, |value, step| &value[step]);
        let default: Value = serde_json::from_str(default).unwrap_or_default();
        if !set.is_null() && *set != default {
            found.push(format!("spec.{path}"));
        }
    }
    for gate in &owner.spec.feature_gates {
        let on = gate.state.as_deref() != Some("Disabled");
        let without = Gate::find(&gate.name).is_none_or(|known| match known.stage {
            Stage::Stable => !on,
            Stage::Removed => on,
            Stage::Alpha | Stage::Beta | Stage::Deprecated => on && GATES.contains(&known.name),
        });
        if without {
            found.push(format!("spec.featureGates[{}]", json!(gate.name)));
        }
    }
    let older = owner.metadata.annotations.get(ANNOTATION).and_then(|text| serde_json::from_str(text).ok());
    leaves(&older.map_or(Value::Null, |older: Value| older["spec"].clone()), "spec", &mut found);
    found
}

/// Settings that only v1beta1 has, which the conversion keeps: none of them has an effect.
fn leaves(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                leaves(field, &format!("{path}.{name}"), found);
            }
        }
        Value::Null => {}
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            found.push(format!("{path} (v1beta1)"));
        }
    }
}
