//! Launcher pods as controllers see them.

use serde::{Deserialize, Deserializer, Serialize};

use super::{Condition, Meta};

/// Name of the container in which the guest runs.
const COMPUTE: &str = "compute";

/// A launcher pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Pod {
    pub(crate) metadata: Meta,
    pub(crate) spec: PodSpec,
    pub(crate) status: PodStatus,
}

/// Its spec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodSpec {
    pub(crate) node_name: String,
    pub(crate) readiness_gates: Vec<ReadinessGate>,
    /// Image of the container in which the guest runs, as the pod names it: the status may have another name of it.
    #[serde(rename = "containers", deserialize_with = "compute_image")]
    pub(crate) compute_image: String,
}

fn compute_image<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Container {
        name: String,
        image: String,
    }
    let all = Option::<Vec<Container>>::deserialize(deserializer)?.unwrap_or_default();
    Ok(all.into_iter().find(|one| one.name == COMPUTE).map(|one| one.image).unwrap_or_default())
}

/// A condition without which a pod is not ready.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ReadinessGate {
    pub(crate) condition_type: String,
}

/// Its status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodStatus {
    pub(crate) phase: String,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) qos_class: String,
    #[serde(rename = "podIPs")]
    pub(crate) pod_ips: Vec<PodIp>,
    pub(crate) init_container_statuses: Vec<ContainerStatus>,
    pub(crate) container_statuses: Vec<ContainerStatus>,
}

/// An address of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct PodIp {
    pub(crate) ip: String,
}

/// State of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct ContainerStatus {
    pub(crate) name: String,
    pub(crate) ready: bool,
    pub(crate) state: ContainerState,
}

/// The state of a container: one of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct ContainerState {
    pub(crate) waiting: Option<Waiting>,
    pub(crate) running: Option<Running>,
    pub(crate) terminated: Option<Terminated>,
}

/// A container that runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Running {}

/// Why a container waits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Waiting {
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// How a container ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Terminated {
    pub(crate) exit_code: i64,
    pub(crate) finished_at: Option<String>,
}

impl Pod {
    /// uid of the instance that the pod was created for.
    pub(crate) fn created_by(&self) -> Option<&str> {
        self.metadata.label("kubevirt.io/created-by")
    }

    /// Whether all its containers have ended for good.
    pub(crate) fn is_down(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// The container in which the guest runs.
    pub(crate) fn compute(&self) -> Option<&ContainerStatus> {
        self.status.container_statuses.iter().find(|container| container.name == COMPUTE)
    }

    /// Whether a container runs and is ready.
    pub(crate) fn container_ready(&self, name: &str) -> bool {
        let ready = |container: &ContainerStatus| container.name == name && container.ready;
        self.status.phase == "Running" && self.status.container_statuses.iter().any(ready)
    }

    /// Whether the launcher waits for its guest or runs it. Its container may have the readiness probe of the guest, so, as
    /// upstream, it need not be ready.
    pub(crate) fn compute_runs(&self) -> bool {
        let runs = |compute: &ContainerStatus| compute.ready || compute.state.running.is_some();
        self.status.phase == "Running" && self.compute().is_some_and(runs)
    }

    /// The first container that waits for an image it cannot get, with the kubelet's message.
    pub(crate) fn image_problem(&self) -> Option<&Waiting> {
        let all = self.status.init_container_statuses.iter().chain(&self.status.container_statuses);
        let mut waiting = all.filter_map(|container| container.state.waiting.as_ref());
        waiting.find(|waiting| {
            matches!(
                waiting.reason.as_str(),
                "ErrImagePull" | "ImagePullBackOff" | "ErrImageNeverPull" | "InvalidImageName"
            )
        })
    }
}

/// A cache keeps what was read.
impl From<&Self> for Pod {
    fn from(read: &Self) -> Self {
        read.clone()
    }
}
