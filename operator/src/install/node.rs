//! The DaemonSet of the node agent, and the parts of every DaemonSet.

use serde_json::{Value, json};

use super::accounts::{self, PRIORITY};
use super::workloads::field;
use super::{METRICS, SCRAPED, Settings, object, with};
use crate::defaults::KUBELET_DIRECTORY;

pub(super) fn daemon_set(settings: &Settings, name: &str, labels: &Value, spec: &Value) -> Value {
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
pub(super) fn host(name: &str, path: &str, kind: &str) -> Value {
    json!({"name": name, "hostPath": {"path": path, "type": kind}})
}

pub(super) fn mount(name: &str, path: &str) -> Value {
    json!({"name": name, "mountPath": path})
}

/// Name of the container of [`capabilities`], as in KubeVirt.
pub(super) const CAPABILITIES: &str = "virt-launcher";

/// The container that asks libvirt what guests can have on the node, and what starts need to know.
fn capabilities(settings: &Settings) -> Value {
    json!({
        "name": CAPABILITIES,
        "image": settings.image("virt-launcher"),
        "command": ["/usr/bin/virt-launcher", "capabilities", "/var/lib/ferrovirt/capabilities"],
        "securityContext": capabilities_security(settings.emulation),
        "resources": {"requests": {"cpu": "10m", "memory": "48Mi"}},
        "volumeMounts": [mount("state", "/var/lib/ferrovirt"), mount("tmp", "/tmp")],
    })
}

/// Its privileges: all where KVM may be used, which it tries; else what running a part of itself as the guests' user takes.
pub(super) fn capabilities_security(emulation: bool) -> Value {
    let mut security = json!({"runAsUser": 0, "readOnlyRootFilesystem": true});
    if emulation {
        security["allowPrivilegeEscalation"] = json!(false);
        security["seccompProfile"] = json!({"type": "RuntimeDefault"});
        let added = ["CHOWN", "DAC_OVERRIDE", "SETGID", "SETUID"];
        security["capabilities"] = json!({"drop": ["ALL"], "add": added});
    } else {
        security["privileged"] = json!(true);
    }
    security
}

/// Mounts the usual directory of device plugins within the kubelet's: a kubelet has its socket for them there, with any
/// `--root-dir`.
fn usual_device_plugins(spec: &mut Value) {
    let (name, path) = ("device-plugins", format!("{KUBELET_DIRECTORY}/device-plugins"));
    if let Some(mounts) = spec["containers"][0]["volumeMounts"].as_array_mut() {
        mounts.push(mount(name, &path));
    }
    if let Some(volumes) = spec["volumes"].as_array_mut() {
        volumes.push(host(name, &path, "DirectoryOrCreate"));
    }
}

/// The agent.
pub(super) fn agent(settings: &Settings) -> Value {
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
            {"name": "CNI_DIRECTORIES", "value": settings.cni_directory},
            {"name": "SHARED_NETWORK_NAMESPACES", "value": settings.shared_networks},
        ],
        "ports": [
            {"name": "agent", "containerPort": 8186, "protocol": "TCP"},
            {"name": "health", "containerPort": 8187, "protocol": "TCP"},
            {"name": "metrics", "containerPort": METRICS, "protocol": "TCP"},
            {"name": "metadata", "containerPort": api::hostpath::METADATA_PORT, "protocol": "TCP"},
        ],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": "health"}, "periodSeconds": 5},
        "resources": {"requests": {"cpu": "10m", "memory": "48Mi"}},
        "securityContext": {"privileged": true, "readOnlyRootFilesystem": true},
        "volumeMounts": [
            {"name": "kubelet", "mountPath": KUBELET_DIRECTORY, "mountPropagation": "HostToContainer"},
            mount("devices", "/dev"),
            mount("state", "/var/lib/ferrovirt"),
            // KVM is tried here: the agent's file system is read-only.
            mount("tmp", "/tmp"),
            {"name": "server-cert", "mountPath": "/etc/virt-handler/servercertificates", "readOnly": true},
            {"name": "ca", "mountPath": "/etc/virt-handler/ca", "readOnly": true},
        ],
    });
    let mut spec = json!({
        "serviceAccountName": accounts::AGENT,
        "priorityClassName": PRIORITY,
        "hostPID": true,
        "terminationGracePeriodSeconds": 30,
        "nodeSelector": {"kubernetes.io/os": "linux"},
        // The agent runs wherever guests may be, also on nodes that take no other pods.
        "tolerations": [{"operator": "Exists"}],
        // At each start of the agent, so also at each upgrade. Plugins of others stay.
        "initContainers": [capabilities(settings), {
            "name": "network-plugins",
            "image": settings.image("cni"),
            "args": ["install", "--all", "/opt/cni/bin"],
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
            host("plugins", &settings.cni_directory, "DirectoryOrCreate"),
            host("kubelet", &settings.kubelet_directory, "Directory"),
            host("devices", "/dev", "Directory"),
            host("state", "/var/lib/ferrovirt", "DirectoryOrCreate"),
            {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
            // The operator makes both; the pod waits for them.
            {"name": "server-cert", "secret": {"secretName": "kubevirt-virt-handler-server-certs"}},
            {"name": "ca", "configMap": {"name": "kubevirt-ca"}},
        ],
    });
    if settings.kubelet_directory != KUBELET_DIRECTORY {
        usual_device_plugins(&mut spec);
    }
    let mut set = daemon_set(settings, "virt-handler", &json!({"kubevirt.io": "virt-handler"}), &spec);
    set["spec"]["template"]["metadata"]["labels"][SCRAPED.0] = json!(SCRAPED.1);
    set
}
