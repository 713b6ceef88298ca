//! One replica from a user's view: upstream's end-to-end cases.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::macpool::setup::{NAMESPACE, Place, Replica, STAMP, addresses, guest, machine, until};

const A: &str = "02:00:00:00:00:00";
const C: &str = "02:00:00:00:00:02";

fn interface(name: &str) -> Value {
    json!({"name": name, "bridge": {}})
}

/// All in one cluster with one replica, one after the other.
#[test]
fn machines_and_pods_of_a_cluster() {
    let place = Place::new("02:00:00:00:10:00", "02:00:00:00:1f:ff");
    let replica = place.replica(0, &[]);
    let create = |namespace: &str, object: &Value| {
        place.feed(&["-n", namespace, "create", "-o", "json", "-f", "-"], &object.to_string())
    };
    let made = |namespace: &str, object: &Value| -> Value {
        let run = create(namespace, object);
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        serde_json::from_slice(&run.stdout).unwrap()
    };
    let apply = |object: &Value| place.apply(&object.to_string());
    let vm = |name: &str| place.get("default", &format!("vm/{name}"));
    let ours = |mac: &str| mac.starts_with("02:00:00:00:1");

    // Created: the pod network with masquerade and Multus get addresses, a bridge on the pod network none.
    let both = json!([{"name": "pod", "masquerade": {}}, interface("a"), interface("b")]);
    apply(&machine("one", &both));
    let first = addresses(&vm("one"));
    assert!(first.iter().all(|mac| ours(mac)) && first[0] != first[1] && first[1] != first[2], "{first:?}");
    assert!(vm("one")["metadata"]["annotations"][STAMP].is_string());
    let bridged = made("default", &machine("bridged", &json!([{"name": "pod", "bridge": {}}])));
    assert_eq!(addresses(&bridged), [""]);

    // Applied again without addresses, with a change, without an interface, with it again, swapped.
    let mut again = machine("one", &both);
    again["metadata"]["labels"] = json!({"again": "yes"});
    apply(&again);
    assert_eq!(addresses(&vm("one")), first);
    apply(&machine("one", &json!([interface("a")])));
    assert_eq!(addresses(&vm("one")), first[1..2]);
    apply(&machine("one", &json!([interface("a"), interface("c")])));
    let later = addresses(&vm("one"));
    assert!(later[0] == first[1] && ours(&later[1]) && !first.contains(&later[1]), "{later:?}");
    let mut swapped = machine("one", &json!([interface("a"), interface("c")]));
    let interfaces = &mut swapped["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"];
    interfaces[0]["macAddress"] = later[1].clone().into();
    interfaces[1]["macAddress"] = later[0].clone().into();
    apply(&swapped);
    assert_eq!(addresses(&vm("one")), [later[1].clone(), later[0].clone()]);

    // Given: kept; wrong: refused; a duplicate: allowed with a warning, refused or rewritten by the namespace's word.
    let given =
        |name: &str, mac: &str| machine(name, &json!([{"name": "a", "bridge": {}, "macAddress": mac}]));
    assert_eq!(addresses(&made("default", &given("given", "0a:00:00:00:00:01"))), ["0a:00:00:00:00:01"]);
    for wrong in ["0a:00", "01:00:00:00:00:00", "00:00:00:00:00:00"] {
        let run = create("default", &given("wrong", wrong));
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(!run.status.success() && said.contains("denied the request"), "{said}");
    }
    let run = create("default", &given("twin", "0a:00:00:00:00:01"));
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(run.status.success() && said.contains("is in use by VirtualMachine default/given"), "{said}");
    for (policy, allowed) in [("reject", false), ("rewrite", true)] {
        place.namespace(policy, &json!({}));
        place.kubectl(&[
            "annotate",
            "namespace",
            policy,
            &format!("macpool.ferrovirt.io/duplicates={policy}"),
        ]);
        // The annotation is heard of soon.
        until("the policy counts", || {
            let run = create(policy, &given("twin", "0a:00:00:00:00:01"));
            let done = run.status.success() == allowed
                && (!allowed || ours(&addresses(&serde_json::from_slice(&run.stdout).unwrap())[0]));
            if !done {
                place.try_kubectl(&["-n", policy, "delete", "vm", "twin"]);
            }
            done.then_some(())
        });
    }

    // Applied again with another machine's address, a machine keeps its own instead.
    let kept = addresses(&place.get("rewrite", "vm/twin"));
    let mut again = given("twin", "0a:00:00:00:00:01");
    for label in ["once", "twice"] {
        again["metadata"]["namespace"] = "rewrite".into();
        again["metadata"]["labels"] = json!({"applied": label});
        apply(&again);
        let found = place.get("rewrite", "vm/twin");
        assert_eq!(
            (addresses(&found), &found["metadata"]["labels"]["applied"]),
            (kept.clone(), &label.into())
        );
    }

    // A dry run shows addresses; opted out: none; pods: opted in only.
    let run = place.feed(
        &["-n", "default", "create", "--dry-run=server", "-o", "json", "-f", "-"],
        &machine("dry", &json!([interface("a")])).to_string(),
    );
    assert!(ours(&addresses(&serde_json::from_slice(&run.stdout).unwrap())[0]));
    place.namespace("out", &json!({"mutatevirtualmachines.kubemacpool.io": "ignore"}));
    assert_eq!(addresses(&made("out", &machine("a", &json!([interface("a")])))), [""]);
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "p-", "annotations": {"k8s.v1.cni.cncf.io/networks": "[{\"name\":\"x\"}]", "o": "k"}},
        "spec": {"containers": [{"name": "c", "image": "none", "imagePullPolicy": "Never"}]},
    });
    place.namespace("pods", &json!({"mutatepods.kubemacpool.io": "allocate"}));
    for (namespace, expected) in [("default", false), ("pods", true)] {
        until("its service account is there", || {
            let account = place.get(namespace, "serviceaccount/default");
            account["metadata"]["uid"].is_string().then_some(())
        });
        let found = made(namespace, &pod);
        let text = found["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"].as_str().unwrap();
        assert_eq!(text.contains("\"mac\":\"02:00:00:00:1"), expected, "{text}");
        assert_eq!(found["metadata"]["annotations"]["o"], "k");
    }

    // The legacy finalizer goes with the next change of a machine that is being deleted, virt-controller's mostly.
    let mut legacy = machine("legacy", &json!([]));
    legacy["metadata"]["finalizers"] = json!(["k8s.v1.cni.cncf.io/kubeMacPool"]);
    made("default", &legacy);
    place.kubectl(&["-n", "default", "delete", "vm", "legacy", "--wait=false"]);
    place.kubectl(&["-n", "default", "label", "vm", "legacy", "changed=yes"]);
    until("it is gone", || place.get("default", "vm/legacy").is_null().then_some(()));

    collisions(&place, &replica);
    readers(&place, &replica);
    opting(&place);
    opting_pods(&place, &pod);
    small_range(&place);
}

/// Metrics are for users whose access the API server grants.
fn readers(place: &Place, replica: &Replica) {
    assert_eq!(replica.metrics("").0, 401);
    assert_eq!(replica.metrics("made.up.token").0, 401);
    // Known, and not allowed.
    assert_eq!(replica.metrics(&place.token("default", "default")).0, 403);
    let (status, page) = replica.metrics(&place.token("default", "reader"));
    assert!(status == 200 && page.contains("macpool_addresses_held"), "{status} {page}");
}

/// The live webhook's selector is edited from opting out to opting in, and back.
fn opting(place: &Place) {
    let label = "mutatevirtualmachines.kubemacpool.io";
    let select = |operator: &str, value: &str| {
        let selector = json!({"key": label, "operator": operator, "values": [value]});
        let path = "/webhooks/1/namespaceSelector/matchExpressions/2";
        let patch = json!([{"op": "replace", "path": path, "value": selector}]).to_string();
        let what = ["patch", "mutatingwebhookconfiguration", "kubemacpool-mutator", "--type=json", "-p"];
        place.kubectl(&[&what[..], &[&patch]].concat());
    };
    place.namespace("in", &json!({label: "allocate"}));
    // Whether a machine of the namespace is given an address; the API server hears of the edit soon.
    let gives = |namespace: &str, expected: bool| {
        until("the selector counts", || {
            let object = machine("opted", &json!([interface("a")])).to_string();
            let arguments = ["-n", namespace, "create", "--dry-run=server", "-o", "json", "-f", "-"];
            let made = serde_json::from_slice(&place.feed(&arguments, &object).stdout).ok()?;
            (addresses(&made)[0].is_empty() != expected).then_some(())
        });
    };
    select("In", "allocate");
    gives("default", false);
    gives("in", true);
    gives("out", false);
    select("NotIn", "ignore");
    gives("default", true);
    gives("out", false);
}

/// The same of pods, from opting in to opting out, and back.
fn opting_pods(place: &Place, pod: &Value) {
    let select = |operator: &str, value: &str| {
        let selector = json!({"key": "mutatepods.kubemacpool.io", "operator": operator, "values": [value]});
        let path = "/webhooks/0/namespaceSelector/matchExpressions/2";
        let patch = json!([{"op": "replace", "path": path, "value": selector}]).to_string();
        let what = ["patch", "mutatingwebhookconfiguration", "kubemacpool-mutator", "--type=json", "-p"];
        place.kubectl(&[&what[..], &[&patch]].concat());
    };
    let gives = |namespace: &str, expected: bool| {
        until("the selector counts", || {
            let arguments = ["-n", namespace, "create", "--dry-run=server", "-o", "json", "-f", "-"];
            let run = place.feed(&arguments, &pod.to_string());
            let made: Value = serde_json::from_slice(&run.stdout).ok()?;
            let text = made["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"].as_str()?.to_owned();
            (text.contains("\"mac\":\"02:") == expected).then_some(())
        });
    };
    place.kubectl(&["label", "namespace", "out", "mutatepods.kubemacpool.io=ignore"]);
    until("its service account is there", || {
        place.get("out", "serviceaccount/default")["metadata"]["uid"].is_string().then_some(())
    });
    select("NotIn", "ignore");
    gives("default", true);
    gives("out", false);
    select("In", "allocate");
    gives("default", false);
    gives("pods", true);
}

/// Two guests that run with one address: reported on both, counted while they run, but not for opted-out namespaces.
fn collisions(place: &Place, replica: &Replica) {
    let metric = "kmp_mac_collisions{mac=\"0a:00:00:00:00:99\"}";
    let run = |namespace: &str, name: &str| {
        place.apply(&guest(namespace, name, "0a:00:00:00:00:99").to_string());
    };
    run("out", "nobody");
    run("default", "left");
    assert_eq!(replica.metric(metric), None);
    run("default", "right");
    until("the collision is counted", || (replica.metric(metric) == Some(2)).then_some(()));
    let told = |name: &str, expected: &str| {
        let selector =
            format!("--field-selector=involvedObject.name={name},reason=MACCollision,type=Warning");
        until(&format!("{name}'s collision is told"), || {
            let events = place.kubectl(&["-n", "default", "get", "events", &selector, "-o", "json"]);
            let events: Value = serde_json::from_str(&events).unwrap();
            events["items"].as_array()?.iter().any(|event| event["message"] == expected).then_some(())
        });
    };
    let pair = "MAC 0a:00:00:00:00:99: Collision between vmi/default/left, vmi/default/right";
    ["left", "right"].into_iter().for_each(|name| told(name, pair));
    // A third one is news for each of them.
    run("default", "third");
    let three = format!("{pair}, vmi/default/third");
    ["left", "right", "third"].into_iter().for_each(|name| told(name, &three));
    place.kubectl(&["-n", "default", "delete", "vmi", "third"]);
    until("the third has left", || (replica.metric(metric) == Some(2)).then_some(()));
    let of_containers = replica.metric("kmp_mac_collisions{mac=\"02:42:00:00:00:01\"}");
    assert_eq!(of_containers, None, "what guests have inside is nobody's affair");
    place.kubectl(&["-n", "default", "delete", "vmi", "left"]);
    until("the collision is over", || replica.metric(metric).is_none().then_some(()));
    // It starts again, as after a reboot: alone, without a collision.
    place.kubectl(&["-n", "default", "delete", "vmi", "right"]);
    run("default", "right");
    run("default", "marker-1");
    run("default", "marker-2");
    until("all is heard of", || (replica.metric(metric) == Some(3)).then_some(()));
    place.kubectl(&["-n", "default", "delete", "vmi", "marker-1", "marker-2"]);
    until("one is left", || replica.metric(metric).is_none().then_some(()));
}

/// The range is edited to three addresses: exhaustion, release, and what a later check rejects.
fn small_range(place: &Place) {
    let patch = json!({"data": {"RANGE_START": A, "RANGE_END": C}}).to_string();
    let map = ["-n", NAMESPACE, "patch", "configmap", "kubemacpool-mac-range-config", "-p"];
    place.kubectl(&[&map[..], &[&patch]].concat());
    let create = |name: &str| {
        let object = machine(name, &json!([interface("a")]));
        let run = place.feed(&["-n", "default", "create", "-o", "json", "-f", "-"], &object.to_string());
        if run.status.success() {
            Ok(addresses(&serde_json::from_slice(&run.stdout).unwrap()).remove(0))
        } else {
            Err(String::from_utf8_lossy(&run.stderr).into_owned())
        }
    };
    // One is given out of the new range as soon as that is heard of, and a block of it is claimed.
    until("the range has changed", || {
        let found = create("small-0");
        if found.as_ref().is_ok_and(|mac| mac.as_str() <= C) {
            return Some(());
        }
        place.try_kubectl(&["-n", "default", "delete", "vm", "small-0"]);
        None
    });
    // Those that were made on the way hold addresses of the old range only.
    let all = [create("small-1"), create("small-2")];
    assert!(all.iter().all(Result::is_ok), "{all:?}");
    let said = create("small-3").unwrap_err();
    assert!(said.contains("has 3 addresses") && said.contains(&format!("{A}-{C}")), "{said}");
    place.kubectl(&["-n", "default", "delete", "vm", "small-1"]);
    let freed = until("a deleted machine's address is free", || create("small-3").ok());
    assert_eq!(Ok(&freed), all[0].as_ref());

    // A wrong range changes nothing.
    let wrong = json!({"data": {"RANGE_START": C, "RANGE_END": A}}).to_string();
    place.kubectl(&[&map[..], &[&wrong]].concat());
    until("it is told", || place.log(0).contains("the previous range stays").then_some(()));
    let message = until("the replica's pod is told", || {
        let selector =
            "--field-selector=involvedObject.kind=Pod,involvedObject.name=macpool-0,reason=InvalidRange";
        let events = place.kubectl(&["-n", NAMESPACE, "get", "events", selector, "-o", "json"]);
        let events: Value = serde_json::from_str(&events).unwrap();
        events["items"][0]["message"].as_str().map(str::to_owned)
    });
    assert!(message.contains("is greater than") && message.contains(&format!("{A}-{C} stays")), "{message}");
    assert!(create("small-4").unwrap_err().contains("has 3 addresses"));

    // A machine rejected after the webhook frees its address within the wait of 5 seconds.
    place.kubectl(&["-n", "default", "delete", "vm", "small-3"]);
    place.apply(
        "apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: no-bad-machines}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules: [{apiGroups: [kubevirt.io], apiVersions: [v1], operations: [CREATE], resources: [virtualmachines]}]
  validations: [{expression: \"!object.metadata.name.startsWith('bad')\", message: no bad machine}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: no-bad-machines}
spec: {policyName: no-bad-machines, validationActions: [Deny]}
",
    );
    let rejected = until("the policy counts", || match create("bad") {
        Err(said) if said.contains("no bad machine") => Some(Instant::now()),
        Err(_) => None,
        Ok(_) => {
            place.kubectl(&["-n", "default", "delete", "vm", "bad"]);
            None
        }
    });
    while create("small-5").is_err() {
        assert!(rejected.elapsed() < Duration::from_secs(60), "the address is not free");
        thread::sleep(Duration::from_millis(100));
    }
}
