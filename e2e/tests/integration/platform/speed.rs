//! How long a start takes, and how often it writes. The bars hold on a quiet machine and are printed; what is asserted
//! here leaves room for other tests at the same time.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::platform::machines::create;
use crate::platform::place::{INSTANCES, MACHINES, PLACE, PODS};

/// Most writes to an instance until its guest runs, its creation not counted.
const WRITES: u64 = 8;

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Waits for something by the millisecond; gives the moment.
#[track_caller]
fn moment(found: impl Fn() -> bool) -> Instant {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !found() {
        assert!(Instant::now() < deadline, "not in two minutes");
        std::thread::sleep(Duration::from_millis(5));
    }
    Instant::now()
}

#[test]
fn machine_gets_its_pod_and_its_guest_at_once() {
    let namespace = "speed";
    PLACE.namespace(namespace);
    let count = if std::env::var_os("FERROVIRT_SOAK").is_some() { 20 } else { 3 };
    let (mut to_pod, mut to_guest, mut most) = (Vec::new(), Vec::new(), 0);
    for number in 0..count {
        let name = format!("vm{number}");
        let _volume = create(namespace, &name, "Always", 0);
        let created = Instant::now();
        let pod = moment(|| !PLACE.list(PODS, namespace).is_empty());
        to_pod.push(pod - created);
        let ready = |pod: &Value| pod["status"]["containerStatuses"][0]["ready"] == true;
        let ready = moment(|| PLACE.list(PODS, namespace).iter().any(ready));
        let running = moment(|| {
            PLACE.find(INSTANCES, namespace, &name).is_some_and(|one| one["status"]["phase"] == "Running")
        });
        to_guest.push(running - ready);
        // Instances have no status subresource: each write makes a generation.
        let instance = PLACE.find(INSTANCES, namespace, &name).unwrap();
        most = most.max(instance["metadata"]["generation"].as_u64().unwrap() - 1);
        PLACE.delete(MACHINES, namespace, &name);
        moment(|| PLACE.list(PODS, namespace).is_empty());
    }
    println!("VM created -> launcher pod, p50 of {count}: {:?}", median(to_pod));
    println!("pod ready -> Running, p50 of {count}: {:?}", median(to_guest));
    println!("writes to an instance until it runs: {most}");
    assert!(most <= WRITES, "{most} writes");
    PLACE.remove_namespace(namespace);
}
