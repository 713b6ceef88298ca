//! Objects of a pool on claims, with upstream's names: the claim of each node (or of all nodes), the pod that mounts its
//! volume, the job that unmounts it, and the StorageClass of a shared pool.
//!
//! Pure. Not here: when they are made and removed ([`crate::platform`]), mounting (hpp-csi's mounter).

use api::cdi::StorageSpec;
use serde_json::{Value, json};

use super::hostpath::{self, Driver, Pool};
use super::node::host;
use super::{Settings, accounts, object, with};

/// Label of all objects of a pool.
pub const LABEL: &str = "kubevirt.io.hostpath-provisioner/storagePool";
/// Annotation of a pool's Deployment: its pool.
pub const POOL: &str = "ferrovirt.io/pool";
/// Annotation of a pool's Deployment: its node.
pub const NODE: &str = "ferrovirt.io/pool-node";
/// Annotation of a pool's Deployment: the pool's path.
pub const PATH: &str = "ferrovirt.io/pool-path";
/// StorageClass of a shared pool that names none.
const OVERLAY: &str = "hpp-overlay";
/// Longest name: it is a label's value and a host name, too.
const LONGEST: usize = 63;

/// A pool's pod of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Name of the pool.
    pub pool: String,
    /// Directory of the pool on the node.
    pub path: String,
    /// The node.
    pub node: String,
}

impl Member {
    /// Name of the Deployment.
    pub fn deployment(&self) -> String {
        fitted(&format!("hpp-pool-{}-{}", self.pool, self.node))
    }

    /// Name of the job that unmounts the volume.
    pub fn job(&self) -> String {
        fitted(&format!("cleanup-pool-{}-{}", self.pool, self.node))
    }

    /// Name of the claim.
    pub fn claim(&self, shared: bool) -> String {
        if shared { fitted(&format!("hpp-pool-{}-shared", self.pool)) } else { self.deployment() }
    }
}

/// Value of [`LABEL`] for a pool.
pub fn label_value(pool: &str) -> String {
    format!("{pool}-hpp")
}

/// Whether all nodes mount one volume.
pub fn is_shared(template: &StorageSpec) -> bool {
    template.access_modes.iter().any(|mode| mode == "ReadWriteMany")
}

/// A name, cut and marked with a hash (FNV-1a) when it is too long.
fn fitted(name: &str) -> String {
    if name.len() <= LONGEST {
        return name.to_owned();
    }
    let hash =
        name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let front = name.get(..LONGEST - 9).unwrap_or_default();
    format!("{}-{hash:08x}", front.trim_end_matches(['-', '.']))
}

fn labelled(mut object: Value, pool: &str) -> Value {
    hostpath::label(&mut object);
    object["metadata"]["labels"][LABEL] = json!(label_value(pool));
    object
}

/// The claim.
pub fn claim(settings: &Settings, member: &Member, template: &StorageSpec) -> Value {
    let name = member.claim(is_shared(template));
    let claim = object("v1", "PersistentVolumeClaim", &name, Some(&settings.namespace));
    labelled(with(claim, json!({"spec": template})), &member.pool)
}

/// The Deployment of the pod that mounts the claim's volume.
pub fn deployment(settings: &Settings, driver: &Driver, member: &Member, template: &StorageSpec) -> Value {
    let is_block = template.volume_mode.as_deref() == Some("Block");
    let source = if is_block { "/dev/data" } else { "/source" };
    let args = ["mounter", "--storagePoolPath", source];
    let probe = [&["/usr/bin/hpp-csi"][..], &args, &["--check"]].concat();
    let mut container = mounter(settings, driver, member, &args);
    container["readinessProbe"] = json!({
        "exec": {"command": with_paths(&probe, &csi(member))},
        "periodSeconds": 5,
        "timeoutSeconds": 5,
    });
    if is_block {
        container["volumeDevices"] = json!([{"name": "data", "devicePath": source}]);
    } else if let Some(mounts) = container["volumeMounts"].as_array_mut() {
        mounts.push(json!({"name": "data", "mountPath": source}));
    }
    let mut spec = pod(driver, member, &container);
    let claim = json!({"claimName": member.claim(is_shared(template))});
    if let Some(volumes) = spec["volumes"].as_array_mut() {
        volumes.push(json!({"name": "data", "persistentVolumeClaim": claim}));
    }
    let name = member.deployment();
    let labels = json!({"hpp-pool": name});
    let mut deployment = with(
        object("apps/v1", "Deployment", &name, Some(&settings.namespace)),
        json!({"spec": {
            "replicas": 1,
            // The mount stays while the pod is replaced.
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        }}),
    );
    deployment["spec"]["template"]["metadata"]["labels"][LABEL] = json!(label_value(&member.pool));
    deployment["metadata"]["annotations"] = json!({POOL: member.pool, NODE: member.node, PATH: member.path});
    labelled(deployment, &member.pool)
}

/// The job that unmounts a pool's volume.
pub fn cleanup(settings: &Settings, driver: &Driver, member: &Member) -> Value {
    let mut spec = pod(driver, member, &mounter(settings, driver, member, &["mounter", "--unmount"]));
    spec["restartPolicy"] = json!("OnFailure");
    let job = with(
        object("batch/v1", "Job", &member.job(), Some(&settings.namespace)),
        json!({"spec": {
            "backoffLimit": 1000,
            "template": {"metadata": {"labels": {LABEL: label_value(&member.pool)}}, "spec": spec},
        }}),
    );
    labelled(job, &member.pool)
}

/// Name of the job that deletes the directory of a volume of upstream's provisioner without CSI.
pub fn removal_name(volume: &str) -> String {
    fitted(&format!("cleanup-volume-{volume}"))
}

/// That job; `parent` is the directory's, `host` the node's label `kubernetes.io/hostname`.
pub fn removal(
    settings: &Settings,
    driver: &Driver,
    volume: &str,
    parent: &str,
    name: &str,
    host: &str,
) -> Value {
    let member = Member { pool: hostpath::LEGACY.to_owned(), path: parent.to_owned(), node: String::new() };
    let mut container = mounter(settings, driver, &member, &[]);
    container["args"] =
        with_paths(&["mounter", "--remove"], &format!("{}/{name}", parent.trim_end_matches('/')));
    let mut spec = pod(driver, &member, &container);
    spec["restartPolicy"] = json!("OnFailure");
    spec["nodeSelector"] = json!({"kubernetes.io/hostname": host});
    if let Some(spec) = spec.as_object_mut() {
        spec.remove("affinity");
    }
    let job = with(
        object("batch/v1", "Job", &removal_name(volume), Some(&settings.namespace)),
        json!({"spec": {
            "backoffLimit": 1000,
            "template": {"metadata": {"labels": {LABEL: label_value(&member.pool)}}, "spec": spec},
        }}),
    );
    labelled(job, &member.pool)
}

/// The StorageClass of a shared pool.
pub fn overlay_class(pool: &Pool, name: Option<&str>) -> Value {
    let class = object("storage.k8s.io/v1", "StorageClass", name.unwrap_or(OVERLAY), None);
    let fields = json!({
        "provisioner": hostpath::DRIVER,
        "volumeBindingMode": "Immediate",
        "reclaimPolicy": "Delete",
        "parameters": {"storagePool": pool.name, "overlayCSI": "true"},
    });
    labelled(with(class, fields), &pool.name)
}

/// The directory of the node at which a pool is mounted.
fn csi(member: &Member) -> String {
    format!("{}/csi", member.path.trim_end_matches('/'))
}

/// Arguments, and the directory of the node that they are about.
fn with_paths(args: &[&str], path: &str) -> Value {
    json!([args, &["--mountPath", path, "--hostPath", "/host"]].concat())
}

fn mounter(settings: &Settings, driver: &Driver, member: &Member, args: &[&str]) -> Value {
    let mut container = json!({
        "name": "mounter",
        "image": settings.image("hpp-csi"),
        "args": with_paths(args, &csi(member)),
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
        "securityContext": {"privileged": true, "readOnlyRootFilesystem": true},
        "volumeMounts": [{
            "name": "pool",
            "mountPath": format!("/host{}", member.path.trim_end_matches('/')),
            "mountPropagation": "Bidirectional",
        }],
    });
    if let Some(policy) = &driver.pull_policy {
        container["imagePullPolicy"] = json!(policy);
    }
    container
}

/// A pod of the node, also while the node is cordoned or has problems: the pool's volumes are in use there.
fn pod(driver: &Driver, member: &Member, container: &Value) -> Value {
    let mut tolerations = driver.placement["tolerations"].as_array().cloned().unwrap_or_default();
    for (key, effect) in [
        ("node.kubernetes.io/not-ready", "NoExecute"),
        ("node.kubernetes.io/unreachable", "NoExecute"),
        ("node.kubernetes.io/disk-pressure", "NoSchedule"),
        ("node.kubernetes.io/memory-pressure", "NoSchedule"),
        ("node.kubernetes.io/pid-pressure", "NoSchedule"),
        ("node.kubernetes.io/unschedulable", "NoSchedule"),
    ] {
        tolerations.push(json!({"key": key, "operator": "Exists", "effect": effect}));
    }
    json!({
        "serviceAccountName": accounts::HOSTPATH,
        "automountServiceAccountToken": false,
        "priorityClassName": "system-node-critical",
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [member.node]}]},
        ]}}},
        "tolerations": tolerations,
        "containers": [container],
        "volumes": [host("pool", &member.path, "DirectoryOrCreate")],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(node: &str) -> Member {
        Member { pool: "disk".to_owned(), path: "/mnt/disk/".to_owned(), node: node.to_owned() }
    }

    fn template(spec: Value) -> StorageSpec {
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn pods_of_pools_are_selected_by_their_network_policy_and_listen_to_nothing() {
        let (settings, driver) = (Settings::default(), Driver::default());
        let one = member("node1");
        let claimed = deployment(&settings, &driver, &one, &template(json!({})));
        for object in
            [claimed, cleanup(&settings, &driver, &one), removal(&settings, &driver, "pv", "/a", "b", "h")]
        {
            let pod = &object["spec"]["template"];
            assert!(pod["metadata"]["labels"][LABEL].is_string(), "{object}");
            assert!(pod["spec"]["containers"][0].get("ports").is_none(), "{object}");
        }
    }

    #[test]
    fn names_are_upstreams_and_fit() {
        let one = member("node1");
        assert_eq!(one.deployment(), "hpp-pool-disk-node1");
        assert_eq!(one.claim(false), "hpp-pool-disk-node1");
        assert_eq!(one.claim(true), "hpp-pool-disk-shared");
        assert_eq!(one.job(), "cleanup-pool-disk-node1");
        let long = |last: char| member(&format!("{}{last}", "n".repeat(60)));
        assert!(long('a').deployment().len() <= LONGEST && long('a').job().len() <= LONGEST);
        assert_ne!(long('a').deployment(), long('b').deployment());
    }

    #[test]
    fn a_pod_mounts_the_claims_volume_in_the_pools_directory_only() {
        let (settings, driver, one) = (Settings::default(), Driver::default(), member("node1"));
        let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        let files = template(spec.clone());
        let made = deployment(&settings, &driver, &one, &files);
        let pod = &made["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        assert_eq!(
            container["args"],
            json!([
                "mounter",
                "--storagePoolPath",
                "/source",
                "--mountPath",
                "/mnt/disk/csi",
                "--hostPath",
                "/host"
            ])
        );
        assert_eq!(container["volumeMounts"][0]["mountPath"], "/host/mnt/disk");
        assert_eq!(container["volumeMounts"][1], json!({"name": "data", "mountPath": "/source"}));
        assert_eq!(pod["volumes"][1]["persistentVolumeClaim"]["claimName"], "hpp-pool-disk-node1");
        assert_eq!(pod["automountServiceAccountToken"], false);
        assert!(made["spec"]["template"]["metadata"]["labels"]["k8s-app"].is_null(), "it is not the driver");
        assert_eq!(made["metadata"]["labels"][LABEL], "disk-hpp");
        assert_eq!(claim(&settings, &one, &files)["spec"], spec);
        let block = template(json!({"accessModes": ["ReadWriteOnce"], "volumeMode": "Block"}));
        let made = deployment(&settings, &driver, &one, &block);
        let container = &made["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["volumeDevices"][0]["devicePath"], "/dev/data");
        assert_eq!(container["volumeMounts"].as_array().unwrap().len(), 1);
        let job = cleanup(&settings, &driver, &one);
        assert_eq!(job["spec"]["template"]["spec"]["containers"][0]["args"][1], "--unmount");
        let job = removal(&settings, &driver, "pvc-1", "/data/", "pvc-1", "host1");
        let pod = &job["spec"]["template"]["spec"];
        assert_eq!(
            pod["containers"][0]["args"],
            json!(["mounter", "--remove", "--mountPath", "/data/pvc-1", "--hostPath", "/host"])
        );
        assert_eq!(pod["nodeSelector"], json!({"kubernetes.io/hostname": "host1"}));
    }

    #[test]
    fn a_shared_pool_has_one_claim_and_a_class() {
        let shared = template(json!({"accessModes": ["ReadWriteMany"]}));
        let (settings, one) = (Settings::default(), member("node1"));
        assert_eq!(claim(&settings, &one, &shared)["metadata"]["name"], "hpp-pool-disk-shared");
        let class = overlay_class(&Pool { name: "disk".to_owned(), ..Pool::default() }, None);
        assert_eq!(class["metadata"]["name"], "hpp-overlay");
        assert_eq!(class["parameters"], json!({"storagePool": "disk", "overlayCSI": "true"}));
    }
}
