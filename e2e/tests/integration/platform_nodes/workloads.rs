//! Workloads that a controller of the platform would make again: a replica set and a pool of VMs, a DataVolume with its
//! claim, and a cron that imports from the claim.
//!
//! Not here: the VM next to them, and the removal of the platform that ends them (`install`).

use cluster::Resource;
use serde_json::{Value, json};

use crate::platform::place::{CLAIMS, DATA_SOURCES, DATA_VOLUMES, INSTANCES, MACHINES, PLACE};
use crate::platform::transfers::data_volume;

const SETS: Resource = Resource::namespaced("kubevirt.io", "v1", "virtualmachineinstancereplicasets");
const POOLS: Resource = Resource::namespaced("pool.kubevirt.io", "v1beta1", "virtualmachinepools");
const CRONS: Resource = Resource::namespaced("cdi.kubevirt.io", "v1beta1", "dataimportcrons");
/// Storage class of the node's own storage.
const CLASS: &str = "hostpath-csi";
/// Of the DataVolume and of its copies.
const SIZE: &str = "32Mi";

/// A guest without disks: its BIOS finds nothing to boot and waits.
fn template(label: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": label}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "domain": {
                "memory": {"guest": "32Mi"},
                "devices": {"interfaces": [{"name": "default", "masquerade": {}}]},
            },
            "networks": [{"name": "default", "pod": {}}],
        },
    })
}

fn sets(namespace: &str) {
    let set = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceReplicaSet", "metadata": {"name": "set"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "set"}}, "template": template("set")},
    });
    let pool = json!({
        "apiVersion": "pool.kubevirt.io/v1beta1", "kind": "VirtualMachinePool", "metadata": {"name": "pool"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "pool"}}, "virtualMachineTemplate": {
            "metadata": {"labels": {"app": "pool"}},
            "spec": {"runStrategy": "Always", "template": template("pool")},
        }},
    });
    PLACE.create(SETS, namespace, &set);
    PLACE.create(POOLS, namespace, &pool);
}

fn imports(namespace: &str) {
    let golden = data_volume("golden", &json!({"blank": {}}), SIZE);
    let spec = json!({
        "source": {"pvc": {"namespace": namespace, "name": "golden"}},
        "storage": golden["spec"]["storage"],
    });
    let cron = json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataImportCron", "metadata": {"name": "nightly"},
        "spec": {
            "managedDataSource": "image", "schedule": "0 3 * * *", "importsToKeep": 1, "retentionPolicy": "None",
            "template": {"spec": spec},
        },
    });
    PLACE.create(DATA_VOLUMES, namespace, &golden);
    PLACE.create(CRONS, namespace, &cron);
}

/// Makes them, and waits until the sets have what they ask for and the cron has imported.
pub(crate) fn create(namespace: &str) {
    sets(namespace);
    imports(namespace);
    for (resource, name) in [(SETS, "set"), (POOLS, "pool")] {
        PLACE.until(namespace, &format!("{name} has one that is ready"), || {
            let found = PLACE.find(resource, namespace, name)?;
            (found["status"]["readyReplicas"] == 1).then_some(())
        });
    }
    PLACE.until(namespace, "the cron has imported", || {
        let source = PLACE.find(DATA_SOURCES, namespace, "image")?;
        source["spec"]["source"].is_object().then_some(())
    });
}

/// Deletes them, and waits until what they made is gone too.
pub(crate) fn remove(namespace: &str) {
    let kinds = "dataimportcrons.cdi.kubevirt.io,virtualmachinepools.pool.kubevirt.io,\
                 virtualmachineinstancereplicasets.kubevirt.io,datavolumes.cdi.kubevirt.io";
    PLACE.kubectl(&["-n", namespace, "delete", kinds, "--all", "--timeout=2m"]).unwrap();
    PLACE.until(namespace, "VMs, imports and claims of the workloads are gone", || {
        let left = [INSTANCES, MACHINES, DATA_VOLUMES].map(|kind| PLACE.list(kind, namespace));
        let of_vm = |object: &Value| object["metadata"]["name"] == "vm";
        let claims = PLACE.list(CLAIMS, namespace);
        let gone = left.into_iter().flatten().all(|object| of_vm(&object))
            && claims.iter().all(|claim| claim["spec"]["storageClassName"] != CLASS);
        gone.then_some(())
    });
}
