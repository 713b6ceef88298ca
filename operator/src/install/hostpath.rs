//! The hostpath CSI driver: its objects, which the operator makes for a `HostPathProvisioner`, with upstream's names. The
//! account and rights of stock sidecars, Services and NetworkPolicy are installed with everything else.
//!
//! Pure. Not here: when the objects are made and removed ([`crate::platform`]).

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::accounts;
use super::node::{daemon_set, host, mount};
use super::workloads::field;
use super::{Settings, object, with};

/// Name of the CSI driver.
pub const DRIVER: &str = "kubevirt.io.hostpath-provisioner";
/// Name of the DaemonSet.
pub const DAEMON_SET: &str = "hostpath-provisioner-csi";
/// Name of the pool of StorageClasses that name none.
pub const LEGACY: &str = "legacy";
/// Annotation of the DaemonSet: its pools.
const POOLS: &str = "ferrovirt.io/pools";
/// Directory with the driver's socket, below the kubelet's.
const SOCKET: &str = "plugins/csi-hostpath";

/// Choices of a `HostPathProvisioner`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Driver {
    /// Pools: name, and directory on the node without `csi`.
    pub pools: Vec<Pool>,
    /// Pull policy of the images, if one is given.
    pub pull_policy: Option<String>,
    /// `nodeSelector`, `affinity` and `tolerations` of the pods, as far as given.
    pub placement: Value,
    /// Sidecars that run next to the driver.
    pub sidecars: Sidecars,
}

/// Pool of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pool {
    /// Name.
    pub name: String,
    /// Directory on the node.
    pub path: String,
    /// Whether snapshots are made by sharing blocks only.
    pub reflink: bool,
    /// Whether one volume is mounted at the path on all nodes.
    pub shared: bool,
    /// Whether it is the volume of a claim, which a pod of the pool mounts.
    pub claimed: bool,
    /// Whether claims with `ReadWriteMany` get volumes although the files are of one node.
    pub read_write_many: bool,
    /// Extents of a disk above which the driver defragments it while its volume is not in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub defragment: Option<NonZeroU64>,
}

/// Programs that make volumes for claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sidecars {
    /// The node agent and the operator.
    #[default]
    None,
    /// Stock csi-provisioner and csi-resizer.
    Stock,
    /// These, and csi-snapshotter.
    StockWithSnapshots,
}

/// The StorageClass of the pool [`LEGACY`]. It is installed without a driver, too: claims of it then wait.
pub(super) fn storage_class() -> Value {
    with(
        object("storage.k8s.io/v1", "StorageClass", "hostpath-csi", None),
        json!({
            "provisioner": DRIVER,
            "volumeBindingMode": "WaitForFirstConsumer",
            "allowVolumeExpansion": true,
            "reclaimPolicy": "Delete",
            "parameters": {"storagePool": LEGACY},
        }),
    )
}

/// All objects, in the order in which they are created.
pub fn objects(settings: &Settings, driver: &Driver) -> Vec<Value> {
    let mut all = vec![
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
        pods(settings, driver),
    ];
    for one in &mut all {
        label(one);
    }
    all
}

/// The labels of upstream's objects.
pub fn label(object: &mut Value) {
    object["metadata"]["labels"]["k8s-app"] = json!("hostpath-provisioner");
    object["metadata"]["labels"]["app.kubernetes.io/component"] = json!("storage");
    object["metadata"]["labels"]["app.kubernetes.io/managed-by"] = json!("hostpath-provisioner-operator");
    object["metadata"]["labels"]["app.kubernetes.io/part-of"] = json!("ferrovirt");
}

/// Mount point of a pool in the driver's container; upstream's name.
fn mount_point(pool: &Pool) -> String {
    if pool.name == LEGACY { "/csi-data-dir".to_owned() } else { format!("/{}-data-dir", pool.name) }
}

/// Directory of a pool in the driver's container. What a pod of the pool mounts appears below the mount point.
fn inside(pool: &Pool) -> String {
    let point = mount_point(pool);
    if pool.claimed { format!("{point}/csi") } else { point }
}

/// Directory of the node that is the mount point's source.
fn outside(pool: &Pool) -> String {
    let path = pool.path.trim_end_matches('/');
    if pool.claimed { path.to_owned() } else { format!("{path}/csi") }
}

/// The pools as the driver reads them.
fn data(pools: &[Pool]) -> String {
    let one = |pool: &Pool| {
        let mut one = json!({"name": pool.name, "path": inside(pool)});
        if pool.reflink {
            one["snapshotPath"] = json!(format!("{}/snapshots", inside(pool)));
            one["snapshotProvider"] = json!("reflink");
        }
        if pool.shared {
            one["shared"] = json!(true);
        }
        if pool.claimed {
            one["mounted"] = json!(true);
        }
        if pool.read_write_many {
            one["readWriteMany"] = json!(true);
        }
        if let Some(extents) = pool.defragment {
            one["defragment"] = json!(extents);
        }
        one
    };
    Value::Array(pools.iter().map(one).collect()).to_string()
}

fn pods(settings: &Settings, driver: &Driver) -> Value {
    let volume = |pool: &Pool| format!("{}-data-dir", pool.name);
    // Mounted where the node has them: the kubelet names the paths in its calls.
    let kubelet = |below: &str| format!("{}/{below}", settings.kubelet_directory);
    let mut mounts = vec![
        mount("socket", "/csi"),
        mount("registration", "/registration"),
        json!({"name": "plugins", "mountPath": kubelet("plugins"), "mountPropagation": "Bidirectional"}),
        json!({"name": "pods", "mountPath": kubelet("pods"), "mountPropagation": "Bidirectional"}),
        mount("devices", "/dev"),
    ];
    let mut volumes = vec![
        host("socket", &kubelet(SOCKET), "DirectoryOrCreate"),
        host("registration", &kubelet("plugins_registry"), "Directory"),
        host("plugins", &kubelet("plugins"), "Directory"),
        host("pods", &kubelet("pods"), "Directory"),
        host("devices", "/dev", "Directory"),
    ];
    for pool in &driver.pools {
        mounts.push(json!({
            "name": volume(pool),
            "mountPath": mount_point(pool),
            "mountPropagation": "HostToContainer",
        }));
        volumes.push(host(&volume(pool), &outside(pool), "DirectoryOrCreate"));
    }
    let pulled = |mut container: Value| {
        if let Some(policy) = &driver.pull_policy {
            container["imagePullPolicy"] = json!(policy);
        }
        container
    };
    let mut containers = vec![pulled(json!({
        "name": "hostpath-provisioner",
        "image": settings.image("hpp-csi"),
        "args": [
            format!("--drivername={DRIVER}"),
            format!("--registration-socket=/registration/{DRIVER}-reg.sock"),
            format!("--kubelet-registration-path={}/csi.sock", kubelet(SOCKET)),
            "--health-address=[::]:9898",
        ],
        "env": [
            field("NODE_NAME", "spec.nodeName"),
            field("POD_IP", "status.podIP"),
            {"name": "PV_DIR", "value": data(&driver.pools)},
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
        "volumeMounts": mounts,
    }))];
    let sidecar = |name: &str, version: &str, args: &[&str]| {
        pulled(json!({
            "name": name,
            "image": format!("registry.k8s.io/sig-storage/{name}:{version}"),
            "args": args,
            "env": [
                field("NODE_NAME", "spec.nodeName"),
                field("NAMESPACE", "metadata.namespace"),
                field("POD_NAME", "metadata.name"),
            ],
            "volumeMounts": [mount("socket", "/csi")],
        }))
    };
    if driver.sidecars != Sidecars::None {
        let provisioner = [
            "--csi-address=/csi/csi.sock",
            "--node-deployment",
            "--enable-capacity",
            "--capacity-for-immediate-binding",
            "--extra-create-metadata",
            "--immediate-topology=false",
            "--strict-topology",
            "--default-fstype=xfs",
        ];
        containers.push(sidecar("csi-provisioner", "v6.3.0", &provisioner));
        // One replica leads; volumes of other nodes are grown by their kubelets.
        containers.push(sidecar(
            "csi-resizer",
            "v2.2.0",
            &["--csi-address=/csi/csi.sock", "--leader-election"],
        ));
    }
    if driver.sidecars == Sidecars::StockWithSnapshots {
        let args = ["--csi-address=/csi/csi.sock", "--node-deployment", "--extra-create-metadata"];
        containers.push(sidecar("csi-snapshotter", "v8.6.0", &args));
    }
    let mut spec = json!({
        // The driver does not use the API server: without sidecars the pod has no token.
        "serviceAccountName": accounts::HOSTPATH,
        "automountServiceAccountToken": driver.sidecars != Sidecars::None,
        "priorityClassName": "system-node-critical",
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "containers": containers,
        "volumes": volumes,
    });
    for (key, value) in driver.placement.as_object().into_iter().flatten() {
        if key == "nodeSelector" {
            for (name, wanted) in value.as_object().into_iter().flatten() {
                spec["nodeSelector"][name] = wanted.clone();
            }
        } else {
            spec[key] = value.clone();
        }
    }
    let mut set = daemon_set(settings, DAEMON_SET, &json!({"k8s-app": "hostpath-provisioner"}), &spec);
    set["metadata"]["annotations"][POOLS] = json!(serde_json::to_string(&driver.pools).unwrap_or_default());
    set
}

/// User name of the driver's pods; its rights are those of the sidecars.
pub fn user(settings: &Settings) -> String {
    settings.user(accounts::HOSTPATH)
}

/// The pools that a DaemonSet of the driver serves.
pub fn served(set: &Value) -> Vec<Pool> {
    let text = set["metadata"]["annotations"][POOLS].as_str().unwrap_or("[]");
    serde_json::from_str(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(name: &str, path: &str) -> Pool {
        Pool { name: name.to_owned(), path: path.to_owned(), ..Pool::default() }
    }

    #[test]
    fn every_pool_is_a_directory_of_the_driver() {
        let driver = Driver {
            pools: vec![
                pool(LEGACY, "/var/lib/hpvolumes"),
                Pool { reflink: true, read_write_many: true, ..pool("fast", "/mnt/fast/") },
                Pool { claimed: true, defragment: NonZeroU64::new(16384), ..pool("disk", "/mnt/disk") },
            ],
            placement: json!({"nodeSelector": {"disk": "ssd"}, "tolerations": [{"operator": "Exists"}]}),
            ..Driver::default()
        };
        let all = objects(&Settings::default(), &driver);
        let spec = &all[1]["spec"]["template"]["spec"];
        let containers = spec["containers"].as_array().unwrap();
        assert_eq!(containers.len(), 1, "no sidecars");
        assert_eq!(spec["automountServiceAccountToken"], false);
        let data = &containers[0]["env"][2]["value"];
        let data: Value = serde_json::from_str(data.as_str().unwrap()).unwrap();
        assert_eq!(
            data,
            json!([
                {"name": "legacy", "path": "/csi-data-dir"},
                {"name": "fast", "path": "/fast-data-dir", "snapshotPath": "/fast-data-dir/snapshots",
                    "snapshotProvider": "reflink", "readWriteMany": true},
                {"name": "disk", "path": "/disk-data-dir/csi", "mounted": true, "defragment": 16384},
            ])
        );
        let volumes = spec["volumes"].as_array().unwrap();
        let paths: Vec<&str> =
            volumes[5..].iter().map(|one| one["hostPath"]["path"].as_str().unwrap()).collect();
        assert_eq!(paths, ["/var/lib/hpvolumes/csi", "/mnt/fast/csi", "/mnt/disk"]);
        let mounts = containers[0]["volumeMounts"].as_array().unwrap();
        assert_eq!(mounts[7]["mountPath"], "/disk-data-dir");
        assert_eq!(served(&all[1]), driver.pools);
        assert_eq!(spec["nodeSelector"], json!({"kubernetes.io/os": "linux", "disk": "ssd"}));
        assert_eq!(spec["tolerations"][0]["operator"], "Exists");
    }

    #[test]
    fn stock_sidecars_run_where_they_are_chosen() {
        for (sidecars, count) in
            [(Sidecars::None, 1), (Sidecars::Stock, 3), (Sidecars::StockWithSnapshots, 4)]
        {
            let driver = Driver { sidecars, pull_policy: Some("Never".to_owned()), ..Driver::default() };
            let all = objects(&Settings::default(), &driver);
            let containers = all[1]["spec"]["template"]["spec"]["containers"].as_array().unwrap();
            assert_eq!(containers.len(), count, "{sidecars:?}");
            assert!(containers.iter().all(|one| one["imagePullPolicy"] == "Never"));
        }
    }
}
