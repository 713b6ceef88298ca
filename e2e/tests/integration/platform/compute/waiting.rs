//! VMs that cannot run: `printableStatus` is upstream's word for the reason, and the word goes when the reason does.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::platform::guest;
use crate::platform::machines::{claim, machine, until_answers};
use crate::platform::place::{MACHINES, PLACE};

/// An image of a registry that does not answer.
const IMAGE: &str = "127.0.0.1:1/absent/disk:1";

#[test]
fn machine_that_cannot_run_has_the_word_of_the_reason() {
    let namespace = "waiting";
    PLACE.namespace(namespace);
    let absent = json!({"persistentVolumeClaim": {"claimName": "late"}});
    let image = json!({"containerDisk": {"image": IMAGE}});
    let mut nowhere = machine("nowhere", "Always", &json!({"emptyDisk": {"capacity": "1Mi"}}));
    nowhere["spec"]["template"]["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": "absent"});
    let all: [(Value, &[&str]); 3] = [
        (machine("late", "Always", &absent), &["ErrorPvcNotFound"]),
        (machine("unpulled", "Always", &image), &["ErrImagePull", "ImagePullBackOff"]),
        (nowhere, &["ErrorUnschedulable"]),
    ];
    for (vm, _) in &all {
        PLACE.create(MACHINES, namespace, vm);
    }
    for (vm, words) in &all {
        let name = vm["metadata"]["name"].as_str().unwrap();
        let mut wanted: BTreeSet<&str> = words.iter().copied().collect();
        PLACE.until(namespace, &format!("{name} has shown {words:?}"), || {
            let vm = PLACE.find(MACHINES, namespace, name)?;
            wanted.remove(vm["status"]["printableStatus"].as_str()?);
            wanted.is_empty().then_some(())
        });
    }
    let _volume = claim(namespace, "late", &guest::disk());
    until_answers(namespace, "late", 1);
    for (vm, _) in &all {
        PLACE.delete(MACHINES, namespace, vm["metadata"]["name"].as_str().unwrap());
    }
    PLACE.remove_namespace(namespace);
}
