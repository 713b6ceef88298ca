//! A node full of attachments: calls about one of them, or about none, cost what they cost on an empty node, and a GC of all
//! delays no ADD for long. The program is the shipped one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Answer, Call, Host, Namespace, bridge, count, shipped, with};

/// Calls of each kind; the fastest counts.
const TIMES: usize = 15;
/// Bars of a STATUS, and of the time that a GC makes an ADD on another network longer.
const STATUS: Duration = Duration::from_millis(10);
const WAIT: Duration = Duration::from_millis(100);

/// A node with attachments to `net`, and the pods.
fn full() -> (Host, Value, Vec<Namespace>) {
    let host = Host::new();
    for name in ["bridge", "host-local"] {
        let plugin = host.folder.path().join(name);
        std::fs::remove_file(&plugin).unwrap();
        std::os::unix::fs::symlink(shipped(), plugin).unwrap();
    }
    let config = host.with_ranges(
        &json!([[{"subnet": "10.77.0.0/16"}]]),
        json!({"macspoofchk": true, "spoofchkBackend": "nftables"}),
    );
    let pods: Vec<Namespace> = (0..count(40, 500)).map(|_| Namespace::new()).collect();
    for (index, pod) in pods.iter().enumerate() {
        host.make(&of(&host, "ADD", pod, &config, &format!("c{index}"))).result();
    }
    (host, config, pods)
}

fn of(host: &Host, verb: &str, pod: &Namespace, config: &Value, container: &str) -> Call {
    Call { container: container.to_owned(), ..host.call(verb, pod, config) }
}

fn timed(call: impl FnOnce() -> Answer) -> Duration {
    let start = Instant::now();
    let answer = call();
    let took = start.elapsed();
    answer.result();
    took
}

#[test]
fn a_del_of_nothing_and_a_status_do_not_walk_the_node() {
    let (host, config, pods) = full();
    let empty = Namespace::new();
    let (mut ours, mut theirs, mut status) = (Vec::new(), Vec::new(), Vec::new());
    // Without a spoof check: the reference runs the program nft for one, and its time would hide the rest.
    let plain = with(&config, "macspoofchk", json!(false));
    for _ in 0..TIMES {
        let del = of(&host, "DEL", &empty, &plain, "none");
        ours.push(timed(|| host.make(&del)));
        theirs.push(timed(|| host.reference(del)));
        status.push(timed(|| host.make(&host.call("STATUS", &empty, &config))));
    }
    let least = |times: Vec<Duration>| times.into_iter().min().unwrap();
    let (ours, theirs, status) = (least(ours), least(theirs), least(status));
    println!(
        "{} attachments: DEL of nothing {ours:?}, the reference's {theirs:?}; STATUS {status:?}",
        pods.len()
    );
    assert!(ours <= theirs, "{ours:?}, the reference {theirs:?}");
    assert!(status <= STATUS, "{status:?}");
}

#[test]
fn a_gc_of_all_lets_an_add_on_another_network_pass() {
    let (host, config, pods) = full();
    let other = with(&with(&bridge(), "name", json!("net2")), "bridge", json!("br1"));
    let pod = Namespace::new();
    let add = || {
        let took = timed(|| host.make(&of(&host, "ADD", &pod, &other, "other")));
        host.make(&of(&host, "DEL", &pod, &other, "other")).result();
        took
    };
    let alone = (0..TIMES).map(|_| add()).max().unwrap();
    let ended = AtomicBool::new(false);
    let (gc, adds) = std::thread::scope(|scope| {
        let gc = scope.spawn(|| {
            let stale = with(&config, "cni.dev/valid-attachments", json!([]));
            let took = timed(|| host.make(&host.call("GC", &pod, &stale)));
            ended.store(true, Ordering::Relaxed);
            took
        });
        let mut adds = Vec::new();
        while !ended.load(Ordering::Relaxed) {
            adds.push(add());
        }
        (gc.join().unwrap(), adds)
    });
    let longest = adds.iter().max().unwrap();
    println!(
        "GC of {}: {gc:?}, {} ADDs on another network meanwhile, the longest {longest:?}, alone {alone:?}",
        pods.len(),
        adds.len()
    );
    assert!(host.namespace.names().iter().all(|name| name.starts_with("br")), "{:?}", host.namespace.names());
    assert!(longest.saturating_sub(alone) <= WAIT, "{longest:?}, alone {alone:?}");
}
