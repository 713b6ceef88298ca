//! VMs of many shapes (`vms.yaml`): the API server takes each of them strictly, without an unknown or doubled field, and each
//! runs, or a condition names what the cluster lacks.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::overhead;
use crate::platform::disks::container_disk;
use crate::platform::place::{INSTANCES, MACHINES, PLACE, PODS};

/// Those that every run of the tests starts; all are started with `FERROVIRT_SOAK=1`.
const SOME: [&str; 5] = ["scratch", "type-and-preference", "paused", "huge-pages", "host-device"];
/// How many run at once.
const AT_ONCE: usize = 6;
/// Statuses that a manifest may expect; every other text is a part of a condition's message.
const STATUSES: [&str; 3] = ["Running", "Paused", "Stopped"];

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/platform/compute").join(name)
}

fn apply(namespace: &str, file: &Path, more: &[&str]) -> Result<String, String> {
    let words = ["-n", namespace, "apply", "--validate=strict", "-f", file.to_str().unwrap()];
    PLACE.kubectl(&[&words[..], more].concat())
}

/// Whether the expectation of a manifest has come true; else its conditions.
fn check_expectation(namespace: &str, name: &str, expected: &str) -> Result<(), String> {
    let machine = PLACE.find(MACHINES, namespace, name).unwrap();
    let status = machine["status"]["printableStatus"].as_str().unwrap_or_default().to_owned();
    let instance = PLACE.find(INSTANCES, namespace, name).unwrap_or_default();
    let conditions = [&machine, &instance].map(|one| one["status"]["conditions"].as_array().cloned());
    let conditions: Vec<Value> = conditions.into_iter().flatten().flatten().collect();
    let named = || {
        let mut refused = conditions.iter().filter(|one| one["status"] == "False");
        refused.any(|one| one["message"].as_str().is_some_and(|text| text.contains(expected)))
    };
    let good = if STATUSES.contains(&expected) { status == expected } else { named() };
    if good { Ok(()) } else { Err(format!("{name} is {status}, not {expected:?}: {conditions:#?}")) }
}

/// Whether a text of a manifest is in its instance's status, in its launcher pod or in its domain; else all three.
fn check_shown(namespace: &str, name: &str, text: &str) -> Result<(), String> {
    let status = PLACE.find(INSTANCES, namespace, name).unwrap_or_default()["status"].to_string();
    let own = |pod: &&Value| pod["metadata"]["annotations"]["kubevirt.io/domain"] == name;
    let pod = PLACE.list(PODS, namespace).iter().find(own).cloned().unwrap_or_default();
    let launcher = pod["metadata"]["name"].as_str().unwrap_or_default();
    let domain = format!("{namespace}_{name}");
    let dump = ["-n", namespace, "exec", launcher, "-c", "compute", "--", "virsh", "dumpxml", &domain];
    let all = [status, pod.to_string(), PLACE.kubectl(&dump).unwrap_or_else(|error| error)];
    match all.iter().any(|one| one.contains(text)) {
        true => Ok(()),
        false => Err(format!("{name} does not show {text:?}: {}", all.join("\n"))),
    }
}

#[test]
fn vms_of_many_shapes_are_accepted_strictly_and_run_or_name_the_missing() {
    let namespace = "vms";
    PLACE.namespace(namespace);
    let class = ["annotate", "--overwrite", "storageclass", "hostpath-csi"];
    PLACE.kubectl(&[&class[..], &["storageclass.kubevirt.io/is-default-virt-class=true"]].concat()).unwrap();
    container_disk();
    apply(namespace, &file("vms-needs.yaml"), &[]).unwrap();
    let taken = apply(namespace, &file("vms.yaml"), &["--dry-run=server", "-o", "json"]).unwrap();
    let taken: Value = serde_json::from_str(&taken).unwrap();
    let machines = taken["items"].as_array().unwrap();
    assert!(machines.len() >= 40, "{} VMs", machines.len());
    let all = std::env::var_os("FERROVIRT_SOAK").is_some();
    let chosen: Vec<(&str, &str)> = machines
        .iter()
        .map(|one| {
            let meta = &one["metadata"];
            (meta["name"].as_str().unwrap(), meta["annotations"]["expects"].as_str().unwrap())
        })
        .filter(|(name, _)| all || SOME.contains(name))
        .collect();
    let mut wrong = Vec::new();
    for some in chosen.chunks(AT_ONCE) {
        for (name, _) in some {
            let machine = machines.iter().find(|one| one["metadata"]["name"] == *name).unwrap();
            // As it is written, not as the dry run made it.
            let written = "kubectl.kubernetes.io/last-applied-configuration";
            let written = machine["metadata"]["annotations"][written].as_str().unwrap();
            let one = PLACE.cluster.place().path(&format!("vms-{name}.json"));
            std::fs::write(&one, written).unwrap();
            apply(namespace, &one, &[]).unwrap();
        }
        for (name, expected) in some {
            let deadline = std::time::Instant::now() + crate::platform::place::TIMEOUT;
            while let Err(said) = check_expectation(namespace, name, expected) {
                if std::time::Instant::now() > deadline {
                    wrong.push(said);
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(200));
            }
            if *expected == "Running" && check_expectation(namespace, name, expected).is_ok() {
                println!("memory {}", overhead::measure(namespace, name));
                let machine = machines.iter().find(|one| one["metadata"]["name"] == *name).unwrap();
                let shown = machine["metadata"]["annotations"]["shows"].as_str();
                wrong.extend(shown.and_then(|text| check_shown(namespace, name, text).err()));
            }
        }
        for (name, _) in some {
            PLACE.delete(MACHINES, namespace, name);
        }
        PLACE.until(namespace, "the VMs are gone", || {
            let left = [MACHINES, INSTANCES, PODS].map(|kind| PLACE.list(kind, namespace).len());
            (left == [0; 3]).then_some(())
        });
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    println!("{} VMs were accepted strictly, {} met their expectation", machines.len(), chosen.len());
    PLACE.kubectl(&["delete", "priorityclass", "vms-high"]).unwrap();
    PLACE.remove_namespace(namespace);
}
