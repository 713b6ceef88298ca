//! The platform on one node with five VMs at work, imports and uploads: number of pods, their requests, and the memory that
//! each of them really has.

use std::time::{Duration, Instant};

use e2e::peer::web::Web;
use e2e::processes::Memory;
use serde_json::Value;

use crate::platform::guest;
use crate::platform::machines::create_with;
use crate::platform::place::{MACHINES, PLACE, PODS};
use crate::platform::transfers;

const NAMESPACE: &str = "footprint";
const PLATFORM: &str = operator::defaults::NAMESPACE;
const MACHINES_AT_WORK: usize = 5;
/// Most pods, and most memory that they ask for, in MiB.
const PODS_MAX: usize = 5;
const REQUESTS_MAX: u64 = 192;
const PERIOD: Duration = Duration::from_secs(10);

/// One pod: its name, and the memory that it asks for, in KiB, and has.
#[derive(Clone, Debug, Default)]
struct Pod {
    name: String,
    requested: u64,
    memory: Memory,
}

fn pods() -> Vec<Pod> {
    let all = PLACE.list(PODS, PLATFORM).into_iter();
    let running = all.filter(|pod| pod["status"]["phase"] == "Running");
    let seen = |pod: Value| {
        let containers = pod["spec"]["containers"].as_array().unwrap().iter();
        let request = |one: &Value| {
            let memory = one["resources"]["requests"]["memory"].as_str()?;
            memory.strip_suffix("Mi")?.parse::<u64>().ok()
        };
        let uid = pod["metadata"]["uid"].as_str().unwrap();
        Pod {
            name: pod["metadata"]["name"].as_str().unwrap().to_owned(),
            requested: containers.map(|one| request(one).unwrap()).sum::<u64>() << 10,
            memory: Memory::of_pod(uid).unwrap_or_default(),
        }
    };
    running.map(seen).collect()
}

pub(crate) fn is_within_its_requests() {
    let time = Duration::from_secs(30 * 60);
    PLACE.namespace(NAMESPACE);
    let name = |number: usize| format!("vm{number}");
    let disk = guest::beats();
    let folder = tempfile::tempdir().unwrap();
    guest::qcow2(&folder.path().join("guest.qcow2"));
    let web = Web::start(PLACE.cluster.place(), folder.path()).unwrap();
    let volumes: Vec<_> = (0..MACHINES_AT_WORK)
        .map(|number| create_with(NAMESPACE, &name(number), "Always", 0, &disk))
        .collect();
    for number in 0..MACHINES_AT_WORK {
        PLACE.until_status(NAMESPACE, &name(number), "Running");
    }
    let (begun, mut samples) = (Instant::now(), 0_usize);
    let mut most: Vec<Pod> = Vec::new();
    while begun.elapsed() < time {
        let vm = name(samples % MACHINES_AT_WORK);
        PLACE.put(NAMESPACE, &format!("virtualmachines/{vm}/restart")).unwrap();
        transfers::import(NAMESPACE, &format!("import{samples}"), &web.url("guest.qcow2"));
        transfers::upload(NAMESPACE, &format!("upload{samples}")).unwrap();
        std::thread::sleep(PERIOD);
        PLACE.until_status(NAMESPACE, &vm, "Running");
        let now = pods();
        assert!(now.len() <= PODS_MAX, "{now:#?}");
        for pod in now {
            match most.iter_mut().find(|one| one.name == pod.name) {
                Some(one) => one.memory = one.memory.max(pod.memory),
                None => most.push(pod),
            }
        }
        samples += 1;
    }
    for pod in &most {
        println!(
            "{}: requests {} MiB, at most {} MiB resident, {} MiB of it anonymous",
            pod.name,
            pod.requested >> 10,
            pod.memory.resident >> 10,
            pod.memory.anonymous >> 10
        );
    }
    let requested: u64 = most.iter().map(|pod| pod.requested >> 10).sum();
    let resident: u64 = most.iter().map(|pod| pod.memory.counted().unwrap() >> 10).sum();
    println!(
        "{samples} samples in {:?}: {} pods, requests {requested} MiB, {resident} MiB used",
        begun.elapsed(),
        most.len()
    );
    assert!(requested <= REQUESTS_MAX, "{most:#?}");
    let beyond: Vec<&Pod> = most.iter().filter(|pod| pod.memory.counted().unwrap() > pod.requested).collect();
    assert!(beyond.is_empty(), "more than they ask for: {beyond:#?}");
    for number in 0..MACHINES_AT_WORK {
        PLACE.delete(MACHINES, NAMESPACE, &name(number));
    }
    PLACE.until(NAMESPACE, "the VMs are gone", || PLACE.list(PODS, NAMESPACE).is_empty().then_some(()));
    PLACE.remove_namespace(NAMESPACE);
    drop(volumes);
}
