//! ADD and DEL killed, and failed by an injected error, at every system call they make; then DEL or GC leaves nothing.
//!
//! strace counts the calls of each name, so that a call is identified by its name and its number among those of that name: a
//! first run lists them all, and each is hit by a run of its own. By default every few calls, with FERROVIRT_SOAK every one;
//! no listed call may be missed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;

use serde_json::{Value, json};

use crate::support::{Call, Host, Namespace, bridge, bridge_with, count, shipped, with};

/// One kind of attachment.
struct Kind {
    config: Value,
    interface: &'static str,
    /// Whether GC removes it too; the files of `tuning` name no network, and only DEL removes them.
    collects: bool,
    /// By default every so many calls are hit.
    every: usize,
}

impl Kind {
    fn new(config: Value) -> Self {
        Self { config, interface: "net1", collects: true, every: 53 }
    }
}

/// Addresses of both families, kept in the stage's folder, and the gateway's on the bridge.
fn gateway(host: &Host) -> Value {
    let ranges = json!([[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]);
    host.with_ranges(&ranges, json!({"isDefaultGateway": true}))
}

/// A call that the kernel restarts, mostly a write to a file of /proc/sys/net while another process changes links. strace
/// counts each time, so later calls have other numbers than usual.
const RESTARTED: &str = "ERESTART";

/// The calls in the order they were made: each by name, with its number among those of that name.
fn calls(trace: &str) -> Vec<(String, usize)> {
    let mut numbers = BTreeMap::new();
    let name = |line: &str| {
        let (name, _) = line.split_once('(')?;
        name.chars().all(|one| one.is_ascii_alphanumeric() || one == '_').then(|| name.to_owned())
    };
    // The first is strace's own: it starts the plugin.
    let lines = trace.lines().filter(|line| !line.contains(RESTARTED));
    let numbered = lines.filter_map(name).skip_while(|name| name == "execve").map(|name| {
        let number = numbers.entry(name.clone()).or_insert(0);
        *number += 1;
        (name, *number)
    });
    numbered.collect()
}

/// How often a verb is looked at to know its calls: a loop that waits for the kernel goes round more often in one run than in
/// another, and the fewest calls are those of every run.
const LISTS: usize = 5;

/// How often a call is tried until it is met by its number.
const TRIES: usize = 20;

/// A call that is hit.
struct Hit<'a> {
    verb: &'static str,
    /// The system call, and which of that name.
    name: &'a str,
    number: usize,
    injected: &'static str,
}

impl fmt::Display for Hit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with inject={}:{}:when={}", self.verb, self.name, self.injected, self.number)
    }
}

/// The visible remains of attachments: links of the host and the pod, and files.
type Left = (Vec<String>, Vec<String>, Vec<String>);

/// A node and a pod for attachments of one kind.
struct Stage {
    host: Host,
    pod: Namespace,
    kind: Kind,
    first: Left,
    untuned: String,
}

impl Stage {
    fn new(kind: fn(&Host, &Namespace) -> Kind) -> Self {
        let (host, pod) = (Host::new(), Namespace::new());
        pod.ip("link add eth0 type veth peer name other");
        for name in ["bridge", "host-local", "tuning", "tap"] {
            std::fs::remove_file(host.folder.path().join(name)).unwrap();
            std::os::unix::fs::symlink(shipped(), host.folder.path().join(name)).unwrap();
        }
        let kind = kind(&host, &pod);
        let (first, untuned) = (left(&host, &pod), state(&pod));
        Self { host, pod, kind, first, untuned }
    }

    fn call(&self, verb: &str) -> Call {
        let mut call = self.host.call(verb, &self.pod, &self.kind.config);
        call.interface = self.kind.interface.to_owned();
        call
    }

    /// A call under strace; what strace wrote.
    fn traced(&self, verb: &str, options: &[&str]) -> String {
        // A bridge is made by its first ADD; every ADD that is hit is such a one. So are the folders of addresses, and the
        // tables that all attachments share.
        drop(std::fs::remove_dir_all(self.host.networks()));
        if self.host.namespace.names().contains(&"br0".to_owned()) {
            self.host.namespace.ip("link del br0");
        }
        // And forwarding, which a gateway switches on once.
        let off = "echo 0 > /proc/sys/net/ipv4/ip_forward; echo 0 > /proc/sys/net/ipv6/conf/all/forwarding";
        self.host.namespace.run("sh", &["-c", off]);
        self.host.namespace.run("nft", &["flush", "ruleset"]);
        if verb == "DEL" {
            self.host.make(&self.call("ADD")).result();
        }
        let call = self.call(verb);
        let report = self.host.folder.path().join("trace");
        let mut command = self.host.namespace.command("strace");
        command.args(options).arg("-o").arg(&report).arg(&call.plugin);
        // A memory that cannot be had ends even what comes before main.
        self.host.output(command, &call);
        std::fs::read_to_string(&report).unwrap()
    }

    /// The calls that a verb makes.
    fn list(&self, verb: &str) -> Vec<(String, usize)> {
        let lists = (0..count(2, LISTS)).map(|_| {
            let trace = self.traced(verb, &[]);
            assert!(trace.contains("+++ exited with 0 +++"), "{trace}");
            self.host.make(&self.call("DEL")).result();
            calls(&trace)
        });
        let list = lists.min_by_key(Vec::len).unwrap();
        assert!(list.len() > 20, "{list:?}");
        list
    }

    /// Cuts a call short, and looks whether `then` leaves nothing. False when it was never met.
    fn hit(&self, hit: &Hit<'_>, then: &str) -> bool {
        let Hit { verb, name, number, injected } = hit;
        let inject = format!("inject={name}:{injected}:when={number}");
        let shown = format!("trace={name}");
        let mark = if *injected == "signal=KILL" { "killed by SIGKILL" } else { "(INJECTED)" };
        for _ in 0..TRIES {
            let trace = self.traced(verb, &["-e", &shown, "-e", &inject]);
            let what = format!("{hit}, then {then}: {trace}");
            if !trace.contains(mark) {
                assert!(trace.contains("+++ exited with"), "{what}");
                self.host.make(&self.call("DEL")).result();
                continue;
            }
            self.nothing_is_left(then, &what);
            if !trace.contains(RESTARTED) {
                return true;
            }
        }
        false
    }

    /// Of what was cut short, after one more call.
    fn nothing_is_left(&self, then: &str, what: &str) {
        let answer = self.host.make(&self.call(then));
        assert!(answer.success, "{what}: {answer:?}");
        let mut left = left(&self.host, &self.pod);
        left.0.retain(|name| name != "br0");
        assert_eq!(left, self.first, "{what}");
        let rules = self.host.namespace.run("nft", &["list", "ruleset"]);
        let of_attachments =
            ["cni-br-iface", ", net: ", "c1-net1", "CNI-"].iter().any(|part| rules.contains(part));
        assert!(!of_attachments, "{what}: {rules}");
        assert_eq!(state(&self.pod), self.untuned, "{what}");
    }
}

fn left(host: &Host, pod: &Namespace) -> Left {
    let folders =
        [host.folder.path().join("backups"), host.networks().join("net")].map(|path| path.read_dir());
    let files = folders.into_iter().flatten().flatten();
    let files = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    // These two belong to no attachment.
    let files = files.filter(|name| name != "lock" && !name.starts_with("last_reserved_ip.")).collect();
    (host.namespace.names(), pod.names(), files)
}

fn state(pod: &Namespace) -> String {
    let link = pod.link("eth0");
    format!("{} {} {}", link["address"], link["mtu"], link["flags"])
}

/// Cuts ADD and DEL of a kind short at every system call, or every few.
fn cut_short(kind: fn(&Host, &Namespace) -> Kind) {
    // Most of the time the kernel waits for a grace period after a link's removal.
    const STAGES: usize = 4;
    let stages: Vec<Stage> = (0..STAGES).map(|_| Stage::new(kind)).collect();
    let every = count(stages[0].kind.every, 1);
    let lists = ["ADD", "DEL"].map(|verb| (verb, stages[0].list(verb)));
    let mut hits = Vec::new();
    for (verb, list) in &lists {
        for (name, number) in list.iter().skip(hits.len() % every).step_by(every) {
            // The end of a process cannot fail. A close that fails has closed all the same (close(2)), but strace does not
            // run it: a reader of a pipe with its own writing end still open waits for ever.
            let injections = if name.starts_with("exit") || name == "close" { 1 } else { 3 };
            let injections = ["signal=KILL", "error=EIO", "error=ENOMEM"].into_iter().take(injections);
            hits.extend(injections.map(|injected| Hit { verb, name, number: *number, injected }));
        }
    }
    let missed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for (first, stage) in stages.iter().enumerate() {
            let (hits, missed) = (&hits, &missed);
            scope.spawn(move || {
                for (turn, one) in hits.iter().enumerate().skip(first).step_by(STAGES) {
                    let then = if stage.kind.collects && turn % 2 == 1 { "GC" } else { "DEL" };
                    if !stage.hit(one, then) {
                        missed.lock().unwrap().push(one.to_string());
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().unwrap();
    println!(
        "{}: {} hits, {} not met in {TRIES} tries; ADD makes {} system calls, DEL {}",
        std::thread::current().name().unwrap_or_default(),
        hits.len() - missed.len(),
        missed.len(),
        lists[0].1.len(),
        lists[1].1.len()
    );
    assert!(hits.len() > 3, "{}", hits.len());
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn a_bridge_on_layer_2() {
    cut_short(|_, _| Kind::new(bridge()));
}

#[test]
fn a_bridge_with_addresses_and_a_gateway() {
    cut_short(|host, _| Kind::new(gateway(host)));
}

/// It waits until the addresses are known to be unique, for a second or two.
#[test]
fn a_bridge_with_duplicate_address_detection() {
    cut_short(|host, _| Kind { every: 211, ..Kind::new(with(&gateway(host), "enabledad", json!(true))) });
}

#[test]
fn a_bridge_with_masquerading() {
    cut_short(|host, _| {
        let gateway = with(&gateway(host), "ipMasq", json!(true));
        Kind::new(with(&gateway, "ipMasqBackend", json!("nftables")))
    });
}

#[test]
fn a_bridge_with_masquerading_by_iptables() {
    cut_short(|host, _| {
        let gateway = with(&gateway(host), "ipMasq", json!(true));
        Kind::new(with(&gateway, "ipMasqBackend", json!("iptables")))
    });
}

#[test]
fn a_bridge_with_pinned_addresses() {
    cut_short(|host, _| Kind::new(with(&gateway(host), "ipspoofchk", json!(true))));
}

#[test]
fn a_bridge_with_port_settings() {
    cut_short(|_, _| Kind::new(bridge_with(json!({"hairpinMode": true, "mtu": 1400}))));
}

#[test]
fn a_bridge_with_a_spoof_check() {
    cut_short(|_, _| Kind::new(bridge_with(json!({"macspoofchk": true, "spoofchkBackend": "nftables"}))));
}

#[test]
fn host_local() {
    cut_short(|host, _| Kind::new(with(&gateway(host), "type", json!("host-local"))));
}

#[test]
fn tuning() {
    cut_short(|host, pod| Kind {
        interface: "eth0",
        collects: false,
        ..Kind::new(json!({
            "cniVersion": "1.1.0", "name": "net", "type": "tuning", "mtu": 1400, "mac": "02:00:00:00:00:0a",
            "dataDir": host.folder.path().join("backups"), "promisc": true,
            "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"},
            "prevResult": {"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": pod.path()}]},
        }))
    });
}

#[test]
fn tap() {
    cut_short(|_, _| Kind {
        collects: false,
        ..Kind::new(json!({"cniVersion": "1.1.0", "name": "net", "type": "tap", "mtu": 1400}))
    });
}
