//! Reviews of VirtualMachines, case by case: upstream's unit tests as tables over AdmissionReview documents.

use std::collections::HashMap;

use api::net::pool::{Owner, View};
use macpool::Kind;
use macpool::namespaces::Policy;
use macpool::review::{Answer, Hook};
use serde_json::{Value, json};

use crate::support::{
    NOW, STAMP, STAMP_TEXT, WAIT, addresses, ask, ask_with, create, mac, machine, pool, update, written,
};

const ANNOTATION: &str = "kubemacpool.io/transaction-timestamp";
const RANGE: (&str, &str) = ("02:00:00:00:00:00", "02:00:00:00:ff:ff");

fn owner(name: &str) -> Owner {
    Owner::new(View::Machine, "default", name)
}

#[test]
fn creating_gives_addresses_to_what_masquerades_or_is_on_multus() {
    // The request, and the expected address.
    for (interfaces, expected) in [
        (json!([]), json!([])),
        (json!([{"name": "pod", "masquerade": {}}]), json!(["02:00:00:00:00:00"])),
        (json!([{"name": "pod", "bridge": {}}]), json!([null])),
        (json!([{"name": "pod", "bridge": {}, "macAddress": "x"}]), json!(["x"])),
        (json!([{"name": "a", "bridge": {}}]), json!(["02:00:00:00:00:00"])),
        (json!([{"name": "a", "sriov": {}, "macAddress": null}]), json!(["02:00:00:00:00:00"])),
        (json!([{"name": "a", "bridge": {}, "macAddress": ""}]), json!(["02:00:00:00:00:00"])),
        (
            json!([{"name": "pod", "masquerade": {}}, {"name": "a", "bridge": {}}, {"name": "b", "bridge": {}}]),
            json!(["02:00:00:00:00:00", "02:00:00:00:00:01", "02:00:00:00:00:02"]),
        ),
        (
            json!([{"name": "a", "bridge": {}, "macAddress": "0A-00-00-00-00-0f"}]),
            json!(["0A-00-00-00-00-0f"]),
        ),
        (
            json!([{"name": "a", "bridge": {}}, {"name": "b", "bridge": {}, "macAddress": "02:00:00:00:00:00"}]),
            json!(["02:00:00:00:00:01", "02:00:00:00:00:00"]),
        ),
    ] {
        let mut pool = pool(RANGE.0, RANGE.1);
        let request = create(&machine("a", interfaces.clone()));
        let reply = ask(&mut pool, Hook::Machines, &request, Policy::Reject);
        let object = written(&request, &reply);
        assert_eq!(addresses(&object), expected, "{interfaces}");
        assert_eq!(object["metadata"]["annotations"], json!({ANNOTATION: STAMP_TEXT}));
        for text in expected.as_array().unwrap().iter().filter_map(Value::as_str).filter(|text| *text != "x")
        {
            assert_eq!(pool.holders(mac(text)).collect::<Vec<_>>(), [&owner("a")], "{text}");
        }
    }
}

#[test]
fn nothing_but_addresses_and_the_stamp_is_touched() {
    let mut pool = pool(RANGE.0, RANGE.1);
    let mut object = machine("a", json!([{"name": "a", "bridge": {}, "newField": {"x": [1]}}]));
    object["metadata"]["annotations"] = json!({"mine": "kept", ANNOTATION: "old"});
    object["spec"]["unknown"] = json!([null, {"a": 1.5}]);
    let request = create(&object);
    let reply = ask(&mut pool, Hook::Machines, &request, Policy::Allow);
    let paths: Vec<&str> = reply.patch().iter().map(|one| one["path"].as_str().unwrap()).collect();
    assert_eq!(
        paths,
        [
            "/metadata/annotations/kubemacpool.io~1transaction-timestamp",
            "/spec/template/spec/domain/devices/interfaces/0/macAddress",
        ]
    );
    let mut found = written(&request, &reply);
    assert_eq!(found["metadata"]["annotations"], json!({"mine": "kept", ANNOTATION: STAMP_TEXT}));
    found["metadata"]["annotations"] = object["metadata"]["annotations"].clone();
    let interface = &mut found["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"][0];
    interface.as_object_mut().unwrap().remove("macAddress");
    assert_eq!(found, object);
    let document = reply.document();
    assert_eq!(
        (&document["apiVersion"], &document["kind"]),
        (&"admission.k8s.io/v1".into(), &"AdmissionReview".into())
    );
    assert_eq!(
        (&document["response"]["uid"], &document["response"]["patchType"]),
        (&"u-1".into(), &"JSONPatch".into())
    );
}

#[test]
fn invalid_machines_are_refused_and_hold_nothing() {
    let bridge = |name: &str, address: &str| json!({"name": name, "bridge": {}, "macAddress": address});
    for (interfaces, why) in [
        (
            json!([{"name": "z", "bridge": {}}, bridge("a", "02:00")]),
            "spec.template.spec.domain.devices.interfaces[1].macAddress: \"02:00\" is not a MAC",
        ),
        (json!([bridge("a", "01:00:00:00:00:01")]), "multicast"),
        (json!([bridge("a", "00:00:00:00:00:00")]), "zero"),
        (json!([bridge("a", "ff:ff:ff:ff:ff:ff")]), "multicast"),
        (json!([bridge("a", &"x".repeat(4000))]), "xxx…"),
        (json!([bridge("a", "02:00:00:00:00:01"), bridge("b", "02-00-00-00-00-01")]), "two interfaces"),
        (json!([{"name": "a", "bridge": {}}, {"name": "a", "masquerade": {}}]), "the name \"a\""),
        (vec![json!({}); 257].into(), "257 interfaces"),
    ] {
        let mut pool = pool(RANGE.0, RANGE.1);
        let object = machine("a", interfaces.clone());
        let reply = ask(&mut pool, Hook::Machines, &create(&object), Policy::Allow);
        let error = reply.refused().unwrap();
        assert!(error.kind() == Kind::Invalid && error.to_string().contains(why), "{error} {why}");
        assert!(reply.patch().is_empty() && pool.held() == 0);
        assert_eq!(reply.document()["response"]["status"]["code"], 422);
        let old = machine("a", json!([]));
        assert!(!ask(&mut pool, Hook::Machines, &update(&old, &object), Policy::Allow).is_allowed());
    }
}

#[test]
fn an_address_that_another_machine_has() {
    let interfaces = json!([{"name": "a", "bridge": {}, "macAddress": "02:00:00:00:00:05"}]);
    for (policy, expected) in [
        (Policy::Allow, Some("02:00:00:00:00:05")),
        (Policy::Reject, None),
        (Policy::Rewrite, Some("02:00:00:00:00:00")),
    ] {
        for by in ["default", "elsewhere"] {
            let mut pool = pool(RANGE.0, RANGE.1);
            let five = mac("02:00:00:00:00:05");
            pool.observe(&Owner::new(View::Machine, by, "other"), None, vec![five]);
            let request = create(&machine("a", interfaces.clone()));
            let reply = ask(&mut pool, Hook::Machines, &request, policy);
            assert_eq!(reply.duplicates(), [five]);
            let document = reply.document();
            match expected {
                None => {
                    let error = reply.refused().unwrap();
                    assert_eq!(error.kind(), Kind::Taken);
                    assert_eq!(error.to_string().contains("default/other"), by == "default", "{error}");
                    assert_eq!(pool.holders(five).count(), 1);
                    assert_eq!(document["response"]["status"]["code"], 409);
                }
                Some(text) => {
                    assert_eq!(addresses(&written(&request, &reply)), json!([text]));
                    assert!(pool.holders(mac(text)).any(|holder| *holder == owner("a")));
                    let warning = document["response"]["warnings"][0].as_str().unwrap();
                    assert!(warning.contains("is in use"), "{warning}");
                    assert_eq!(warning.contains("other"), by == "default", "{warning}");
                }
            }
        }
    }
}

/// The address in a user's file stays there: each time the file is applied, the address is another object's.
#[test]
fn a_rewritten_address_stays_when_the_same_is_applied_again() {
    let mut pool = pool(RANGE.0, RANGE.1);
    let five = mac("02:00:00:00:00:05");
    pool.observe(&owner("other"), None, vec![five]);
    let a = json!({"name": "a", "bridge": {}, "macAddress": "02:00:00:00:00:05"});
    let request = create(&machine("clone", json!([a])));
    let made = written(&request, &ask(&mut pool, Hook::Machines, &request, Policy::Rewrite));
    let first = addresses(&made);
    assert_ne!(first, json!(["02:00:00:00:00:05"]));
    pool.observe(&owner("clone"), Some(STAMP), vec![mac(first[0].as_str().unwrap())]);
    for _ in 0..2 {
        let request = update(&made, &machine("clone", json!([a])));
        let reply = ask(&mut pool, Hook::Machines, &request, Policy::Rewrite);
        assert_eq!(addresses(&written(&request, &reply)), first);
        assert_eq!(reply.duplicates(), [five]);
    }
    // Where another interface has taken that, there is a third.
    let b = json!({"name": "b", "bridge": {}, "macAddress": first[0]});
    let request = update(&made, &machine("clone", json!([a, b])));
    let both = addresses(&written(&request, &ask(&mut pool, Hook::Machines, &request, Policy::Rewrite)));
    assert!(both[1] == first[0] && both[0] != first[0] && both[0] != "02:00:00:00:00:05", "{both}");
}

/// Replicas' clocks differ: a promise is never taken for one that the object as it is has redeemed.
#[test]
fn a_stamp_is_later_than_the_one_before() {
    let mut pool = pool(RANGE.0, RANGE.1);
    let ahead = "2026-09-21T14:13:29Z";
    let mut old = machine("a", json!([]));
    old["metadata"]["annotations"] = json!({ANNOTATION: ahead});
    let mut new = machine("a", json!([{"name": "a", "bridge": {}}]));
    new["metadata"]["annotations"] = json!({ANNOTATION: ahead});
    let request = update(&old, &new);
    let object = written(&request, &ask(&mut pool, Hook::Machines, &request, Policy::Allow));
    assert_eq!(object["metadata"]["annotations"][ANNOTATION], "2026-09-21T14:13:29.000000001Z");
    let given = mac(addresses(&object)[0].as_str().unwrap());
    // News of the object as it was.
    let before = macpool::fields::stamp_of(ahead);
    pool.observe(&owner("a"), before, vec![]);
    assert!(!pool.is_free(given));
    pool.observe(&owner("a"), before.map(|before| before + 1), vec![]);
    assert!(pool.is_free(given));
}

#[test]
fn answers_of_another_replica_count() {
    let five = mac("02:00:00:00:00:05");
    let request =
        create(&machine("a", json!([{"name": "a", "bridge": {}, "macAddress": "02:00:00:00:00:05"}])));
    for (answer, allowed) in [(Answer::Taken, false), (Answer::Free, true)] {
        let mut pool = pool(RANGE.0, RANGE.1);
        let answers = HashMap::from([(five, answer)]);
        let reply = ask_with(&mut pool, Hook::Machines, &request, Policy::Reject, &answers);
        assert_eq!(reply.is_allowed(), allowed);
    }
}

/// Old interfaces, new ones, what is written; "-" for an address that is new.
#[test]
fn updating() {
    let a = |address: &str| json!({"name": "a", "bridge": {}, "macAddress": address});
    let b = |address: &str| json!({"name": "b", "bridge": {}, "macAddress": address});
    let (blank_a, blank_b) = (json!({"name": "a", "bridge": {}}), json!({"name": "b", "bridge": {}}));
    let (one, two, new) = ("02:00:00:00:00:01", "02:00:00:00:00:02", "0a:00:00:00:00:00");
    for (what, old, interfaces, expected) in [
        (
            "applied again without addresses",
            json!([a(one), b(two)]),
            json!([blank_a, blank_b]),
            json!([one, two]),
        ),
        (
            "applied again in another order",
            json!([a(one), b(two)]),
            json!([blank_b, blank_a]),
            json!([two, one]),
        ),
        ("the same", json!([a(one)]), json!([a(one)]), json!([one])),
        ("an interface more", json!([a(one)]), json!([a(one), blank_b]), json!([one, "-"])),
        ("an interface more, first", json!([a(one)]), json!([blank_b, blank_a]), json!(["-", one])),
        ("an interface less", json!([a(one), b(two)]), json!([a(one)]), json!([one])),
        ("another instead", json!([a(one)]), json!([blank_b]), json!(["-"])),
        ("swapped", json!([a(one), b(two)]), json!([a(two), b(one)]), json!([two, one])),
        ("taken by the other", json!([a(one)]), json!([blank_a, b(one)]), json!(["-", one])),
        ("a new address", json!([a(one)]), json!([a(new)]), json!([new])),
        ("an old one that was none", json!([a("x")]), json!([blank_a]), json!(["-"])),
        ("none before", json!([blank_a]), json!([blank_a]), json!(["-"])),
        (
            "taken by one that is none of ours",
            json!([a(one)]),
            json!([blank_a, {"name": "pod", "bridge": {}, "macAddress": one}]),
            json!(["-", one]),
        ),
    ] {
        let mut pool = pool(RANGE.0, RANGE.1);
        let had: Vec<_> = old.as_array().unwrap().iter().filter_map(|i| i["macAddress"].as_str()).collect();
        let had: Vec<_> = had.into_iter().filter(|text| *text != "x").map(mac).collect();
        pool.observe(&owner("a"), None, had.clone());
        let (old, mut new) = (machine("a", old), machine("a", interfaces));
        new["metadata"]["labels"] = json!({"changed": "yes"});
        let request = update(&old, &new);
        let reply = ask(&mut pool, Hook::Machines, &request, Policy::Reject);
        let object = written(&request, &reply);
        assert_eq!(object["metadata"]["annotations"], json!({ANNOTATION: STAMP_TEXT}), "{what}");
        assert_eq!(object["spec"]["template"]["spec"]["domain"]["devices"]["disks"][0]["io"], "native");
        let found = addresses(&object);
        for (found, expected) in found.as_array().unwrap().iter().zip(expected.as_array().unwrap()) {
            if expected == "-" {
                let found = mac(found.as_str().unwrap());
                assert!(!had.contains(&found) && !pool.is_free(found), "{what}");
            } else {
                assert_eq!(found, expected, "{what}");
            }
        }
        // The previous address is held until the new object is seen.
        assert!(had.iter().all(|mac| !pool.is_free(*mac)), "{what}");
        let macs: Vec<_> = found.as_array().unwrap().iter().filter_map(Value::as_str).map(mac).collect();
        pool.observe(&owner("a"), Some(STAMP), macs.clone());
        assert!(had.iter().all(|mac| pool.is_free(*mac) != macs.contains(mac)), "{what}");
        assert_eq!(pool.held(), macs.len(), "{what}");
    }
}

#[test]
fn an_update_that_changes_nothing_of_ours_passes_as_it_is() {
    let old = machine("a", json!([{"name": "a", "bridge": {}}]));
    let mut finalized = old.clone();
    finalized["metadata"]["finalizers"] = json!(["x"]);
    let mut labelled = old.clone();
    labelled["metadata"]["labels"] = json!({"x": "y"});
    let mut of_status = update(&old, &labelled);
    of_status["subResource"] = "status".into();
    let mut deleting = update(&old, &labelled);
    deleting["operation"] = "DELETE".into();
    for request in [update(&old, &old), update(&old, &finalized), of_status, deleting] {
        let mut pool = pool(RANGE.0, RANGE.1);
        let reply = ask(&mut pool, Hook::Machines, &request, Policy::Allow);
        assert!(reply.is_allowed() && reply.patch().is_empty() && pool.held() == 0, "{request}");
        assert!(reply.document()["response"].get("patch").is_none());
    }
}

#[test]
fn a_dry_run_shows_addresses_and_keeps_none() {
    let mut pool = pool(RANGE.0, RANGE.1);
    let given = json!({"name": "c", "bridge": {}, "macAddress": "02:00:00:00:00:00"});
    let interfaces = json!([{"name": "a", "bridge": {}}, {"name": "b", "bridge": {}}, given]);
    let mut request = create(&machine("a", interfaces));
    request["dryRun"] = true.into();
    for _ in 0..2 {
        let reply = ask(&mut pool, Hook::Machines, &request, Policy::Allow);
        let expected = json!(["02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:00"]);
        assert_eq!(addresses(&written(&request, &reply)), expected);
        assert_eq!(pool.held(), 0);
    }
}

#[test]
fn the_legacy_finalizer_is_taken_away_when_a_machine_goes() {
    let legacy = "k8s.v1.cni.cncf.io/kubeMacPool";
    for (finalizers, left) in [
        (json!(["a", legacy, "b", legacy]), json!(["a", "b"])),
        (json!([legacy]), json!([])),
        (json!(["a"]), json!(["a"])),
        (json!(null), json!(null)),
    ] {
        let mut pool = pool(RANGE.0, RANGE.1);
        let mut object = machine("a", json!([{"name": "a", "bridge": {}}]));
        object["metadata"]["finalizers"] = finalizers;
        object["metadata"]["deletionTimestamp"] = "2026-09-21T14:13:20Z".into();
        let request = update(&object, &object);
        let reply = ask(&mut pool, Hook::Machines, &request, Policy::Allow);
        assert_eq!(written(&request, &reply)["metadata"]["finalizers"], left);
        assert_eq!(pool.held(), 0);
    }
}

#[test]
fn a_full_pool_refuses_all_or_nothing_and_goes_on() {
    let mut pool = pool("02:00:00:00:00:00", "02:00:00:00:00:01");
    let three =
        json!([{"name": "a", "bridge": {}}, {"name": "b", "bridge": {}}, {"name": "c", "bridge": {}}]);
    let reply = ask(&mut pool, Hook::Machines, &create(&machine("big", three)), Policy::Allow);
    let error = reply.refused().unwrap();
    assert_eq!(error.kind(), Kind::Exhausted);
    assert!(error.to_string().contains("02:00:00:00:00:00-02:00:00:00:00:01 has 2 addresses"), "{error}");
    assert_eq!(reply.document()["response"]["status"]["code"], 503);
    assert_eq!(pool.held(), 0, "all or nothing");
    let one = json!([{"name": "a", "bridge": {}}]);
    for (name, allowed) in [("a", true), ("b", true), ("c", false)] {
        let reply = ask(&mut pool, Hook::Machines, &create(&machine(name, one.clone())), Policy::Allow);
        assert_eq!(reply.is_allowed(), allowed, "{name}");
    }
    pool.forget(&owner("b"), Some(STAMP));
    assert!(ask(&mut pool, Hook::Machines, &create(&machine("c", one)), Policy::Allow).is_allowed());
}

#[test]
fn a_create_that_is_rejected_later_frees_its_address_within_the_wait() {
    let mut pool = pool("02:00:00:00:00:00", "02:00:00:00:00:00");
    let request = create(&machine("a", json!([{"name": "a", "bridge": {}}])));
    assert!(ask(&mut pool, Hook::Machines, &request, Policy::Allow).is_allowed());
    assert_eq!(pool.held(), 1);
    pool.expire(NOW + WAIT);
    assert_eq!(pool.held(), 0);
}

#[test]
fn unknown_shapes_pass() {
    let metadata = json!({"name": "a", "namespace": "default"});
    let devices = |devices: Value| json!({"metadata": metadata, "spec": {"template": {"spec": {"domain": {"devices": devices}}}}});
    for object in [
        json!({}),
        json!({"metadata": []}),
        json!({"metadata": {"annotations": []}}),
        json!({"metadata": {"annotations": null}}),
        json!({"metadata": metadata, "spec": "x"}),
        json!({"metadata": metadata, "spec": {"template": null}}),
        devices(json!([])),
        devices(json!({"interfaces": {}})),
        devices(json!({"interfaces": [null, 1, "x", [], {}, {"name": 5}, {"name": "a", "macAddress": {}}]})),
        devices(json!({"interfaces": [{"masquerade": {}, "macAddress": 5}]})),
    ] {
        let mut pool = pool(RANGE.0, RANGE.1);
        let mut request = create(&object);
        request["name"] = "a".into();
        let reply = ask(&mut pool, Hook::Machines, &request, Policy::Reject);
        let after = written(&request, &reply);
        assert_eq!(after.get("spec"), object.get("spec"));
        assert_eq!(pool.held(), 0, "{object}");
    }
}
