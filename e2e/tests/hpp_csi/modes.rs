//! Both ways of making volumes: by stock sidecars and by the agent. The objects are equal field by field, and a cluster
//! can be switched in both directions with volumes in it.

use std::path::PathBuf;
use std::thread;

use e2e::Cluster;
use e2e::storage::{self, NAMESPACE, Provisioner};
use serde_json::{Value, json};

use crate::space::{Space, Volume, in_pool, until};
use crate::{CLUSTER, alone, provisioner};

/// Runs the agent's volumes and the operator's choice of nodes until the process ends.
pub(crate) fn serve(cluster: &Cluster) {
    let kubeconfig = cluster.kubeconfig();
    let socket = cluster.node_path("/var/lib/kubelet/plugins/csi-hostpath/csi.sock").unwrap();
    thread::spawn(move || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(work(kubeconfig, socket));
    });
}

async fn work(kubeconfig: PathBuf, socket: PathBuf) {
    let config = cluster::Config::load(Some(&kubeconfig), None).unwrap();
    let operator = cluster::Client::new(&config, "operator").unwrap();
    let agent = cluster::Client::new(&config, "virt-agent").unwrap();
    let settings = virt_agent::storage::Settings {
        node: "node1".to_owned(),
        socket,
        namespace: NAMESPACE.to_owned(),
        daemon_set: "hostpath-provisioner-csi".to_owned(),
    };
    tokio::join!(
        operator::volumes::control::run(operator, std::future::pending()),
        virt_agent::storage::run(agent, settings, std::future::pending()),
    );
}

/// Removes what differs between two objects of the same kind made in the same way.
fn normal(mut object: Value) -> Value {
    fn remove(object: &mut Value, path: &[&str]) {
        let (last, parents) = path.split_last().unwrap();
        let parent = parents.iter().try_fold(object, |at, key| at.get_mut(*key));
        if let Some(parent) = parent.and_then(Value::as_object_mut) {
            parent.remove(*last);
        }
    }
    for path in [
        &["metadata", "name"][..],
        &["metadata", "uid"],
        &["metadata", "resourceVersion"],
        &["metadata", "creationTimestamp"],
        &["metadata", "managedFields"],
        // The one addition of ours.
        &["metadata", "labels"],
        &["spec", "claimRef", "name"],
        &["spec", "claimRef", "uid"],
        &["spec", "claimRef", "resourceVersion"],
        &["spec", "csi", "volumeHandle"],
        &["spec", "csi", "volumeAttributes", "csi.storage.k8s.io/pvc/name"],
        &["spec", "csi", "volumeAttributes", "csi.storage.k8s.io/pv/name"],
        &["spec", "csi", "volumeAttributes", "storage.kubernetes.io/csiProvisionerIdentity"],
        &["spec", "volumeName"],
        &["status", "lastPhaseTransitionTime"],
    ] {
        remove(&mut object, path);
    }
    object
}

/// A claim with its pod, bound and then grown: the claim, its PV, and the reasons of its events.
fn grown(space: &Space, claim: &str) -> [Value; 2] {
    space.claim(claim, 200, &json!({}));
    space.pod(claim, &format!("echo {claim} >/{claim}/file"), &[Volume::Files(claim)]);
    space.running(claim);
    space.patch(
        "PersistentVolumeClaim",
        claim,
        &json!({"spec": {"resources": {"requests": {"storage": "300Mi"}}}}),
    );
    until("the claim is larger", || {
        let object = space.get("PersistentVolumeClaim", claim)?;
        let done = object["status"]["capacity"]["storage"] == "300Mi"
            && object["status"]["conditions"].is_null()
            && object["status"]["allocatedResourceStatuses"].is_null();
        done.then_some(())
    });
    let reasons = ["Provisioning", "ProvisioningSucceeded"];
    for reason in reasons {
        until(&format!("event {reason}"), || {
            space.events(claim).iter().any(|event| event.starts_with(&format!("{reason}: "))).then_some(())
        });
    }
    [space.get("PersistentVolumeClaim", claim).unwrap(), space.bound(claim)]
}

#[test]
#[ignore = "the volumes of a switched cluster are not made yet, and the test leaves the shared cluster switched"]
fn sidecars_and_agent_write_the_same_objects_and_take_over_from_each_other() {
    let _driver = alone();
    serve(&CLUSTER);
    let space = Space::new("modes");
    storage::provision_by(&CLUSTER, Provisioner::Sidecars).unwrap();
    let by_sidecars = grown(&space, "sidecars");
    storage::provision_by(&CLUSTER, Provisioner::Agent).unwrap();
    let by_agent = grown(&space, "agent");
    for (theirs, ours) in by_sidecars.iter().zip(&by_agent) {
        assert_eq!(normal(theirs.clone()), normal(ours.clone()));
    }
    // The volume of the one is deleted by the other.
    let folders = ["sidecars", "agent"].map(|claim| space.folder(claim));
    for claim in ["sidecars", "agent"] {
        space.delete("Pod", claim);
    }
    let gone = |claim: &str, volume: &Value| {
        space.delete("PersistentVolumeClaim", claim);
        let name = volume["metadata"]["name"].as_str().unwrap().to_owned();
        until("the PV is gone", || space.get("PersistentVolume", &name).is_none().then_some(()));
    };
    gone("sidecars", &by_sidecars[1]);
    storage::provision_by(&CLUSTER, Provisioner::Sidecars).unwrap();
    gone("agent", &by_agent[1]);
    for folder in folders {
        until("the volume is gone", || (!folder.exists()).then_some(()));
    }
    assert!(in_pool(".").exists());
    storage::provision_by(&CLUSTER, provisioner()).unwrap();
}
