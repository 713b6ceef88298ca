//! Damage by others to the objects of the pool, and the end of a process: writers of machines do not notice.

use std::process::Stdio;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use crate::macpool::setup::{
    NAMESPACE, Place, Replica, blocks, given_by, machine, manifests, review, terminate, until,
};

const SECRET: &str = "secret/kubemacpool-service";
const RANGE: (&str, &str) = ("02:00:00:00:10:00", "02:00:00:00:1f:ff");
const BOOK: &str = "configmap/kubemacpool-blocks";

/// Waits, while machines are written without a failure.
fn until_while_writing<T>(place: &Place, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let object = machine("probe", &json!([{"name": "a", "bridge": {}}])).to_string();
    until(what, || {
        let run = place.feed(&["-n", "default", "create", "--dry-run=server", "-f", "-"], &object);
        assert!(run.status.success(), "{what}: {}", String::from_utf8_lossy(&run.stderr));
        look()
    })
}

fn patch(place: &Place, what: &str, patch: &Value) {
    place.kubectl(&["-n", NAMESPACE, "patch", what, "--type=merge", "-p", &patch.to_string()]);
}

/// The authorities in the Secret; null when it is not ours.
fn authorities(place: &Place) -> Value {
    let secret = place.get(NAMESPACE, SECRET);
    let text = secret["data"]["store.json"].as_str().unwrap_or_default();
    let bytes = BASE64.decode(text).unwrap();
    serde_json::from_slice::<Value>(&bytes).unwrap_or_default()["authorities"].clone()
}

/// The manifests are applied over what kubemacpool's own have made.
fn over_upstreams(place: &Place) {
    let labels = json!({"control-plane": "mac-controller-manager", "controller-tools.k8s.io": "1.0"});
    let volume = json!({"name": "tls-key-pair", "secret": {"secretName": "kubemacpool-service"}});
    let container = json!({
        "name": "manager",
        "image": "none",
        "volumeMounts": [{"name": "tls-key-pair", "mountPath": "/tmp/k8s-webhook-server/serving-certs/"}],
    });
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "kubemacpool-mac-controller-manager", "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "replicas": 0,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [container], "volumes": [volume]},
            },
        },
    });
    place.kubectl(&["-n", NAMESPACE, "delete", "deployment", "--all"]);
    place.apply(&deployment.to_string());
    place.apply(&manifests(RANGE.0, RANGE.1));
    let found = place.get(NAMESPACE, "deployment/kubemacpool-mac-controller-manager");
    let spec = &found["spec"]["template"]["spec"];
    assert_eq!((&spec["serviceAccountName"], &spec["volumes"]), (&"kubemacpool-sa".into(), &Value::Null));
}

#[test]
fn objects_that_others_change_and_processes_that_end() {
    let place = Place::new(RANGE.0, RANGE.1);
    // As kubemacpool leaves it. A Secret's type is for ever.
    let left = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "kubemacpool-service", "namespace": NAMESPACE, "labels": {"of": "others"}},
        "type": "kubernetes.io/tls",
        "data": {"tls.crt": BASE64.encode("old"), "tls.key": BASE64.encode("old")},
    });
    place.apply(&left.to_string());
    over_upstreams(&place);
    let replica = place.replica(0, &[]);
    let secret = place.get(NAMESPACE, SECRET);
    assert_eq!(
        (&secret["type"], &secret["metadata"]["labels"]),
        (&left["type"], &left["metadata"]["labels"])
    );
    let certificate = BASE64.decode(secret["data"]["tls.crt"].as_str().unwrap()).unwrap();
    assert!(certificate.starts_with(b"-----BEGIN CERTIFICATE"));

    // The Secret: torn, and deleted. What made the certificate in use is trusted still.
    let first = authorities(&place)[0].clone();
    let torn = json!({"data": {"store.json": BASE64.encode("{\"authorities\": [")}});
    for (damage, count) in [(torn, 2), (Value::Null, 3)] {
        if damage.is_null() {
            place.kubectl(&["-n", NAMESPACE, "delete", SECRET]);
        } else {
            patch(&place, SECRET, &damage);
        }
        until_while_writing(&place, "the Secret is whole again", || {
            let now = authorities(&place);
            (now[0] == first && now.as_array().unwrap().len() == count).then_some(())
        });
    }

    // A new one is as upstream's, so that kubemacpool can come back.
    assert_eq!(place.get(NAMESPACE, SECRET)["type"], "kubernetes.io/tls");

    // The object of blocks: gone, torn, emptied. It comes back as it was, from the same process.
    let before = place.book();
    for damage in [Value::Null, json!({"data": {"blocks.json": "{"}}), json!({"data": {"blocks.json": null}})]
    {
        if damage.is_null() {
            place.kubectl(&["-n", NAMESPACE, "delete", BOOK]);
        } else {
            patch(&place, BOOK, &damage);
        }
        until_while_writing(&place, "the object of blocks is whole again", || {
            let text = place.get(NAMESPACE, BOOK)["data"]["blocks.json"].as_str()?.to_owned();
            let line = serde_json::from_str::<Value>(&text).ok()?["replicas"]["macpool-0"].clone();
            let same = |key: &str| line[key] == before["replicas"]["macpool-0"][key];
            (same("incarnation") && same("blocks")).then_some(())
        });
    }

    // Another replica gets our blocks: we allocate from others from then on.
    let stolen = blocks(&before, "macpool-0");
    let thief = json!({"incarnation": "t", "address": "127.0.0.1:1", "beat": 1, "blocks": stolen});
    let book = json!({"replicas": {"thief": thief}}).to_string();
    patch(&place, BOOK, &json!({"data": {"blocks.json": book}}));
    place.namespace("reject", &json!({}));
    let ours = until("others are claimed", || {
        let found = place.book()["replicas"]["macpool-0"]["blocks"].as_array()?.clone();
        (!found.is_empty()).then_some(found)
    });
    for number in 0..100 {
        let mac = given_by(&replica.post(&review(&format!("after-{number}"), None))).unwrap();
        let block = u64::from_str_radix(&mac.replace(':', ""), 16).unwrap() >> 8;
        assert!(
            stolen.iter().all(|(first, count)| !(*first..first + count).contains(&block)),
            "{mac} {ours:?}"
        );
    }

    // Upstream's second Deployment: certificates only, and no range.
    let mut only = place
        .command(7)
        .env("RUN_CERT_MANAGER", "")
        .arg("-v=production")
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    place.kubectl(&["-n", NAMESPACE, "delete", SECRET]);
    until_while_writing(&place, "the Secret is there", || authorities(&place).is_array().then_some(()));
    assert!(only.try_wait().unwrap().is_none(), "{}", place.log(7));
    assert_eq!(terminate(&mut only).code(), Some(0), "{}", place.log(7));

    // A replica announces its end, and another has its blocks long before a lease is over.
    let line = place.book()["replicas"]["macpool-0"].clone();
    assert_eq!(replica.terminate().code(), Some(0), "{}", place.log(0));
    assert_eq!(place.book()["replicas"]["macpool-0"]["left"], true, "{}", place.log(0));
    let next = place.start(1, &[]);
    let book = place.book();
    assert!(book["replicas"]["macpool-0"].is_null(), "{book}");
    let runs = blocks(&book, "macpool-1");
    for run in line["blocks"].as_array().unwrap() {
        let first = run[0].as_u64().unwrap();
        assert!(runs.iter().any(|(from, count)| (*from..from + count).contains(&first)), "{line} {book}");
    }
    without_kubevirt(&place, &next);
}

/// KubeVirt's kinds go and come back: no request waits for them, and their objects are known when they are back.
fn without_kubevirt(place: &Place, replica: &Replica) {
    let held = |replica: &Replica| replica.metric("macpool_addresses_held");
    place.kubectl(&["delete", "mutatingwebhookconfiguration", "kubemacpool-mutator"]);
    let object =
        machine("straight", &json!([{"name": "a", "bridge": {}, "macAddress": "0a:00:00:00:00:01"}]));
    let make = || drop(place.feed(&["-n", "default", "create", "-f", "-"], &object.to_string()));
    make();
    until("it is seen", || held(replica).is_some_and(|held| held > 0).then_some(()));
    let kinds = ["virtualmachines.kubevirt.io", "virtualmachineinstances.kubevirt.io"];
    place.kubectl(&[&["delete", "crd"], &kinds[..]].concat());
    until("nothing is held", || (held(replica) == Some(0)).then_some(()));
    let late = place.start(2, &[]);
    assert_eq!(held(&late), Some(0));
    place.kinds();
    make();
    until("both have seen it", || [replica, &late].iter().all(|one| held(one) == Some(1)).then_some(()));
}

/// Rights as those of upstream's manifests: no patch of webhooks, and no ConfigMap of its own. Upstream runs one replica.
fn rights_of_upstream(place: &Place, role: &str) {
    let rule = |group: &str, resources: &[&str], verbs: &[&str]| json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
    let read = ["get", "list", "watch"];
    let cluster = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "kubemacpool-manager-role"},
        "rules": [
            rule("admissionregistration.k8s.io", &["mutatingwebhookconfigurations"],
                &["get", "list", "watch", "update"]),
            rule("", &["secrets"], &["get", "list", "watch", "create", "update"]),
            rule("", &["configmaps"], &read),
            rule("", &["events"], &["get", "list", "create", "update"]),
            rule("", &["pods", "namespaces"], &read),
            rule("kubevirt.io", &["virtualmachines", "virtualmachineinstances"], &read),
            rule("authentication.k8s.io", &["tokenreviews"], &["create"]),
            rule("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
        ],
    });
    place.kubectl(&["-n", NAMESPACE, "delete", role]);
    place.apply(&cluster.to_string());
}

#[test]
fn the_rights_of_upstreams_manifests_are_enough_for_one_replica() {
    let place = Place::new(RANGE.0, RANGE.1);
    rights_of_upstream(&place, "role/kubemacpool-manager-role");
    let bundle = || {
        let found = place.get("default", "mutatingwebhookconfiguration/kubemacpool-mutator");
        found["webhooks"][0]["clientConfig"]["caBundle"].as_str().map(str::to_owned)
    };
    assert_eq!(bundle(), None);
    // Two machines have one address before the pool comes.
    let fixed = json!([{"name": "a", "bridge": {}, "macAddress": "02:00:00:00:10:01"}]);
    place.kubectl(&["delete", "mutatingwebhookconfiguration", "kubemacpool-mutator"]);
    ["first", "second"].into_iter().for_each(|name| place.apply(&machine(name, &fixed).to_string()));
    place.apply(&manifests(RANGE.0, RANGE.1));
    rights_of_upstream(&place, "role/kubemacpool-manager-role");
    let replica = place.replica(0, &[]);
    assert!(bundle().is_some() && place.log(0).contains("takes itself for the only replica"));
    assert_eq!(place.get(NAMESPACE, BOOK), Value::Null);
    assert_eq!(replica.metric("kubevirt_kmp_duplicate_macs"), Some(1));
    place.reject();
    until("duplicates are refused", || {
        let answer = replica.post(&review("third", Some("02:00:00:00:10:01")));
        let text = answer["response"]["status"]["message"].as_str()?.to_owned();
        text.contains("duplicate MAC address 02:00:00:00:10:01").then_some(())
    });
    let given = given_by(&replica.post(&review("fourth", None))).unwrap();
    // Another process of the same name: what was given before is not given again while its object is there.
    let kept = machine("kept", &json!([{"name": "a", "bridge": {}, "macAddress": given}]));
    place.apply(&kept.to_string());
    replica.kill();
    let replica = place.replica(0, &[]);
    for number in 0..50 {
        let mac = given_by(&replica.post(&review(&format!("later-{number}"), None))).unwrap();
        assert_ne!(mac, given);
    }
    // With the rights of this release it starts again, and shares.
    place.apply(&manifests(RANGE.0, RANGE.1));
    until("it ends to share", || place.log(0).contains("starts again to share").then_some(()));
}
