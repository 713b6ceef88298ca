//! Many VMs in a row on two nodes: how long each takes to its pod and to its guest, compared with bare pods of the launcher's shape
//! that are created at the same pace. The times are printed, not asserted: the machine starts all of them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cluster::Resource;
use serde_json::{Value, json};

use crate::platform::machines::machine;
use crate::platform::place::{INSTANCES, MACHINES, PLACE, PODS};
use crate::platform::speed::{bare, median, ready};

const NAMESPACE: &str = "row";
/// Time between two creations.
const PACE: Duration = Duration::from_millis(100);

const HOST: &str = "kubernetes.io/hostname";

/// When objects were seen first in a state, by name.
type Seen = BTreeMap<String, Instant>;

/// The node of the object with this number: the first and the second in turn.
fn node_of(number: usize) -> Value {
    json!(["node1", "node2"][number % 2])
}

fn name(object: &Value) -> Option<String> {
    object["metadata"]["name"].as_str().map(str::to_owned)
}

/// Creates the objects at the pace of the test, and looks at the namespace until `look` says that all is seen. Gives the
/// moments of their creation.
fn create(resource: Resource, objects: &[Value], mut look: impl FnMut() -> bool) -> Seen {
    std::thread::scope(|scope| {
        let creator = scope.spawn(|| {
            let (begun, mut created) = (Instant::now(), Seen::new());
            for (number, object) in (0..).zip(objects) {
                std::thread::sleep((begun + PACE * number).saturating_duration_since(Instant::now()));
                created.insert(name(object).unwrap(), Instant::now());
                PLACE.create(resource, NAMESPACE, object);
            }
            created
        });
        PLACE.until(NAMESPACE, "all objects of the row are seen", || look().then_some(()));
        creator.join().unwrap()
    })
}

/// Notes the objects that are seen for the first time.
fn note(seen: &mut Seen, names: impl Iterator<Item = String>) {
    for name in names {
        seen.entry(name).or_insert_with(Instant::now);
    }
}

/// Prints median and longest time between two moments of each object.
fn print(what: &str, from: &Seen, to: &Seen) {
    let times: Vec<Duration> = to.iter().map(|(name, moment)| moment.duration_since(from[name])).collect();
    println!("{what}: p50 {:?}, longest {:?}", median(times.clone()), times.iter().max().unwrap());
}

pub(crate) fn starts_on_two_nodes() {
    PLACE.namespace(NAMESPACE);
    let count = if std::env::var_os("FERROVIRT_SOAK").is_some() { 60 } else { 6 };
    let machines: Vec<Value> = (0..count)
        .map(|number| {
            let disk = json!({"emptyDisk": {"capacity": "1Mi"}});
            let mut vm = machine(&format!("vm{number}"), "Always", &disk);
            let spec = &mut vm["spec"]["template"]["spec"];
            // All have room on nodes of two processors.
            spec["domain"]["resources"]["requests"]["cpu"] = json!("10m");
            spec["nodeSelector"][HOST] = node_of(number);
            vm
        })
        .collect();
    let (mut to_pod, mut to_ready, mut to_guest) = (Seen::new(), Seen::new(), Seen::new());
    let created = create(MACHINES, &machines, || {
        let pods = PLACE.list(PODS, NAMESPACE);
        let domain =
            |pod: &Value| pod["metadata"]["annotations"]["kubevirt.io/domain"].as_str().map(str::to_owned);
        note(&mut to_pod, pods.iter().filter_map(domain));
        note(&mut to_ready, pods.iter().filter(|pod| ready(pod)).filter_map(domain));
        let instances = PLACE.list(INSTANCES, NAMESPACE);
        let running = instances.iter().filter(|one| one["status"]["phase"] == "Running");
        note(&mut to_guest, running.filter_map(name));
        to_guest.len() == count
    });
    let launchers = PLACE.list(PODS, NAMESPACE);
    print("VM created in a row -> launcher pod", &created, &to_pod);
    print("VM created in a row -> guest runs", &created, &to_guest);
    print("launcher pod ready -> guest runs", &to_ready, &to_guest);
    for vm in &machines {
        PLACE.delete(MACHINES, NAMESPACE, &name(vm).unwrap());
    }
    PLACE.until(NAMESPACE, "the pods of the row are gone", || {
        PLACE.list(PODS, NAMESPACE).is_empty().then_some(())
    });

    let pods: Vec<Value> = (0..count)
        .map(|number| {
            let mut pod = bare(&launchers[0], &format!("bare{number}"));
            pod["spec"]["nodeSelector"][HOST] = node_of(number);
            pod
        })
        .collect();
    let mut started = Seen::new();
    let created = create(PODS, &pods, || {
        let pods = PLACE.list(PODS, NAMESPACE);
        note(&mut started, pods.iter().filter(|pod| ready(pod)).filter_map(name));
        started.len() == count
    });
    print("bare pod created in a row -> ready", &created, &started);
    PLACE.remove_namespace(NAMESPACE);
}
