//! Two replicas: each gives out of its own blocks, each knows what the other has given, and either may die.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::macpool::setup::{Place, addresses, blocks, given_by, machine, review, until, wait_until_peered};

fn two() -> Value {
    json!([{"name": "a", "bridge": {}}, {"name": "b", "bridge": {}}])
}

#[test]
fn two_replicas_give_no_address_twice_while_one_of_them_dies() {
    let place = Place::new("02:00:00:00:00:00", "02:00:00:ff:ff:ff");
    let fast = [
        "--ca-rotate-interval=20s",
        "--ca-overlap-interval=10s",
        "--cert-rotate-interval=5s",
        "--cert-overlap-interval=3s",
    ];
    let mut replicas = vec![place.replica(0, &fast), place.replica(1, &fast)];
    let now = place.book();
    for run in blocks(&now, "macpool-0") {
        let apart = |other: &(u64, u64)| run.0 + run.1 <= other.0 || other.0 + other.1 <= run.0;
        assert!(blocks(&now, "macpool-1").iter().all(apart), "{now}");
    }

    // Machines are made without a pause, while certificates change, and a replica is killed and started again twice.
    let began = Instant::now();
    let seconds = if std::env::var_os("FERROVIRT_SOAK").is_some() { 120 } else { 30 };
    let (mut made, mut failed) = (0, 0);
    let mut kills = 0;
    while began.elapsed() < Duration::from_secs(seconds) {
        let list: Vec<Value> = (0..10).map(|n| machine(&format!("m-{made}-{n}"), &two())).collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": list});
        let run = place.feed(&["-n", "default", "create", "-f", "-"], &list.to_string());
        failed += usize::from(!run.status.success());
        made += 1;
        if began.elapsed() > Duration::from_secs(seconds / 3 * (kills + 1)) && kills < 2 {
            let number = u16::try_from(kills).unwrap();
            replicas.remove(0).kill();
            // The Service leads to a dead one until it is back.
            replicas.push(place.start(number, &fast));
            kills += 1;
        }
    }
    let all = place.get("default", "vm");
    let mut holders: HashMap<String, String> = HashMap::new();
    for one in all["items"].as_array().unwrap() {
        let name = one["metadata"]["name"].as_str().unwrap();
        for mac in addresses(one) {
            assert!(mac.starts_with("02:00:00:"), "{name}: {mac}");
            assert_eq!(holders.insert(mac.clone(), name.to_owned()), None, "{mac} twice");
        }
    }
    println!("{} addresses, {failed} of {made} calls failed around {kills} kills", holders.len());
    assert!(holders.len() > 100);
    assert!(failed <= 4, "only calls at a kill fail");
    let rotated = |number| place.log(number).matches("a new certificate is in use").count();
    assert!(rotated(0) >= 2 && rotated(1) >= 2, "{} {}", rotated(0), rotated(1));

    // Both know all of it.
    until("both have seen everything", || {
        let held = replicas.iter().map(|replica| replica.metric("macpool_addresses_held"));
        let held: Vec<Option<u64>> = held.collect();
        held.iter().all(|held| *held == Some(holders.len() as u64)).then_some(())
    });
}

#[test]
fn a_given_address_is_decided_by_the_owner_of_its_block() {
    let place = Place::new("02:00:00:00:00:00", "02:00:00:00:0f:ff");
    place.reject();
    let (first, second) = (place.start(0, &[]), place.start(1, &[]));
    wait_until_peered([&first, &second]);
    // Both are asked directly, and nothing is written: only by asking each other can they know.
    let mut decided = 0;
    for number in 0..20 {
        for (by, at) in [(&first, &second), (&second, &first)] {
            let given = by.post(&review(&format!("giver-{number}-{}", by.port), None));
            let mac = given_by(&given).unwrap();
            let refused = at.post(&review(&format!("taker-{number}-{}", at.port), Some(&mac)));
            if refused["response"]["allowed"] == false {
                assert_eq!(refused["response"]["status"]["code"], 409);
                decided += 1;
            } else {
                // On a machine that is too busy for an answer in time, and then it is logged.
                assert!(place.unanswered().contains(&mac), "{mac} {refused}");
            }
        }
    }
    assert!(decided > 0);
    // Without the other replica its addresses are unknown here, and a duplicate passes.
    let mac = given_by(&first.post(&review("last", None))).unwrap();
    first.kill();
    assert_eq!(second.post(&review("late", Some(&mac)))["response"]["allowed"], true);
    assert!(place.unanswered().contains(&mac), "it is told");
    assert!(second.metric("macpool_unanswered_addresses_total").unwrap() > 0);
}
