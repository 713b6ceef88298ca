//! How long a start takes, compared with a bare pod of the launcher's shape, and how often it writes. The bars of the times are for
//! a quiet machine: `make soak` asserts them, `make test` prints them.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::platform::machines::create;
use crate::platform::place::{INSTANCES, MACHINES, PLACE, PODS};

/// Most writes to an instance until its guest runs, its creation not counted.
const WRITES: usize = 8;
/// Longest median from a VM to its pod, and from a pod that is ready to QEMU's start.
const STEP: Duration = Duration::from_millis(150);

pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Polls `found` every five milliseconds until it holds; gives the time.
#[track_caller]
fn moment(found: impl Fn() -> bool) -> Instant {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !found() {
        assert!(Instant::now() < deadline, "not in two minutes");
        std::thread::sleep(Duration::from_millis(5));
    }
    Instant::now()
}

/// A pod with the containers, volumes and placement of a launcher, without its labels, owner and program.
pub(crate) fn bare(launcher: &Value, name: &str) -> Value {
    let mut spec = launcher["spec"].clone();
    for container in spec["containers"].as_array_mut().unwrap() {
        container["command"] = json!(["sleep", "600"]);
        container["args"] = json!([]);
    }
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}});
    for key in ["nodeName", "serviceAccountName", "serviceAccount", "tolerations", "readinessGates"] {
        spec.as_object_mut().unwrap().remove(key);
    }
    spec["terminationGracePeriodSeconds"] = json!(0);
    pod["spec"] = spec;
    pod
}

pub(crate) fn ready(pod: &Value) -> bool {
    let containers = pod["status"]["containerStatuses"].as_array();
    containers.is_some_and(|all| all.iter().all(|one| one["ready"] == true))
}

/// Writes to the instances of a namespace that the API server accepted, by name.
fn writes(namespace: &str, name: &str) -> Vec<String> {
    let ours = PLACE.cluster.audit().unwrap().filter(|event| {
        let object = &event["objectRef"];
        object["resource"] == "virtualmachineinstances"
            && object["namespace"] == namespace
            && object["name"] == name
            && (event["verb"] == "patch" || event["verb"] == "update")
            && event["responseStatus"]["code"].as_u64().is_some_and(|code| code < 300)
    });
    ours.map(|event| format!("{} by {}", event["verb"], event["user"]["username"])).collect()
}

#[test]
fn machine_gets_its_pod_and_its_guest_at_once() {
    let namespace = "speed";
    PLACE.namespace(namespace);
    let soak = std::env::var_os("FERROVIRT_SOAK").is_some();
    let count = if soak { 30 } else { 3 };
    let (mut to_pod, mut to_ready, mut to_guest, mut most) = (vec![], vec![], vec![], vec![]);
    let mut bare_ready = Vec::new();
    for number in 0..count {
        let name = format!("vm{number}");
        let _volume = create(namespace, &name, "Always", 0);
        let created = Instant::now();
        let pod = moment(|| !PLACE.list(PODS, namespace).is_empty());
        to_pod.push(pod - created);
        let started = moment(|| PLACE.list(PODS, namespace).iter().any(ready));
        to_ready.push(started - pod);
        let running = moment(|| {
            PLACE.find(INSTANCES, namespace, &name).is_some_and(|one| one["status"]["phase"] == "Running")
        });
        to_guest.push(running - started);
        let written = writes(namespace, &name);
        if written.len() > most.len() {
            most = written;
        }
        let launcher = PLACE.list(PODS, namespace).remove(0);
        PLACE.delete(MACHINES, namespace, &name);
        moment(|| PLACE.list(PODS, namespace).is_empty());
        PLACE.create(PODS, namespace, &bare(&launcher, "bare"));
        let created = Instant::now();
        let started = moment(|| PLACE.list(PODS, namespace).iter().any(ready));
        bare_ready.push(started - created);
        PLACE.delete(PODS, namespace, "bare");
        moment(|| PLACE.list(PODS, namespace).is_empty());
    }
    let (to_pod, to_guest) = (median(to_pod), median(to_guest));
    println!("VM created -> launcher pod, p50 of {count}: {to_pod:?}");
    println!(
        "launcher pod created -> ready, p50: {:?}; bare pod: {:?}",
        median(to_ready),
        median(bare_ready)
    );
    println!("pod ready -> Running, p50 of {count}: {to_guest:?}");
    println!("most writes to an instance until it runs: {}: {most:#?}", most.len());
    assert!(!most.is_empty() && most.len() <= WRITES, "{most:#?}");
    assert!(!soak || (to_pod <= STEP && to_guest <= STEP), "{to_pod:?} and {to_guest:?}");
    PLACE.remove_namespace(namespace);
}
