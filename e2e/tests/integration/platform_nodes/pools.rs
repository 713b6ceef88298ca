//! The pools of a `HostPathProvisioner`: the driver runs where the object places it, a second pool and one on a claim's device
//! are added, volumes outlive a change of sidecars, obstacles are reported, and a deletion waits for volumes and
//! names them.

use std::fs;
use std::io::Read;

use e2e::volume::Volume;
use serde_json::{Value, json};

use crate::platform::machines;
use crate::platform::place::{CLAIMS, PLACE};

const NAMESPACE: &str = "pools";
const PLATFORM: &str = operator::defaults::NAMESPACE;
const OBJECT: &str = "hostpathprovisioner.hostpathprovisioner.kubevirt.io/hostpath-provisioner";

fn get(object: &str) -> Option<Value> {
    let text = PLACE.kubectl(&["-n", PLATFORM, "get", object, "-o", "json"]).ok()?;
    Some(serde_json::from_str(&text).unwrap())
}

fn condition(kind: &str) -> Option<Value> {
    let object = get(OBJECT)?;
    object["status"]["conditions"].as_array()?.iter().find(|one| one["type"] == kind).cloned()
}

/// Waits until the driver runs with this number of containers, and everything is reported as deployed.
#[track_caller]
fn deployed(containers: usize) {
    PLACE.until(PLATFORM, &format!("the driver has {containers} containers"), || {
        let set = get("daemonset/hostpath-provisioner-csi")?;
        let all = set["spec"]["template"]["spec"]["containers"].as_array()?.len();
        let current = set["status"]["observedGeneration"] == set["metadata"]["generation"]
            && set["status"]["updatedNumberScheduled"] == 1
            && set["status"]["numberReady"] == 1;
        let is = |kind: &str, status: &str| condition(kind).is_some_and(|one| one["status"] == status);
        let available = is("Available", "True") && is("Progressing", "False") && is("Degraded", "False");
        (all == containers && current && available).then_some(())
    });
}

/// Waits until the object is degraded and available, with a reason; gives the message.
#[track_caller]
fn impaired(reason: &str) -> String {
    let found = PLACE.until(PLATFORM, &format!("the object is degraded: {reason}"), || {
        condition("Degraded").filter(|one| one["status"] == "True" && one["reason"] == reason)
    });
    assert_eq!(condition("Available").unwrap()["status"], "True", "the driver works");
    found["message"].as_str().unwrap().to_owned()
}

/// Changes the object of the driver.
pub(crate) fn patch(patch: &Value) {
    PLACE.kubectl(&["patch", OBJECT, "--type=merge", "-p", &patch.to_string()]).unwrap();
}

fn apply(name: &str, object: &Value) {
    let file = PLACE.cluster.place().path(&format!("{name}.json"));
    std::fs::write(&file, object.to_string()).unwrap();
    PLACE.kubectl(&["-n", NAMESPACE, "apply", "-f", &file.display().to_string()]).unwrap();
}

/// A claim of a class that is bound at once; gives its volume.
#[track_caller]
fn claim(name: &str, class: &str) -> String {
    apply(
        name,
        &json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": class,
                "resources": {"requests": {"storage": "64Mi"}},
            },
        }),
    );
    PLACE.until(NAMESPACE, &format!("{name} is bound"), || {
        let claim = PLACE.find(CLAIMS, NAMESPACE, name)?;
        (claim["status"]["phase"] == "Bound")
            .then(|| claim["spec"]["volumeName"].as_str().unwrap().to_owned())
    })
}

#[track_caller]
fn remove(claim: &str, volume: &str, folder: &str) {
    PLACE.kubectl(&["-n", NAMESPACE, "delete", "pvc", claim]).unwrap();
    PLACE.until(NAMESPACE, &format!("{volume} is gone"), || {
        get(&format!("pv/{volume}")).is_none().then_some(())
    });
    let folder = PLACE.cluster.node_path(&format!("{folder}/{volume}")).unwrap();
    assert!(!folder.exists(), "{}", folder.display());
}

/// The driver runs on the nodes that the object selects, and nowhere else.
fn are_placed() {
    const LABEL: &str = "e2e/pools";
    let set = || get("daemonset/hostpath-provisioner-csi");
    let runs_on = |nodes: u64| {
        PLACE.until(PLATFORM, &format!("the driver is on {nodes} nodes"), || {
            let set = set()?;
            let current = set["status"]["observedGeneration"] == set["metadata"]["generation"];
            (current && set["status"]["desiredNumberScheduled"] == nodes).then_some(())
        });
    };
    patch(&json!({"spec": {"workload": {"nodeSelector": {LABEL: "here"}}}}));
    runs_on(0);
    PLACE.kubectl(&["label", "node", "node1", &format!("{LABEL}=here")]).unwrap();
    runs_on(1);
    patch(&json!({"spec": {"workload": null}}));
    PLACE.until(PLATFORM, "the driver is on all nodes", || {
        set()?["spec"]["template"]["spec"]["nodeSelector"][LABEL].is_null().then_some(())
    });
    PLACE.kubectl(&["label", "node", "node1", &format!("{LABEL}-")]).unwrap();
    deployed(1);
}

/// Stock sidecars that may not do their work are not deployed: the agent makes the volumes.
fn sidecars_need_their_rights() {
    const RIGHTS: &str = "hostpath-provisioner-admin-csi";
    let mut binding = get(&format!("clusterrolebinding/{RIGHTS}")).unwrap();
    let labels = binding["metadata"]["labels"].take();
    binding["metadata"] = json!({"name": RIGHTS, "labels": labels});
    PLACE.kubectl(&["delete", "clusterrolebinding", RIGHTS]).unwrap();
    patch(&json!({"metadata": {"annotations": {"ferrovirt.io/sidecars": "stock"}}}));
    let text = impaired("SidecarRightsMissing");
    assert!(text.contains("`operator manifests --sidecars`"), "{text}");
    let made = claim("without-rights", "pool-legacy");
    let set = get("daemonset/hostpath-provisioner-csi").unwrap();
    assert_eq!(set["spec"]["template"]["spec"]["containers"].as_array().unwrap().len(), 1, "{set}");
    remove("without-rights", &made, e2e::storage::POOL);
    patch(&json!({"metadata": {"annotations": {"ferrovirt.io/sidecars": null}}}));
    apply("rights-of-sidecars", &binding);
    deployed(1);
}

/// Another provisioner of the same claims, as upstream's operator leaves it, is named until it is gone.
fn other_provisioners_are_named() {
    const RIGHTS: &str = "rights-of-upstream";
    let labels = json!({"of": "upstream"});
    let mut pod = machines::user("upstream", &[])["spec"].clone();
    pod["containers"][0]["name"] = json!("hostpath-provisioner");
    let set = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": "hostpath-provisioner", "labels": {"k8s-app": "hostpath-provisioner"}},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": RIGHTS},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "hostpath-provisioner-admin-csi",
        },
        "subjects": [{"kind": "ServiceAccount", "namespace": NAMESPACE, "name": "default"}],
    });
    apply(RIGHTS, &binding);
    apply("upstream", &set);
    let text = impaired("OtherProvisioner");
    assert!(text.starts_with(&format!("DaemonSet {NAMESPACE}/hostpath-provisioner serves")), "{text}");
    PLACE.kubectl(&["-n", NAMESPACE, "delete", "daemonset", "hostpath-provisioner"]).unwrap();
    PLACE.kubectl(&["delete", "clusterrolebinding", RIGHTS]).unwrap();
    deployed(1);
}

/// Name of the pool on a claim's device, of its claim and Deployment.
const BLOCKS: &str = "blocks";
const ON_BLOCKS: &str = "hpp-pool-blocks-node1";

/// The pool has left the node with its pod, and its claim keeps the data.
fn device_is_kept(device: &Volume) {
    for gone in [format!("deployment/{ON_BLOCKS}"), "job/cleanup-pool-blocks-node1".to_owned()] {
        assert!(get(&gone).is_none(), "{gone}");
    }
    let below = PLACE.cluster.node_path("/var/lib/block-pool/csi").unwrap();
    assert_eq!(fs::read_dir(below).unwrap().count(), 0, "the device is unmounted");
    let mut magic = [0; 4];
    fs::File::open(device.path()).unwrap().read_exact(&mut magic).unwrap();
    assert_eq!(&magic, b"XFSB", "its filesystem is kept");
    assert_eq!(get(&format!("pvc/{ON_BLOCKS}")).unwrap()["status"]["phase"], "Bound");
    PLACE.kubectl(&["-n", PLATFORM, "delete", "pvc", ON_BLOCKS]).unwrap();
    PLACE.kubectl(&["delete", "pv", &format!("{PLATFORM}-{ON_BLOCKS}")]).unwrap();
}

pub(crate) fn follow_their_object() {
    PLACE.namespace(NAMESPACE);
    deployed(1);
    are_placed();
    for pool in ["legacy", "second", BLOCKS] {
        let class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": format!("pool-{pool}")},
            "provisioner": "kubevirt.io.hostpath-provisioner", "volumeBindingMode": "Immediate",
            "parameters": {"storagePool": pool},
        });
        apply(&format!("class-{pool}"), &class);
    }
    let first = claim("by-agent", "pool-legacy");
    // Another pool, on the node's own filesystem, and one on the device of a claim.
    let device = Volume::device(&PLACE.cluster, PLATFORM, ON_BLOCKS, 512 << 20).unwrap();
    let template = json!({
        "storageClassName": "", "volumeMode": "Block", "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "512Mi"}},
    });
    let pools = json!([
        {"name": "legacy", "path": "/var/lib/hpvolumes"},
        {"name": "second", "path": "/var/lib/second-pool"},
        {"name": BLOCKS, "path": "/var/lib/block-pool", "pvcTemplate": template},
    ]);
    patch(&json!({"spec": {"storagePools": pools}}));
    let on_blocks = claim("on-blocks", "pool-blocks");
    let other = claim("second", "pool-second");
    let folder = PLACE.cluster.node_path(&format!("/var/lib/second-pool/csi/{other}")).unwrap();
    assert!(folder.is_dir(), "{}", folder.display());
    deployed(1);
    sidecars_need_their_rights();
    other_provisioners_are_named();
    // Stock sidecars take over, and give back.
    patch(&json!({"metadata": {"annotations": {"ferrovirt.io/sidecars": "stock"}}}));
    deployed(3);
    let stock = claim("by-sidecars", "pool-legacy");
    remove("by-agent", &first, e2e::storage::POOL);
    patch(&json!({"metadata": {"annotations": {"ferrovirt.io/sidecars": null}}}));
    deployed(1);
    remove("by-sidecars", &stock, e2e::storage::POOL);
    // The deletion waits for the volumes that are left, one of them in the claim's pool.
    PLACE.kubectl(&["delete", OBJECT, "--wait=false"]).unwrap();
    let waits = PLACE.until(NAMESPACE, "the deletion names what it waits for", || {
        condition("Progressing").filter(|one| one["reason"] == "VolumesExist")
    });
    let text = waits["message"].as_str().unwrap();
    for (volume, claim) in [(&other, "second"), (&on_blocks, "on-blocks")] {
        assert!(text.contains(&format!("{volume} of {NAMESPACE}/{claim}")), "{text}");
    }
    println!("deletion with a volume: {text}");
    assert!(get("daemonset/hostpath-provisioner-csi").is_some(), "the driver works until then");
    assert!(get(&format!("deployment/{ON_BLOCKS}")).is_some(), "and the claim's pool is mounted");
    remove("on-blocks", &on_blocks, "/var/lib/block-pool/csi");
    remove("second", &other, "/var/lib/second-pool/csi");
    PLACE.until(NAMESPACE, "the driver is gone", || {
        let left =
            [OBJECT, "daemonset/hostpath-provisioner-csi", "csidriver/kubevirt.io.hostpath-provisioner"];
        left.iter().all(|object| get(object).is_none()).then_some(())
    });
    device_is_kept(&device);
    PLACE.kubectl(&["delete", "storageclass", "pool-legacy", "pool-second", "pool-blocks"]).unwrap();
    PLACE.remove_namespace(NAMESPACE);
    e2e::platform::install(&PLACE.cluster, &e2e::platform::settings()).unwrap();
    deployed(1);
}
