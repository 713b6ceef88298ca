//! A test's own namespace: claims and pods in it, and what becomes of them.

use std::fs;
use std::path::{Path, PathBuf};

use e2e::node::BUSYBOX;
use e2e::storage;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::hpp_csi::{CLASS, CLUSTER};

/// A namespace.
pub(crate) struct Space {
    name: &'static str,
}

/// A volume of a pod: its name, which is a claim's too, and what it is.
pub(crate) enum Volume<'a> {
    /// A claim mounted at /NAME.
    Files(&'a str),
    /// A claim as the device /dev/NAME.
    Device(&'a str),
    /// Anything else, mounted at /NAME.
    Other(&'a str, Value),
}

fn resource(kind: &str) -> (ApiResource, bool) {
    let (group, version, namespaced) = match kind {
        "Pod" | "PersistentVolumeClaim" | "Event" => ("", "v1", true),
        "PersistentVolume" => ("", "v1", false),
        "VolumeSnapshot" => ("snapshot.storage.k8s.io", "v1", true),
        "VolumeSnapshotContent" => ("snapshot.storage.k8s.io", "v1", false),
        "CSIStorageCapacity" => ("storage.k8s.io", "v1", true),
        "StorageClass" | "VolumeAttributesClass" => ("storage.k8s.io", "v1", false),
        other => panic!("no kind {other}"),
    };
    let plural = match kind {
        "CSIStorageCapacity" => "csistoragecapacities".to_owned(),
        "StorageClass" => "storageclasses".to_owned(),
        "VolumeAttributesClass" => "volumeattributesclasses".to_owned(),
        other => format!("{}s", other.to_lowercase()),
    };
    (ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), &plural), namespaced)
}

/// All objects of a kind, in a namespace or of the cluster.
pub(crate) fn api(kind: &str, namespace: &str) -> Api<DynamicObject> {
    let (resource, namespaced) = resource(kind);
    if namespaced {
        Api::namespaced_with(CLUSTER.client(), namespace, &resource)
    } else {
        Api::all_with(CLUSTER.client(), &resource)
    }
}

/// Asks until there is an answer.
#[track_caller]
pub(crate) fn until<T>(what: &str, answer: impl FnMut() -> Option<T>) -> T {
    CLUSTER.until(what, answer)
}

impl Space {
    pub(crate) fn new(name: &'static str) -> Self {
        CLUSTER.create_namespace(name, "restricted").unwrap();
        Self { name }
    }

    pub(crate) fn create(&self, kind: &str, name: &str, rest: &Value) {
        let (resource, _) = resource(kind);
        let mut object = json!({"apiVersion": resource.api_version, "kind": kind, "metadata": {}});
        object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        object["metadata"]["name"] = json!(name);
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        CLUSTER.run(api(kind, self.name).create(&PostParams::default(), &object)).unwrap();
    }

    pub(crate) fn get(&self, kind: &str, name: &str) -> Option<Value> {
        let found = CLUSTER.run(api(kind, self.name).get_opt(name)).unwrap();
        found.map(|object| serde_json::to_value(object).unwrap())
    }

    /// All objects of a kind.
    pub(crate) fn list(&self, kind: &str) -> Vec<DynamicObject> {
        CLUSTER.run(api(kind, self.name).list(&Default::default())).unwrap().items
    }

    pub(crate) fn patch(&self, kind: &str, name: &str, patch: &Value) {
        let patched = api(kind, self.name);
        CLUSTER.run(patched.patch(name, &PatchParams::default(), &Patch::Merge(patch))).unwrap();
    }

    /// Deletes an object and waits until it is gone.
    #[track_caller]
    pub(crate) fn delete(&self, kind: &str, name: &str) {
        CLUSTER.run(api(kind, self.name).delete(name, &DeleteParams::default())).unwrap();
        until(&format!("{kind} {name} is gone"), || self.get(kind, name).is_none().then_some(()));
    }

    /// A claim of the driver's class, of `mib` MiB, with more fields of its specification.
    pub(crate) fn claim(&self, name: &str, mib: u64, more: &Value) {
        self.claim_with(name, mib, more, &json!({}));
    }

    /// The same, with annotations.
    pub(crate) fn claim_with(&self, name: &str, mib: u64, more: &Value, annotations: &Value) {
        let mut specification = json!({
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": CLASS,
            "resources": {"requests": {"storage": format!("{mib}Mi")}},
        });
        specification.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let claim = json!({"metadata": {"annotations": annotations}, "spec": specification});
        self.create("PersistentVolumeClaim", name, &claim);
    }

    /// A pod that runs `script` and then sleeps.
    pub(crate) fn pod(&self, name: &str, script: &str, volumes: &[Volume<'_>]) {
        self.pod_on(name, None, script, volumes);
    }

    /// The same on a node that no scheduler chooses.
    pub(crate) fn pod_on(&self, name: &str, node: Option<&str>, script: &str, volumes: &[Volume<'_>]) {
        let (mut mounts, mut devices, mut all) = (Vec::new(), Vec::new(), Vec::new());
        for volume in volumes {
            let claimed = |name: &str| json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
            match volume {
                Volume::Files(name) => {
                    mounts.push(json!({"name": name, "mountPath": format!("/{name}")}));
                    all.push(claimed(name));
                }
                Volume::Device(name) => {
                    devices.push(json!({"name": name, "devicePath": format!("/dev/{name}")}));
                    all.push(claimed(name));
                }
                Volume::Other(name, what) => {
                    mounts.push(json!({"name": name, "mountPath": format!("/{name}")}));
                    let mut volume = what.clone();
                    volume["name"] = json!(name);
                    all.push(volume);
                }
            }
        }
        let specification = json!({
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": 107, "fsGroup": 107, "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [{
                "name": "main",
                "image": BUSYBOX,
                "command": ["sh", "-c", format!("set -e; {script}\nexec sleep 100000")],
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
                "volumeMounts": mounts,
                "volumeDevices": devices,
            }],
            "volumes": all,
        });
        self.create("Pod", name, &json!({"spec": specification}));
    }

    #[track_caller]
    pub(crate) fn running(&self, pod: &str) {
        until(&format!("{pod} runs"), || {
            (self.get("Pod", pod)?["status"]["phase"] == "Running").then_some(())
        });
    }

    /// Runs a command in a pod; returns its output.
    #[track_caller]
    pub(crate) fn exec(&self, pod: &str, script: &str) -> String {
        let said = CLUSTER
            .kubectl()
            .args(["-n", self.name, "exec", pod, "--", "sh", "-c", script])
            .output()
            .unwrap();
        assert!(said.status.success(), "{script}: {}", String::from_utf8_lossy(&said.stderr));
        String::from_utf8(said.stdout).unwrap()
    }

    /// The volume that a claim is bound to.
    #[track_caller]
    pub(crate) fn bound(&self, claim: &str) -> Value {
        let name = until(&format!("{claim} is bound"), || {
            let claim = self.get("PersistentVolumeClaim", claim)?;
            (claim["status"]["phase"] == "Bound")
                .then(|| claim["spec"]["volumeName"].as_str().unwrap().to_owned())
        });
        self.get("PersistentVolume", &name).unwrap()
    }

    /// The folder of a claim's files in the pool, as the host sees it.
    #[track_caller]
    pub(crate) fn folder(&self, claim: &str) -> PathBuf {
        in_pool(self.bound(claim)["spec"]["csi"]["volumeHandle"].as_str().unwrap())
    }

    /// Events about an object: the reason of each, and its message.
    pub(crate) fn events(&self, about: &str) -> Vec<String> {
        let events = CLUSTER.run(api("Event", self.name).list(&Default::default())).unwrap();
        let about = |event: &&DynamicObject| event.data["involvedObject"]["name"] == about;
        let text = |event: &DynamicObject, field| event.data[field].as_str().unwrap_or_default().to_owned();
        let told = |event| format!("{}: {}", text(event, "reason"), text(event, "message"));
        events.items.iter().filter(about).map(told).collect()
    }

    /// The uid of a claim, which the driver's name of its volume ends in.
    pub(crate) fn uid(&self, claim: &str) -> String {
        self.get("PersistentVolumeClaim", claim).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned()
    }
}

/// The file behind a claim's device, as the host sees it.
pub(crate) fn block_file(space: &Space, claim: &str) -> PathBuf {
    in_pool(".hpp-csi/block").join(format!("pvc-{}", space.uid(claim)))
}

/// Whether a loop device is on that file.
pub(crate) fn attached(file: &Path) -> bool {
    let name = file.file_name().unwrap().to_str().unwrap();
    let devices = fs::read_dir("/sys/block").unwrap().map(|entry| entry.unwrap().path());
    let mut files = devices.filter_map(|device| fs::read_to_string(device.join("loop/backing_file")).ok());
    files.any(|backing| backing.contains(name))
}

/// A file of the pool, as the host sees it.
pub(crate) fn in_pool(name: &str) -> PathBuf {
    CLUSTER.node_path(&format!("{}/{name}", storage::POOL)).unwrap()
}
