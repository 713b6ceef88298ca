//! Memory that a guest needs on top of its own: measured, with the pod's request and the result of upstream's formula.

use std::fs;

use api::quantity;
use e2e::processes;
use serde_json::Value;

use crate::platform::place::{INSTANCES, PLACE, PODS};

const MIB: u64 = 1 << 20;

/// The measure of a guest that runs; fails where its pod asks for less than it has.
#[track_caller]
pub(super) fn measure(namespace: &str, name: &str) -> String {
    let instance = PLACE.find(INSTANCES, namespace, name).unwrap();
    let domain = &instance["spec"]["domain"];
    let guest = quantity::bytes(domain["memory"]["guest"].as_str().unwrap()).unwrap();
    let pods = PLACE.list(PODS, namespace);
    let of = |pod: &&Value| pod["metadata"]["labels"]["vm.kubevirt.io/name"] == name;
    let pod = pods.iter().find(of).unwrap();
    let containers = pod["spec"]["containers"].as_array().unwrap();
    let compute = containers.iter().find(|one| one["name"] == "compute").unwrap();
    let asked = compute["resources"]["requests"]["memory"].as_str().unwrap();
    let asked = quantity::bytes(asked).unwrap() - guest;
    let used = used(pod["metadata"]["uid"].as_str().unwrap(), guest);
    let [used, asked, theirs] = [used, asked, upstream(domain, guest)].map(|bytes| bytes / MIB);
    assert!(used <= asked, "{name}: {used} MiB are used and {asked} asked for");
    format!(
        "on top of the guest of {name}: {used} MiB used, {asked} requested, {theirs} by upstream's formula"
    )
}

/// Upstream's formula: page tables, its processes, QEMU, each processor, I/O, a screen, a TPM.
fn upstream(domain: &Value, guest: u64) -> u64 {
    let cpu = |field: &str| domain["cpu"][field].as_u64().unwrap_or(1);
    let processors = cpu("sockets") * cpu("cores") * cpu("threads");
    let screen = if domain["devices"]["autoattachGraphicsDevice"] == false { 0 } else { 32 };
    let tpm = if domain["devices"]["tpm"].is_object() { 53 } else { 0 };
    guest / 512 + (25 + 100 + 25 + 40 + 50 + 8 * processors + 8 + screen + tpm) * MIB
}

/// Bytes of the pod's processes that run the guest and are no file's, without the guest's own memory.
fn used(pod: &str, guest: u64) -> u64 {
    let processes = processes::of_pod(pod).into_iter().filter_map(|process| {
        let file = |name: &str| format!("/proc/{}/{name}", process.as_raw_nonzero());
        let read = |name: &str| fs::read_to_string(file(name)).ok();
        let line = read("cmdline")?;
        let runs = ["virt-launcher", "qemu-system", "swtpm"].iter().any(|name| line.contains(name));
        runs.then(|| read("smaps")).flatten()
    });
    let mut sum = 0;
    for maps in processes {
        let kib = |line: &str, name: &str| -> Option<u64> {
            line.strip_prefix(name)?.trim().strip_suffix(" kB")?.parse().ok()
        };
        let (mut size, mut proportional, mut file) = (0, 0, 0);
        for line in maps.lines().chain(["0-0 end"]) {
            if let Some(value) = kib(line, "Size:") {
                size = value;
            } else if let Some(value) = kib(line, "Pss:") {
                proportional = value;
            } else if line.split_once(' ').is_some_and(|(range, _)| range.contains('-')) {
                // The next mapping begins: the last one counts unless it is a program's file or the guest's memory.
                if file == 0 {
                    // The guest's may have grown together with others'.
                    let own = if size << 10 >= guest { guest } else { 0 };
                    sum += (proportional << 10).saturating_sub(own);
                }
                file = u64::from(line.contains(".so") || line.contains("/usr/"));
                (size, proportional) = (0, 0);
            }
        }
    }
    sum
}
