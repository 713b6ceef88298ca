//! Settings of `KubeVirt` and `CDI` that have no effect, for a condition of their status. Pure.

use serde_json::Value;

use super::plan::Side;

/// Settings by path. Patches and flags are of upstream's components, which one operator replaces; its pods and the node
/// agent's are placed by the manifests.
fn paths(side: Side) -> &'static [&'static str] {
    match side {
        Side::Compute => &[
            "customizeComponents.flags",
            "customizeComponents.patches",
            "imageRegistry",
            "imageTag",
            "infra.nodePlacement",
            "monitorAccount",
            "monitorNamespace",
            "productComponent",
            "productName",
            "productVersion",
            "serviceMonitorNamespace",
            "synchronizationPort",
            "workloads.nodePlacement",
        ],
        Side::Storage => &[
            "customizeComponents.flags",
            "customizeComponents.patches",
            "infra.affinity",
            "infra.nodeSelector",
            "infra.tolerations",
            "priorityClass",
        ],
    }
}

/// Those that a spec has, by path.
pub(super) fn effect(side: Side, spec: &Value) -> Vec<String> {
    let set = |path: &&&str| !is_empty(path.split('.').fold(spec, |value, step| &value[step]));
    paths(side).iter().filter(set).map(|path| format!("spec.{path}")).collect()
}

/// Whether a value asks for nothing.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.values().all(is_empty),
        Value::String(text) => text.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_without_effect_are_found_by_their_path() {
        let patches = json!([{"resourceName": "virt-api", "resourceType": "Deployment", "patch": "{}", "type": "json"}]);
        for (side, spec, wanted) in [
            (Side::Compute, json!({}), &[][..]),
            (Side::Compute, json!({"infra": {"replicas": 1}, "customizeComponents": {"patches": []}}), &[]),
            (Side::Compute, json!({"infra": {"nodePlacement": {"nodeSelector": {}}}}), &[]),
            (
                Side::Compute,
                json!({"customizeComponents": {"patches": patches}, "workloads": {"nodePlacement": {"nodeSelector": {"a": "b"}}}}),
                &["spec.customizeComponents.patches", "spec.workloads.nodePlacement"],
            ),
            (
                Side::Storage,
                json!({"customizeComponents": {"flags": {"api": {"v": "3"}}}, "infra": {"uploadProxyReplicas": 2}}),
                &["spec.customizeComponents.flags"],
            ),
        ] {
            assert_eq!(effect(side, &spec), wanted, "{spec}");
        }
    }

    /// Every path is one of the definition: a renamed field would never be reported.
    #[test]
    fn paths_are_fields_of_the_definitions() {
        for (side, kind) in [(Side::Compute, "KubeVirt"), (Side::Storage, "CDI")] {
            let definition = api::definition::ALL.iter().find(|one| one.kind == kind).unwrap();
            let spec = &definition.schema()["properties"]["spec"];
            for path in paths(side) {
                let found = path.split('.').fold(spec, |schema, step| &schema["properties"][step]);
                assert!(found.is_object(), "{kind} {path}");
            }
        }
    }
}
