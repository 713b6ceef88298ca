//! Both ways of making volumes: by stock sidecars and by the agent. The objects are equal field by field, and a cluster
//! can be switched in both directions with volumes in it.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use e2e::Cluster;
use e2e::storage::{self, NAMESPACE, Provisioner};
use kube::api::DynamicObject;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::hpp_csi::space::{Space, Volume, api, block_file, in_pool, until};
use crate::hpp_csi::{CLASS, CLUSTER, alone, provisioner};

/// Runs the agent's volumes and the operator's choice of nodes until the process ends; the agent works where the driver's
/// pods have no sidecar for it.
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
    tokio::join!(operate(operator), virt_agent::storage::run(agent, settings, std::future::pending()));
}

/// The address through which the operator reaches the API server; `None`: directly.
pub(crate) static THROUGH: LazyLock<watch::Sender<Option<String>>> = LazyLock::new(|| watch::channel(None).0);

/// The operator's part, which begins again when it is to reach the API server in another way.
async fn operate(direct: cluster::Client) {
    let mut through = THROUGH.subscribe();
    loop {
        let address = through.borrow_and_update().clone();
        let client = match address {
            Some(address) => {
                cluster::Client::new(&cluster::Config::new(address.as_str()), "operator").unwrap()
            }
            None => direct.clone(),
        };
        let events = cluster::Events::start(&client, "ferrovirt-operator", "test");
        let (_stopper, stop) = cluster::stop::pair();
        let work = async {
            tokio::join!(
                operator::volumes::snapshots::run(client.clone(), events.clone(), stop),
                operator::volumes::control::run(client.clone(), events.clone(), std::future::pending()),
            )
        };
        tokio::select! {
            _ = work => {}
            _ = through.changed() => {}
        }
    }
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
        &["metadata", "labels", "ferrovirt.io/node"],
        &["spec", "claimRef", "name"],
        &["spec", "claimRef", "uid"],
        &["spec", "claimRef", "resourceVersion"],
        &["spec", "csi", "volumeHandle"],
        &["spec", "csi", "volumeAttributes", "csi.storage.k8s.io/pvc/name"],
        &["spec", "csi", "volumeAttributes", "csi.storage.k8s.io/pv/name"],
        &["spec", "csi", "volumeAttributes", "storage.kubernetes.io/csiProvisionerIdentity"],
        &["spec", "volumeName"],
        &["spec", "dataSource", "name"],
        &["spec", "dataSourceRef", "name"],
        &["status", "lastPhaseTransitionTime"],
        // Of a VolumeSnapshotContent.
        &["metadata", "generation"],
        &["spec", "source", "volumeHandle"],
        &["spec", "volumeSnapshotRef", "name"],
        &["spec", "volumeSnapshotRef", "uid"],
        &["spec", "volumeSnapshotRef", "resourceVersion"],
        &["status", "creationTime"],
        &["status", "snapshotHandle"],
        // Of a VolumeSnapshot.
        &["metadata", "namespace"],
        &["spec", "source", "persistentVolumeClaimName"],
        &["status", "boundVolumeSnapshotContentName"],
        // Of a CSIStorageCapacity.
        &["metadata", "generateName"],
        &["storageClassName"],
    ] {
        remove(&mut object, path);
    }
    if object["metadata"]["labels"].as_object().is_some_and(serde_json::Map::is_empty) {
        remove(&mut object, &["metadata", "labels"]);
    }
    object
}

/// Waits until an object has an event of each of these reasons; gives their texts without the claim's name and uid.
fn reported(space: &Space, name: &str, reasons: &[&str]) -> BTreeSet<String> {
    for reason in reasons {
        until(&format!("event {reason}"), || {
            space.events(name).iter().any(|event| event.starts_with(&format!("{reason}: "))).then_some(())
        });
    }
    let is_asked = |event: &&String| reasons.iter().any(|reason| event.starts_with(&format!("{reason}: ")));
    let uid = space.uid(name);
    let events = space.events(name);
    events.iter().filter(is_asked).map(|event| event.replace(&uid, "UID").replace(name, "NAME")).collect()
}

/// A claim with its pod, bound and then grown: the claim, its PV, and the texts of its events.
fn grown(space: &Space, claim: &str) -> ([Value; 2], BTreeSet<String>) {
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
    let reasons = ["Provisioning", "ProvisioningSucceeded", "Resizing", "VolumeResizeSuccessful"];
    let texts = reported(space, claim, &reasons);
    ([space.get("PersistentVolumeClaim", claim).unwrap(), space.bound(claim)], texts)
}

/// A volume that is restored from a claim's snapshot, and a clone of the claim: their claims, their PVs, and the texts of
/// their events. The finalizers of the sources are removed.
fn copied(space: &Space, claim: &str) -> (Vec<Value>, Vec<BTreeSet<String>>) {
    let (mut objects, mut texts) = (Vec::new(), Vec::new());
    for (what, source) in [
        ("restored", json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": claim})),
        ("clone", json!({"kind": "PersistentVolumeClaim", "name": claim})),
    ] {
        let name = format!("{what}-{claim}");
        space.claim(&name, 300, &json!({"storageClassName": AT_ONCE, "dataSource": source}));
        let volume = space.bound(&name);
        texts.push(reported(space, &name, &["Provisioning", "ProvisioningSucceeded"]));
        objects.extend([normal(space.get("PersistentVolumeClaim", &name).unwrap()), normal(volume)]);
    }
    until("the sources are let go", || {
        let held = ["PersistentVolumeClaim", "VolumeSnapshot"].map(|kind| space.get(kind, claim));
        let is_held = |one: &Value| one["metadata"]["finalizers"].to_string().contains("provisioner.storage");
        (!held.iter().flatten().any(is_held)).then_some(())
    });
    for what in ["restored", "clone"] {
        space.delete("PersistentVolumeClaim", &format!("{what}-{claim}"));
    }
    (objects, texts)
}

/// The CSIStorageCapacity of a class that is made now, without its numbers.
fn capacity_of_new_class(name: &str) -> Value {
    class(name, "WaitForFirstConsumer");
    let made = until("the class has a capacity", || {
        let all = CLUSTER.run(api("CSIStorageCapacity", NAMESPACE).list(&Default::default())).unwrap();
        all.items.into_iter().find(|one| one.data["storageClassName"] == name)
    });
    let mut made = normal(serde_json::to_value(made).unwrap());
    for number in ["capacity", "maximumVolumeSize"] {
        made[number] = json!(made[number].is_string());
    }
    let deleted = CLUSTER.kubectl().args(["delete", "storageclass", name]).output().unwrap();
    assert!(deleted.status.success(), "{}", String::from_utf8_lossy(&deleted.stderr));
    made
}

/// A snapshot of a claim, and its content, once it is ready, and the texts of its events; both are at rest, and the claim is
/// let go.
fn snapshot(space: &Space, claim: &str) -> ([Value; 2], BTreeSet<String>) {
    let of = json!({"spec": {
        "volumeSnapshotClassName": CLASS, "source": {"persistentVolumeClaimName": claim},
    }});
    space.create("VolumeSnapshot", claim, &of);
    let name = until("the snapshot is ready", || {
        let status = space.get("VolumeSnapshot", claim)?["status"].clone();
        let name = status["boundVolumeSnapshotContentName"].as_str()?.to_owned();
        (status["readyToUse"] == true).then_some(name)
    });
    let content = until("the content is at rest", || {
        let content = space.get("VolumeSnapshotContent", &name)?;
        let making = "snapshot.storage.kubernetes.io/volumesnapshot-being-created";
        let at_rest = content["metadata"]["annotations"][making].is_null()
            && content["metadata"]["finalizers"].is_array();
        at_rest.then_some(content)
    });
    assert_eq!(content["metadata"]["labels"]["snapshot.storage.kubernetes.io/managed-by"], "node1");
    until("the claim is let go", || {
        let finalizers = space.get("PersistentVolumeClaim", claim)?["metadata"]["finalizers"].to_string();
        (!finalizers.contains("snapshot.storage")).then_some(())
    });
    let texts = reported(space, claim, &["CreatingSnapshot", "SnapshotCreated", "SnapshotReady"]);
    let both = [space.get("VolumeSnapshot", claim).unwrap(), content];
    (both.map(normal), texts)
}

/// A device whose claim names a VolumeAttributesClass that the driver refuses, then one that it takes: the claim's status
/// after the first, the claim and its PV after the second, and the texts of its events.
fn modified(space: &Space, claim: &str) -> ([Value; 3], BTreeSet<String>) {
    space.claim(claim, 64, &json!({"volumeMode": "Block", "storageClassName": AT_ONCE}));
    space.bound(claim);
    let name = |class: &str| json!({"spec": {"volumeAttributesClassName": class}});
    space.patch("PersistentVolumeClaim", claim, &name("modes-unknown"));
    let mut refused = until("the class is refused", || {
        let status = space.get("PersistentVolumeClaim", claim)?["status"].clone();
        (status["modifyVolumeStatus"]["status"] == "Infeasible").then_some(status)
    });
    for condition in refused["conditions"].as_array_mut().unwrap() {
        condition.as_object_mut().unwrap().retain(|key, _| !key.ends_with("Time"));
    }
    space.patch("PersistentVolumeClaim", claim, &name("modes-thick"));
    let done = until("the class is taken", || {
        let claim = space.get("PersistentVolumeClaim", claim)?;
        (claim["status"]["currentVolumeAttributesClassName"] == "modes-thick").then_some(claim)
    });
    assert!(block_file(space, claim).metadata().unwrap().blocks() * 512 >= 64 << 20);
    let texts = reported(space, claim, &["VolumeModify", "VolumeModifyFailed", "VolumeModifySuccessful"]);
    ([refused, normal(done), normal(space.bound(claim))], texts)
}

/// A class of the driver with the binding mode Immediate.
pub(crate) const AT_ONCE: &str = "modes-at-once";

pub(crate) fn class_at_once() {
    class(AT_ONCE, "Immediate");
}

/// A class of the driver.
fn class(name: &str, binding: &str) {
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
        "provisioner": storage::DRIVER, "volumeBindingMode": binding, "parameters": {"storagePool": "legacy"},
        "allowVolumeExpansion": true,
    });
    let file = CLUSTER.place().path(&format!("class-{name}.json"));
    std::fs::write(&file, class.to_string()).unwrap();
    let applied = CLUSTER.kubectl().args(["apply", "--server-side", "-f"]).arg(&file).output().unwrap();
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
}

/// Claims of each kind of run: a few, or with full counts those of the issue.
fn count(few: usize, full: usize) -> usize {
    if std::env::var_os("FERROVIRT_SOAK").is_some() { full } else { few }
}

/// Claims that are made with their pods: what differs, their class, and whether all are made at once.
const BINDINGS: [(&str, &str, bool); 4] = [
    ("first-consumer, in turn", CLASS, false),
    ("first-consumer, at once", CLASS, true),
    ("immediate, in turn", AT_ONCE, false),
    ("immediate, at once", AT_ONCE, true),
];

/// The median of the times from a claim, which is made with its pod, until it is bound, of each of [`BINDINGS`].
fn bound_with_pods(space: &Space, prefix: &str) -> [Duration; 4] {
    BINDINGS.map(|(binding, class, at_once)| {
        let binding = binding.replace([',', ' '], "");
        let names: Vec<String> =
            (0..count(4, 50)).map(|number| format!("{prefix}-{binding}-{number}")).collect();
        let groups: Vec<&[String]> = if at_once { vec![names.as_slice()] } else { names.chunks(1).collect() };
        let mut times: Vec<Duration> =
            groups.into_iter().flat_map(|group| bound_together(space, class, group)).collect();
        let volumes: Vec<String> = names.iter().map(|name| format!("pvc-{}", space.uid(name))).collect();
        for kind in ["Pod", "PersistentVolumeClaim"] {
            names.iter().for_each(|name| space.delete(kind, name));
        }
        // Their room comes back while nothing is measured.
        for volume in &volumes {
            until("the PV is gone", || space.get("PersistentVolume", volume).is_none().then_some(()));
        }
        times.sort();
        times[times.len() / 2]
    })
}

/// Makes claims, then their pods: a pod that the scheduler sees before its claim waits a second for the next attempt. Gives
/// the time from each claim until it is bound.
fn bound_together(space: &Space, class: &str, names: &[String]) -> Vec<Duration> {
    let begun: Vec<Instant> = names
        .iter()
        .map(|name| {
            let begun = Instant::now();
            space.claim(name, 16, &json!({"storageClassName": class}));
            begun
        })
        .collect();
    names.iter().for_each(|name| space.pod(name, "true", &[Volume::Files(name)]));
    let mut times = vec![None; names.len()];
    let last = Instant::now();
    while times.contains(&None) {
        assert!(last.elapsed() < Duration::from_secs(180), "{names:?}: {times:?}");
        let claims = space.list("PersistentVolumeClaim");
        for ((name, begun), time) in names.iter().zip(&begun).zip(&mut times) {
            let is_bound = |one: &DynamicObject| {
                one.metadata.name.as_ref() == Some(name) && one.data["status"]["phase"] == "Bound"
            };
            if time.is_none() && claims.iter().any(is_bound) {
                *time = Some(begun.elapsed());
            }
        }
        thread::sleep(Duration::from_millis(5));
    }
    times.into_iter().flatten().collect()
}

/// The agent's times next to those of stock csi-provisioner of the same run; its bar holds with full counts.
fn agent_is_faster(stock: [Duration; 4], agent: [Duration; 4]) {
    let mut slow = Vec::new();
    for (((binding, ..), stock), agent) in BINDINGS.iter().zip(stock).zip(agent) {
        let ratio = agent.as_secs_f64() / stock.as_secs_f64();
        println!(
            "claim with its pod -> bound, {binding}, p50: csi-provisioner {stock:?}, agent {agent:?}, {ratio:.2}"
        );
        if ratio > 0.6 {
            slow.push((binding, ratio));
        }
    }
    assert!(count(0, 1) == 0 || slow.is_empty(), "more than 0.6 of csi-provisioner's: {slow:?}");
}

/// Bytes that the scheduler may place on the node for a class.
fn capacity() -> Option<u64> {
    let all = CLUSTER.run(api("CSIStorageCapacity", NAMESPACE).list(&Default::default())).unwrap();
    let ours = all.items.iter().find(|one| one.data["storageClassName"] == AT_ONCE)?;
    ::api::quantity::bytes(ours.data["capacity"].as_str()?).ok()
}

/// The scheduler's number follows every change of a volume, in the agent's mode.
#[expect(clippy::print_stdout, reason = "figures are shown")]
fn capacity_follows(space: &Space) {
    const GIB: u64 = 1 << 30;
    let limit = e2e::bar(Duration::from_secs(2));
    let before = until("there is a capacity", capacity);
    let mut took = Vec::new();
    let mut follows = |change: &'static str, fits: &dyn Fn(u64) -> bool| {
        let begun = Instant::now();
        until(&format!("the capacity after {change}"), || capacity().filter(|bytes| fits(*bytes)));
        took.push((change, begun.elapsed()));
    };
    space.claim("room", 4096, &json!({"storageClassName": AT_ONCE}));
    let volume = space.bound("room")["metadata"]["name"].as_str().unwrap().to_owned();
    follows("create", &|bytes| bytes + 3 * GIB < before);
    let larger = json!({"spec": {"resources": {"requests": {"storage": "8Gi"}}}});
    space.patch("PersistentVolumeClaim", "room", &larger);
    until("the volume is larger", || {
        (space.get("PersistentVolume", &volume)?["spec"]["capacity"]["storage"] == "8Gi").then_some(())
    });
    follows("expand", &|bytes| bytes + 7 * GIB < before);
    std::fs::write(space.folder("room").join("file"), vec![1; 300 << 20]).unwrap();
    let written = until("there is a capacity", capacity);
    snapshot(space, "room");
    follows("snapshot", &|bytes| bytes + (200 << 20) < written);
    space.delete("VolumeSnapshot", "room");
    space.delete("PersistentVolumeClaim", "room");
    until("the PV is gone", || space.get("PersistentVolume", &volume).is_none().then_some(()));
    follows("delete", &|bytes| bytes + GIB > before);
    println!("capacity is right after: {took:?}");
    assert!(took.iter().all(|(_, time)| *time <= limit), "{took:?}");
}

#[test]
fn sidecars_and_agent_write_the_same_objects_and_take_over_from_each_other() {
    let _driver = alone();
    let space = Space::new("modes");
    class_at_once();
    for (name, allocation) in [("modes-thick", "thick"), ("modes-unknown", "unknown")] {
        let class = json!({"driverName": storage::DRIVER, "parameters": {"allocation": allocation}});
        space.create("VolumeAttributesClass", name, &class);
    }
    storage::provision_by(&CLUSTER, Provisioner::Sidecars).unwrap();
    let (by_sidecars, their_texts) = grown(&space, "sidecars");
    let their_snapshot = snapshot(&space, "sidecars");
    let their_copies = copied(&space, "sidecars");
    let their_capacity = capacity_of_new_class("modes-sidecars");
    let modified_by_sidecars = modified(&space, "modified-by-sidecars");
    let stock = bound_with_pods(&space, "by-sidecars");
    storage::provision_by(&CLUSTER, Provisioner::Agent).unwrap();
    let (by_agent, our_texts) = grown(&space, "agent");
    assert_eq!(their_texts, our_texts);
    assert_eq!(their_snapshot, snapshot(&space, "agent"));
    assert_eq!(their_copies, copied(&space, "agent"));
    assert_eq!(their_capacity, capacity_of_new_class("modes-agent"));
    assert_eq!(modified_by_sidecars, modified(&space, "modified-by-agent"));
    // A snapshot of the one is deleted by the other.
    space.delete("VolumeSnapshot", "sidecars");
    agent_is_faster(stock, bound_with_pods(&space, "by-agent"));
    // Larger than the pool: stock csi-provisioner reports nothing.
    space.claim("vast", 1 << 20, &json!({"storageClassName": AT_ONCE}));
    reported(&space, "vast", &["NoNodeWithRoom"]);
    space.delete("PersistentVolumeClaim", "vast");
    capacity_follows(&space);
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
    space.delete("VolumeSnapshot", "agent");
    gone("agent", &by_agent[1]);
    for folder in folders {
        until("the volume is gone", || (!folder.exists()).then_some(()));
    }
    assert!(in_pool(".").exists());
    storage::provision_by(&CLUSTER, provisioner()).unwrap();
}

/// Names of the PVs of a namespace's claims.
fn volumes_of(namespace: &str) -> BTreeSet<String> {
    let all = CLUSTER.run(api("PersistentVolume", namespace).list(&Default::default())).unwrap();
    let of = |one: &&kube::api::DynamicObject| one.data["spec"]["claimRef"]["namespace"] == namespace;
    all.items.iter().filter(of).map(|one| one.metadata.name.clone().unwrap()).collect()
}

#[test]
fn a_switch_while_claims_are_made_and_deleted_loses_and_doubles_no_volume() {
    let _driver = alone();
    let namespace = "switched";
    let space = Space::new(namespace);
    class_at_once();
    let each = count(4, 100);
    let mut names = Vec::new();
    let mut more = |round: &str| {
        for number in 0..each {
            let name = format!("{round}-{number}");
            space.claim(&name, 16, &json!({"storageClassName": AT_ONCE}));
            names.push(name);
        }
    };
    storage::provision_by(&CLUSTER, Provisioner::Sidecars).unwrap();
    for (round, next) in
        [("first", Provisioner::Agent), ("second", Provisioner::Sidecars), ("third", Provisioner::Agent)]
    {
        more(round);
        storage::provision_by(&CLUSTER, next).unwrap();
    }
    let mut expected = BTreeSet::new();
    for name in &names {
        let volume = space.bound(name);
        let own = format!("pvc-{}", space.uid(name));
        assert_eq!(volume["metadata"]["name"], own, "{name}");
        assert!(space.folder(name).is_dir(), "{name}");
        expected.insert(own);
    }
    assert_eq!(volumes_of(namespace), expected, "one PV for each claim");
    // Half of them is deleted before a switch, the rest after it.
    for (index, name) in names.iter().enumerate() {
        if index == names.len() / 2 {
            storage::provision_by(&CLUSTER, Provisioner::Sidecars).unwrap();
        }
        space.delete("PersistentVolumeClaim", name);
    }
    until("all PVs are gone", || volumes_of(namespace).is_empty().then_some(()));
    for volume in &expected {
        assert!(!in_pool(volume).exists(), "{volume} is left in the pool");
    }
    println!("{} claims over {} switches: each bound once, none left", names.len(), 4);
    storage::provision_by(&CLUSTER, provisioner()).unwrap();
}
