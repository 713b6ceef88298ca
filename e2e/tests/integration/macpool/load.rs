//! Two replicas under load: 500 reviews a second by TLS to either, for 60 seconds with FERROVIRT_SOAK=1, and the replies of
//! both compared: with both up, without the API server for 20 seconds, while replicas are killed, and while certificates
//! change. None of it is written, so that replicas know of each other by requests only. At the same time real machines come
//! and go ([`changes`]); no reply may give an address of the API server's objects.
//!
//! An address whose replica does not answer another in time (200 ms; a busy machine is enough) is decided by the other's
//! knowledge. Replicas log those: these may have two owners, and no others.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kube::api::PostParams;
use serde_json::{Value, json};

use crate::macpool::changes::{self, Done};
use crate::macpool::client::{Client, Failed, Kill, all_in_flight};
use crate::macpool::later::{LABEL, Later};
use crate::macpool::setup::{
    NAMESPACE, Place, Replica, addresses, blocks, given_by, machine, review, until, wait_until_peered,
};

const RATE: u32 = 500;

/// The subject of a review.
#[derive(Clone, Debug, PartialEq)]
enum Subject {
    /// Any address.
    Any,
    /// This one, which is free.
    Given(String),
    /// This one, which is in use.
    Duplicate(String),
}

/// The results of all reviews.
#[derive(Debug, Default)]
struct Outcome {
    /// Addresses that were given out, and how often.
    out: HashMap<String, usize>,
    /// Addresses that objects brought and kept, and how many objects.
    kept: HashMap<String, usize>,
    /// Duplicates that passed.
    passed: Vec<String>,
    refused: usize,
    /// No reply.
    failed: Vec<Failed>,
    times: Vec<Duration>,
}

/// xorshift64*: the same reviews in every run.
fn random(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

/// The cluster's API server, stopped as long as this lives.
struct Paused(String);

impl Paused {
    fn new(place: &Place) -> Self {
        let folder = place.cluster.place().folder().display().to_string();
        let of_ours = |process: &std::path::Path| {
            let line = std::fs::read(process.join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            line.contains("/kube-apiserver ") && line.contains(&folder)
        };
        let processes = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
        let found: Vec<_> = processes.filter(|process| of_ours(process)).collect();
        let [process] = &found[..] else { panic!("one API server: {found:?}") };
        let paused = Self(process.file_name().unwrap().to_str().unwrap().to_owned());
        paused.send("-STOP");
        paused
    }

    fn send(&self, signal: &str) {
        assert!(std::process::Command::new("kill").args([signal, &self.0]).status().unwrap().success());
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        self.send("-CONT");
    }
}

/// Sends requests for some seconds while `meanwhile` is called again and again on this thread, and real machines come and go
/// where `machines` has a prefix of their names.
fn load(
    place: &Place,
    book: &Value,
    client: &Arc<Client>,
    seconds: u64,
    machines: Option<&str>,
    mut meanwhile: impl FnMut(),
) -> (Outcome, Done) {
    let outcome = Arc::new(Mutex::new(Outcome::default()));
    let runs = ["macpool-0", "macpool-1"].map(|name| blocks(book, name));
    let (client, shared) = (client.clone(), outcome.clone());
    let asking = async move {
        let mut state = 0x5eed;
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / RATE);
        let mut running = tokio::task::JoinSet::new();
        for number in 0..seconds * u64::from(RATE) {
            ticks.tick().await;
            let (pick, whose, to) = (random(&mut state) % 100, random(&mut state), random(&mut state));
            let asked = if pick < 5 {
                let outcome = shared.lock().unwrap();
                outcome.out.keys().next().map_or(Subject::Any, |mac| Subject::Duplicate(mac.clone()))
            } else if pick < 30 {
                // Anywhere in a run of either: half of them are in the other replica's.
                let runs = &runs[usize::try_from(whose % 2).unwrap()];
                let (first, count) = runs[usize::try_from(whose / 2).unwrap() % runs.len()];
                let bits = (first << 8) + random(&mut state) % (count << 8);
                let bytes = bits.to_be_bytes();
                let mac: Vec<String> = bytes[2..].iter().map(|byte| format!("{byte:02x}")).collect();
                Subject::Given(mac.join(":"))
            } else {
                Subject::Any
            };
            let mac = match &asked {
                Subject::Any => None,
                Subject::Given(mac) | Subject::Duplicate(mac) => Some(mac.as_str()),
            };
            let review = review(&format!("m-{number}"), mac);
            let (client, shared) = (client.clone(), shared.clone());
            running.spawn(async move {
                let began = Instant::now();
                let reply = client.post(u16::from(to % 2 == 1), &review).await;
                let took = began.elapsed();
                let mut outcome = shared.lock().unwrap();
                let reply = match reply {
                    Ok(reply) => reply,
                    Err(failed) => return outcome.failed.push(failed),
                };
                outcome.times.push(took);
                match (asked, reply["response"]["allowed"] == true) {
                    (Subject::Any, true) => *outcome.out.entry(given_by(&reply).unwrap()).or_default() += 1,
                    (Subject::Any, false) => panic!("no address: {reply}"),
                    (Subject::Given(mac), true) => *outcome.kept.entry(mac).or_default() += 1,
                    (Subject::Duplicate(mac), true) => outcome.passed.push(mac),
                    (Subject::Given(_) | Subject::Duplicate(_), false) => outcome.refused += 1,
                }
            });
            while let Some(done) = running.try_join_next() {
                done.unwrap();
            }
        }
        while let Some(done) = running.join_next().await {
            done.unwrap();
        }
    };
    let api = changes::machines(place);
    let done = place.cluster.run(async {
        let asking = tokio::spawn(asking);
        let prefix = machines.map(str::to_owned);
        let changing = tokio::spawn(async move {
            match prefix {
                Some(prefix) => changes::change(api, &prefix, seconds).await,
                None => Done::default(),
            }
        });
        while !asking.is_finished() || !changing.is_finished() {
            tokio::task::block_in_place(&mut meanwhile);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        asking.await.unwrap();
        changing.await.unwrap()
    });
    (Arc::into_inner(outcome).unwrap().into_inner().unwrap(), done)
}

fn report(what: &str, outcome: &mut Outcome, done: &Done, replicas: &[Replica]) {
    outcome.times.sort();
    let at = |of: usize| outcome.times[outcome.times.len() * of / 1000];
    let resident: Vec<u64> = replicas.iter().map(Replica::resident).collect();
    println!(
        "{what}: {} replies, p50 {:?}, p99 {:?}; {} given out, {} kept, {} refused, {} duplicates passed, {} failed; \
         {resident:?} KiB resident",
        outcome.times.len(),
        at(500),
        at(990),
        outcome.out.len(),
        outcome.kept.len(),
        outcome.refused,
        outcome.passed.len(),
        outcome.failed.len(),
    );
    println!(
        "  beside it {} real calls answered, {} failed; {} duplicates refused, {} passed",
        done.answered,
        done.failed.len(),
        done.refused,
        done.passed.len()
    );
}

/// Holds as long as both replicas are up. Returns the addresses that were decided without the replica that has their block:
/// their owners are not checked.
fn nothing_failed(place: &Place, outcome: &Outcome, done: &Done) -> HashSet<String> {
    assert!(outcome.failed.is_empty() && done.failed.is_empty(), "{:?} {:?}", outcome.failed, done.failed);
    once(outcome);
    let unanswered = place.unanswered();
    let kept = outcome.kept.iter().filter(|(mac, times)| **times > 1 || outcome.out.contains_key(*mac));
    let passed = outcome.passed.iter().chain(done.passed.iter().map(|(mac, _, _)| mac));
    let two: HashSet<&String> = kept.map(|(mac, _)| mac).chain(passed).collect();
    println!("  {} addresses decided unanswered, {} of them two's", unanswered.len(), two.len());
    let unexplained: Vec<_> = two.into_iter().filter(|mac| !unanswered.contains(*mac)).collect();
    assert!(unexplained.is_empty(), "given out, or somebody's, and another's: {unexplained:?}");
    unanswered
}

fn once(outcome: &Outcome) {
    assert!(outcome.out.values().all(|times| *times == 1), "given out twice");
}

/// No real machine has an address that a reply gave to another.
fn assert_disjoint(real: &HashMap<String, String>, replies: &HashSet<String>) {
    let both: Vec<_> = real.iter().filter(|(mac, _)| replies.contains(*mac)).collect();
    assert!(both.is_empty(), "given out twice: {both:?}");
}

/// Addresses that objects kept, without the unchecked ones.
fn kept(outcome: &Outcome, unanswered: &HashSet<String>) -> HashSet<String> {
    outcome.kept.keys().filter(|mac| !unanswered.contains(*mac)).cloned().collect()
}

#[test]
fn no_address_is_given_twice_under_load_nor_when_replicas_are_killed() {
    let soak = std::env::var_os("FERROVIRT_SOAK").is_some();
    let (seconds, away) = if soak { (60, 20) } else { (10, 5) };
    let place = Place::new("02:00:00:00:00:00", "02:00:00:ff:ff:ff");
    place.reject();
    let more = ["--wait-time=600", "--v=production"];
    let mut replicas = vec![place.replica(0, &more), place.replica(1, &more)];
    wait_until_peered([&replicas[0], &replicas[1]]);
    let client = Arc::new(Client::new([replicas[0].webhook(), replicas[1].webhook()]));
    let book = place.book();
    let (mut outcome, done) = load(&place, &book, &client, seconds, Some("calm"), || {});
    report("both up", &mut outcome, &done, &replicas);
    let unanswered = nothing_failed(&place, &outcome, &done);
    assert!(done.answered as u64 > 10 * seconds && done.refused > 0, "{done:?}");
    assert!(replicas.iter().all(|replica| replica.resident() <= 48 << 10));
    let real = changes::held(&place, &done.passed);
    let mut others = kept(&outcome, &unanswered);
    assert_disjoint(&real, &others);
    let mut before: HashSet<String> = outcome.out.into_keys().collect();
    assert_disjoint(&real, &before);

    // The API server is paused: it neither answers nor refuses. When it is back, all watches are restarted under the load.
    let mut server = Some(Paused::new(&place));
    let stopped = Instant::now();
    let (mut outcome, done) = load(&place, &book, &client, seconds, None, || {
        server.take_if(|_| stopped.elapsed() >= Duration::from_secs(away));
    });
    assert!(server.is_none());
    report(&format!("no API server for {away} s"), &mut outcome, &done, &replicas);
    let unanswered = nothing_failed(&place, &outcome, &done);
    others.extend(kept(&outcome, &unanswered));
    assert_disjoint(&real, &others);
    let known = |mac: &String| before.contains(mac) || (others.contains(mac) && !unanswered.contains(mac));
    assert!(!outcome.out.keys().any(known), "given out before, or somebody's");
    before.extend(outcome.out.into_keys());
    assert_disjoint(&real, &before);
    until("the API server is back", || {
        place.try_kubectl(&["get", "--raw", "/readyz"]).status.success().then_some(())
    });

    let mut killed = Instant::now();
    let mut kills: Vec<Kill> = Vec::new();
    let (mut outcome, done) = load(&place, &book, &client, seconds, Some("killed"), || {
        if killed.elapsed() > Duration::from_secs(2) {
            killed = Instant::now();
            let (kill, replica) = Kill::new(&place, replicas.remove(0), &more);
            replicas.push(replica);
            kills.push(kill);
        }
    });
    report(&format!("{} kills", kills.len()), &mut outcome, &done, &replicas);
    once(&outcome);
    assert!(outcome.out.keys().all(|mac| !before.contains(mac)), "given out before");
    before.extend(outcome.out.into_keys());
    // A review fails only if it was in flight at a kill. The Service, of an API server that tries one replica only, leads to
    // the dead one until that is back; but to a living one always.
    let longest = all_in_flight(&outcome.failed, &kills);
    println!("  all that failed was in flight at a kill, the first sent {longest:?} before its end");
    for one in &done.failed {
        let killed = kills.iter().any(|kill| kill.covers(one.began, one.ended));
        assert!(killed && one.why.contains("failed calling webhook"), "{one:?} {kills:?}");
    }
    assert!(replicas.iter().all(|replica| replica.resident() <= 48 << 10));
    let real = changes::held(&place, &done.passed);
    assert_disjoint(&real, &before);
    // No owner is lost: either replica refuses an address that a machine has.
    for (mac, name) in &real {
        for replica in &replicas {
            let reply = replica.post(&review("another", Some(mac)));
            assert_eq!(reply["response"]["allowed"], false, "{mac} of {name}");
        }
    }
    changes::check_events(&place, &done.passed);
}

/// Authorities every 20 seconds and certificates every 5, under the whole load: no connection is refused.
#[test]
fn certificates_are_changed_under_load() {
    let seconds = if std::env::var_os("FERROVIRT_SOAK").is_some() { 60 } else { 15 };
    let place = Place::new("02:00:00:00:00:00", "02:00:00:ff:ff:ff");
    place.reject();
    let more = [
        "--wait-time=600",
        "--v=production",
        "--ca-rotate-interval=20s",
        "--ca-overlap-interval=10s",
        "--cert-rotate-interval=5s",
        "--cert-overlap-interval=3s",
    ];
    let replicas = [place.replica(0, &more), place.replica(1, &more)];
    wait_until_peered([&replicas[0], &replicas[1]]);
    let client = Arc::new(Client::new([replicas[0].webhook(), replicas[1].webhook()]));
    let book = place.book();
    let (mut outcome, done) = load(&place, &book, &client, seconds, Some("real"), || {});
    report("certificates change", &mut outcome, &done, &replicas);
    nothing_failed(&place, &outcome, &done);
    let rotated = [0, 1].map(|number| place.log(number).matches("a new certificate is in use").count());
    println!("  {rotated:?} certificates came into use");
    assert!(rotated.iter().all(|times| *times as u64 >= seconds / 5 - 1), "{rotated:?}");
}

/// Machines that are reviewed by one replica, and written after it was killed: it alone had reserved their addresses. So a
/// duplicate of each passes while it is down, by the other, which logs it; and each is reported as a collision.
#[test]
fn duplicates_that_pass_while_a_replica_is_down_are_all_reported() {
    const COUNT: usize = 8;
    let place = Place::new("02:00:00:00:00:00", "02:00:00:ff:ff:ff");
    place.reject();
    let more = ["--wait-time=600", "--v=production"];
    // The Service leads to the first only.
    let (first, second) = (place.replica(0, &more), place.start(1, &more));
    wait_until_peered([&first, &second]);
    let later = Later::new(&place);
    let api = changes::machines(&place);
    let writing: Vec<_> = place.cluster.run(async {
        let create = |number: usize| {
            let mut object = machine(&format!("slow-{number}"), &json!([{"name": "a", "bridge": {}}]));
            object["metadata"]["labels"] = json!({LABEL: "yes"});
            let object = serde_json::from_value(object).unwrap();
            let api = api.clone();
            tokio::spawn(async move { api.create(&PostParams::default(), &object).await })
        };
        (0..COUNT).map(create).collect()
    });
    until("the machines are reviewed", || (later.held().len() == COUNT).then_some(()));
    first.kill();
    place.kubectl(&["-n", NAMESPACE, "delete", "endpointslice", "macpool-0"]);
    place.lead(&second);
    let held =
        later.held().into_iter().map(|(name, macs)| (macs[0].clone(), name.clone(), format!("twin-{name}")));
    let passed: Vec<(String, String, String)> = held.collect();
    let given =
        |name: &str, mac: &str| machine(name, &json!([{"name": "a", "bridge": {}, "macAddress": mac}]));
    let twins: Vec<Value> = passed.iter().map(|(mac, _, twin)| given(twin, mac)).collect();
    let twins = json!({"apiVersion": "v1", "kind": "List", "items": twins});
    let made = place.feed(&["-n", "reject", "create", "-f", "-"], &twins.to_string());
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let unanswered = place.unanswered();
    assert!(passed.iter().all(|(mac, _, _)| unanswered.contains(mac)), "{passed:?} {unanswered:?}");
    later.pass();
    place.cluster.run(async {
        for one in writing {
            one.await.unwrap().unwrap();
        }
    });
    for (mac, name, twin) in &passed {
        for one in [name, twin] {
            assert_eq!(addresses(&place.get("reject", &format!("vm/{one}"))), [mac.as_str()], "{one}");
        }
    }
    // The other knows by now: one duplicate of each, and no second.
    for (mac, _, _) in &passed {
        let run = place.feed(&["-n", "reject", "create", "-f", "-"], &given("third", mac).to_string());
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(!run.status.success() && said.contains("is in use"), "{said}");
    }
    // Both are up again: each duplicate raises the event, and is counted; no address is given to a third.
    let first = place.replica(0, &more);
    changes::check_events(&place, &passed);
    for (mac, _, _) in &passed {
        for replica in [&first, &second] {
            let metric = format!("kmp_mac_collisions{{mac=\"{mac}\"}}");
            until("the collision is counted", || (replica.metric(&metric) == Some(2)).then_some(()));
            assert_eq!(replica.post(&review("another", Some(mac)))["response"]["allowed"], false, "{mac}");
        }
    }
    println!(
        "{} duplicates passed while a replica was down, and each raised the event of both machines",
        passed.len()
    );
}
