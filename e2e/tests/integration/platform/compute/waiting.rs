//! VMs that cannot run: `printableStatus` is upstream's word for the reason, `why` says it in a sentence, and the word goes when
//! the reason does.
//! Starts that fail are repeated, later each time.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::get;
use crate::platform::guest;
use crate::platform::machines::{claim, machine, until_answers};
use crate::platform::place::{INSTANCES, MACHINES, PLACE, PODS};

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
    let all: [(Value, &[&str], &str); 3] = [
        (
            machine("late", "Always", &absent),
            &["ErrorPvcNotFound"],
            "PersistentVolumeClaim late does not exist.",
        ),
        (
            machine("unpulled", "Always", &image),
            &["ErrImagePull", "ImagePullBackOff"],
            "It is not synchronized: ",
        ),
        (nowhere, &["ErrorUnschedulable"], "Its launcher pod is not scheduled: "),
    ];
    for (vm, ..) in &all {
        PLACE.create(MACHINES, namespace, vm);
    }
    for (vm, words, sentence) in &all {
        let name = vm["metadata"]["name"].as_str().unwrap();
        let mut wanted: BTreeSet<&str> = words.iter().copied().collect();
        PLACE.until(namespace, &format!("{name} has shown {words:?}"), || {
            let vm = PLACE.find(MACHINES, namespace, name)?;
            wanted.remove(vm["status"]["printableStatus"].as_str()?);
            wanted.is_empty().then_some(())
        });
        PLACE.until(namespace, &format!("why {name} does not run: {sentence}"), || {
            let why = get(namespace, &format!("virtualmachines/{name}/why")).ok()?;
            let mut reasons = why["reasons"].as_array()?.iter().filter_map(Value::as_str);
            (why["running"] == false && reasons.any(|one| one.starts_with(sentence))).then_some(())
        });
    }
    let _volume = claim(namespace, "late", &guest::disk());
    until_answers(namespace, "late", 1);
    for (vm, ..) in &all {
        PLACE.delete(MACHINES, namespace, vm["metadata"]["name"].as_str().unwrap());
    }
    PLACE.remove_namespace(namespace);
}

/// Seconds since 1970.
fn seconds(time: &Value) -> i64 {
    time.as_str().unwrap().parse::<Timestamp>().unwrap().as_second()
}

/// Waits for a launcher pod other than `before`, for which the instance waits.
#[track_caller]
fn next_pod(namespace: &str, before: Option<&Value>) -> Value {
    PLACE.until(namespace, "another launcher pod", || {
        let instance = PLACE.find(INSTANCES, namespace, "vm")?;
        let pods = PLACE.list(PODS, namespace);
        let pod = pods.into_iter().find(|pod| {
            let new = before.is_none_or(|before| pod["metadata"]["uid"] != before["metadata"]["uid"]);
            new && pod["metadata"]["deletionTimestamp"].is_null()
        })?;
        (instance["status"]["phase"] == "Scheduling").then_some(pod)
    })
}

/// Removes the pod of an instance that has not started, which fails by that. After `count` failures in all: the time of the
/// next start.
#[track_caller]
fn fail_start(namespace: &str, pod: &Value, count: u64) -> i64 {
    let name = pod["metadata"]["name"].as_str().unwrap();
    let now = ["--grace-period=0", "--force", "--wait=false"];
    PLACE.kubectl(&[&["-n", namespace, "delete", "pod", name][..], &now].concat()).unwrap();
    PLACE.until(namespace, &format!("{count} starts have failed"), || {
        let status = PLACE.find(MACHINES, namespace, "vm")?["status"].take();
        let counted = status["startFailure"]["consecutiveFailCount"] == count;
        (counted && status["printableStatus"] == "CrashLoopBackOff")
            .then(|| seconds(&status["startFailure"]["retryAfterTimestamp"]))
    })
}

#[test]
fn starts_that_fail_are_repeated_later_each_time_until_the_machine_is_stopped() {
    let namespace = "crashes";
    PLACE.namespace(namespace);
    // Its pod never becomes ready.
    PLACE.create(MACHINES, namespace, &machine("vm", "Always", &json!({"containerDisk": {"image": IMAGE}})));
    let first = next_pod(namespace, None);
    let retry = fail_start(namespace, &first, 1);
    let wait = retry - Timestamp::now().as_second();
    assert!(wait <= 15, "{wait} s after the first failure");
    let second = next_pod(namespace, Some(&first));
    assert!(seconds(&second["metadata"]["creationTimestamp"]) >= retry);
    let retry = fail_start(namespace, &second, 2);
    let wait = retry - Timestamp::now().as_second();
    assert!((20..=60).contains(&wait), "{wait} s after the second failure");
    // A VM that is stopped and started by its user does not wait.
    super::patch(namespace, "vm", &json!({"spec": {"runStrategy": "Halted"}}));
    let stopped = PLACE.until_status(namespace, "vm", "Stopped");
    assert_eq!(stopped["status"]["startFailure"], Value::Null);
    super::patch(namespace, "vm", &json!({"spec": {"runStrategy": "Always"}}));
    let third = next_pod(namespace, Some(&second));
    assert!(seconds(&third["metadata"]["creationTimestamp"]) < retry);
    PLACE.delete(MACHINES, namespace, "vm");
    PLACE.remove_namespace(namespace);
}
