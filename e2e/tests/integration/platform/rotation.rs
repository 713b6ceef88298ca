//! Certificates of the platform are replaced under load: a console, a screen and a forwarded port that stay open, new
//! forwarded ports, uploads, admission, aggregated APIs and metrics go on, and no container is started again.
//!
//! The clock of the test are the stores of the authorities, of the node agent and the webhooks, of uploads, and of the MAC
//! pool: what was made is written down as older, and its program replaces it. What was really made stays valid, as it
//! would with a clock that runs.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use e2e::volume::Volume;
use guests::telling;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PostParams};
use serde_json::{Value, json};

use crate::platform::console::Console;
use crate::platform::machines::{claim, create, machine, until_answers};
use crate::platform::place::{MACHINES, PLACE, PODS, SECRETS, SERVICES, TIMEOUT};
use crate::platform::streams::{Streams, agent};
use crate::platform::transfers::upload;

const PLATFORM: &str = operator::defaults::NAMESPACE;
const NAMESPACE: &str = "rotation";
/// Hours above the age at which a certificate is replaced.
const OLD: u64 = 25;
/// Hours after which no upload server is left that does not know an authority of clients.
const KNOWN: u64 = 10;
/// Services of programs whose metrics Prometheus reads with a token.
const SCRAPED: [&str; 2] = ["hpp-prometheus-metrics", "kubemacpool-metrics-service"];

/// An authority that is kept in a Secret.
struct Authority {
    secret: &'static str,
    /// The entry of its store.
    entry: &'static str,
    /// Hours above the age at which the next one is made, and above that at which the next one is the only one.
    followed: u64,
    alone: u64,
}

/// The authority of the webhooks, the aggregated APIs and the node agents.
const OWN: Authority = Authority { secret: "kubevirt-ca", entry: "store", followed: OLD, alone: 13 };
/// Those of uploads: of the proxy, of the servers, and of the servers' clients.
const TRANSFERS: [Authority; 3] = [
    Authority { secret: "cdi-uploadproxy-signer", entry: "store", followed: OLD, alone: 13 },
    Authority { secret: "cdi-uploadserver-signer", entry: "store", followed: OLD, alone: 13 },
    Authority { secret: "cdi-uploadserver-client-signer", entry: "store", followed: OLD, alone: 13 },
];
/// That of the MAC pool's webhook.
const POOL: Authority =
    Authority { secret: "kubemacpool-service", entry: "store.json", followed: 49, alone: 25 };

fn all() -> impl Iterator<Item = &'static Authority> {
    [&OWN, &POOL].into_iter().chain(&TRANSFERS)
}

/// Kinds of load.
const LOADS: usize = 11;
/// The place of uploads among them: each takes longer than all other requests.
const UPLOADS: usize = 7;

impl Authority {
    /// Its store and the Secret's version.
    fn read(&self) -> (Value, String) {
        let secret = PLACE.find(SECRETS, PLATFORM, self.secret).unwrap();
        let text = BASE64_STANDARD.decode(secret["data"][self.entry].as_str().unwrap()).unwrap();
        let version = secret["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        (serde_json::from_slice(&text).unwrap(), version)
    }

    /// Changes the store, as it was read.
    fn change(&self, change: impl Fn(&mut Value)) {
        PLACE.until(PLATFORM, "the store is changed", || {
            let (mut store, version) = self.read();
            change(&mut store);
            let text = BASE64_STANDARD.encode(store.to_string());
            let patch = json!({"metadata": {"resourceVersion": version}, "data": {self.entry: text}});
            let patch = patch.to_string();
            let words = ["-n", PLATFORM, "patch", "secret", self.secret, "--type=merge", "-p", &patch];
            PLACE.kubectl(&words).ok()
        });
    }

    /// Makes the newest of its authorities that old; certificates refer to it by its time.
    fn age(&self, hours: u64) {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
        self.change(|store| {
            let newest = store["authorities"].as_array_mut().unwrap().last_mut().unwrap();
            let from = newest["from"].clone();
            let aged = json!(from.as_u64().unwrap().min(now - hours * 3600));
            newest["from"] = aged.clone();
            let leaves = store.get_mut("leaves").and_then(Value::as_object_mut);
            let leaves = leaves.into_iter().flat_map(serde_json::Map::values_mut);
            leaves.filter(|leaf| leaf["signed_by"] == from).for_each(|leaf| leaf["signed_by"] = aged.clone());
            // The MAC pool has one certificate.
            if store["signed_by"] == from {
                store["signed_by"] = aged;
            }
        });
    }

    /// How many are trusted.
    fn count(&self) -> usize {
        self.read().0["authorities"].as_array().unwrap().len()
    }

    /// Whether all certificates are of its newest.
    fn signs_alone(&self) -> bool {
        let (store, _) = self.read();
        let newest = &store["authorities"].as_array().unwrap().last().unwrap()["from"];
        store["leaves"].as_object().unwrap().values().all(|leaf| leaf["signed_by"] == *newest)
    }
}

/// Makes the certificates of the webhooks, the aggregated APIs and the agents older.
fn age_certificates() {
    OWN.change(|store| {
        for leaf in store["leaves"].as_object_mut().unwrap().values_mut() {
            let from = &mut leaf["identity"]["from"];
            *from = json!(from.as_u64().unwrap() - OLD * 3600);
        }
    });
}

/// Those certificates by name.
fn certificates() -> Vec<Value> {
    let (store, _) = OWN.read();
    store["leaves"]
        .as_object()
        .unwrap()
        .values()
        .map(|leaf| leaf["identity"]["certificate"].clone())
        .collect()
}

/// Whether all certificates are others than before.
fn all_replaced(before: &[Value]) -> bool {
    certificates().iter().zip(before).all(|(now, then)| now != then)
}

/// The operator's page of metrics.
fn metrics() -> Result<String, String> {
    let service = "kubevirt-hyperconverged-operator-metrics:metrics";
    PLACE.kubectl(&[
        "get",
        "--raw",
        &format!("/api/v1/namespaces/{PLATFORM}/services/{service}/proxy/metrics"),
    ])
}

/// A token of an account that may read metrics.
fn reader() -> String {
    PLACE.kubectl(&["-n", NAMESPACE, "create", "serviceaccount", "reader"]).unwrap();
    let account = format!("--serviceaccount={NAMESPACE}:reader");
    let binding = ["create", "clusterrolebinding", NAMESPACE, "--clusterrole=kubemacpool-metrics-reader"];
    PLACE.kubectl(&[&binding[..], &[&account]].concat()).unwrap();
    let token = PLACE.kubectl(&["-n", NAMESPACE, "create", "token", "reader", "--duration=2h"]).unwrap();
    token.trim().to_owned()
}

/// Reads the metrics behind a Service as Prometheus does. Other tests replace these pods: they may be away for a while.
fn scrape(service: &str, token: &str) -> Result<(), String> {
    let found = PLACE.find(SERVICES, PLATFORM, service).unwrap();
    let url = format!("https://{}:8443/metrics", found["spec"]["clusterIP"].as_str().unwrap());
    let header = format!("Authorization: Bearer {token}");
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let run = Command::new("curl").args(["-sSkf", "-m10", "-H", &header, &url]).output().unwrap();
        if run.status.success() {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("{service}: {}", String::from_utf8_lossy(&run.stderr)));
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// A VM whose guest sends back at port 7 what it is sent, once it does.
fn echo() -> Volume {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("guest.raw");
    telling::disk(&disk);
    let volume = claim(NAMESPACE, "echo", &fs::read(&disk).unwrap());
    let mut vm = machine("echo", "Always", &json!({"persistentVolumeClaim": {"claimName": "echo"}}));
    vm["spec"]["template"]["spec"]["domain"]["memory"]["guest"] = json!("256Mi");
    PLACE.create(MACHINES, NAMESPACE, &vm);
    let mut console = PLACE.until(NAMESPACE, "the console", || Console::open(&PLACE, NAMESPACE, "echo").ok());
    console.read_until(telling::TOLD).unwrap();
    volume
}

/// Forwards its port.
fn forward() -> Result<Console<'static>, String> {
    Console::stream(&PLACE, NAMESPACE, "echo", "portforward/7/tcp")
}

/// Sends a byte through a forwarded port, and reads it back.
fn echoed(port: &mut Console<'_>, byte: u8) -> Result<(), String> {
    port.send(&[byte])?;
    let back = port.bytes(1)?;
    if back == [byte] { Ok(()) } else { Err(format!("{byte} was sent, {back:?} came back")) }
}

/// When the certificate that the operator serves with ends, by its metric.
fn end() -> String {
    let page = metrics().unwrap();
    let name = "ferrovirt_certificate_not_after_seconds{certificate=\"operator\"}";
    page.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{page}")).to_owned()
}

fn dynamic(group: &str, version: &str, kind: &str, plural: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
    Api::namespaced_with(PLACE.cluster.client(), NAMESPACE, &resource)
}

/// How often the containers of the platform were started again, by pod.
fn restarts() -> BTreeMap<String, i64> {
    let pods = PLACE.list(PODS, PLATFORM).into_iter();
    let of_pod = |pod: Value| {
        let containers = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
        let count = containers.filter_map(|one| one["restartCount"].as_i64()).sum();
        (pod["metadata"]["uid"].as_str().unwrap().to_owned(), count)
    };
    pods.map(of_pod).collect()
}

fn made(api: &Api<DynamicObject>, object: &Value, dry_run: bool) -> Result<(), String> {
    let object: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    let params = PostParams { dry_run, ..PostParams::default() };
    PLACE.cluster.run(api.create(&params, &object)).map(drop).map_err(|error| error.to_string())
}

/// A screen that stays open.
struct Screen(Console<'static>);

impl Screen {
    /// Opens it, as RFC 6143 has it: version, no authentication, shared.
    fn open() -> Result<Self, String> {
        let mut stream = Console::stream(&PLACE, NAMESPACE, "vm", "vnc")?;
        let mut exchange = |send: &[u8], count| {
            stream.send(send)?;
            stream.bytes(count)
        };
        let version = exchange(b"", 12)?;
        let kinds = exchange(&version[..12], 2)?;
        if !kinds[1..].contains(&1) {
            return Err(format!("the screen needs authentication: {kinds:?}"));
        }
        let result = exchange(&[1], 4)?;
        if result[..4] != [0; 4] {
            return Err(format!("the screen refuses: {result:?}"));
        }
        exchange(&[1], 24)?;
        Ok(Self(stream))
    }

    /// Asks for a part of the picture, and reads the answer: its head, and that of the part.
    fn ask(&mut self) -> Result<(), String> {
        self.0.send(&[3, 0, 0, 0, 0, 0, 0, 16, 0, 16])?;
        self.0.bytes(16).map(drop)
    }
}

/// The load: each is asked again and again; the first failure ends the test.
fn load(over: &AtomicBool, done: &[AtomicU32; LOADS], token: &str) {
    let again = |index: usize, what: &str, ask: &mut dyn FnMut() -> Result<(), String>| {
        while !over.load(Ordering::Relaxed) {
            if let Err(why) = ask() {
                over.store(true, Ordering::Relaxed);
                panic!("{what}: {why}");
            }
            done[index].fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(300));
        }
    };
    let again = &again;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut console = Console::open(&PLACE, NAMESPACE, "vm").unwrap();
            again(0, "open console", &mut || console.ask(b'x', "G1x"));
        });
        scope.spawn(move || {
            let mut screen = Screen::open().unwrap();
            again(1, "open screen", &mut || screen.ask());
        });
        scope.spawn(move || {
            let machines = dynamic("kubevirt.io", "v1", "VirtualMachine", "virtualmachines");
            let mut other = machine("other", "Halted", &json!({"emptyDisk": {"capacity": "1Mi"}}));
            again(2, "admission", &mut || {
                other["metadata"]["name"] = json!("other");
                made(&machines, &other, true)
            });
        });
        scope.spawn(move || {
            let kind = "UploadTokenRequest";
            let tokens = dynamic("upload.cdi.kubevirt.io", "v1beta1", kind, "uploadtokenrequests");
            let request = json!({"apiVersion": "upload.cdi.kubevirt.io/v1beta1", "kind": kind,
                "metadata": {"name": "token"}, "spec": {"pvcName": "vm"}});
            again(3, "token of an upload", &mut || made(&tokens, &request, false));
        });
        scope.spawn(move || {
            let object = json!({"apiVersion": "hco.kubevirt.io/v1beta1"});
            let path = format!(
                "/apis/{}/namespaces/{PLATFORM}/hyperconvergeds",
                object["apiVersion"].as_str().unwrap()
            );
            again(4, "conversion", &mut || PLACE.kubectl(&["get", "--raw", &path]).map(drop));
        });
        scope.spawn(move || again(5, "metrics", &mut || metrics().map(drop)));
        scope.spawn(move || {
            again(6, "forwarded port", &mut || echoed(&mut forward()?, 1));
        });
        scope.spawn(move || {
            let mut count = 0;
            again(UPLOADS, "upload", &mut || {
                count += 1;
                upload(NAMESPACE, &format!("upload{count}"))
            });
        });
        scope.spawn(move || {
            let agent = agent()["metadata"]["name"].as_str().unwrap().to_owned();
            let path = format!("/api/v1/namespaces/{PLATFORM}/pods/https:{agent}:8443/proxy/metrics");
            again(8, "metrics of the agent", &mut || PLACE.kubectl(&["get", "--raw", &path]).map(drop));
        });
        scope.spawn(move || {
            let (mut port, mut byte) = (forward().unwrap(), 0_u8);
            again(9, "open forwarded port", &mut || {
                byte = byte.wrapping_add(1);
                echoed(&mut port, byte)
            });
        });
        scope.spawn(move || {
            again(10, "metrics with a token", &mut || {
                SCRAPED.iter().try_for_each(|service| scrape(service, token))
            });
        });
    });
}

#[test]
fn certificates_are_replaced_under_load_and_nothing_fails() {
    let _streams = Streams::follow();
    PLACE.namespace(NAMESPACE);
    create(NAMESPACE, "vm", "Always", 0);
    let _volume = echo();
    until_answers(NAMESPACE, "vm", 1);
    let token = reader();
    let over = AtomicBool::new(false);
    let done: [AtomicU32; LOADS] = Default::default();
    let before = restarts();
    let begun = Instant::now();
    let full = std::env::var_os("FERROVIRT_SOAK").is_some();
    let mut rounds = 0;
    std::thread::scope(|scope| {
        let (over, done, token) = (&over, &done, token.as_str());
        let load = scope.spawn(move || load(over, done, token));
        let until = |wanted: &str, found: &mut dyn FnMut() -> bool| {
            let deadline = Instant::now() + Duration::from_secs(240);
            while !found() {
                assert!(!over.load(Ordering::Relaxed), "{wanted}: the load failed");
                assert!(Instant::now() < deadline, "{wanted}: not in time");
                std::thread::sleep(Duration::from_millis(500));
            }
        };
        // One that began before, and a whole one.
        let uploads = |what: &str| {
            let before = done[UPLOADS].load(Ordering::Relaxed);
            until(what, &mut || done[UPLOADS].load(Ordering::Relaxed) > before + 1);
        };
        loop {
            let (before, end_before) = (certificates(), end());
            age_certificates();
            until("new certificates", &mut || all_replaced(&before) && end() != end_before);
            let before = certificates();
            for authority in all() {
                let count = authority.count();
                authority.age(authority.followed);
                until(authority.secret, &mut || authority.count() > count);
            }
            rounds += 1;
            if !full {
                uploads("uploads with the certificates of before");
                break;
            }
            until("certificates of the next authority", &mut || all_replaced(&before));
            for authority in &TRANSFERS {
                authority.age(KNOWN);
                until(authority.secret, &mut || authority.signs_alone());
            }
            // The time in which the kubelet brings certificates into pods.
            std::thread::sleep(Duration::from_secs(100));
            uploads("uploads with the certificates of the next authorities");
            for authority in all() {
                authority.age(authority.alone);
                until(authority.secret, &mut || authority.count() == 1);
            }
            if begun.elapsed() > Duration::from_secs(20 * 60) {
                break;
            }
        }
        over.store(true, Ordering::Relaxed);
        load.join().unwrap();
    });
    let counts: Vec<u32> = done.iter().map(|one| one.load(Ordering::Relaxed)).collect();
    println!("{rounds} rotations in {:?}; answers {counts:?}", begun.elapsed());
    assert!(
        counts.iter().enumerate().all(|(load, count)| *count > if load == UPLOADS { 1 } else { 3 }),
        "{counts:?}"
    );
    // Other tests replace pods.
    let again: Vec<_> = restarts()
        .into_iter()
        .filter(|(pod, count)| before.get(pod).is_some_and(|had| had != count))
        .collect();
    assert!(again.is_empty(), "containers were started again: {again:?}, before {before:?}");
    PLACE.kubectl(&["delete", "clusterrolebinding", NAMESPACE]).unwrap();
    PLACE.remove_namespace(NAMESPACE);
}
