//! The life of a VM: created, running, its guest answers on the console, stopped, started, deleted; nothing is left.

use std::fs;
use std::time::{Duration, Instant};

use e2e::peer::web::Web;
use serde_json::json;

use crate::platform::console::Console;
use crate::platform::guest;
use crate::platform::machines::{create, imported, machine};
use crate::platform::place::{CLAIMS, DATA_VOLUMES, INSTANCES, MACHINES, PLACE, PODS};
use crate::platform::streams::Streams;

/// Asks the guest of a VM, which is Running.
#[track_caller]
fn ask(namespace: &str, name: &str, answer: &str) {
    // The phase is Running before the BIOS has loaded the guest, which then reads what was sent.
    let _agent = Streams::follow();
    let mut console = Console::open(&PLACE, namespace, name).unwrap();
    console.ask(b'x', answer).unwrap();
}

/// Stops a running VM, whose guest has been started once, and starts it, twice, and deletes it. Gives the words by which remains
/// on the node can be recognised.
fn stop_start_delete(namespace: &str, name: &str) -> Vec<String> {
    let mut known = PLACE.words(namespace);
    assert!(!PLACE.cluster.remains(&known).unwrap().is_empty(), "{known:?}");
    for answer in ["G2x", "G3x"] {
        PLACE.put(namespace, &format!("virtualmachines/{name}/stop")).unwrap();
        PLACE.until_status(namespace, name, "Stopped");
        PLACE.until(namespace, "the instance and its pod are gone", || {
            (PLACE.find(INSTANCES, namespace, name).is_none() && PLACE.list(PODS, namespace).is_empty())
                .then_some(())
        });
        assert!(Console::open(&PLACE, namespace, name).is_err(), "a console of a VM that is stopped");
        PLACE.put(namespace, &format!("virtualmachines/{name}/start")).unwrap();
        PLACE.until_status(namespace, name, "Running");
        ask(namespace, name, answer);
        known.extend(PLACE.words(namespace));
    }
    let machine = PLACE.find(MACHINES, namespace, name).unwrap();
    let finalizers = machine["metadata"]["finalizers"].as_array().unwrap();
    assert!(finalizers.iter().any(|one| one == "kubevirt.io/virtualMachineControllerFinalize"), "{machine}");
    PLACE.delete(MACHINES, namespace, name);
    PLACE.until(namespace, "the VM and what it made are gone", || {
        let is_held = PLACE.find(MACHINES, namespace, name).is_some();
        let has_instance = PLACE.find(INSTANCES, namespace, name).is_some();
        assert!(is_held || !has_instance, "the VM is gone before its instance");
        let gone = [MACHINES, INSTANCES, DATA_VOLUMES, PODS]
            .iter()
            .all(|resource| PLACE.list(*resource, namespace).is_empty());
        gone.then_some(())
    });
    known
}

#[test]
fn platform_is_available_within_half_a_minute() {
    println!("first object -> Available: {:?}", PLACE.installed);
    assert!(PLACE.installed < e2e::bar(Duration::from_secs(30)), "{:?}", PLACE.installed);
    assert_eq!(PLACE.accepted, Ok(()), "a VM at the moment at which the platform is available");
}

/// Without them each launcher would probe QEMU, which takes seconds.
#[test]
fn features_of_qemu_are_cached_before_the_first_guest() {
    let cache = PLACE.cluster.node_path("/var/lib/ferrovirt/capabilities").unwrap();
    let builds = fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap().path());
    let files = builds.filter(|path| path.is_dir()).flat_map(|build| fs::read_dir(build).unwrap());
    let files: Vec<String> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    assert!(files.iter().any(|name| name.ends_with(".xml")), "{}: {files:?}", cache.display());
}

#[test]
fn disk_on_a_claim_keeps_what_its_guest_wrote() {
    let namespace = "claim";
    PLACE.namespace(namespace);
    let begun = Instant::now();
    let volume = create(namespace, "vm", "Always", 0);
    PLACE.until_status(namespace, "vm", "Running");
    println!("VM on a claim created -> Running: {:?}", begun.elapsed());
    ask(namespace, "vm", "G1x");
    println!("VM on a claim created -> answer on the console: {:?}", begun.elapsed());
    let known = stop_start_delete(namespace, "vm");
    PLACE.until_nothing_remains(namespace, &known);
    let disk = fs::read(volume.path().join("disk.img")).unwrap();
    assert_eq!((disk.len() as u64, disk[guest::COUNT]), (guest::SIZE, b'3'));
    PLACE.remove_namespace(namespace);
}

#[test]
fn image_from_the_web_is_imported_booted_and_removed_with_its_machine() {
    let namespace = "imported";
    PLACE.namespace(namespace);
    let folder = tempfile::tempdir().unwrap();
    guest::qcow2(&folder.path().join("guest.qcow2"));
    let web = Web::start(PLACE.cluster.place(), folder.path()).unwrap();
    let vm = imported("vm", &web.url("guest.qcow2"));
    let begun = Instant::now();
    PLACE.create(MACHINES, namespace, &vm);
    PLACE.until_status(namespace, "vm", "Running");
    println!("VM with an image from the web created -> Running: {:?}", begun.elapsed());
    ask(namespace, "vm", "G1x");
    let known = stop_start_delete(namespace, "vm");
    PLACE.until(namespace, "the claim is gone", || PLACE.list(CLAIMS, namespace).is_empty().then_some(()));
    PLACE.until_nothing_remains(namespace, &known);
    PLACE.remove_namespace(namespace);
}

/// As the kubelet computes it from the pod, and as the instance reports it.
#[test]
fn quality_of_service_is_that_of_requests_and_limits() {
    let namespace = "quality";
    PLACE.namespace(namespace);
    let (less, more) = (json!({"memory": "64Mi", "cpu": "50m"}), json!({"memory": "96Mi", "cpu": "300m"}));
    let all = [
        ("limited", json!({"limits": more}), "Guaranteed"),
        ("equal", json!({"requests": more, "limits": more}), "Guaranteed"),
        ("below", json!({"requests": less, "limits": more}), "Burstable"),
    ];
    for (name, resources, _) in &all {
        let mut vm = machine(name, "Always", &json!({"emptyDisk": {"capacity": "1Mi"}}));
        let domain = &mut vm["spec"]["template"]["spec"]["domain"];
        domain.as_object_mut().unwrap().remove("memory");
        domain["resources"] = resources.clone();
        PLACE.create(MACHINES, namespace, &vm);
    }
    for (name, _, class) in &all {
        PLACE.until_status(namespace, name, "Running");
        let run = PLACE.find(INSTANCES, namespace, name).unwrap();
        assert_eq!(run["status"]["qosClass"], *class, "{name}");
        let pods = PLACE.list(PODS, namespace);
        let owned = |pod: &&serde_json::Value| pod["metadata"]["labels"]["vm.kubevirt.io/name"] == *name;
        let pod = pods.iter().find(owned).unwrap();
        assert_eq!(pod["status"]["qosClass"], *class, "{name}");
        PLACE.delete(MACHINES, namespace, name);
    }
    PLACE.remove_namespace(namespace);
}
