//! Settings of the node's programs: arguments, and the content of the files that they read. Not here: starting them, and where
//! these files are written (`node`).

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::place::Place;
use crate::programs::Release;

/// The image of the pods' sandboxes: busybox, asleep.
const PAUSE: &str = "localhost/pause:1";
/// The runtime class of containers that may lock 64 KiB of memory only, as with many a distribution's default.
pub const LOW_MEMLOCK: &str = "low-memlock";

/// The domain of Services.
const DOMAIN: &str = "cluster.local";

pub(super) fn display(path: &Path) -> String {
    path.display().to_string()
}

/// `--name=value` for each pair.
fn flags<const N: usize>(pairs: [(&str, String); N]) -> Vec<String> {
    pairs.into_iter().map(|(name, value)| format!("--{name}={value}")).collect()
}

pub(super) fn etcd(place: &Place) -> Vec<String> {
    flags([
        ("data-dir", display(&place.path("etcd"))),
        ("listen-client-urls", "http://127.0.0.1:2379".into()),
        ("advertise-client-urls", "http://127.0.0.1:2379".into()),
        ("listen-peer-urls", "http://127.0.0.1:2380".into()),
        // The data dies with the cluster.
        ("unsafe-no-fsync", "true".into()),
    ])
}

/// Writes are logged, so that tests can count them, and everything that the platform's accounts do, so that it can be compared
/// with their rights; of their questions about users' rights the text, too.
pub(super) const AUDIT: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n\
    - {level: Request, userGroups: ['system:serviceaccounts:kubevirt-hyperconverged'], \
       resources: [{group: authorization.k8s.io, resources: [subjectaccessreviews]}]}\n\
    - {level: Metadata, userGroups: ['system:serviceaccounts:kubevirt-hyperconverged']}\n\
    - {level: Metadata, verbs: [create, update, patch, delete, deletecollection]}\n- {level: None}\n";

pub(super) fn apiserver(place: &Place) -> Vec<String> {
    let pki = |name: &str| display(&place.pki().join(name));
    flags([
        ("etcd-servers", "http://127.0.0.1:2379".into()),
        ("secure-port", "6443".into()),
        ("advertise-address", place.node_address().to_string()),
        ("service-cluster-ip-range", place.services()),
        ("client-ca-file", pki("ca.crt")),
        ("tls-cert-file", pki("apiserver.crt")),
        ("tls-private-key-file", pki("apiserver.key")),
        ("service-account-issuer", "https://kubernetes.default.svc".into()),
        ("service-account-key-file", pki("accounts.pub")),
        ("service-account-signing-key-file", pki("accounts.key")),
        ("authorization-mode", "Node,RBAC".into()),
        ("enable-admission-plugins", "NodeRestriction".into()),
        ("kubelet-client-certificate", pki("admin.crt")),
        ("kubelet-client-key", pki("admin.key")),
        ("kubelet-certificate-authority", pki("ca.crt")),
        // The node's name is in no DNS; logs and exec go by address.
        ("kubelet-preferred-address-types", "InternalIP".into()),
        ("requestheader-client-ca-file", pki("front-proxy-ca.crt")),
        ("requestheader-allowed-names", "front-proxy-client".into()),
        ("requestheader-extra-headers-prefix", "X-Remote-Extra-".into()),
        ("requestheader-group-headers", "X-Remote-Group".into()),
        ("requestheader-username-headers", "X-Remote-User".into()),
        ("proxy-client-cert-file", pki("front-proxy.crt")),
        ("proxy-client-key-file", pki("front-proxy.key")),
        // Webhooks and aggregated APIs are reached by endpoint, with no DNS.
        ("enable-aggregator-routing", "true".into()),
        ("allow-privileged", "true".into()),
        ("audit-policy-file", display(&place.path("audit.yaml"))),
        ("audit-log-path", display(&place.path("audit.log"))),
    ])
}

pub(super) fn controller_manager(place: &Place) -> Vec<String> {
    let config = display(&place.config("controller-manager"));
    let pki = |name: &str| display(&place.pki().join(name));
    flags([
        ("kubeconfig", config.clone()),
        ("authentication-kubeconfig", config.clone()),
        ("authorization-kubeconfig", config),
        ("service-account-private-key-file", pki("accounts.key")),
        ("root-ca-file", pki("ca.crt")),
        ("cluster-signing-cert-file", pki("ca.crt")),
        ("cluster-signing-key-file", pki("ca.key")),
        ("use-service-account-credentials", "true".into()),
        ("leader-elect", "false".into()),
        // Tests wait for volumes to be bound.
        ("pvclaimbinder-sync-period", "3s".into()),
        // OpenShift's. Each controller sends 20 requests per second by default, and binding a claim takes five of them:
        // tests of many claims would measure this limit.
        ("kube-api-qps", "150".into()),
        ("kube-api-burst", "300".into()),
    ])
}

pub(super) fn scheduler(place: &Place) -> Vec<String> {
    let config = display(&place.config("scheduler"));
    flags([
        ("kubeconfig", config.clone()),
        ("authentication-kubeconfig", config.clone()),
        ("authorization-kubeconfig", config),
        ("leader-elect", "false".into()),
    ])
}

pub(super) fn proxy(place: &Place) -> Vec<String> {
    flags([
        ("kubeconfig", display(&place.config("proxy"))),
        ("proxy-mode", "nftables".into()),
        ("hostname-override", place.node_name()),
        ("cluster-cidr", place.pods()),
        // The table of connections has one size for the whole machine.
        ("conntrack-max-per-core", "0".into()),
        // Kubernetes has the mode without it from 1.31 on.
        ("feature-gates", "NFTablesProxyMode=true".into()),
    ])
}

/// Names of Services and pods; there are no others, and no resolver outside is asked.
pub(super) fn corefile(place: &Place) -> String {
    format!(
        ".:53 {{\n    bind {}\n    errors\n    kubernetes {DOMAIN} in-addr.arpa {{\n        kubeconfig {}\n    }}\n    \
         template ANY ANY {{\n        rcode NXDOMAIN\n    }}\n}}\n",
        place.node_address(),
        place.kubeconfig().display()
    )
}

pub(super) fn kubelet_arguments(place: &Place) -> Vec<String> {
    flags([
        ("config", display(&place.path("kubelet.json"))),
        ("kubeconfig", display(&place.config(&format!("kubelet-{}", place.node_name())))),
        ("hostname-override", place.node_name()),
        ("node-ip", place.node_address().to_string()),
    ])
}

pub(super) fn kubelet(place: &Place) -> serde_json::Value {
    let pki = |name: &str| display(&place.pki().join(name));
    let mut config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": pki("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}", place.cgroup()),
        "failSwapOn": false,
        "containerRuntimeEndpoint": format!("unix://{}", place.containerd().display()),
        "tlsCertFile": pki(&format!("kubelet-{}.crt", place.node_name())),
        "tlsPrivateKeyFile": pki(&format!("kubelet-{}.key", place.node_name())),
        "resolvConf": display(&place.path("resolv.conf")),
        "clusterDNS": [place.node_address()],
        "clusterDomain": DOMAIN,
        // The machine's disk may be full of other files; no image and pod is removed because of that.
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "serializeImagePulls": false,
        // Tests of many transfers have a pod for each.
        "maxPods": 240,
        // Metrics of volumes are as old as this; a minute otherwise.
        "volumeStatsAggPeriod": "5s",
        // A pod's volume grows when the kubelet looks at the pod again; a minute otherwise.
        "syncFrequency": "5s",
    });
    if Release::of_this_run() == Release::Newest {
        config["failCgroupV1"] = false.into();
        // Tests of restarts wait for one.
        config["featureGates"] = json!({"KubeletCrashLoopBackOffMax": true});
        config["crashLoopBackOff"] = json!({"maxContainerRestartPeriod": "2s"});
    }
    config
}

pub(super) fn containerd(place: &Place) -> String {
    let socket = display(&place.containerd());
    let memlock = display(&place.path("low-memlock.json"));
    let registries = display(&place.path("registries"));
    // restrict_oom_score_adj: lowering a score needs CAP_SYS_RESOURCE; without it a pod would not start.
    format!(
        r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  device_ownership_from_security_context = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{registries}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{LOW_MEMLOCK}]
    runtime_type = "io.containerd.runc.v2"
    base_runtime_spec = "{memlock}"
"#
    )
}

/// The runtime's own default container, with less memory to lock.
pub(super) fn low_memlock() -> Result<String> {
    let run = Command::new("ctr").args(["oci", "spec"]).output().context("cannot run ctr")?;
    ensure!(run.status.success(), "ctr oci spec: {}", String::from_utf8_lossy(&run.stderr).trim());
    let mut spec: serde_json::Value = serde_json::from_slice(&run.stdout)?;
    let limits = spec["process"]["rlimits"].as_array_mut().context("the default container has limits")?;
    limits.push(json!({"type": "RLIMIT_MEMLOCK", "hard": 65536, "soft": 65536}));
    Ok(spec.to_string())
}

pub(super) fn pod_network(place: &Place) -> serde_json::Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [{
            "type": "bridge",
            "bridge": "cni0",
            "isDefaultGateway": true,
            "ipMasq": true,
            "hairpinMode": true,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": place.pods()}]]},
        }, {
            // Ports of the node that lead to a pod; the reference's.
            "type": "portmap",
            "capabilities": {"portMappings": true},
        }],
    })
}
