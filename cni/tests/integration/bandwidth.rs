//! Limits of an interface's rate, compared with the Go reference plugin: what the kernel has, what is answered, how fast frames go,
//! and that either side takes away what the other made.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Answer, Call, Host, Namespace, bridge, with};

/// Bits in a second, and at once.
const RATE: u64 = 16_000_000;
const BURST: u64 = 800_000;

fn limits() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": "bandwidth",
        "ingressRate": RATE, "ingressBurst": BURST, "egressRate": RATE, "egressBurst": BURST,
    })
}

/// A pod on the bridge, and what was answered.
struct Attached {
    host: Host,
    pod: Namespace,
    result: Value,
}

impl Attached {
    fn new() -> Self {
        let (host, pod) = (Host::new(), Namespace::new());
        let result = host.add(&pod, &bridge()).result();
        pod.ip("addr add 192.0.2.1/24 dev net1");
        Self { host, pod, result }
    }

    fn call(&self, verb: &str, config: &Value, previous: &Value) -> Call {
        self.host.call(verb, &self.pod, &with(config, "prevResult", previous.clone()))
    }

    fn make(&self, go: bool, verb: &str, config: &Value, previous: &Value) -> Answer {
        let call = self.call(verb, config, previous);
        if go { self.host.reference(call) } else { self.host.make(&call) }
    }

    /// Disciplines and filters of the node, with what differs from run to run replaced.
    fn limits(&self) -> Vec<String> {
        let port = self.result["interfaces"][1]["name"].as_str().unwrap();
        let shown = self.host.namespace.run("tc", &["qdisc", "show"]).replace(port, "PORT");
        let mut lines: Vec<String> = shown
            .lines()
            .filter(|line| line.contains("tbf") || line.contains("ingress"))
            .map(str::to_owned)
            .collect();
        lines.sort();
        lines
    }
}

/// Does something in a namespace.
fn inside<T: Send>(namespace: &Namespace, work: impl FnOnce() -> T + Send) -> T {
    let found = link::Namespace::open(Path::new(&namespace.path())).unwrap();
    found.on_a_thread(|| Ok::<_, link::Error>(work())).unwrap()
}

/// Seconds for so many bytes between the two, from the first one sent to the last one received.
fn seconds(from: &Namespace, to: &Namespace, address: &str, bytes: u64) -> f64 {
    let listener = inside(to, || TcpListener::bind((address, 0)).unwrap());
    let at = listener.local_addr().unwrap();
    let mut sender = inside(from, || TcpStream::connect_timeout(&at, Duration::from_secs(20)).unwrap());
    let (receiver, _) = listener.accept().unwrap();
    let received = std::thread::spawn(move || std::io::copy(&mut &receiver, &mut std::io::sink()).unwrap());
    let begun = Instant::now();
    std::io::copy(&mut std::io::repeat(7).take(bytes), &mut sender).unwrap();
    drop(sender);
    assert_eq!(received.join().unwrap(), bytes);
    begun.elapsed().as_secs_f64()
}

#[test]
fn limits_and_results_are_the_references() {
    let (ours, go) = (Attached::new(), Attached::new());
    let one = ours.make(false, "ADD", &limits(), &ours.result).result();
    let other = go.make(true, "ADD", &limits(), &go.result).result();
    assert_eq!(ours.limits(), go.limits());
    assert_eq!(ours.limits().len(), 3, "{:?}", ours.limits());
    let shape = |result: &Value| {
        let interfaces = result["interfaces"].as_array().unwrap();
        let last = interfaces.last().unwrap().as_object().unwrap();
        (interfaces.len(), last["name"].clone(), last.keys().cloned().collect::<Vec<_>>())
    };
    assert_eq!(shape(&one), shape(&other));
    let filters = |one: &Attached| {
        let port = one.result["interfaces"][1]["name"].as_str().unwrap();
        one.host.namespace.run("tc", &["filter", "show", "dev", port, "parent", "ffff:"])
    };
    for word in ["mirred (Egress Redirect to device bwp", "protocol all pref 1 u32", "flowid 1:1"] {
        assert!(filters(&ours).contains(word) && filters(&go).contains(word), "{word}: {}", filters(&ours));
    }
    // Each checks and deletes what the other made, in every mixture.
    for (checker, attached, result) in [(true, &ours, &one), (false, &go, &other)] {
        for go in [checker, !checker] {
            assert!(attached.make(go, "CHECK", &limits(), result).success, "{checker} {go}");
        }
        for go in [checker, !checker] {
            attached.make(go, "DEL", &limits(), result).result();
        }
        assert!(attached.host.namespace.names().iter().all(|name| !name.starts_with("bwp")));
        attached.host.del(&attached.pod, &bridge()).result();
        assert_eq!((attached.limits().len(), attached.host.namespace.names()), (0, vec!["br0".to_owned()]));
    }
}

#[test]
fn a_rate_is_within_a_tenth_of_the_references() {
    let measured = |go: bool| {
        let (one, other) = (Attached::new(), Namespace::new());
        let mut call = one.host.call("ADD", &other, &bridge());
        call.container = "c2".to_owned();
        one.host.make(&call).result();
        other.ip("addr add 192.0.2.2/24 dev net1");
        one.make(go, "ADD", &limits(), &one.result).result();
        // Two seconds at the rate.
        let bytes = RATE / 4;
        [seconds(&other, &one.pod, "192.0.2.1", bytes), seconds(&one.pod, &other, "192.0.2.2", bytes)]
    };
    // On a loaded machine one measurement in some is off.
    let (mut ours, mut go) = ([0.0; 2], [0.0; 2]);
    let near =
        |ours: &[f64; 2], go: &[f64; 2]| ours.iter().zip(go).all(|(ours, go)| (ours / go - 1.0).abs() <= 0.1);
    for _ in 0..3 {
        (ours, go) = (measured(false), measured(true));
        println!("to and from the pod, seconds: ours {ours:.2?}, the reference {go:.2?}");
        if near(&ours, &go) {
            break;
        }
    }
    assert!(near(&ours, &go), "ours {ours:?}, the reference {go:?}");
    assert!(ours.iter().all(|seconds| *seconds > 1.2), "{ours:?}: the rate is not limited");
}

#[test]
fn without_limits_nothing_is_done_and_bad_ones_are_refused() {
    let one = Attached::new();
    let nothing = json!({"cniVersion": "1.1.0", "name": "net", "type": "bandwidth"});
    let result = one.make(false, "ADD", &nothing, &one.result).result();
    assert_eq!(result, one.make(true, "ADD", &nothing, &one.result).result());
    assert!(one.limits().is_empty());
    one.make(false, "CHECK", &nothing, &result).result();
    one.make(false, "DEL", &nothing, &result).result();
    for (key, value, words) in [
        ("egressBurst", json!(0), "\"egressRate\" needs \"egressBurst\""),
        ("ingressRate", json!(null), "\"ingressBurst\" needs \"ingressRate\""),
    ] {
        let (_, said) = one.make(false, "ADD", &with(&limits(), key, value), &one.result).error();
        assert!(said.contains(words), "{said}");
    }
    let (_, said) = one.host.make(&one.host.call("ADD", &one.pod, &limits())).error();
    assert!(said.contains("\"prevResult\" is missing"), "{said}");
    // The pod's end is no veth that the node has.
    let (_, said) = one
        .make(false, "ADD", &limits(), &json!({"cniVersion": "1.1.0", "interfaces": [{"name": "br0"}]}))
        .error();
    assert!(said.contains("names no link of the node"), "{said}");
    // Half of it is taken back.
    one.host.namespace.ip("link add bwp0 type ifb");
    let full = one.make(false, "ADD", &limits(), &one.result).result();
    let before = one.limits();
    let (_, said) = one.make(false, "ADD", &limits(), &one.result).error();
    assert!(!said.is_empty());
    assert_eq!(one.limits(), before, "what was there stays");
    one.make(false, "DEL", &limits(), &full).result();
    assert!(one.host.namespace.names().contains(&"bwp0".to_owned()));
}

#[test]
fn a_check_misses_every_part_and_a_collection_takes_what_is_stale() {
    let one = Attached::new();
    let port = one.result["interfaces"][1]["name"].as_str().unwrap().to_owned();
    for (undo, words) in [
        (format!("qdisc del dev {port} root"), "no longer limited"),
        (
            format!("qdisc change dev {port} root handle 1: tbf rate 1mbit burst 10000 limit 10000"),
            "was limited to",
        ),
        (format!("qdisc del dev {port} ingress"), "not redirected"),
        ("qdisc del dev IFB root".to_owned(), "no longer limited"),
    ] {
        let result = one.make(false, "ADD", &limits(), &one.result).result();
        let ifb = result["interfaces"][3]["name"].as_str().unwrap();
        let undo = undo.replace("IFB", ifb);
        one.host.namespace.run("tc", &undo.split(' ').collect::<Vec<_>>());
        let (code, said) = one.make(false, "CHECK", &limits(), &result).error();
        assert!(code == 101 && said.contains(words), "{undo}: {code}: {said}");
        one.make(false, "DEL", &limits(), &result).result();
        for rest in ["root", "ingress"] {
            let _ = one.host.namespace.command("tc").args(["qdisc", "del", "dev", &port, rest]).output();
        }
    }
    one.make(false, "ADD", &limits(), &one.result).result();
    let collect = |valid: Value| {
        let config = with(&limits(), "cni.dev/valid-attachments", valid);
        one.host.make(&one.host.call("GC", &one.pod, &config)).result();
        one.host.namespace.names().iter().any(|name| name.starts_with("bwp"))
    };
    assert!(collect(json!([{"containerID": "c1", "ifname": "net1"}])));
    assert!(!collect(json!([{"containerID": "c2", "ifname": "net1"}])));
}
