//! A worker pod of a transfer: importer, upload server, clone source.

use serde_json::Value;

use super::meta::{Meta, conditions, text};

/// The fields read from a worker pod. The first container is the one that works.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Worker {
    /// Metadata.
    pub meta: Meta,
    /// `status.phase`: `Pending`, `Running`, `Succeeded`, `Failed`, `Unknown`; empty before the first status.
    pub phase: String,
    /// Why the pod failed: `Evicted`, `NodeLost`.
    pub reason: String,
    /// Whether the pod's Ready condition is true.
    pub ready: bool,
    /// Why the scheduler finds no node.
    pub unschedulable: Option<String>,
    /// `status.podIP`; empty before it has one.
    pub address: String,
    /// Restarts of all containers.
    pub restarts: u32,
    /// The first container.
    pub state: State,
    /// How the first container's last run ended.
    pub last: Option<Ended>,
    /// Names of claims it mounts.
    pub claims: Vec<String>,
    /// What keeps the pod from working that the first container does not tell: another container's image, a volume.
    pub hindrance: Option<Hindrance>,
}

/// Why a pod does not work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hindrance {
    /// Such as `ErrImagePull`, `FailedMount`.
    pub reason: String,
    /// For people.
    pub message: String,
}

/// State of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// The kubelet has not reported yet.
    #[default]
    Unreported,
    /// It waits: image pull, back-off.
    Waiting {
        /// Such as `ImagePullBackOff`.
        reason: String,
        /// For people.
        message: String,
    },
    /// It runs.
    Running,
    /// It ended.
    Ended(Ended),
}

/// How a container ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Exit status.
    pub status: i64,
    /// `Completed`, `Error`, `OOMKilled`.
    pub reason: String,
    /// The termination message.
    pub message: String,
}

impl From<&Value> for Worker {
    fn from(object: &Value) -> Self {
        let status = &object["status"];
        let containers = status["containerStatuses"].as_array().map(Vec::as_slice).unwrap_or_default();
        let first = text(&object["spec"]["containers"][0]["name"]);
        let before = status["initContainerStatuses"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut others = before.iter().chain(containers).filter(|one| one["name"] != *first);
        let working = containers.iter().find(|one| one["name"] == *first).unwrap_or(&Value::Null);
        let conditions = conditions(&status["conditions"]);
        let volumes = object["spec"]["volumes"].as_array().map(Vec::as_slice).unwrap_or_default();
        let unschedulable = conditions
            .iter()
            .find(|one| one.kind == "PodScheduled" && one.status == "False" && one.reason == "Unschedulable");
        Self {
            meta: Meta::from(object),
            phase: text(&status["phase"]),
            reason: text(&status["reason"]),
            ready: conditions.iter().any(|one| one.kind == "Ready" && one.status == "True"),
            unschedulable: unschedulable.map(|one| one.message.clone()),
            address: text(&status["podIP"]),
            restarts: containers
                .iter()
                .filter_map(|one| u32::try_from(one["restartCount"].as_u64()?).ok())
                .fold(0, u32::saturating_add),
            state: state(&working["state"]),
            last: ended(&working["lastState"]["terminated"]),
            claims: volumes
                .iter()
                .filter_map(|volume| volume["persistentVolumeClaim"]["claimName"].as_str().map(str::to_owned))
                .collect(),
            hindrance: others.find_map(|one| hindrance(&one["state"])),
        }
    }
}

/// Why a container does not start, unless it is about to.
fn hindrance(state: &Value) -> Option<Hindrance> {
    const USUAL: [&str; 3] = ["ContainerCreating", "PodInitializing", "CrashLoopBackOff"];
    let waiting = &state["waiting"];
    let reason = waiting["reason"].as_str().filter(|reason| !USUAL.contains(reason))?;
    Some(Hindrance { reason: reason.to_owned(), message: text(&waiting["message"]) })
}

fn state(state: &Value) -> State {
    if let Some(ended) = ended(&state["terminated"]) {
        State::Ended(ended)
    } else if state["running"].is_object() {
        State::Running
    } else if state["waiting"].is_object() {
        State::Waiting {
            reason: text(&state["waiting"]["reason"]),
            message: text(&state["waiting"]["message"]),
        }
    } else {
        State::Unreported
    }
}

fn ended(ended: &Value) -> Option<Ended> {
    ended.is_object().then(|| Ended {
        status: ended["exitCode"].as_i64().unwrap_or(-1),
        reason: text(&ended["reason"]),
        message: text(&ended["message"]),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn worker_pods_are_read() {
        let pod = json!({
            "metadata": {"name": "importer-a"},
            "spec": {
                "containers": [{"name": "importer"}, {"name": "server"}],
                "volumes": [{"persistentVolumeClaim": {"claimName": "c"}}, {"emptyDir": {}}],
            },
            "status": {
                "phase": "Running", "podIP": "10.0.0.1",
                "conditions": [{"type": "Ready", "status": "True"},
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}],
                "containerStatuses": [
                    {"name": "server", "restartCount": 1, "state": {"running": {}}},
                    {"name": "importer", "restartCount": 2, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                        "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "message": "404"}}},
                ],
            },
        });
        let worker = Worker::from(&pod);
        assert_eq!(
            (worker.restarts, worker.ready, worker.claims.as_slice()),
            (3, true, &["c".to_owned()][..])
        );
        assert!(matches!(&worker.state, State::Waiting { reason, .. } if reason == "CrashLoopBackOff"));
        assert_eq!(worker.last.map(|ended| (ended.status, ended.message)), Some((1, "404".into())));
        assert_eq!(worker.unschedulable.as_deref(), Some("0/1 nodes"));
        assert_eq!(worker.hindrance, None);
        let mut pod = pod;
        let waiting = json!({"waiting": {"reason": "ErrImagePull", "message": "no such image"}});
        pod["status"]["containerStatuses"][0]["state"] = waiting;
        let expected = Hindrance { reason: "ErrImagePull".into(), message: "no such image".into() };
        assert_eq!(Worker::from(&pod).hindrance, Some(expected));
    }
}
