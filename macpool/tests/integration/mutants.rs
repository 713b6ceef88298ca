//! Reviews with bytes and parts changed at random, 100 000 with FERROVIRT_SOAK=1: each is a bad request, or gets an answer
//! that the API server can use.

use std::collections::HashMap;

use api::net::pool::Pool;
use base64::Engine;
use macpool::Kind;
use macpool::namespaces::Policy;
use macpool::review::{Circumstances, Hook, Review};
use serde_json::{Value, json};

use crate::support::{NOW, STAMP, apply, create, machine, pod, pool, review, update};

/// xorshift64*: the same mutants in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }
}

fn corpus() -> Vec<(Hook, Value)> {
    let interfaces = json!([
        {"name": "pod", "masquerade": {}},
        {"name": "a", "bridge": {}, "macAddress": "02:00:00:00:00:05"},
        {"name": "b", "sriov": {}},
    ]);
    let old = machine("v", json!([{"name": "a", "bridge": {}, "macAddress": "02:00:00:00:00:06"}]));
    let mut new = machine("v", interfaces);
    let created = create(&new);
    new["metadata"]["annotations"] = json!({"a": "b"});
    new["metadata"]["finalizers"] = json!(["k8s.v1.cni.cncf.io/kubeMacPool", "x"]);
    let updated = update(&old, &new);
    let mut leaving = new.clone();
    leaving["metadata"]["deletionTimestamp"] = "2026-09-21T14:13:20Z".into();
    let networks = r#"[{"name":"a","mac":"02:00:00:00:00:07"},{"name":"b"}]"#;
    [
        (Hook::Machines, created),
        (Hook::Machines, updated),
        (Hook::Machines, update(&new, &leaving)),
        (Hook::Pods, create(&pod("p", networks))),
    ]
    .map(|(hook, request)| (hook, review(&request)))
    .into()
}

/// All paths of a document.
fn paths(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    let key = |key: &str| format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
    match value {
        Value::Object(map) => map.iter().for_each(|(name, inner)| paths(inner, &key(name), found)),
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(index, inner)| paths(inner, &key(&index.to_string()), found));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Puts something else at a random place, or takes it away, or copies it from elsewhere.
fn change(document: &mut Value, random: &mut Random) {
    let mut all = Vec::new();
    paths(document, "", &mut all);
    let from = document.pointer(&all[random.below(all.len())]).unwrap().clone();
    let at = all[random.below(all.len())].clone();
    let strange = [
        json!(null),
        json!([]),
        json!({}),
        json!(""),
        json!(true),
        json!(-1),
        json!(1e300),
        json!("02:00:00:00:00:05"),
        json!("ff:ff:ff:ff:ff:ff"),
        json!("\u{0}\u{10ffff}\"\\"),
        json!("x".repeat(1000)),
        json!([[[[]]]]),
        json!({"name": "a", "macAddress": "02:00:00:00:00:05", "masquerade": {}}),
        vec![json!({"masquerade": {}}); 300].into(),
    ];
    match random.below(3) {
        0 => *document.pointer_mut(&at).unwrap() = from,
        1 => *document.pointer_mut(&at).unwrap() = strange[random.below(strange.len())].clone(),
        _ => {
            let Some((parent, key)) = at.rsplit_once('/') else { return };
            match document.pointer_mut(parent) {
                Some(Value::Object(map)) => drop(map.remove(&key.replace("~1", "/").replace("~0", "~"))),
                Some(Value::Array(list)) => drop(list.pop()),
                _ => {}
            }
        }
    }
}

fn mutant(document: &Value, random: &mut Random) -> Vec<u8> {
    let mut document = document.clone();
    for _ in 0..random.below(4) {
        change(&mut document, random);
    }
    let mut bytes = document.to_string().into_bytes();
    // Most of a document's bytes cannot be changed without making it no JSON.
    if random.below(3) == 0 {
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len());
            match random.below(4) {
                0 => bytes[at] ^= 1 << random.below(8),
                1 => drop(bytes.remove(at)),
                2 => bytes.insert(at, b"{}[]\",:0a\\ \xff"[random.below(12)]),
                _ => bytes.truncate(at.max(1)),
            }
            if bytes.is_empty() {
                break;
            }
        }
    }
    bytes
}

/// Whether the bytes were a review.
fn check(pool: &mut Pool, hook: Hook, policy: Policy, bytes: &[u8]) -> bool {
    let document = serde_json::from_slice::<Value>(bytes);
    let uid = document.as_ref().ok().and_then(|document| document.pointer("/request/uid")?.as_str());
    let review = match Review::read(hook, bytes) {
        Ok(review) => review,
        Err(error) => {
            assert_eq!(error.kind(), Kind::Invalid);
            assert!(uid.is_none_or(|uid| uid.is_empty() || uid.len() > 256), "{document:?}");
            return false;
        }
    };
    let before = pool.held();
    let circumstances =
        Circumstances { policy, stamp: STAMP, now: NOW, may_give: true, answers: &HashMap::new() };
    let reply = review.decide(pool, &circumstances);
    let answer: Value = serde_json::from_str(&reply.document().to_string()).unwrap();
    let response = &answer["response"];
    assert_eq!(response["uid"].as_str(), uid);
    assert_eq!(answer["kind"], "AdmissionReview");
    assert!(answer["apiVersion"].as_str().unwrap().starts_with("admission.k8s.io/v1"));
    let Some(patch) = response.get("patch") else {
        assert!(response["allowed"] == true || response["status"]["message"].is_string());
        assert!(response["allowed"] == true || pool.held() == before, "refused, and holds something");
        return true;
    };
    assert_eq!((&response["allowed"], &response["patchType"]), (&true.into(), &"JSONPatch".into()));
    let patch = base64::engine::general_purpose::STANDARD.decode(patch.as_str().unwrap()).unwrap();
    let patch: Vec<Value> = serde_json::from_slice(&patch).unwrap();
    let mut object = document.as_ref().unwrap()["request"]["object"].clone();
    apply(&mut object, &patch).unwrap_or_else(|why| panic!("{why}: {patch:?} {object}"));
    true
}

#[test]
fn every_mutant_gets_an_answer_that_can_be_used() {
    let count = if std::env::var_os("FERROVIRT_SOAK").is_some() { 100_000 } else { 5_000 };
    let mut random = Random(0x5eed);
    let corpus = corpus();
    let mut reviews = 0;
    for number in 0..count {
        let (hook, document) = &corpus[number % corpus.len()];
        let policy = [Policy::Allow, Policy::Reject, Policy::Rewrite][random.below(3)];
        // Now and then a pool that is nearly full.
        let end = if random.below(4) == 0 { "02:00:00:00:00:01" } else { "02:00:00:00:03:ff" };
        let mut pool = pool("02:00:00:00:00:00", end);
        let bytes = mutant(document, &mut random);
        reviews += usize::from(check(&mut pool, *hook, policy, &bytes));
    }
    println!("{reviews} of {count} mutants were reviews");
    assert!(reviews * 10 >= count, "at least a tenth gets past parsing: {reviews} of {count}");
}
