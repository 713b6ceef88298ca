//! Settings of `KubeVirt`, `CDI` and `NetworkAddonsConfig` that have no effect, for a condition of their status. Pure.
//!
//! Values that an empty HyperConverged gives its children ask for nothing: they are upstream's defaults.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde_json::Value;

use super::hyperconverged::render::{self, Child};
use super::status::Note;

/// Condition that names settings without an effect; missing if there are none.
pub(super) const CONDITION: &str = "ferrovirt.io/SettingsWithoutEffect";
/// Its reason.
pub(super) const REASON: &str = "NotImplemented";
/// How its message begins.
pub(super) const MESSAGE: &str = "these settings have no effect: ";

/// Settings by path; a path stands for everything below it. Patches and flags are of upstream's components, which one
/// operator replaces; node agents run on every node, and the number of the operator's pods follows that of the nodes.
const fn paths(child: Child) -> &'static [&'static str] {
    match child {
        Child::KubeVirt => &[
            "certificateRotateStrategy.selfSigned.caOverlapInterval",
            "configuration.apiConfiguration",
            "configuration.architectureConfiguration.amd64.emulatedMachines",
            "configuration.architectureConfiguration.amd64.ovmfPath",
            "configuration.architectureConfiguration.arm64",
            "configuration.architectureConfiguration.ppc64le",
            "configuration.architectureConfiguration.s390x",
            "configuration.changedBlockTrackingLabelSelectors",
            "configuration.confidentialCompute",
            "configuration.controllerConfiguration",
            "configuration.cpuRequest",
            "configuration.developerConfiguration.clusterProfiler",
            "configuration.developerConfiguration.diskVerification",
            "configuration.developerConfiguration.logVerbosity.virtLauncher",
            "configuration.developerConfiguration.logVerbosity.virtSynchronizationController",
            "configuration.developerConfiguration.minimumClusterTSCFrequency",
            "configuration.developerConfiguration.minimumReservePVCBytes",
            "configuration.developerConfiguration.pvcTolerateLessSpaceUpToPercent",
            "configuration.emulatedMachines",
            "configuration.evictionStrategy",
            "configuration.handlerConfiguration",
            "configuration.hypervisors",
            "configuration.ksmConfiguration",
            "configuration.memBalloonStatsPeriod",
            "configuration.migrations",
            "configuration.minCPUModel",
            "configuration.network.binding",
            "configuration.network.permitSlirpInterface",
            "configuration.ovmfPath",
            "configuration.persistentReservationConfiguration",
            "configuration.seccompConfiguration",
            "configuration.selinuxLauncherType",
            "configuration.supportContainerResources",
            "configuration.supportedGuestAgentVersions",
            "configuration.virtTemplateDeployment",
            "configuration.virtualMachineInstancesPerNode",
            "configuration.virtualMachineOptions.disableFreePageReporting",
            "configuration.webhookConfiguration",
            "customizeComponents.flags",
            "customizeComponents.patches",
            "imageRegistry",
            "imageTag",
            "infra.replicas",
            "monitorAccount",
            "monitorNamespace",
            "productComponent",
            "productName",
            "productVersion",
            "serviceMonitorNamespace",
            "synchronizationPort",
            "workloadUpdateStrategy",
            // Rules about pods next to which upstream's components run.
            "workloads.nodePlacement.affinity.podAffinity",
            "workloads.nodePlacement.affinity.podAntiAffinity",
            "workloads.replicas",
        ],
        Child::Cdi => &[
            "config.dataVolumeTTLSeconds",
            "config.podResourceRequirements.claims",
            "config.scratchSpaceStorageClass",
            "config.webhookPvcRendering",
            "customizeComponents.flags",
            "customizeComponents.patches",
            "infra.apiServerReplicas",
            "infra.deploymentReplicas",
            "infra.uploadProxyReplicas",
            "priorityClass",
        ],
        // Components that are not deployed are named by its condition Degraded.
        Child::Network => &["placementConfiguration.workloads"],
        Child::Ssp => &[],
    }
}

/// Feature gates: the path of the list, whether its entries are on, and those that ask for what there is: read, or always
/// so.
const GATES: [(Child, &str, &[&str]); 3] = [
    (
        Child::KubeVirt,
        "configuration.developerConfiguration.featureGates",
        &[
            "DisableMDEVConfiguration",
            "ExpandDisks",
            "HotplugVolumes",
            "ImageVolume",
            "NonRoot",
            "ObjectGraph",
            "VMLiveUpdateFeatures",
        ],
    ),
    (
        Child::KubeVirt,
        "configuration.developerConfiguration.disabledFeatureGates",
        &["DisableMDEVConfiguration", "ImageVolume", "ObjectGraph", "Template"],
    ),
    (Child::Cdi, "config.featureGates", &["DataVolumeClaimAdoption", "HonorWaitForFirstConsumer"]),
];

/// Specs of the children of an empty HyperConverged: on one node and on two, with KVM and without.
static USUAL: LazyLock<Vec<(Child, Value)>> = LazyLock::new(render::usual);

fn usual(child: Child) -> impl Iterator<Item = &'static Value> {
    USUAL.iter().filter(move |(one, _)| *one == child).map(|(_, spec)| spec)
}

fn at<'a>(spec: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(spec, |value, step| &value[step])
}

fn gates<'a>(spec: &'a Value, path: &str) -> Vec<&'a str> {
    at(spec, path).as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// The condition of a kind's object with this spec.
pub(super) fn note(child: Child, spec: &Value) -> Option<Note> {
    let without = effect(child, spec);
    (!without.is_empty()).then(|| (CONDITION, REASON, format!("{MESSAGE}{}", without.join(", "))))
}

/// Those that a spec has, by path.
pub(super) fn effect(child: Child, spec: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for path in paths(child) {
        let usual: Vec<&Value> = usual(child).map(|usual| at(usual, path)).collect();
        unusual(at(spec, path), &usual, &format!("spec.{path}"), &mut found);
    }
    for (_, path, known) in GATES.iter().filter(|(one, ..)| *one == child) {
        let usual: BTreeSet<&str> = usual(child).flat_map(|spec| gates(spec, path)).collect();
        let asked =
            gates(spec, path).into_iter().filter(|name| !known.contains(name) && !usual.contains(name));
        found.extend(asked.map(|name| format!("spec.{path}[{name}]")));
    }
    found
}

/// Adds the paths of values that ask for something and are not among the usual ones.
fn unusual(value: &Value, usual: &[&Value], path: &str, found: &mut Vec<String>) {
    if is_empty(value) || usual.contains(&value) {
        return;
    }
    let fields = value.as_object().filter(|_| usual.iter().any(|usual| usual.is_object()));
    let Some(fields) = fields else { return found.push(path.to_owned()) };
    for (name, field) in fields {
        let usual: Vec<&Value> = usual.iter().map(|usual| &usual[name]).collect();
        unusual(field, &usual, &format!("{path}.{name}"), found);
    }
}

/// Whether a value asks for nothing.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        // A feature that does not exist need not be switched off.
        Value::Object(fields) => {
            fields.get("enabled") == Some(&Value::Bool(false)) || fields.values().all(is_empty)
        }
        Value::String(text) => text.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Settings by kind and path that a program reads: below these no path is without an effect.
#[cfg(test)]
pub(super) const READ: [(&str, &[&str]); 4] = [
    (
        "KubeVirt",
        &[
            "certificateRotateStrategy.selfSigned.ca",
            "certificateRotateStrategy.selfSigned.caRotateInterval",
            "certificateRotateStrategy.selfSigned.certRotateInterval",
            "certificateRotateStrategy.selfSigned.server",
            "configuration.additionalGuestMemoryOverheadRatio",
            "configuration.architectureConfiguration.amd64.machineType",
            "configuration.architectureConfiguration.defaultArchitecture",
            "configuration.autoCPULimitNamespaceLabelSelector",
            "configuration.commonInstancetypesDeployment",
            "configuration.cpuModel",
            "configuration.defaultRuntimeClass",
            "configuration.developerConfiguration.cpuAllocationRatio",
            "configuration.developerConfiguration.disabledFeatureGates",
            "configuration.developerConfiguration.featureGates",
            "configuration.developerConfiguration.logVerbosity.nodeVerbosity",
            "configuration.developerConfiguration.logVerbosity.virtAPI",
            "configuration.developerConfiguration.logVerbosity.virtController",
            "configuration.developerConfiguration.logVerbosity.virtHandler",
            "configuration.developerConfiguration.logVerbosity.virtOperator",
            "configuration.developerConfiguration.memoryOvercommit",
            "configuration.developerConfiguration.nodeSelectors",
            "configuration.developerConfiguration.useEmulation",
            "configuration.imagePullPolicy",
            "configuration.instancetype",
            "configuration.liveUpdateConfiguration",
            "configuration.machineType",
            "configuration.mediatedDevicesConfiguration",
            "configuration.network.defaultNetworkInterface",
            "configuration.network.permitBridgeInterfaceOnPodNetwork",
            "configuration.obsoleteCPUModels",
            "configuration.permittedHostDevices.mediatedDevices",
            "configuration.permittedHostDevices.pciHostDevices",
            "configuration.permittedHostDevices.usb",
            "configuration.roleAggregationStrategy",
            "configuration.smbios",
            "configuration.tlsConfiguration",
            "configuration.virtualMachineOptions.disableSerialConsoleLog",
            "configuration.vmRolloutStrategy",
            "configuration.vmStateStorageClass",
            "imagePullPolicy",
            "imagePullSecrets",
            "infra.nodePlacement",
            "uninstallStrategy",
            "workloads.nodePlacement.affinity.nodeAffinity",
            "workloads.nodePlacement.nodeSelector",
            "workloads.nodePlacement.tolerations",
        ],
    ),
    (
        "CDI",
        &[
            "certConfig",
            "cloneStrategyOverride",
            "config.featureGates",
            "config.filesystemOverhead",
            "config.imagePullSecrets",
            "config.importProxy",
            "config.insecureRegistries",
            "config.logVerbosity",
            "config.podResourceRequirements.limits",
            "config.podResourceRequirements.requests",
            "config.preallocation",
            "config.tlsSecurityProfile",
            "config.uploadProxyURLOverride",
            "imagePullPolicy",
            "infra.affinity",
            "infra.nodeSelector",
            "infra.tolerations",
            "uninstallStrategy",
            "workload",
        ],
    ),
    (
        "NetworkAddonsConfig",
        &[
            "imagePullPolicy",
            "kubeMacPool",
            "kubeSecondaryDNS",
            "kubevirtIpamController",
            "linuxBridge",
            "macvtap",
            "multus",
            "multusDynamicNetworks",
            "ovs",
            "placementConfiguration.infra",
            "selfSignConfiguration",
            "tlsSecurityProfile",
        ],
    ),
    ("HostPathProvisioner", &["featureGates", "imagePullPolicy", "pathConfig", "storagePools", "workload"]),
];

/// Whether a path is one of `list` or below it.
#[cfg(test)]
pub(super) fn below(list: &[&str], path: &str) -> bool {
    list.iter()
        .any(|one| path.strip_prefix(one).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '['])))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn all() -> impl Iterator<Item = (&'static str, &'static [&'static str], &'static [&'static str])> {
        READ.into_iter().map(|(kind, read)| {
            let child = Child::ALL.into_iter().find(|child| child.kind() == kind);
            (kind, read, child.map_or(&[][..], paths))
        })
    }

    #[test]
    fn settings_without_effect_are_found_by_their_path() {
        let patches = json!([{"resourceName": "virt-api", "resourceType": "Deployment", "patch": "{}", "type": "json"}]);
        let developer = |settings: Value| json!({"configuration": {"developerConfiguration": settings}});
        for (child, spec, wanted) in [
            (Child::KubeVirt, json!({}), &[][..]),
            (Child::KubeVirt, json!({"infra": {"replicas": 1}, "customizeComponents": {"patches": []}}), &[]),
            (Child::KubeVirt, json!({"infra": {"replicas": 3}}), &["spec.infra.replicas"]),
            (Child::KubeVirt, json!({"infra": {"nodePlacement": {"nodeSelector": {"a": "b"}}}}), &[]),
            (
                Child::KubeVirt,
                json!({"customizeComponents": {"patches": patches}, "workloads": {"nodePlacement": {
                    "nodeSelector": {"a": "b"}, "affinity": {"podAntiAffinity": {"a": 1}}}}}),
                &[
                    "spec.customizeComponents.patches",
                    "spec.workloads.nodePlacement.affinity.podAntiAffinity",
                ],
            ),
            (
                Child::KubeVirt,
                json!({"configuration": {"migrations": {"parallelMigrationsPerCluster": 5, "progressTimeout": 7}}}),
                &["spec.configuration.migrations.progressTimeout"],
            ),
            (Child::KubeVirt, json!({"configuration": {"virtTemplateDeployment": {"enabled": false}}}), &[]),
            (
                Child::KubeVirt,
                developer(json!({"featureGates": ["Snapshot", "NonRoot", "VSOCK"]})),
                &["spec.configuration.developerConfiguration.featureGates[VSOCK]"],
            ),
            (
                Child::KubeVirt,
                developer(json!({"logVerbosity": {"virtAPI": 4, "virtLauncher": 6}})),
                &["spec.configuration.developerConfiguration.logVerbosity.virtLauncher"],
            ),
            (
                Child::KubeVirt,
                developer(json!({"disabledFeatureGates": ["Template", "Snapshot"]})),
                &["spec.configuration.developerConfiguration.disabledFeatureGates[Snapshot]"],
            ),
            (
                Child::Cdi,
                json!({"customizeComponents": {"flags": {"api": {"v": "3"}}}, "infra": {"uploadProxyReplicas": 2}}),
                &["spec.customizeComponents.flags", "spec.infra.uploadProxyReplicas"],
            ),
            (Child::Cdi, json!({"infra": {"uploadProxyReplicas": 1}}), &[]),
            (
                Child::Cdi,
                json!({"config": {"featureGates": ["WebhookPvcRendering"]}}),
                &["spec.config.featureGates[WebhookPvcRendering]"],
            ),
            (
                Child::Network,
                json!({"placementConfiguration": {"workloads": {"nodeSelector": {"a": "b"}}}}),
                &["spec.placementConfiguration.workloads"],
            ),
        ] {
            assert_eq!(effect(child, &spec), wanted, "{spec}");
        }
    }

    #[test]
    fn an_empty_hyperconverged_sets_nothing_without_effect() {
        for child in Child::ALL {
            let specs: Vec<&Value> = usual(child).collect();
            assert_eq!(specs.len(), 4);
            for spec in specs {
                assert_eq!(effect(child, spec), [""; 0], "{spec}");
            }
        }
    }

    /// Paths of all fields without further fields.
    fn leaves(schema: &Value, path: &str, found: &mut Vec<String>) {
        if schema["items"]["properties"].is_object() {
            return leaves(&schema["items"], &format!("{path}[]"), found);
        }
        match schema["properties"].as_object().filter(|fields| !fields.is_empty()) {
            Some(fields) => {
                for (name, field) in fields {
                    let dot = if path.is_empty() { "" } else { "." };
                    leaves(field, &format!("{path}{dot}{name}"), found);
                }
            }
            None => found.push(path.to_owned()),
        }
    }

    fn spec(kind: &str) -> Value {
        let definition = api::definition::ALL.iter().find(|one| one.kind == kind).unwrap();
        definition.schema()["properties"]["spec"].clone()
    }

    #[test]
    fn every_setting_is_read_or_listed_as_without_effect() {
        for (kind, read, without) in all() {
            let mut found = Vec::new();
            leaves(&spec(kind), "", &mut found);
            assert!(found.len() > 10, "{kind}: {found:?}");
            let wrong: Vec<&String> =
                found.iter().filter(|path| below(read, path) == below(without, path)).collect();
            assert!(wrong.is_empty(), "{kind}: in none of the lists, or in both: {wrong:#?}");
        }
    }

    /// Every path is one of the definition: a renamed field would never be reported.
    #[test]
    fn paths_are_fields_of_the_definitions() {
        for (kind, read, without) in all() {
            let spec = spec(kind);
            let gates = GATES.iter().filter(|(child, ..)| child.kind() == kind).map(|(_, path, _)| path);
            for path in read.iter().chain(without).chain(gates) {
                let found = path.split('.').fold(&spec, |schema, step| &schema["properties"][step]);
                assert!(found.is_object(), "{kind} {path}");
            }
        }
    }
}
