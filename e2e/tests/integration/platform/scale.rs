//! The operator with many VMs, halted ones and those that run on hollow nodes: its memory, how soon it handles a request to
//! start, requests that it makes at rest, and how soon it knows everything again after its process was killed, next to the
//! time that curl needs for the same pages.
//!
//! Small counts next to other tests, where times mean little; the promised ones with `FERROVIRT_SOAK=1`, alone.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use cluster::{Cache, Client, Config, Key, Scope};
use e2e::processes::{self, Memory};
use futures_util::{StreamExt, stream};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::platform::hollow::Hollow;
use crate::platform::machines::machine;
use crate::platform::place::{MACHINES, PLACE, PODS};

const NAMESPACE: &str = "scale";
/// Creations at once.
const AT_ONCE: usize = 16;
/// How long all VMs together may take to get somewhere.
const TIMEOUT: Duration = Duration::from_secs(1200);
/// Collections of which the operator keeps what it decides on.
const FOLLOWED: [&str; 7] = [
    "apis/kubevirt.io/v1/virtualmachines",
    "apis/kubevirt.io/v1/virtualmachineinstances",
    "apis/cdi.kubevirt.io/v1beta1/datavolumes",
    "api/v1/persistentvolumeclaims",
    "api/v1/pods",
    "api/v1/nodes",
    "apis/apps/v1/daemonsets",
];

/// `printableStatus` of a VM.
#[derive(Clone, Debug, Default, PartialEq)]
struct Printable(String);

#[derive(Debug, Deserialize)]
#[serde(transparent)]
struct Written(Value);

impl From<&Written> for Printable {
    fn from(Written(machine): &Written) -> Self {
        Self(machine["status"]["printableStatus"].as_str().unwrap_or_default().to_owned())
    }
}

/// Counts of a run.
struct Counts {
    halted: usize,
    running: usize,
    nodes: usize,
    starts: usize,
}

/// The operator's pod.
struct Operator {
    uid: String,
    address: Ipv4Addr,
}

impl Operator {
    fn find() -> Self {
        let pods = PLACE.list(PODS, "kubevirt-hyperconverged");
        let named = |pod: &&Value| {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            name.starts_with("ferrovirt-operator-") && pod["status"]["phase"] == "Running"
        };
        let pod = pods.iter().find(named).unwrap();
        Self {
            uid: pod["metadata"]["uid"].as_str().unwrap().to_owned(),
            address: pod["status"]["podIP"].as_str().unwrap().parse().unwrap(),
        }
    }

    /// Memory that counts, in MiB.
    fn memory(&self) -> u64 {
        Memory::of_pod(&self.uid).unwrap().counted().unwrap() >> 10
    }

    /// Its answer on the port of probes; `None`: it does not listen.
    fn ask(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect((self.address, 8081)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
            .write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes())
            .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    /// Requests to the API server so far.
    fn requests(&self) -> u64 {
        let page = self.ask("/metrics").unwrap();
        let line =
            page.lines().find(|line| line.starts_with("ferrovirt_operator_api_requests_total")).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    fn kill(&self) {
        for process in processes::of_pod(&self.uid) {
            let name = format!("/proc/{}/comm", process.as_raw_nonzero());
            if fs::read_to_string(name).unwrap_or_default().trim() == "operator" {
                rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
            }
        }
    }
}

/// Creates VMs, at most [`AT_ONCE`] at once.
fn create(names: impl Iterator<Item = String>, strategy: &str) {
    let client = client();
    PLACE.cluster.run(async {
        let made = stream::iter(names).map(|name| {
            let mut vm = machine(&name, strategy, &json!({"emptyDisk": {"capacity": "1Mi"}}));
            Hollow::schedule_here(&mut vm);
            let client = client.clone();
            async move { client.create::<IgnoredAny>(MACHINES, NAMESPACE, &vm).await.map(drop) }
        });
        let made: Vec<_> = made.buffer_unordered(AT_ONCE).collect().await;
        for one in made {
            one.unwrap();
        }
    });
}

fn client() -> Client {
    Client::new(&Config::load(Some(&PLACE.cluster.kubeconfig()), None).unwrap(), "scale").unwrap()
}

/// Waits until a condition holds; gives the time that this took.
#[track_caller]
fn until(what: &str, pause: Duration, mut holds: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < TIMEOUT, "{what}: not in {TIMEOUT:?}");
        std::thread::sleep(pause);
    }
    begun.elapsed()
}

/// VMs by `printableStatus`.
fn statuses(machines: &Cache<Printable>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for (_, status) in machines.all() {
        *counts.entry(status.0.clone()).or_default() += 1;
    }
    counts
}

#[track_caller]
fn until_all(machines: &Cache<Printable>, status: &str, count: usize) -> Duration {
    until(&format!("{count} VMs are {status}"), Duration::from_millis(100), || {
        statuses(machines).get(status).copied().unwrap_or(0) >= count
    })
}

/// Starts halted VMs one after the other; how long it took until each had an instance.
fn starts(hollow: &Hollow, count: usize) -> Vec<Duration> {
    let client = PLACE.cluster.client();
    let mut times = Vec::new();
    for number in 0..count {
        let name = format!("halted-{number}");
        let path =
            format!("/apis/subresources.kubevirt.io/v1/namespaces/{NAMESPACE}/virtualmachines/{name}/start");
        let request = hyper::Request::put(path).body(kube::client::Body::from(b"{}".to_vec())).unwrap();
        let begun = Instant::now();
        let answer = PLACE.cluster.run(client.send(request)).unwrap();
        assert_eq!(answer.status().as_u16(), 202, "{name}");
        let key = Key::new(NAMESPACE, &name);
        until(&format!("{name} has an instance"), Duration::from_millis(2), || {
            hollow.instances.get(&key).is_some()
        });
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    times
}

fn share(times: &[Duration], percent: usize) -> Duration {
    times[(times.len() * percent / 100).min(times.len() - 1)]
}

/// Time that curl needs for all pages of what the operator follows, one after the other.
fn pages() -> (usize, Duration) {
    let node = PLACE.cluster.place();
    let pki = |name: &str| node.path("pki").join(name);
    let answer = node.path("curl.json");
    let (mut count, mut total) = (0, Duration::ZERO);
    for collection in FOLLOWED {
        let mut token = String::new();
        loop {
            let url = format!("https://{}:6443/{collection}?limit=500&continue={token}", node.node_address());
            let curl = Command::new("curl")
                .args(["-sS", "--compressed", "-w", "%{time_total}", &url, "-o"])
                .arg(&answer)
                .arg("--cacert")
                .arg(pki("ca.crt"))
                .arg("--cert")
                .arg(pki("admin.crt"))
                .arg("--key")
                .arg(pki("admin.key"))
                .output()
                .unwrap();
            assert!(curl.status.success(), "{}", String::from_utf8_lossy(&curl.stderr));
            count += 1;
            total += Duration::from_secs_f64(String::from_utf8_lossy(&curl.stdout).parse().unwrap());
            let page: Value = serde_json::from_slice(&fs::read(&answer).unwrap()).unwrap();
            token = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
            if token.is_empty() {
                break;
            }
        }
    }
    (count, total)
}

/// Kills the operator's process; times from when the next one listens until it is ready, and until it knows everything.
fn restart(operator: &Operator) -> (Duration, Duration) {
    operator.kill();
    let pause = Duration::from_millis(2);
    until("the operator ends", pause, || operator.ask("/healthz").is_none());
    until("the operator listens", pause, || operator.ask("/healthz").is_some());
    let begun = Instant::now();
    let (mut ready, mut known) = (None, None);
    until("the operator knows everything", pause, || {
        if ready.is_none() && operator.ask("/readyz").is_some_and(|text| text.starts_with("HTTP/1.1 200")) {
            ready = Some(begun.elapsed());
        }
        if known.is_none()
            && operator.ask("/metrics").is_some_and(|page| page.contains("kubevirt_number_of_vms{"))
        {
            known = Some(begun.elapsed());
        }
        ready.is_some() && known.is_some()
    });
    (ready.unwrap(), known.unwrap())
}

#[test]
fn many_machines_cost_little_memory_and_delay_no_start() {
    let soak = std::env::var_os("FERROVIRT_SOAK").is_some();
    let counts = match soak {
        true => Counts { halted: 10_000, running: 1_000, nodes: 100, starts: 100 },
        false => Counts { halted: 100, running: 12, nodes: 3, starts: 5 },
    };
    PLACE.namespace(NAMESPACE);
    let begun = Instant::now();
    let operator = Operator::find();
    println!("operator: {} MiB resident before", operator.memory());
    let hollow = Hollow::start(counts.nodes);
    let machines: Cache<Printable> = PLACE.cluster.run(async {
        let scope = Scope::all().namespace(NAMESPACE);
        Cache::builder().start::<Written>(&client(), MACHINES, &scope)
    });
    // The first ones alone: another promise is about them.
    let few = counts.halted.min(1_000);
    let all = counts.halted;
    create((0..few).map(|number| format!("halted-{number}")), "Halted");
    let took = until_all(&machines, "Stopped", few);
    let memory = operator.memory();
    println!("{few} halted VMs: {memory} MiB resident; the last was Stopped {took:.1?} after it was created");
    assert!(memory <= 64, "{memory} MiB with {few} halted VMs");
    create((few..all).map(|number| format!("halted-{number}")), "Halted");
    until_all(&machines, "Stopped", all);
    let created = Instant::now();
    create((0..counts.running).map(|number| format!("running-{number}")), "Always");
    until_all(&machines, "Running", counts.running);
    println!(
        "{} VMs on {} hollow nodes run {:.1?} after the first was created",
        counts.running,
        counts.nodes,
        created.elapsed()
    );
    let memory = operator.memory();
    println!("{} halted and {} running VMs: {memory} MiB resident", all, counts.running);
    assert!(memory <= 128, "{memory} MiB");
    let times = starts(&hollow, counts.starts);
    let (median, most) = (share(&times, 50), share(&times, 99));
    println!("start request to instance, {} in turn: p50 {median:.1?}, p99 {most:.1?}", counts.starts);
    assert!(most <= e2e::bar(Duration::from_secs(1)), "{times:?}");
    if soak {
        std::thread::sleep(Duration::from_secs(30));
        let (before, time) = (operator.requests(), Duration::from_secs(60));
        std::thread::sleep(time);
        println!("at rest: {} requests to the API server in {time:?}", operator.requests() - before);
        let (count, curl) = pages();
        let (ready, known) = restart(&operator);
        let memory = operator.memory();
        println!(
            "after a restart: ready {ready:.2?}, everything known {known:.2?}; curl needs {curl:.2?} for {count} pages; \
             {memory} MiB resident"
        );
        let first = starts_after_restart(&hollow, counts.starts);
        println!("the first start request after it: {first:.1?}");
        assert!(memory <= 128, "{memory} MiB after a restart");
        assert!(known.as_secs_f64() <= 1.3 * curl.as_secs_f64(), "{known:?} and {curl:?}");
    }
    println!("all of it took {:.1?}", begun.elapsed());
    if soak {
        // The cluster ends with the tests.
        return;
    }
    PLACE.kubectl(&["delete", "namespace", NAMESPACE, "--wait=false"]).unwrap();
    until("the namespace is gone", Duration::from_millis(200), || {
        PLACE.kubectl(&["get", "namespace", NAMESPACE]).is_err()
    });
    drop(machines);
    hollow.remove();
    println!("removed after {:.1?}", begun.elapsed());
}

/// Starts one more VM; how long it took until it had an instance.
fn starts_after_restart(hollow: &Hollow, number: usize) -> Duration {
    let key = Key::new(NAMESPACE, &format!("halted-{number}"));
    let begun = Instant::now();
    until("the operator takes the request", Duration::from_millis(20), || {
        PLACE.put(NAMESPACE, &format!("virtualmachines/{}/start", key.name())).is_ok()
    });
    until("it has an instance", Duration::from_millis(2), || hollow.instances.get(&key).is_some());
    begun.elapsed()
}
