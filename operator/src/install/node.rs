//! DaemonSets: node agent and hostpath CSI driver, with the driver's objects.

use serde_json::{Value, json};

use super::accounts::{self, PRIORITY};
use super::workloads::field;
use super::{Settings, object, with};

/// Name of the CSI driver.
const DRIVER: &str = "kubevirt.io.hostpath-provisioner";
/// Directory with the driver's socket.
const SOCKET: &str = "/var/lib/kubelet/plugins/csi-hostpath";

/// DaemonSets and the objects of the CSI driver.
pub(super) fn workloads(settings: &Settings) -> Vec<Value> {
    vec![
        agent(settings),
        with(
            object("storage.k8s.io/v1", "CSIDriver", DRIVER, None),
            json!({"spec": {
                "attachRequired": false,
                "podInfoOnMount": true,
                "storageCapacity": true,
                "fsGroupPolicy": "File",
                "volumeLifecycleModes": ["Persistent", "Ephemeral"],
            }}),
        ),
        hostpath(settings),
        with(
            object("storage.k8s.io/v1", "StorageClass", "hostpath-csi", None),
            json!({
                "provisioner": DRIVER,
                "volumeBindingMode": "WaitForFirstConsumer",
                "allowVolumeExpansion": true,
                "reclaimPolicy": "Delete",
                "parameters": {"storagePool": "legacy"},
            }),
        ),
    ]
}

fn daemon_set(settings: &Settings, name: &str, labels: &Value, spec: &Value) -> Value {
    let mut set = with(
        object("apps/v1", "DaemonSet", name, Some(&settings.namespace)),
        json!({"spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        }}),
    );
    set["metadata"]["labels"] = labels.clone();
    set
}

/// A volume from a directory of the node.
fn host(name: &str, path: &str, kind: &str) -> Value {
    json!({"name": name, "hostPath": {"path": path, "type": kind}})
}

fn mount(name: &str, path: &str) -> Value {
    json!({"name": name, "mountPath": path})
}

fn agent(settings: &Settings) -> Value {
    let args: &[&str] = if settings.emulation { &["--kvm", "never"] } else { &[] };
    let container = json!({
        "name": "virt-handler",
        "image": settings.image("virt-agent"),
        "args": args,
        "env": [
            field("NODE_NAME", "spec.nodeName"),
            field("POD_NAMESPACE", "metadata.namespace"),
            field("POD_NAME", "metadata.name"),
            field("POD_IP", "status.podIP"),
        ],
        "ports": [
            {"name": "agent", "containerPort": 8186, "protocol": "TCP"},
            {"name": "health", "containerPort": 8187, "protocol": "TCP"},
        ],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": "health"}, "periodSeconds": 5},
        "resources": {"requests": {"cpu": "10m", "memory": "48Mi"}},
        "securityContext": {"privileged": true, "readOnlyRootFilesystem": true},
        "volumeMounts": [
            {"name": "kubelet", "mountPath": "/var/lib/kubelet", "mountPropagation": "HostToContainer"},
            mount("devices", "/dev"),
            mount("state", "/var/lib/ferrovirt"),
            {"name": "server-cert", "mountPath": "/etc/virt-handler/servercertificates", "readOnly": true},
            {"name": "ca", "mountPath": "/etc/virt-handler/ca", "readOnly": true},
        ],
    });
    let spec = json!({
        "serviceAccountName": accounts::AGENT,
        "priorityClassName": PRIORITY,
        "hostPID": true,
        "terminationGracePeriodSeconds": 30,
        "nodeSelector": {"kubernetes.io/os": "linux"},
        // The agent runs wherever guests may be, also on nodes that take no other pods.
        "tolerations": [{"operator": "Exists"}],
        // At each start of the agent, so also at each upgrade. Plugins of others stay.
        "initContainers": [{
            "name": "network-plugins",
            "image": settings.image("cni"),
            "args": ["install", "/opt/cni/bin"],
            "securityContext": {
                "runAsUser": 0,
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "seccompProfile": {"type": "RuntimeDefault"},
                "capabilities": {"drop": ["ALL"]},
            },
            "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
            "volumeMounts": [mount("plugins", "/opt/cni/bin")],
        }],
        "containers": [container],
        "volumes": [
            host("plugins", "/opt/cni/bin", "DirectoryOrCreate"),
            host("kubelet", "/var/lib/kubelet", "Directory"),
            host("devices", "/dev", "Directory"),
            host("state", "/var/lib/ferrovirt", "DirectoryOrCreate"),
            // The operator makes both; the pod waits for them.
            {"name": "server-cert", "secret": {"secretName": "kubevirt-virt-handler-server-certs"}},
            {"name": "ca", "configMap": {"name": "kubevirt-ca"}},
        ],
    });
    daemon_set(settings, "virt-handler", &json!({"kubevirt.io": "virt-handler"}), &spec)
}

fn hostpath(settings: &Settings) -> Value {
    let driver = json!({
        "name": "hostpath-provisioner",
        "image": settings.image("hpp-csi"),
        "args": [
            format!("--drivername={DRIVER}"),
            format!("--registration-socket=/registration/{DRIVER}-reg.sock"),
            format!("--kubelet-registration-path={SOCKET}/csi.sock"),
            "--health-address=[::]:9898",
        ],
        "env": [
            field("NODE_NAME", "spec.nodeName"),
            field("POD_IP", "status.podIP"),
            {"name": "PV_DIR", "value": r#"[{"name": "legacy", "path": "/csi-data-dir"}]"#},
        ],
        "ports": [
            {"name": "healthz", "containerPort": 9898, "protocol": "TCP"},
            {"name": "metrics", "containerPort": 8443, "protocol": "TCP"},
        ],
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": "healthz"},
            "periodSeconds": 10,
            "timeoutSeconds": 5,
        },
        "resources": {"requests": {"cpu": "10m", "memory": "24Mi"}},
        "securityContext": {"privileged": true, "readOnlyRootFilesystem": true},
        "volumeMounts": [
            mount("socket", "/csi"),
            mount("registration", "/registration"),
            {"name": "plugins", "mountPath": "/var/lib/kubelet/plugins", "mountPropagation": "Bidirectional"},
            {"name": "pods", "mountPath": "/var/lib/kubelet/pods", "mountPropagation": "Bidirectional"},
            mount("devices", "/dev"),
            {"name": "pool", "mountPath": "/csi-data-dir", "mountPropagation": "HostToContainer"},
        ],
    });
    let sidecar = |name: &str, version: &str, args: &[&str]| {
        json!({
            "name": name,
            "image": format!("registry.k8s.io/sig-storage/{name}:{version}"),
            "args": args,
            "env": [
                field("NODE_NAME", "spec.nodeName"),
                field("NAMESPACE", "metadata.namespace"),
                field("POD_NAME", "metadata.name"),
            ],
            "volumeMounts": [mount("socket", "/csi")],
        })
    };
    let spec = json!({
        "serviceAccountName": accounts::HOSTPATH,
        "priorityClassName": "system-node-critical",
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "containers": [
            driver,
            sidecar("csi-provisioner", "v6.3.0", &[
                "--csi-address=/csi/csi.sock",
                "--node-deployment",
                "--enable-capacity",
                "--capacity-for-immediate-binding",
                "--extra-create-metadata",
                "--immediate-topology=false",
                "--strict-topology",
                "--default-fstype=xfs",
            ]),
            // One replica leads; volumes of other nodes are grown by their kubelets.
            sidecar("csi-resizer", "v2.2.0", &["--csi-address=/csi/csi.sock", "--leader-election"]),
        ],
        "volumes": [
            host("socket", SOCKET, "DirectoryOrCreate"),
            host("registration", "/var/lib/kubelet/plugins_registry", "Directory"),
            host("plugins", "/var/lib/kubelet/plugins", "Directory"),
            host("pods", "/var/lib/kubelet/pods", "Directory"),
            host("devices", "/dev", "Directory"),
            host("pool", "/var/lib/hpvolumes/csi", "DirectoryOrCreate"),
        ],
    });
    daemon_set(settings, "hostpath-provisioner-csi", &json!({"k8s-app": "hostpath-provisioner"}), &spec)
}
