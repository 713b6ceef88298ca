//! Spec of the CDI object of a `HyperConverged`. Pure.

use serde_json::{Value, json};

use super::input::{Input, extend, value};

pub(super) fn spec(input: &Input<'_>) -> Value {
    let [[ca, ca_before], [server, server_before]] = input.lifetimes();
    let [infra, workload] = input.placements();
    let storage = input.spec().storage.clone().unwrap_or_default();
    let leaf = json!({"duration": server, "renewBefore": server_before});
    let mut config = json!({
        "featureGates": ["HonorWaitForFirstConsumer", "DataVolumeClaimAdoption"],
        "tlsSecurityProfile": input.tls_profile(),
    });
    let registries = storage.storage_import.map(|one| one.insecure_registries).unwrap_or_default();
    let verbosity = input.deployment.log_verbosity_config.as_ref().and_then(|levels| levels.cdi);
    extend(
        &mut config,
        [
            ("filesystemOverhead", value(&storage.filesystem_overhead)),
            ("insecureRegistries", json!(registries)),
            ("logVerbosity", json!(verbosity)),
            ("podResourceRequirements", value(&storage.workload_resource_requirements)),
            ("scratchSpaceStorageClass", value(&storage.scratch_space_storage_class)),
        ],
    );
    let mut control = infra.unwrap_or_else(|| json!({}));
    if !input.facts.highly_available() {
        for replicas in ["apiServerReplicas", "deploymentReplicas", "uploadProxyReplicas"] {
            control[replicas] = json!(1);
        }
    }
    let mut spec = json!({
        "uninstallStrategy": input.uninstall_strategy(),
        "certConfig": {"ca": {"duration": ca, "renewBefore": ca_before}, "server": leaf, "client": leaf},
        "config": config,
    });
    extend(&mut spec, [("infra", control), ("workload", workload.unwrap_or_default())]);
    spec
}
