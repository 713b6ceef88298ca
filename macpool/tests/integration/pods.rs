//! Reviews of pods, case by case.

use api::net::pool::{Owner, View};
use macpool::namespaces::Policy;
use macpool::review::Hook;
use serde_json::{Value, json};

use crate::support::{NOW, WAIT, ask, create, mac, pod, pool, update, written};

const RANGE: (&str, &str) = ("02:00:00:00:00:00", "02:00:00:00:ff:ff");

/// The networks of a pod's annotation.
fn networks(pod: &Value) -> Value {
    let text = pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"].as_str().unwrap();
    serde_json::from_str(text).unwrap()
}

#[test]
fn networks_get_addresses() {
    for (given, expected) in [
        (json!([{"name": "a"}]), json!([{"name": "a", "mac": "02:00:00:00:00:00"}])),
        (json!([{"name": "a", "mac": ""}]), json!([{"name": "a", "mac": "02:00:00:00:00:00"}])),
        (
            json!([{"name": "a", "namespace": "n", "ips": ["10.0.0.1"], "new": {"x": 1}}, {"name": "a"}]),
            json!([
                {"name": "a", "namespace": "n", "ips": ["10.0.0.1"], "new": {"x": 1}, "mac": "02:00:00:00:00:00"},
                {"name": "a", "mac": "02:00:00:00:00:01"},
            ]),
        ),
        (
            json!([{"name": "a", "mac": "02:00:00:00:00:00"}, {"name": "b"}]),
            json!([{"name": "a", "mac": "02:00:00:00:00:00"}, {"name": "b", "mac": "02:00:00:00:00:01"}]),
        ),
    ] {
        let mut pool = pool(RANGE.0, RANGE.1);
        let request = create(&pod("p", &given.to_string()));
        let reply = ask(&mut pool, Hook::Pods, &request, Policy::Reject);
        let object = written(&request, &reply);
        assert_eq!(networks(&object), expected);
        assert_eq!(object["metadata"]["annotations"]["other"], "kept");
        let paths: Vec<_> = reply.patch().iter().map(|one| one["path"].clone()).collect();
        assert_eq!(paths, ["/metadata/annotations/k8s.v1.cni.cncf.io~1networks"], "not the whole map");
        assert_eq!(pool.held(), expected.as_array().unwrap().len());
    }
}

#[test]
fn pods_that_are_left_alone() {
    let plain = pod("p", r#"[{"name":"a"}]"#);
    let mut attached = plain.clone();
    attached["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"] = "[]".into();
    let mut none = plain.clone();
    none["metadata"].as_object_mut().unwrap().remove("annotations");
    let mut requests = vec![create(&attached), create(&none), update(&plain, &plain)];
    for text in ["", "a,b", "n/a@net1", "[", "{}", "[]", "[1,\"a\"]", r#"[{"name":"a","mac":5}]"#] {
        requests.push(create(&pod("p", text)));
    }
    requests.push(create(&pod("p", &"[".repeat(10_000))));
    for request in requests {
        let mut pool = pool(RANGE.0, RANGE.1);
        let reply = ask(&mut pool, Hook::Pods, &request, Policy::Reject);
        assert!(reply.is_allowed() && reply.patch().is_empty() && pool.held() == 0, "{request}");
    }
}

#[test]
fn a_guests_pod_is_left_to_its_machine_and_done_without_one() {
    let mut launcher = pod("virt-launcher-v-x", r#"[{"name":"a"},{"name":"b","mac":"0a:00:00:00:00:01"}]"#);
    launcher["metadata"]["ownerReferences"] = json!([{"kind": "VirtualMachineInstance", "name": "v"}]);
    let request = create(&launcher);
    let mut with_machine = pool(RANGE.0, RANGE.1);
    with_machine.observe(&Owner::new(View::Machine, "default", "v"), None, vec![]);
    let reply = ask(&mut with_machine, Hook::Pods, &request, Policy::Reject);
    assert!(reply.is_allowed() && reply.patch().is_empty());
    let mut bare = pool(RANGE.0, RANGE.1);
    // Its instance has the address too: they are one guest.
    bare.observe(&Owner::new(View::Instance, "default", "v"), None, vec![mac("0a:00:00:00:00:01")]);
    let reply = ask(&mut bare, Hook::Pods, &request, Policy::Reject);
    assert_eq!(networks(&written(&request, &reply))[0]["mac"], "02:00:00:00:00:00");
}

#[test]
fn invalid_pods_are_refused() {
    for (text, why) in [
        (r#"[{"name":"a"},{"name":"b","mac":"02"}]"#.to_owned(), "network 1: \"02\""),
        (r#"[{"name":"b","mac":"01:00:00:00:00:00"}]"#.to_owned(), "multicast"),
        (r#"[{"name":"b","mac":"02:00:00:00:00:09"}]"#.to_owned(), "is in use by Pod default/other"),
        (Value::from(vec![json!({}); 300]).to_string(), "300 networks"),
    ] {
        let mut pool = pool(RANGE.0, RANGE.1);
        pool.observe(&Owner::new(View::Pod, "default", "other"), None, vec![mac("02:00:00:00:00:09")]);
        let reply = ask(&mut pool, Hook::Pods, &create(&pod("p", &text)), Policy::Reject);
        let error = reply.refused().unwrap().to_string();
        assert!(error.contains(why), "{error}");
        assert_eq!(pool.held(), 1);
    }
}

#[test]
fn duplicates_are_allowed_or_rewritten() {
    for (policy, expected) in [(Policy::Allow, "02:00:00:00:00:09"), (Policy::Rewrite, "02:00:00:00:00:00")] {
        let mut pool = pool(RANGE.0, RANGE.1);
        pool.observe(&Owner::new(View::Pod, "default", "other"), None, vec![mac("02:00:00:00:00:09")]);
        let request = create(&pod("p", r#"[{"name":"b","mac":"02:00:00:00:00:09"}]"#));
        let reply = ask(&mut pool, Hook::Pods, &request, policy);
        assert_eq!(networks(&written(&request, &reply))[0]["mac"], expected);
    }
}

#[test]
fn a_pod_without_a_name_yet_holds_its_address_until_it_is_seen_or_time_passes() {
    let mut object = pod("", r#"[{"name":"a"}]"#);
    object["metadata"].as_object_mut().unwrap().remove("name");
    object["metadata"]["generateName"] = "web-".into();
    let mut request = create(&object);
    let mut pool = pool(RANGE.0, RANGE.1);
    for uid in ["u-1", "u-2"] {
        request["uid"] = uid.into();
        assert!(ask(&mut pool, Hook::Pods, &request, Policy::Reject).is_allowed());
    }
    let first = mac("02:00:00:00:00:00");
    let named = Owner::new(View::Pod, "default", "web-abc");
    pool.observe(&named, None, vec![first]);
    pool.named(&named, "web-", &[first]);
    assert_eq!(pool.holders(first).collect::<Vec<_>>(), [&named]);
    assert_eq!(pool.held(), 2);
    pool.expire(NOW + WAIT);
    assert_eq!(pool.held(), 1);
}

#[test]
fn a_dry_run_keeps_nothing() {
    let mut request = create(&pod("p", r#"[{"name":"a"}]"#));
    request["dryRun"] = true.into();
    let mut pool = pool(RANGE.0, RANGE.1);
    let reply = ask(&mut pool, Hook::Pods, &request, Policy::Reject);
    assert_eq!(networks(&written(&request, &reply))[0]["mac"], "02:00:00:00:00:00");
    assert_eq!(pool.held(), 0);
}
