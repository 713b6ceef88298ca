//! The part of a launcher pod that the agent keeps.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use virt::pod::{CONSOLE_LOGGER, STATE_VOLUME};

use super::instance::Instance;
use super::plan;
use crate::networks::{STATUS, STATUS_MAX};

/// A launcher pod, as far as guests are started and reported by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pod {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// UID of the VMI that it claims to belong to. A claim only: see [`crate::guests`].
    pub(crate) instance: String,
    pub(crate) deleting: bool,
    /// Whether it uses the node's network namespace.
    pub(crate) host_network: bool,
    /// Its phase.
    pub(crate) phase: String,
    /// Exit code of the container `compute`, once it ended.
    pub(crate) ended: Option<i32>,
    /// Ids of its running containers, by name, without the runtime's prefix.
    pub(crate) containers: BTreeMap<String, String>,
    /// Names of all of its containers, whether or not they run.
    pub(crate) container_names: BTreeSet<String>,
    /// Volumes by the names of the Secrets in them.
    pub(crate) secrets: BTreeMap<String, String>,
    /// Volumes by the names of the ConfigMaps in them.
    pub(crate) config_maps: BTreeMap<String, String>,
    /// Volumes with tokens, by the name of the ServiceAccount.
    pub(crate) accounts: BTreeMap<String, String>,
    /// Whether it has the claim for what the guest keeps besides its disks.
    pub(crate) keeps_state: bool,
    /// Whether a container prints what the guest writes to its serial console.
    pub(crate) logs_console: bool,
    /// Devices that the container `compute` asked for, such as `kvm`.
    pub(crate) devices: Vec<String>,
    /// Its annotation network-status, cut where it is longer than any that is accepted.
    pub(crate) network_status: Option<String>,
    /// Its condition Ready: status, reason, message.
    pub(crate) ready: Option<(String, String, String)>,
}

impl Pod {
    /// For the plan.
    pub(crate) fn state(&self) -> plan::Pod {
        match (self.ended, self.phase.as_str()) {
            (Some(code), _) => plan::Pod::Ended(code),
            (None, "Succeeded") => plan::Pod::Ended(0),
            (None, "Failed") => plan::Pod::Ended(1),
            (None, _) => plan::Pod::Alive,
        }
    }

    /// Whether it claims to belong to this VMI, and is in its namespace.
    pub(crate) fn is_of(&self, instance: &Instance) -> bool {
        self.instance == instance.uid && self.namespace == instance.namespace
    }

    /// Whether it asked for a device.
    pub(crate) fn has_device(&self, name: &str) -> bool {
        self.devices.iter().any(|one| one == name)
    }
}

/// The label with the VMI's uid.
pub(crate) const CREATED_BY: &str = "kubevirt.io/created-by";
/// The container of an attachment pod, which holds one claim.
pub(crate) const ATTACHMENT: &str = "hotplug-disk";
/// The container that runs the guest.
pub(crate) const COMPUTE: &str = "compute";
/// The prefix of device names.
const DEVICES: &str = "devices.kubevirt.io/";

/// A pod as the API server writes it, as far as it is read.
#[derive(Debug, Deserialize)]
pub(crate) struct Written {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    namespace: String,
    name: String,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    deletion_timestamp: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(default)]
    host_network: bool,
    #[serde(default)]
    volumes: Vec<Volume>,
    #[serde(default)]
    containers: Vec<Container>,
    #[serde(default)]
    init_containers: Vec<Container>,
    #[serde(default)]
    service_account_name: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    name: String,
    secret: Option<SecretVolume>,
    config_map: Option<ConfigMapVolume>,
    projected: Option<Projected>,
}

#[derive(Debug, Deserialize)]
struct Projected {
    #[serde(default)]
    sources: Vec<Source>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Source {
    service_account_token: Option<serde::de::IgnoredAny>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SecretVolume {
    #[serde(default)]
    secret_name: String,
}

#[derive(Debug, Deserialize)]
struct ConfigMapVolume {
    #[serde(default)]
    name: String,
}

#[derive(Debug, Deserialize)]
struct Container {
    name: String,
    #[serde(default)]
    resources: Resources,
}

#[derive(Debug, Default, Deserialize)]
struct Resources {
    #[serde(default)]
    limits: BTreeMap<String, serde::de::IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    #[serde(default)]
    phase: String,
    #[serde(default)]
    conditions: Vec<Condition>,
    #[serde(default)]
    container_statuses: Vec<ContainerStatus>,
    #[serde(default)]
    init_container_statuses: Vec<ContainerStatus>,
}

#[derive(Debug, Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerStatus {
    name: String,
    #[serde(rename = "containerID", default)]
    container_id: String,
    #[serde(default)]
    state: ContainerState,
}

#[derive(Debug, Default, Deserialize)]
struct ContainerState {
    running: Option<serde::de::IgnoredAny>,
    terminated: Option<Terminated>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Terminated {
    #[serde(default)]
    exit_code: i32,
}

impl From<&Written> for Pod {
    fn from(written: &Written) -> Self {
        let Written { metadata, spec, status } = written;
        let compute = status.container_statuses.iter().find(|one| one.name == COMPUTE);
        let ended = compute.and_then(|one| one.state.terminated.as_ref()).map(|end| end.exit_code);
        let all = status.container_statuses.iter().chain(&status.init_container_statuses);
        let running = all.filter(|one| one.state.running.is_some()).map(|one| {
            let id = one.container_id.rsplit_once("//").map_or(one.container_id.as_str(), |(_, id)| id);
            (one.name.clone(), id.to_owned())
        });
        let devices = spec.containers.iter().filter(|one| one.name == COMPUTE);
        let devices = devices.flat_map(|one| one.resources.limits.keys());
        let devices = devices.filter_map(|name| name.strip_prefix(DEVICES)).map(str::to_owned);
        let secrets = spec
            .volumes
            .iter()
            .filter_map(|volume| Some((volume.secret.as_ref()?.secret_name.clone(), volume.name.clone())));
        let config_maps = spec
            .volumes
            .iter()
            .filter_map(|volume| Some((volume.config_map.as_ref()?.name.clone(), volume.name.clone())));
        let has_token = |volume: &&Volume| {
            let mut sources = volume.projected.iter().flat_map(|projected| &projected.sources);
            sources.any(|source| source.service_account_token.is_some())
        };
        let accounts = spec.volumes.iter().filter(has_token).map(|volume| volume.name.clone());
        let accounts = accounts.map(|volume| (spec.service_account_name.clone(), volume));
        let ready = status.conditions.iter().find(|one| one.kind == "Ready");
        Self {
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
            uid: metadata.uid.clone(),
            instance: metadata.labels.get(CREATED_BY).cloned().unwrap_or_default(),
            deleting: metadata.deletion_timestamp.is_some(),
            host_network: spec.host_network,
            ended,
            containers: running.collect(),
            container_names: spec.containers.iter().map(|one| one.name.clone()).collect(),
            devices: devices.collect(),
            secrets: secrets.collect(),
            config_maps: config_maps.collect(),
            accounts: accounts.collect(),
            keeps_state: spec.volumes.iter().any(|one| one.name == STATE_VOLUME),
            logs_console: spec.init_containers.iter().any(|one| one.name == CONSOLE_LOGGER),
            phase: status.phase.clone(),
            network_status: metadata.annotations.get(STATUS).map(|text| bounded(text)),
            ready: ready.map(|one| (one.status.clone(), one.reason.clone(), one.message.clone())),
        }
    }
}

/// A text with at most one byte more than is accepted.
fn bounded(text: &str) -> String {
    let end = (0..=text.len().min(STATUS_MAX + 1)).rev().find(|at| text.is_char_boundary(*at));
    text[..end.unwrap_or(0)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_is_read_as_far_as_it_is_needed() {
        let written: Written = serde_json::from_value(json!({
            "metadata": {
                "namespace": "n", "name": "virt-launcher-a-x", "uid": "u", "labels": {CREATED_BY: "v"},
                "annotations": {STATUS: "x".repeat(1 << 20), "other": "y"},
            },
            "spec": {
                "hostNetwork": true,
                "containers": [
                    {"name": "compute", "resources": {"limits": {"devices.kubevirt.io/tun": "1", "memory": "1Gi"}}},
                    {"name": "volumea"},
                ],
                "volumes": [
                    {"name": "private", "emptyDir": {}},
                    {"name": "cloud", "secret": {"secretName": "user"}},
                    {"name": "files", "configMap": {"name": "map"}},
                    {"name": "mine", "projected": {"sources": [{"configMap": {}}, {"serviceAccountToken": {}}]}},
                ],
                "serviceAccountName": "reader",
                "initContainers": [{"name": "guest-console-log"}],
            },
            "status": {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [
                    {"name": "compute", "containerID": "containerd://c1", "state": {"running": {"startedAt": "x"}}},
                    {"name": "volumea", "containerID": "containerd://c2", "state": {"running": {}}},
                    {"name": "other", "containerID": "", "state": {"waiting": {}}},
                ],
            },
        }))
        .unwrap();
        let pod = Pod::from(&written);
        assert_eq!((pod.instance.as_str(), pod.state()), ("v", plan::Pod::Alive));
        let instance = |namespace: &str, uid: &str| Instance {
            namespace: namespace.to_owned(),
            uid: uid.to_owned(),
            ..Instance::default()
        };
        assert!(pod.is_of(&instance("n", "v")));
        assert!(!pod.is_of(&instance("other", "v")) && !pod.is_of(&instance("n", "other")));
        assert!(pod.host_network);
        assert_eq!(pod.network_status.as_ref().unwrap().len(), STATUS_MAX + 1);
        assert_eq!(
            pod.containers,
            BTreeMap::from([("compute".into(), "c1".into()), ("volumea".into(), "c2".into())])
        );
        assert!(pod.container_names.iter().eq(["compute", "volumea"]));
        assert!(pod.has_device("tun") && !pod.has_device("kvm"));
        assert_eq!(pod.secrets["user"], "cloud");
        assert_eq!(pod.config_maps["map"], "files");
        assert!(pod.accounts["reader"] == "mine" && pod.logs_console);
        assert_eq!(pod.ready.unwrap().0, "True");
    }

    #[test]
    fn the_end_of_compute_is_the_pods() {
        let state = |status| {
            let written = json!({"metadata": {"name": "a"}, "status": status});
            Pod::from(&serde_json::from_value::<Written>(written).unwrap()).state()
        };
        let ended =
            json!({"containerStatuses": [{"name": "compute", "state": {"terminated": {"exitCode": 137}}}]});
        assert_eq!(state(ended), plan::Pod::Ended(137));
        assert_eq!(state(json!({"phase": "Failed"})), plan::Pod::Ended(1));
        assert_eq!(state(json!({"phase": "Succeeded"})), plan::Pod::Ended(0));
        assert_eq!(state(json!({})), plan::Pod::Alive);
    }
}
