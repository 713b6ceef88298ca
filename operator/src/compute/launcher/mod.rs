//! The launcher pod of an instance: what stock tools, virt-agent and the scheduler find in it. Pure.
//!
//! The pod needs no privilege: what needs root is done from outside by virt-agent. It holds no token but the one that the
//! guest is to have, and the operator reads none of the Secrets that it mounts.
//!
//! | container | image | what it does |
//! |---|---|---|
//! | `compute` | launcher | runs the guest |
//! | `volume<NAME>` | the user's | keeps the image of a containerDisk, or of a kernel, open for virt-agent; with the gate `ImageVolume` the kubelet mounts the image instead |
//! | `container-disk-binary` (init) | launcher | copies the program of the former |
//! | `guest-console-log` (sidecar) | launcher | prints what the guest writes to its serial console |
//!
//! Not here: when a pod is created.

mod attachment;
mod name;
mod network;
mod placement;
mod probes;
mod quota;
mod resources;
mod state;
mod storage;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use api::core::{LabelSelector, NodePlacement};
use api::kubevirt::{PermittedHostDevices, VirtualMachineInstance, VirtualMachineInstanceSpec};
use api::quantity;
use serde_json::{Map, Value, json};
use thiserror::Error;

pub(super) use attachment::{Attachment, OWNER_NAME, OWNER_UID, VOLUME, attachment, attachment_name};
pub(super) use name::{label_value, pod_name};
#[cfg(test)]
pub(super) use network::interface_name;
pub(super) use network::{NETWORKS, NETWORKS_MAX, definitions, networks_without};
pub(super) use quota::{AutoLimits, Namespace, Quota, limits, needs_namespace};
pub(super) use state::{State, claim as state_claim, state};

use crate::storage::names::PROVISIONS;

/// Program of container `compute`.
const LAUNCHER: &str = "/usr/bin/virt-launcher";
/// Owner of disks, and user of every container.
const QEMU: u32 = 107;
/// Seconds that a pod has beyond its guest's grace period.
const GRACE_MARGIN: u64 = 30;
/// Grace period where an instance gives none, in seconds.
const GRACE: u64 = 30;
/// Annotation that leaves Velero's hooks out: of a VM, an instance or the KubeVirt object.
pub(super) const SKIP_HOOKS: &str = "kubevirt.io/skip-backup-hooks";
/// Annotations of instances that are about the object, or would give its pod another meaning.
const KEPT_FROM_PODS: [&str; 4] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    "kubevirt.io/latest-observed-api-version",
    "kubevirt.io/storage-observed-api-version",
    PROVISIONS,
];

/// The platform's configuration of launcher pods.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Settings {
    /// Image of virt-launcher.
    pub(super) image: String,
    /// `imagePullPolicy` of that image; the kubelet's default if empty.
    pub(super) pull_policy: Option<String>,
    /// Secrets in the pods' namespaces with the logins for it (`imagePullSecrets`).
    pub(super) pull_secrets: BTreeSet<String>,
    /// Guests may run without KVM (`developerConfiguration.useEmulation`).
    pub(super) emulation: bool,
    /// vCPUs for each CPU that is requested (`developerConfiguration.cpuAllocationRatio`).
    pub(super) cpu_allocation_ratio: u32,
    /// Guest memory in per cent of the memory that is requested for it (`developerConfiguration.memoryOvercommit`).
    pub(super) memory_overcommit: u32,
    /// Running instances follow sockets, memory and placement of their VMs (`vmRolloutStrategy` is not `Stage`).
    pub(super) live_update: bool,
    /// The kubelet mounts images of containerDisks and kernels (feature gate `ImageVolume`).
    pub(super) image_volumes: bool,
    /// No annotations with Velero's hooks ([`SKIP_HOOKS`] of the KubeVirt object).
    pub(super) skip_backup_hooks: bool,
    /// Serial consoles of guests that leave it open are logged (`virtualMachineOptions.disableSerialConsoleLog` is not set).
    pub(super) console_log: bool,
    /// RuntimeClass of the pods (`defaultRuntimeClass`).
    pub(super) runtime_class: Option<String>,
    /// Memory that is requested in addition to the guest's, in per cent of what it is expected to need
    /// (`additionalGuestMemoryOverheadRatio`).
    pub(super) overhead_percent: u32,
    /// CPU models that guests may not have under KVM (`obsoleteCPUModels`). Emulation has models of its own.
    pub(super) obsolete_models: BTreeSet<String>,
    /// StorageClass of claims with TPM and EFI state (`vmStateStorageClass`); the default for disks if empty.
    pub(super) state_class: Option<String>,
    /// Devices of the host that guests may have (`permittedHostDevices`); `None`: those of every device plugin.
    pub(super) host_devices: Option<PermittedHostDevices>,
    /// Labels of the nodes of guests that ask for no other values (`developerConfiguration.nodeSelectors`).
    pub(super) node_selectors: BTreeMap<String, String>,
    /// Nodes of all guests (`workloads.nodePlacement`): labels, affinity to nodes, taints that are tolerated.
    pub(super) placement: NodePlacement,
    /// Namespaces where pods have a CPU limit without a quota (`autoCPULimitNamespaceLabelSelector`).
    pub(super) cpu_limit_namespaces: Option<LabelSelector>,
    /// VMs get the values of their instance types and preferences in place of the references
    /// (`instancetype.referencePolicy: expandAll`).
    pub(super) expand_all: bool,
    /// The platform is being removed with its workloads: replica sets and pools make nothing.
    pub(super) removing: bool,
}

impl Settings {
    /// The overhead in bytes that is requested for a guest which needs this many under KVM.
    pub(super) fn overhead(&self, bytes: u64) -> u64 {
        virt::overhead::scaled(bytes, self.emulation, self.overhead_percent)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            image: String::new(),
            pull_policy: None,
            pull_secrets: BTreeSet::new(),
            emulation: false,
            cpu_allocation_ratio: 10,
            memory_overcommit: 100,
            live_update: true,
            image_volumes: false,
            skip_backup_hooks: false,
            console_log: true,
            runtime_class: None,
            overhead_percent: 100,
            obsolete_models: BTreeSet::new(),
            state_class: None,
            host_devices: None,
            node_selectors: BTreeMap::new(),
            placement: NodePlacement::default(),
            cpu_limit_namespaces: None,
            expand_all: false,
            removing: false,
        }
    }
}

/// A ratio such as `1.5` in per cent, from 1 to 100; others do not count.
pub(super) fn percent(ratio: &str) -> Option<u32> {
    let decimal = ratio.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let thousandths = decimal.then(|| quantity::bytes(&format!("{ratio}k")).ok()).flatten()?;
    u32::try_from(thousandths / 10).ok().filter(|percent| (100..=10_000).contains(percent))
}

/// The purpose of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Running the guest.
    Guest,
    /// Using the instance's claims once, so that they are placed and filled.
    Provision,
}

/// Facts about the pod from objects other than the instance.
pub(super) struct Facts<'a> {
    /// Which claims are block devices.
    pub(super) is_block: &'a (dyn Fn(&str) -> bool + Sync),
    /// Resources that the instance's networks need, a name for each network that needs one.
    pub(super) networks: &'a [String],
    /// The claim for what the guest keeps besides its disks.
    pub(super) state: Option<&'a str>,
    /// Limits because of the namespace.
    pub(super) limits: AutoLimits,
}

/// Why no pod can be made for an instance.
#[derive(Debug, Error)]
pub(super) enum Unsupported {
    /// A field that this release cannot follow.
    #[error("{path}: {problem}")]
    Field { path: String, problem: String },
    /// The object is not an instance.
    #[error("the VirtualMachineInstance cannot be read")]
    Unreadable(#[source] serde_json::Error),
}

impl Unsupported {
    fn field(path: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Field { path: path.into(), problem: problem.into() }
    }
}

/// The pod for an instance, given as the API server has it.
///
/// # Errors
/// For a field that this release cannot follow.
pub(super) fn pod(
    instance: &Value,
    settings: &Settings,
    purpose: Purpose,
    facts: &Facts<'_>,
) -> Result<Value, Unsupported> {
    let object: VirtualMachineInstance =
        serde_json::from_value(instance.clone()).map_err(Unsupported::Unreadable)?;
    let (meta, spec) = (&object.metadata, &object.spec);
    let raw = &instance["spec"];
    let uid = meta.uid.as_deref().unwrap_or_default();
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let mut storage = storage::storage(&object, raw, settings, purpose, facts.is_block)?;
    if let Some(claim) = facts.state.filter(|_| purpose == Purpose::Guest) {
        storage.state(claim);
    }

    let mut compute = json!({
        "name": "compute",
        "image": settings.image,
        "command": match purpose {
            Purpose::Guest => json!([
                LAUNCHER, "run", virt::pod::PRIVATE, "--pod",
                "--name", meta.name, "--uid", uid, "--namespace", namespace,
            ]),
            Purpose::Provision => json!([LAUNCHER, "--version"]),
        },
        "securityContext": match purpose {
            // libvirt, QEMU and swtpm have temporary files at places of their own.
            Purpose::Guest => container_security(),
            Purpose::Provision => read_only_security(),
        },
        "resources": resources::compute(spec, raw, settings, facts.limits)?,
        "volumeMounts": storage.mounts,
    });
    if purpose == Purpose::Guest {
        network::request(&mut compute["resources"], facts.networks);
        resources::host_devices(&mut compute["resources"], spec, settings)?;
    }
    if let Some(policy) = &settings.pull_policy {
        compute["imagePullPolicy"] = json!(policy);
    }
    if !storage.devices.is_empty() {
        compute["volumeDevices"] = json!(storage.devices);
    }
    if purpose == Purpose::Guest {
        let ports = network::ports(spec);
        if !ports.is_empty() {
            compute["ports"] = json!(ports);
        }
        for probe in ["livenessProbe", "readinessProbe"] {
            if let Some(wanted) = raw.get(probe).filter(|probe| probe.is_object()) {
                compute[probe] = probes::probe(wanted, namespace, &meta.name);
            }
        }
    }

    let mut containers = vec![compute];
    containers.extend(storage.containers);
    let mut pod_spec = json!({
        "restartPolicy": "Never",
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": match purpose {
            Purpose::Guest => spec.termination_grace_period_seconds.unwrap_or(GRACE).saturating_add(GRACE_MARGIN),
            Purpose::Provision => 0,
        },
        "securityContext": {
            "runAsUser": QEMU, "runAsGroup": QEMU, "fsGroup": QEMU, "runAsNonRoot": true,
            "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": {"type": "RuntimeDefault"},
        },
        "hostname": name::host_name(spec.hostname.as_deref().unwrap_or(&meta.name)),
        "containers": containers,
        "volumes": storage.volumes,
    });
    let mut init_containers = storage.init_containers;
    if purpose == Purpose::Guest && logs_console(spec, settings) {
        init_containers.push(console_log(settings));
    }
    if purpose == Purpose::Guest {
        pod_spec["readinessGates"] = json!([{"conditionType": virt::status::pod::UNPAUSED}]);
    }
    if !init_containers.is_empty() {
        pod_spec["initContainers"] = json!(init_containers);
    }
    if let Some(account) = storage.account {
        pod_spec["serviceAccountName"] = json!(account);
    }
    pull_with(&mut pod_spec, storage.pull_secrets.union(&settings.pull_secrets));
    if let Some(class) = &settings.runtime_class {
        pod_spec["runtimeClassName"] = json!(class);
    }
    placement::place(&mut pod_spec, spec, raw, settings)?;

    Ok(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(&meta.name, uid, purpose),
            "namespace": namespace,
            "labels": labels(&object),
            "annotations": annotations(&object, settings, purpose),
            "ownerReferences": [{
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": meta.name, "uid": uid,
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": pod_spec,
    }))
}

/// Names the Secrets that a pod's images are pulled with.
fn pull_with<'a>(pod: &mut Value, secrets: impl Iterator<Item = &'a String>) {
    let secrets: Vec<Value> = secrets.map(|name| json!({"name": name})).collect();
    if !secrets.is_empty() {
        pod["imagePullSecrets"] = json!(secrets);
    }
}

/// Whether what a guest writes to its serial console is logged.
fn logs_console(spec: &VirtualMachineInstanceSpec, settings: &Settings) -> bool {
    let devices = &spec.domain.devices;
    let console = devices.autoattach_serial_console != Some(false);
    console && devices.log_serial_console.unwrap_or(settings.console_log)
}

/// The container that prints it: a sidecar, which ends after the others.
fn console_log(settings: &Settings) -> Value {
    let mut container = json!({
        "name": virt::pod::CONSOLE_LOGGER,
        "image": settings.image,
        "command": ["/usr/bin/virt-tail", "--logfile", format!("{}/{}", virt::pod::PRIVATE, virt::pod::CONSOLE_LOG)],
        "restartPolicy": "Always",
        "securityContext": read_only_security(),
        "resources": storage::helper_resources(),
        "volumeMounts": [{"name": "private", "mountPath": virt::pod::PRIVATE, "readOnly": true}],
    });
    if let Some(policy) = &settings.pull_policy {
        container["imagePullPolicy"] = json!(policy);
    }
    container
}

/// The requirements of restricted Pod Security for every container.
fn container_security() -> Value {
    json!({
        "allowPrivilegeEscalation": false, "runAsNonRoot": true, "runAsUser": QEMU, "runAsGroup": QEMU,
        "capabilities": {"drop": ["ALL"]},
    })
}

/// The same, for containers that write to their volumes only.
fn read_only_security() -> Value {
    let mut security = container_security();
    security["readOnlyRootFilesystem"] = json!(true);
    security
}

fn labels(object: &VirtualMachineInstance) -> BTreeMap<String, String> {
    let meta = &object.metadata;
    let host = object.spec.hostname.as_deref().unwrap_or(&meta.name);
    let mut labels = meta.labels.clone();
    labels.insert("kubevirt.io".into(), "virt-launcher".into());
    labels.insert("kubevirt.io/created-by".into(), meta.uid.clone().unwrap_or_default());
    labels.insert("vm.kubevirt.io/name".into(), name::host_name(host));
    labels.insert("vmi.kubevirt.io/id".into(), name::label_value(&meta.name));
    labels.remove("kubevirt.io/nodeName");
    labels
}

fn annotations(object: &VirtualMachineInstance, settings: &Settings, purpose: Purpose) -> Map<String, Value> {
    let meta = &object.metadata;
    let of_instance = meta.annotations.iter().filter(|(key, _)| !KEPT_FROM_PODS.contains(&key.as_str()));
    let mut all: Map<String, Value> = of_instance.map(|(key, value)| (key.clone(), json!(value))).collect();
    let mut set = |key: &str, value: &str| all.insert(key.to_owned(), json!(value));
    set("kubevirt.io/domain", &meta.name);
    set("kubectl.kubernetes.io/default-container", "compute");
    set("kubevirt.io/migrationTransportUnix", "true");
    set("descheduler.alpha.kubernetes.io/request-evict-only", "");
    if purpose == Purpose::Provision {
        set(PROVISIONS, "true");
        return all;
    }
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let skip = meta.annotations.get(SKIP_HOOKS).is_some_and(|value| value == "true");
    if !skip && !settings.skip_backup_hooks {
        for (stage, flag) in [("pre", "--freeze"), ("post", "--unfreeze")] {
            let command =
                json!(["/usr/bin/virt-freezer", flag, "--name", meta.name, "--namespace", namespace])
                    .to_string();
            set(&format!("{stage}.hook.backup.velero.io/container"), "compute");
            set(&format!("{stage}.hook.backup.velero.io/command"), &command);
        }
        set("pre.hook.backup.velero.io/timeout", "60s");
    }
    for (key, value) in network::annotations(&object.spec, namespace) {
        set(key, &value);
    }
    all
}
