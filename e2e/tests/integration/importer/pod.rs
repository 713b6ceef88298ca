//! The importer's pod exactly as CDI's controller makes it (v1.66, `pkg/controller/import-controller.go`), and what
//! becomes of it. Deviations are the tests' own and are fields here: memory, seccomp profile, runtime class.

use std::time::{Duration, Instant};

use e2e::Cluster;
use e2e::volume::Volume;
use k8s_openapi::api::core::v1::{ConfigMap, ContainerStateTerminated, ContainerStatus, Pod, Secret};
use kube::api::{Api, DeleteParams, LogParams};
use serde_json::{Value, json};

use crate::importer::count;

/// The image under test.
pub(crate) const IMAGE: &str = "localhost/ferrovirt:importer";

/// The parameters of a pod.
pub(crate) struct Import<'a> {
    pub(crate) cluster: &'static Cluster,
    pub(crate) namespace: &'a str,
    pub(crate) volume: &'a Volume,
    /// IMPORTER_IMAGE_SIZE: the claim's request.
    pub(crate) size: u64,
    pub(crate) source: &'a str,
    pub(crate) endpoint: String,
    /// A ConfigMap with a CA.
    pub(crate) authority: Option<&'a str>,
    /// A Secret with accessKeyId and secretKey.
    pub(crate) keys: Option<&'a str>,
    pub(crate) checksum: Option<String>,
    /// The controller's own setting, 1 unless an administrator asks for more.
    pub(crate) verbosity: u8,
    /// Limit of memory.
    pub(crate) memory: &'a str,
    pub(crate) seccomp: Value,
    pub(crate) runtime_class: Option<&'a str>,
    /// The image that the kubelet pulls, and the Secret it logs in by.
    pub(crate) node_pull: Option<(String, &'a str)>,
}

impl<'a> Import<'a> {
    pub(crate) fn new(
        cluster: &'static Cluster,
        namespace: &'a str,
        volume: &'a Volume,
        size: u64,
        endpoint: String,
    ) -> Self {
        Self {
            cluster,
            namespace,
            volume,
            size,
            source: "http",
            endpoint,
            authority: None,
            keys: None,
            checksum: None,
            verbosity: 1,
            memory: "600M",
            seccomp: json!({"type": "RuntimeDefault"}),
            runtime_class: None,
            node_pull: None,
        }
    }

    fn name(&self) -> String {
        format!("importer-{}", self.volume.claim)
    }

    /// cc.SetRestrictedSecurityContext.
    fn security(&self) -> Value {
        json!({
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": self.seccomp,
            "allowPrivilegeEscalation": false,
            "runAsNonRoot": true,
            "runAsUser": 107,
        })
    }

    fn resources(&self) -> Value {
        let asked = if self.memory == "600M" { "60M" } else { self.memory };
        json!({"requests": {"cpu": "100m", "memory": asked}, "limits": {"cpu": "750m", "memory": self.memory}})
    }

    fn environment(&self) -> Value {
        let overhead = if self.volume.is_block() { "0" } else { "0.06" };
        let plain = |name: &str, value: &str| json!({"name": name, "value": value});
        let mut variables = vec![
            plain("IMPORTER_SOURCE", self.source),
            plain("IMPORTER_ENDPOINT", &self.endpoint),
            plain("IMPORTER_CONTENTTYPE", "kubevirt"),
            plain("IMPORTER_IMAGE_SIZE", &self.size.to_string()),
            plain("OWNER_UID", &self.volume.uid),
            plain("FILESYSTEM_OVERHEAD", overhead),
            plain("INSECURE_TLS", "false"),
            plain("IMPORTER_DISK_ID", ""),
            plain("IMPORTER_UUID", ""),
            plain("IMPORTER_PULL_METHOD", if self.node_pull.is_some() { "node" } else { "" }),
            plain("IMPORTER_READY_FILE", if self.node_pull.is_some() { "/shared/ready" } else { "" }),
            plain("IMPORTER_DONE_FILE", if self.node_pull.is_some() { "/shared/done" } else { "" }),
            plain("IMPORTER_BACKING_FILE", ""),
            plain("IMPORTER_THUMBPRINT", ""),
            plain("http_proxy", ""),
            plain("https_proxy", ""),
            plain("no_proxy", ""),
            plain("IMPORTER_CURRENT_CHECKPOINT", ""),
            plain("IMPORTER_PREVIOUS_CHECKPOINT", ""),
            plain("IMPORTER_FINAL_CHECKPOINT", ""),
            plain("PREALLOCATION", "false"),
            plain("CACHE_MODE", ""),
        ];
        if self.authority.is_some() {
            variables.push(plain("IMPORTER_CERT_DIR", "/certs"));
        }
        if let Some(checksum) = &self.checksum {
            variables.push(plain("IMPORTER_CHECKSUM", checksum));
        }
        if let Some(secret) = self.keys {
            for (name, key) in
                [("IMPORTER_ACCESS_KEY_ID", "accessKeyId"), ("IMPORTER_SECRET_KEY", "secretKey")]
            {
                let from = json!({"secretKeyRef": {"name": secret, "key": key}});
                variables.push(json!({"name": name, "valueFrom": from}));
            }
        }
        Value::Array(variables)
    }

    fn importer(&self) -> Value {
        let mut mounts = Vec::new();
        let mut devices = Vec::new();
        if self.volume.is_block() {
            devices.push(json!({"name": "cdi-data-vol", "devicePath": "/dev/cdi-block-volume"}));
        } else {
            mounts.push(json!({"name": "cdi-data-vol", "mountPath": "/data"}));
        }
        if self.authority.is_some() {
            mounts.push(json!({"name": "cdi-cert-vol", "mountPath": "/certs"}));
        }
        if self.node_pull.is_some() {
            mounts.push(json!({"name": "shared-volume", "mountPath": "/shared"}));
        }
        json!({
            "name": "importer",
            "image": IMAGE,
            "imagePullPolicy": "IfNotPresent",
            "args": [format!("-v={}", self.verbosity)],
            "env": self.environment(),
            "ports": [{"name": "metrics", "containerPort": 8443, "protocol": "TCP"}],
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "resources": self.resources(),
            "securityContext": self.security(),
            "volumeMounts": mounts,
            "volumeDevices": devices,
        })
    }

    fn specification(&self) -> Value {
        let mut containers = vec![self.importer()];
        let mut before = Vec::new();
        let mut volumes =
            vec![json!({"name": "cdi-data-vol", "persistentVolumeClaim": {"claimName": self.volume.claim}})];
        if let Some(name) = self.authority {
            volumes.push(json!({"name": "cdi-cert-vol", "configMap": {"name": name}}));
        }
        let mut specification = json!({
            "restartPolicy": "OnFailure",
            "enableServiceLinks": false,
            "securityContext": {"fsGroup": 107},
        });
        if let Some((image, login)) = &self.node_pull {
            let shared = json!([{"name": "shared-volume", "mountPath": "/shared"}]);
            before.push(json!({
                "name": "init",
                "image": IMAGE,
                "imagePullPolicy": "IfNotPresent",
                "command": ["sh", "-c", "cp /usr/bin/cdi-containerimage-server /shared/server"],
                "resources": self.resources(),
                "securityContext": self.security(),
                "volumeMounts": shared,
            }));
            containers.push(json!({
                "name": "server",
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "command": ["/shared/server", "-p", "8100", "-image-dir", "/disk",
                    "-ready-file", "/shared/ready", "-done-file", "/shared/done"],
                "resources": self.resources(),
                "securityContext": self.security(),
                "volumeMounts": shared,
            }));
            volumes.push(json!({"name": "shared-volume", "emptyDir": {}}));
            specification["imagePullSecrets"] = json!([{"name": login}]);
        }
        if let Some(class) = self.runtime_class {
            specification["runtimeClassName"] = json!(class);
        }
        specification["initContainers"] = Value::Array(before);
        specification["containers"] = Value::Array(containers);
        specification["volumes"] = Value::Array(volumes);
        specification
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.cluster.client(), self.namespace)
    }

    /// Makes the pod.
    pub(crate) fn start(&self) -> Running<'_> {
        let pod = json!({
            "metadata": {
                "name": self.name(),
                "labels": {
                    "app": "containerized-data-importer",
                    "cdi.kubevirt.io": "importer",
                    "prometheus.cdi.kubevirt.io": "true",
                },
                "annotations": {"cdi.kubevirt.io/storage.createdByController": "yes"},
                "ownerReferences": [{
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": self.volume.claim,
                    "uid": self.volume.uid, "blockOwnerDeletion": true, "controller": true,
                }],
            },
            "spec": self.specification(),
        });
        let pods = self.pods();
        let created = self.cluster.create(&pods, pod).unwrap();
        Running { import: self, pods, name: self.name(), uid: created.metadata.uid.unwrap() }
    }
}

/// A pod that was made.
pub(crate) struct Running<'a> {
    import: &'a Import<'a>,
    pods: Api<Pod>,
    name: String,
    uid: String,
}

/// How the importer's container ended.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) exit: i32,
    pub(crate) message: String,
    pub(crate) restarts: i32,
    /// Of the container that ended last.
    pub(crate) log: String,
}

impl Running<'_> {
    /// The pod's group in the memory hierarchy.
    pub(crate) fn memory_group(&self) -> std::path::PathBuf {
        let node = self.import.cluster.place().cgroup();
        format!("/sys/fs/cgroup/memory/{node}/kubepods/burstable/pod{}", self.uid).into()
    }

    fn get(&self) -> Pod {
        self.import.cluster.run(self.pods.get(&self.name)).unwrap()
    }

    /// The kubelet's status of the importer's container; `None` until there is one.
    pub(crate) fn status(&self) -> Option<ContainerStatus> {
        let statuses = self.get().status?.container_statuses?;
        statuses.into_iter().find(|status| status.name == "importer")
    }

    pub(crate) fn address(&self) -> Option<String> {
        self.get().status?.pod_ip
    }

    pub(crate) fn phase(&self) -> Option<String> {
        self.get().status?.phase
    }

    /// Asks until there is an answer.
    #[track_caller]
    pub(crate) fn until<T>(&self, what: &str, mut answer: impl FnMut(&Self) -> Option<T>) -> T {
        let deadline = Instant::now() + Duration::from_secs(count(120, 900));
        loop {
            if let Some(answer) = answer(self) {
                return answer;
            }
            assert!(Instant::now() < deadline, "{what}: not in time\n{}\n{}", self.describe(), self.log());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn describe(&self) -> String {
        let mut kubectl = self.import.cluster.kubectl();
        let said = kubectl.args(["-n", self.import.namespace, "describe", "pod", &self.name]).output();
        String::from_utf8_lossy(&said.unwrap().stdout).into_owned()
    }

    pub(crate) fn log(&self) -> String {
        let asked = LogParams { container: Some("importer".into()), ..LogParams::default() };
        self.import.cluster.run(self.pods.logs(&self.name, &asked)).unwrap_or_default()
    }

    fn ended(&self, status: &ContainerStatus, ended: ContainerStateTerminated) -> End {
        End {
            exit: ended.exit_code,
            message: ended.message.unwrap_or_default(),
            restarts: status.restart_count,
            log: self.log(),
        }
    }

    /// Waits until the container has ended for good, that is with exit code 0.
    #[track_caller]
    pub(crate) fn end(&self) -> End {
        self.until("the end", |running| {
            let status = running.status()?;
            let ended = status.state.clone()?.terminated.filter(|ended| ended.exit_code == 0)?;
            Some(running.ended(&status, ended))
        })
    }

    /// Waits until the container has ended with a failure, before or after the kubelet has started it again.
    #[track_caller]
    pub(crate) fn failure(&self) -> End {
        self.until("a failure", |running| {
            let status = running.status()?;
            let now = status.state.clone().and_then(|state| state.terminated);
            let last = status.last_state.clone().and_then(|state| state.terminated);
            let ended = now.or(last).filter(|ended| ended.exit_code != 0)?;
            Some(running.ended(&status, ended))
        })
    }

    /// Deletes the pod as the controller does and waits until it is gone.
    #[track_caller]
    pub(crate) fn delete(self) {
        self.import.cluster.run(self.pods.delete(&self.name, &DeleteParams::default())).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.import.cluster.run(self.pods.get_opt(&self.name)).unwrap().is_some() {
            assert!(Instant::now() < deadline, "the pod is still there");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Makes a pod of one container and waits for its first end.
#[track_caller]
pub(crate) fn run(cluster: &Cluster, namespace: &str, pod: Value) -> End {
    let pods = Api::<Pod>::namespaced(cluster.client(), namespace);
    let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
    cluster.create(&pods, pod).unwrap();
    let deadline = Instant::now() + Duration::from_secs(count(120, 900));
    loop {
        let found = cluster.run(pods.get(&name)).unwrap();
        let statuses = found.status.clone().and_then(|status| status.container_statuses).unwrap_or_default();
        if let Some(status) = statuses.first() {
            let ended = [status.last_state.clone(), status.state.clone()];
            if let Some(ended) = ended.into_iter().flatten().find_map(|state| state.terminated) {
                return End {
                    exit: ended.exit_code,
                    message: ended.message.unwrap_or_default(),
                    restarts: status.restart_count,
                    log: cluster.run(pods.logs(&name, &LogParams::default())).unwrap_or_default(),
                };
            }
        }
        assert!(Instant::now() < deadline, "{name} does not end: {:?}", found.status);
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A ConfigMap with a CA as users make it, and its name.
pub(crate) fn authority(cluster: &Cluster, namespace: &str, certificate: &str) -> &'static str {
    let maps = Api::<ConfigMap>::namespaced(cluster.client(), namespace);
    let map = json!({"metadata": {"name": "authority"}, "data": {"ca.pem": certificate}});
    cluster.create(&maps, map).unwrap();
    "authority"
}

/// A Secret with keys as CDI wants them, and its name.
pub(crate) fn keys(cluster: &Cluster, namespace: &str, access: &str, secret: &str) -> &'static str {
    let secrets = Api::<Secret>::namespaced(cluster.client(), namespace);
    let content = json!({"accessKeyId": access, "secretKey": secret});
    cluster.create(&secrets, json!({"metadata": {"name": "keys"}, "stringData": content})).unwrap();
    "keys"
}

/// A Secret for pulling images, and its name.
pub(crate) fn login(cluster: &Cluster, namespace: &str, docker_config: &str) -> &'static str {
    let secrets = Api::<Secret>::namespaced(cluster.client(), namespace);
    let secret = json!({
        "metadata": {"name": "login"},
        "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": docker_config},
    });
    cluster.create(&secrets, secret).unwrap();
    "login"
}
