//! The pools of a `HostPathProvisioner`: the driver runs where the object places it, a second pool is added, volumes outlive a
//! change of sidecars, and a deletion waits for volumes and names them.

use serde_json::{Value, json};

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
        let available =
            condition("Available")?["status"] == "True" && condition("Progressing")?["status"] == "False";
        (all == containers && current && available).then_some(())
    });
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

pub(crate) fn follow_their_object() {
    PLACE.namespace(NAMESPACE);
    deployed(1);
    are_placed();
    for pool in ["legacy", "second"] {
        let class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": format!("pool-{pool}")},
            "provisioner": "kubevirt.io.hostpath-provisioner", "volumeBindingMode": "Immediate",
            "parameters": {"storagePool": pool},
        });
        apply(&format!("class-{pool}"), &class);
    }
    let first = claim("by-agent", "pool-legacy");
    // Another pool, on the node's own filesystem.
    let pools = json!([
        {"name": "legacy", "path": "/var/lib/hpvolumes"},
        {"name": "second", "path": "/var/lib/second-pool"},
    ]);
    patch(&json!({"spec": {"storagePools": pools}}));
    let other = claim("second", "pool-second");
    let folder = PLACE.cluster.node_path(&format!("/var/lib/second-pool/csi/{other}")).unwrap();
    assert!(folder.is_dir(), "{}", folder.display());
    deployed(1);
    // Stock sidecars take over, and give back.
    patch(&json!({"metadata": {"annotations": {"ferrovirt.io/sidecars": "stock"}}}));
    deployed(3);
    let stock = claim("by-sidecars", "pool-legacy");
    remove("by-agent", &first, e2e::storage::POOL);
    patch(&json!({"metadata": {"annotations": {"ferrovirt.io/sidecars": null}}}));
    deployed(1);
    remove("by-sidecars", &stock, e2e::storage::POOL);
    // The deletion waits for the one volume that is left.
    PLACE.kubectl(&["delete", OBJECT, "--wait=false"]).unwrap();
    let waits = PLACE.until(NAMESPACE, "the deletion names what it waits for", || {
        condition("Progressing").filter(|one| one["reason"] == "VolumesExist")
    });
    let text = waits["message"].as_str().unwrap();
    assert!(text.contains(&format!("{other} of {NAMESPACE}/second")), "{text}");
    println!("deletion with a volume: {text}");
    assert!(get("daemonset/hostpath-provisioner-csi").is_some(), "the driver works until then");
    remove("second", &other, "/var/lib/second-pool/csi");
    PLACE.until(NAMESPACE, "the driver is gone", || {
        let left =
            [OBJECT, "daemonset/hostpath-provisioner-csi", "csidriver/kubevirt.io.hostpath-provisioner"];
        left.iter().all(|object| get(object).is_none()).then_some(())
    });
    PLACE.kubectl(&["delete", "storageclass", "pool-legacy", "pool-second"]).unwrap();
    PLACE.remove_namespace(NAMESPACE);
    e2e::platform::install(&PLACE.cluster, &e2e::platform::settings()).unwrap();
    deployed(1);
}
