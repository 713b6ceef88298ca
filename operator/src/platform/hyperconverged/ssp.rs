//! Spec of the SSP object of a `HyperConverged`. Pure.

use serde_json::{Value, json};

use super::input::{Input, extend, value};

pub(super) fn spec(input: &Input<'_>) -> Value {
    let [infra, _] = input.placements();
    let sources = input.spec().workload_sources.clone().unwrap_or_default();
    let namespace = sources.common_templates_namespace.unwrap_or_else(|| input.facts.namespace.clone());
    let crons: Vec<Value> = input
        .boot_sources()
        .iter()
        .map(|(metadata, spec)| json!({"metadata": value(metadata), "spec": value(spec)}))
        .collect();
    let mut templates = json!({"namespace": namespace});
    extend(&mut templates, [("dataImportCronTemplates", json!(crons))]);
    let mut validator = json!({"replicas": if input.facts.highly_available() { 2 } else { 1 }});
    extend(&mut validator, [("placement", infra.unwrap_or_default())]);
    let multiple = sources.enable_multi_arch_boot_image_import == Some(true)
        || input.gate("enableMultiArchBootImageImport");
    json!({
        "cluster": {
            "controlPlaneArchitectures": input.facts.control_plane_architectures,
            "workloadArchitectures": input.facts.worker_architectures,
        },
        "commonTemplates": templates,
        "enableMultipleArchitectures": multiple,
        "templateValidator": validator,
        "tlsSecurityProfile": input.tls_profile(),
        "tokenGenerationService": {"enabled": input.deployment.deploy_vm_console_proxy.unwrap_or(false)},
    })
}
