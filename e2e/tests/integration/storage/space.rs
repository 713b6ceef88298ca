//! A test's own namespace: DataVolumes, claims and pods in it, and the phases that DataVolumes go through.

use std::path::PathBuf;

use e2e::{node::BUSYBOX, storage};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::storage::setup::{CLUSTER, IMMEDIATE};

/// A namespace.
pub(crate) struct Space(pub(crate) String);

/// API group and version of a kind.
fn group(kind: &str) -> (&'static str, &'static str) {
    match kind {
        "DataVolume" | "DataSource" | "DataImportCron" | "VolumeImportSource" | "VolumeUploadSource"
        | "VolumeCloneSource" | "StorageProfile" | "CDIConfig" | "ObjectTransfer" => {
            ("cdi.kubevirt.io", "v1beta1")
        }
        "ReferenceGrant" => ("gateway.networking.k8s.io", "v1beta1"),
        "VolumePopulator" => ("populator.storage.k8s.io", "v1beta1"),
        "StorageClass" => ("storage.k8s.io", "v1"),
        "VolumeSnapshot" => ("snapshot.storage.k8s.io", "v1"),
        _ => ("", "v1"),
    }
}

pub(crate) fn api(kind: &str, namespace: &str) -> Api<DynamicObject> {
    let (group, version) = group(kind);
    let plural =
        if kind == "StorageClass" { "storageclasses".into() } else { format!("{}s", kind.to_lowercase()) };
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), &plural);
    match kind {
        "StorageClass" | "StorageProfile" | "CDIConfig" | "ObjectTransfer" | "PersistentVolume"
        | "Namespace" | "VolumePopulator" => Api::all_with(CLUSTER.client(), &resource),
        _ => Api::namespaced_with(CLUSTER.client(), namespace, &resource),
    }
}

/// Asks until there is an answer.
#[track_caller]
pub(crate) fn until<T>(what: &str, answer: impl FnMut() -> Option<T>) -> T {
    CLUSTER.until(what, answer)
}

impl Space {
    pub(crate) fn new(name: &str) -> Self {
        CLUSTER.create_namespace(name, "restricted").unwrap();
        Self(name.to_owned())
    }

    pub(crate) fn create(&self, kind: &str, object: Value) -> Value {
        let mut object = object;
        object["kind"] = json!(kind);
        object["apiVersion"] = match group(kind) {
            ("", version) => json!(version),
            (group, version) => json!(format!("{group}/{version}")),
        };
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let made = CLUSTER.run(api(kind, &self.0).create(&PostParams::default(), &object)).unwrap();
        serde_json::to_value(made).unwrap()
    }

    pub(crate) fn get(&self, kind: &str, name: &str) -> Option<Value> {
        let found = CLUSTER.run(api(kind, &self.0).get_opt(name)).unwrap();
        found.map(|object| serde_json::to_value(object).unwrap())
    }

    pub(crate) fn delete(&self, kind: &str, name: &str) {
        CLUSTER.run(api(kind, &self.0).delete(name, &DeleteParams::default())).unwrap();
    }

    /// Changes an object by a merge patch.
    pub(crate) fn patch(&self, kind: &str, name: &str, patch: &Value) -> Value {
        let (api, params) = (api(kind, &self.0), PatchParams::default());
        let changed = CLUSTER.run(api.patch(name, &params, &Patch::Merge(patch))).unwrap();
        serde_json::to_value(changed).unwrap()
    }

    pub(crate) fn names(&self, kind: &str) -> Vec<String> {
        let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
        self.all(kind).iter().map(name).collect()
    }

    /// Objects of a kind: of this namespace, or all where the kind is cluster-scoped.
    pub(crate) fn all(&self, kind: &str) -> Vec<Value> {
        let all = CLUSTER.run(api(kind, &self.0).list(&ListParams::default())).unwrap();
        all.items.into_iter().map(|object| serde_json::to_value(object).unwrap()).collect()
    }

    /// Reasons and messages of the events about an object.
    pub(crate) fn events(&self, name: &str) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let all = self.all("Event");
        let about = all.iter().filter(|event| event["involvedObject"]["name"] == name);
        about.map(|event| (text(&event["reason"]), text(&event["message"]))).collect()
    }

    /// Waits for a warning about an object, with this reason and these words: events are published after the status.
    #[track_caller]
    pub(crate) fn warned(&self, name: &str, reason: &str, words: &str) {
        until(&format!("{name} has a warning {reason}: {words}"), || {
            let is_it = |event: &Value| {
                event["involvedObject"]["name"] == name
                    && event["type"] == "Warning"
                    && event["reason"] == reason
                    && event["message"].as_str().is_some_and(|message| message.contains(words))
            };
            self.all("Event").iter().any(is_it).then_some(())
        });
    }

    /// Makes a claim of 128 MiB that names an object of this kind as its source.
    pub(crate) fn claim(&self, name: &str, (kind, source): (&str, &str), annotations: &Value) {
        self.create(
            "PersistentVolumeClaim",
            json!({
                "metadata": {"name": name, "annotations": annotations},
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "storageClassName": IMMEDIATE,
                    "resources": {"requests": {"storage": "128Mi"}},
                    "dataSourceRef": {"apiGroup": "cdi.kubevirt.io", "kind": kind, "name": source},
                },
            }),
        );
    }

    /// Makes a DataVolume with a claim of 128 MiB.
    pub(crate) fn data_volume(
        &self,
        name: &str,
        source: &Value,
        class: &str,
        mode: &str,
        annotations: &Value,
    ) {
        self.create(
            "DataVolume",
            json!({
                "metadata": {"name": name, "annotations": annotations},
                "spec": {
                    "source": source,
                    "storage": {
                        "resources": {"requests": {"storage": "96Mi"}}, "storageClassName": class, "volumeMode": mode,
                    },
                },
            }),
        );
    }

    /// A condition of a DataVolume: status, reason, message.
    pub(crate) fn condition(&self, name: &str, kind: &str) -> Option<(String, String, String)> {
        let volume = self.get("DataVolume", name)?;
        let found =
            volume["status"]["conditions"].as_array()?.iter().find(|one| one["type"] == kind)?.clone();
        let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
        Some((text("status"), text("reason"), text("message")))
    }

    /// Waits until a DataVolume is ready and bound, and its worker has completed.
    #[track_caller]
    pub(crate) fn completed(&self, name: &str) {
        for (condition, state, reason) in
            [("Ready", "True", ""), ("Bound", "True", "Bound"), ("Running", "False", "Completed")]
        {
            until(&format!("{name}: {condition} is {state} {reason}"), || {
                let (found, why, _) = self.condition(name, condition)?;
                (found == state && why == reason).then_some(())
            });
        }
    }

    /// Waits for a phase; gives the phases that were seen on the way.
    #[track_caller]
    pub(crate) fn phases(&self, name: &str, last: &str) -> Vec<String> {
        let mut phases: Vec<String> = Vec::new();
        until(&format!("{name} is {last}"), || {
            let phase = self.get("DataVolume", name)?["status"]["phase"].as_str()?.to_owned();
            if phases.last() != Some(&phase) {
                phases.push(phase.clone());
            }
            (phase == last).then_some(())
        });
        phases
    }

    /// A pod that uses a claim, as a virtual machine would.
    pub(crate) fn consumer(&self, claim: &str, mode: &str) {
        let (mounts, devices) = match mode {
            "Block" => (json!([]), json!([{"name": "disk", "devicePath": "/dev/disk"}])),
            _ => (json!([{"name": "disk", "mountPath": "/disk"}]), json!([])),
        };
        self.create(
            "Pod",
            json!({
                "metadata": {"name": format!("consumer-{claim}")},
                "spec": {
                    "terminationGracePeriodSeconds": 0,
                    "securityContext": {
                        "runAsNonRoot": true, "runAsUser": 107, "fsGroup": 107, "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "containers": [{
                        "name": "main", "image": BUSYBOX, "command": ["sleep", "100000"],
                        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
                        "volumeMounts": mounts, "volumeDevices": devices,
                    }],
                    "volumes": [{"name": "disk", "persistentVolumeClaim": {"claimName": claim}}],
                },
            }),
        );
    }

    /// The file behind a bound claim of the first node, on the host.
    #[track_caller]
    pub(crate) fn file(&self, claim: &str) -> PathBuf {
        CLUSTER.node_path(&self.path(claim)).unwrap()
    }

    /// The file behind a bound claim, on its node.
    #[track_caller]
    pub(crate) fn path(&self, claim: &str) -> String {
        let object = self.get("PersistentVolumeClaim", claim).unwrap();
        assert_eq!(object["status"]["phase"], "Bound");
        let volume = self.get("PersistentVolume", object["spec"]["volumeName"].as_str().unwrap()).unwrap();
        let path = if object["spec"]["volumeMode"] == "Block" {
            format!(".hpp-csi/block/{}", volume["metadata"]["name"].as_str().unwrap())
        } else {
            format!("{}/disk.img", volume["spec"]["csi"]["volumeHandle"].as_str().unwrap())
        };
        format!("{}/{path}", storage::POOL)
    }
}
