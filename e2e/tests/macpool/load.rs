//! Two replicas under load: 500 reviews a second by TLS to either, for 60 seconds with FERROVIRT_SOAK=1, and what all
//! replies say together: with both up, without the API server for 20 seconds, while replicas are killed, and while
//! certificates change. Nothing of it is written, so that replicas know of each other by asking only. Beside it real
//! machines come and go ([`changes`]); no reply may give what the API server's objects have.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::changes::{self, Done};
use crate::setup::{Place, Replica, blocks, given_by, review, until};

const RATE: u32 = 500;

/// What a review was about.
#[derive(Clone, Debug, PartialEq)]
enum Asked {
    /// Any address.
    Any,
    /// This one, that nobody has.
    Given(String),
    /// This one, that somebody has.
    Duplicate(String),
}

/// What became of all reviews.
#[derive(Debug, Default)]
struct Outcome {
    /// Addresses that were given out, and how often.
    out: HashMap<String, usize>,
    /// Addresses that objects brought and kept.
    kept: HashSet<String>,
    /// Duplicates that passed.
    passed: usize,
    refused: usize,
    /// No reply.
    failed: usize,
    times: Vec<Duration>,
}

/// xorshift64*: the same reviews in every run.
fn random(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

/// One review, at the next replica if the first refuses the connection.
async fn ask(client: reqwest::Client, urls: [String; 2], review: Value) -> (Option<Value>, Duration) {
    let began = Instant::now();
    let body = review.to_string();
    for url in urls {
        match client.post(&url).body(body.clone()).send().await {
            Ok(response) => {
                let text = response.text().await.unwrap_or_default();
                return (serde_json::from_str(&text).ok(), began.elapsed());
            }
            Err(error) if error.is_connect() => {}
            Err(_) => break,
        }
    }
    (None, began.elapsed())
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

/// Asks for some seconds while `meanwhile` is called again and again on this thread, and real machines come and go where
/// `machines` says what their names begin with.
fn load(
    place: &Place,
    book: &Value,
    urls: [String; 2],
    seconds: u64,
    machines: Option<&str>,
    mut meanwhile: impl FnMut(),
) -> (Outcome, Done) {
    let client = reqwest::Client::builder().danger_accept_invalid_certs(true).build().unwrap();
    let outcome = Arc::new(Mutex::new(Outcome::default()));
    let runs = ["macpool-0", "macpool-1"].map(|name| blocks(book, name));
    let shared = outcome.clone();
    let asking = async move {
        let mut state = 0x5eed;
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / RATE);
        let mut running = tokio::task::JoinSet::new();
        for number in 0..seconds * u64::from(RATE) {
            ticks.tick().await;
            let (pick, whose, to) = (random(&mut state) % 100, random(&mut state), random(&mut state));
            let asked = if pick < 5 {
                let outcome = shared.lock().unwrap();
                outcome.out.keys().next().map_or(Asked::Any, |mac| Asked::Duplicate(mac.clone()))
            } else if pick < 30 {
                // Anywhere in a run of either: half of them are in the other replica's.
                let runs = &runs[usize::try_from(whose % 2).unwrap()];
                let (first, count) = runs[usize::try_from(whose / 2).unwrap() % runs.len()];
                let bits = (first << 8) + random(&mut state) % (count << 8);
                let bytes = bits.to_be_bytes();
                let mac: Vec<String> = bytes[2..].iter().map(|byte| format!("{byte:02x}")).collect();
                Asked::Given(mac.join(":"))
            } else {
                Asked::Any
            };
            let mac = match &asked {
                Asked::Any => None,
                Asked::Given(mac) | Asked::Duplicate(mac) => Some(mac.as_str()),
            };
            let review = review(&format!("m-{number}"), mac);
            let urls = if to % 2 == 0 { urls.clone() } else { [urls[1].clone(), urls[0].clone()] };
            let (client, shared) = (client.clone(), shared.clone());
            running.spawn(async move {
                let (reply, took) = ask(client, urls, review).await;
                let mut outcome = shared.lock().unwrap();
                let Some(reply) = reply else {
                    outcome.failed += 1;
                    return;
                };
                outcome.times.push(took);
                match (asked, reply["response"]["allowed"] == true) {
                    (Asked::Any, true) => *outcome.out.entry(given_by(&reply).unwrap()).or_default() += 1,
                    (Asked::Any, false) => panic!("no address: {reply}"),
                    (Asked::Given(mac), true) => drop(outcome.kept.insert(mac)),
                    (Asked::Duplicate(_), true) => outcome.passed += 1,
                    (Asked::Given(_) | Asked::Duplicate(_), false) => outcome.refused += 1,
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
        outcome.passed,
        outcome.failed,
    );
    println!(
        "  beside it {} real calls answered, {} failed; {} duplicates refused, {} passed",
        done.answered,
        done.failed.len(),
        done.refused,
        done.passed.len()
    );
}

/// What holds as long as both replicas are up.
fn nothing_failed(outcome: &Outcome, done: &Done) {
    assert_eq!((outcome.failed, outcome.passed), (0, 0));
    assert_eq!(done.failed, [] as [String; 0]);
    assert_eq!(done.passed, []);
    once(outcome);
    assert!(outcome.out.keys().all(|mac| !outcome.kept.contains(mac)), "given out, and somebody's");
}

fn once(outcome: &Outcome) {
    assert!(outcome.out.values().all(|times| *times == 1), "given out twice");
}

/// No real machine has an address that a reply gave to another.
fn apart(real: &HashMap<String, String>, replies: &HashSet<String>) {
    let both: Vec<_> = real.iter().filter(|(mac, _)| replies.contains(*mac)).collect();
    assert!(both.is_empty(), "given out twice: {both:?}");
}

#[test]
fn no_address_is_given_twice_under_load_nor_when_replicas_are_killed() {
    let soak = std::env::var_os("FERROVIRT_SOAK").is_some();
    let (seconds, away) = if soak { (60, 20) } else { (10, 5) };
    let place = Place::new("02:00:00:00:00:00", "02:00:00:ff:ff:ff");
    place.reject();
    let more = ["--wait-time=600", "--v=production"];
    let mut replicas = vec![place.replica(0, &more), place.replica(1, &more)];
    let urls = [replicas[0].url(), replicas[1].url()];
    let book = place.book();
    let (mut outcome, done) = load(&place, &book, urls.clone(), seconds, Some("calm"), || {});
    report("both up", &mut outcome, &done, &replicas);
    nothing_failed(&outcome, &done);
    assert!(done.answered as u64 > 10 * seconds && done.refused > 0, "{done:?}");
    assert!(replicas.iter().all(|replica| replica.resident() <= 48 << 10));
    let real = changes::held(&place, &[]);
    apart(&real, &outcome.kept);
    let mut before: HashSet<String> = outcome.out.into_keys().collect();
    apart(&real, &before);

    // The API server is away: it neither answers nor refuses. When it is back, everything is heard anew under the load.
    let mut server = Some(Paused::new(&place));
    let stopped = Instant::now();
    let (mut outcome, done) = load(&place, &book, urls.clone(), seconds, None, || {
        server.take_if(|_| stopped.elapsed() >= Duration::from_secs(away));
    });
    assert!(server.is_none());
    report(&format!("no API server for {away} s"), &mut outcome, &done, &replicas);
    nothing_failed(&outcome, &done);
    apart(&real, &outcome.kept);
    assert!(outcome.out.keys().all(|mac| !before.contains(mac)), "given out before");
    before.extend(outcome.out.into_keys());
    apart(&real, &before);
    until("the API server is back", || {
        place.try_kubectl(&["get", "--raw", "/readyz"]).status.success().then_some(())
    });

    let mut killed = Instant::now();
    let mut kills = 0;
    let (mut outcome, done) = load(&place, &book, urls.clone(), seconds, Some("killed"), || {
        if killed.elapsed() > Duration::from_secs(2) {
            killed = Instant::now();
            let replica = replicas.remove(0);
            let number = (replica.port - 8100) / 100;
            replica.kill();
            replicas.push(place.start(number, &more));
            kills += 1;
        }
    });
    report(&format!("{kills} kills"), &mut outcome, &done, &replicas);
    once(&outcome);
    assert!(outcome.out.keys().all(|mac| !before.contains(mac)), "given out before");
    before.extend(outcome.out.into_keys());
    // A kill meets a few requests; the Service leads to the dead one until it is back.
    assert!(
        outcome.failed <= kills * 20 && done.failed.len() <= kills * 20,
        "{kills} kills: {:?}",
        done.failed
    );
    assert!(replicas.iter().all(|replica| replica.resident() <= 48 << 10));
    let real = changes::held(&place, &done.passed);
    apart(&real, &before);
    // No owner is lost: whoever asks for an address that a machine has is refused it, by either.
    for (mac, name) in &real {
        for replica in &replicas {
            let reply = replica.post(&review("another", Some(mac)));
            assert_eq!(reply["response"]["allowed"], false, "{mac} of {name}");
        }
    }
    changes::told(&place, &done.passed);
}

/// Authorities every 20 seconds and certificates every 5, under the whole load: nobody is turned away.
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
    let urls = [replicas[0].url(), replicas[1].url()];
    let book = place.book();
    let (mut outcome, done) = load(&place, &book, urls, seconds, Some("real"), || {});
    report("certificates change", &mut outcome, &done, &replicas);
    nothing_failed(&outcome, &done);
    let rotated = [0, 1].map(|number| place.log(number).matches("a new certificate is in use").count());
    println!("  {rotated:?} certificates came into use");
    assert!(rotated.iter().all(|times| *times as u64 >= seconds / 5 - 1), "{rotated:?}");
}
