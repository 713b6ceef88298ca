//! Imports: by the node, into a user's claim, and how long they take.

use std::time::{Duration, Instant};

use e2e::peer::registry::Registry;
use e2e::peer::web::Web;
use operator::storage::populate::task::Task;
use operator::storage::seen::{Claim, Source};
use operator::storage::settings::Settings;
use operator::storage::worker::Images;
use operator::storage::worker::importer::{self, Import};
use serde_json::{Value, json};

use crate::storage::platform;
use crate::storage::setup::{CLUSTER, DISK, IMMEDIATE, WAITING, assert_same};
use crate::storage::sources;
use crate::storage::space::{Space, until};
use crate::storage::timeline::{Timeline, median};

#[test]
fn an_image_is_pulled_by_the_node_and_brings_its_labels() {
    let space = Space::new("imports-node");
    let registry = Registry::start(CLUSTER.place()).unwrap();
    CLUSTER.trust_registry(&registry.address(), registry.authority()).unwrap();
    let folder = tempfile::tempdir_in(DISK.qcow2.parent().unwrap()).unwrap();
    let layer = sources::layer(folder.path());
    let environment = ["INSTANCETYPE_KUBEVIRT_IO_DEFAULT_INSTANCETYPE=u1.small"];
    let image = CLUSTER.run(registry.push("disks/node", &layer, &environment)).unwrap();
    space.create(
        "Secret",
        json!({
            "metadata": {"name": "login"}, "type": "kubernetes.io/dockerconfigjson",
            "stringData": {".dockerconfigjson": registry.docker_config()},
        }),
    );
    let source = json!({"url": format!("docker://{image}"), "pullMethod": "node", "secretRef": "login"});
    for (name, class, mode) in [("file", IMMEDIATE, "Filesystem"), ("device", IMMEDIATE, "Block")] {
        space.data_volume(name, &json!({"registry": source}), class, mode, &json!({}));
    }
    for name in ["file", "device"] {
        space.phases(name, "Succeeded");
        assert_same(&space.file(name));
        let labels = &space.get("PersistentVolumeClaim", name).unwrap()["metadata"]["labels"];
        assert_eq!(labels["instancetype.kubevirt.io/default-instancetype"], "u1.small", "{name}");
    }
    until("the importers are gone", || space.names("Pod").is_empty().then_some(()));
}

#[test]
fn a_claim_that_a_user_writes_is_filled_from_its_volume_import_source() {
    let space = Space::new("imports-claim");
    let web = Web::start(CLUSTER.place(), DISK.qcow2.parent().unwrap()).unwrap();
    space.claim("mine", ("VolumeImportSource", "later"), &json!({}));
    until("the claim says what is missing", || {
        let claim = space.get("PersistentVolumeClaim", "mine")?;
        let said =
            claim["metadata"]["annotations"]["cdi.kubevirt.io/storage.condition.running.message"].as_str()?;
        (said == "VolumeImportSource later does not exist: create it").then_some(())
    });
    let source = json!({"http": {"url": web.url("disk.qcow2")}});
    space.create("VolumeImportSource", json!({"metadata": {"name": "later"}, "spec": {"source": source}}));
    until("the claim is filled", || {
        let claim = space.get("PersistentVolumeClaim", "mine")?;
        let done = claim["metadata"]["annotations"]["cdi.kubevirt.io/storage.pod.phase"] == "Succeeded";
        (done && claim["status"]["phase"] == "Bound").then_some(())
    });
    let claim = space.get("PersistentVolumeClaim", "mine").unwrap();
    let progress = &claim["metadata"]["annotations"]["cdi.kubevirt.io/storage.populator.progress"];
    assert_eq!(progress, "100.0%");
    assert_same(&space.file("mine"));
}

/// Runs the importer as a bare pod on a claim of its own; gives the time from the claim to the pod's end.
fn bare(space: &Space, name: &str, url: &str) -> Duration {
    let claim = json!({
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": WAITING,
            "resources": {"requests": {"storage": "128Mi"}},
        },
    });
    let begun = Instant::now();
    let claim = Claim::from(&space.create("PersistentVolumeClaim", claim));
    let source = Source::from(&json!({"http": {"url": url}}));
    let task = Task {
        source,
        archive: false,
        preallocation: false,
        owner_uid: claim.meta.uid.clone(),
        priority: String::new(),
    };
    let images = Images {
        importer: platform::image("importer"),
        pull_policy: "IfNotPresent".into(),
        ..Images::default()
    };
    let owner = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": name, "uid": claim.meta.uid,
    });
    let settings = Settings::default();
    let mut pod = importer::pod(&Import {
        target: &claim,
        written: &claim,
        owner: &owner,
        task: &task,
        settings: &settings,
        images: &images,
    })
    .unwrap();
    // The controllers do not see it.
    pod["metadata"]["labels"] = json!({});
    let pod_name = pod["metadata"]["name"].as_str().unwrap().to_owned();
    space.create("Pod", pod);
    until("the bare pod is done", || {
        (space.get("Pod", &pod_name)?["status"]["phase"] == "Succeeded").then_some(())
    });
    begun.elapsed()
}

#[test]
fn importing_takes_as_long_as_its_pod_and_few_writes() {
    let space = Space::new("imports-time");
    let web = Web::start(CLUSTER.place(), DISK.qcow2.parent().unwrap()).unwrap();
    let url = web.url("disk.qcow2");
    let forced = json!({"cdi.kubevirt.io/storage.bind.immediate.requested": ""});
    let soak = std::env::var_os("FERROVIRT_SOAK").is_some();
    let timeline = Timeline::start(&space);
    let (mut made, mut ended) = (Vec::new(), Vec::new());
    for round in 0..if soak { 10 } else { 2 } {
        let alone = bare(&space, &format!("bare-{round}"), &url);
        let name = format!("disk-{round}");
        let begun = Instant::now();
        space.data_volume(&name, &json!({"http": {"url": url}}), WAITING, "Filesystem", &forced);
        space.phases(&name, "Succeeded");
        let whole = begun.elapsed();
        println!("64 MiB: bare pod {alone:.2?}, DataVolume created until Succeeded {whole:.2?}");
        assert!(!soak || whole < alone + Duration::from_millis(1500), "{whole:?} beside {alone:?}");
        assert_same(&space.file(&name));
        // Its helpers go after its success.
        until("the prime claim is gone", || {
            space.names("PersistentVolumeClaim").iter().all(|one| !one.starts_with("prime-")).then_some(())
        });
        let claim = space.get("PersistentVolumeClaim", &name).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let (uid, volume) = (text(&claim["metadata"]["uid"]), text(&claim["spec"]["volumeName"]));
        let pod = format!("importer-prime-{uid}");
        let at = |kind, name, state| timeline.at(kind, name, state);
        made.push(at("Pod", &pod, "made").duration_since(at("DataVolume", &name, "made")));
        ended.push(at("DataVolume", &name, "Succeeded").duration_since(at("Pod", &pod, "done")));
        let writes = platform::writes(&space.0, &[&name, &format!("prime-{uid}"), &volume]);
        println!("writes of the operator for one DataVolume: {}: {writes:?}", writes.len());
        // A volume that takes seconds is reported, by two writes; so is each further state of the pod.
        assert!(!writes.is_empty() && writes.len() <= if soak { 12 } else { 18 }, "{writes:#?}");
    }
    println!("created until pod created {made:.0?}, pod done until Succeeded {ended:.0?}");
    let (made, ended) = (median(made), median(ended));
    let bar = Duration::from_millis(150);
    assert!(!soak || (made <= bar && ended <= bar), "p50: {made:?} and {ended:?}");
}
