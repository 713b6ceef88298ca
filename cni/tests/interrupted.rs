//! ADD and DEL killed, and failed by an injected error, at every system call they make; then DEL or GC leaves nothing.
//!
//! strace counts the calls of each name, so a call is told by its name and its number among those of that name: a first
//! run lists them all, and each is hit by a run of its own. By default every few calls, with FERROVIRT_SOAK every one.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use support::{Call, Host, Namespace, bridge, count, shipped, with};

/// One kind of attachment.
struct Kind {
    name: &'static str,
    config: Value,
    interface: &'static str,
    /// Whether GC takes it away too; what `tuning` keeps tells of no network, and is for DEL alone.
    collects: bool,
}

fn kinds(folder: &Path, pod: &Namespace) -> Vec<Kind> {
    let plain = |name, config| Kind { name, config, interface: "net1", collects: true };
    let tuning = json!({
        "cniVersion": "1.1.0", "name": "net", "type": "tuning", "dataDir": folder.join("backups"), "mtu": 1400,
        "mac": "02:00:00:00:00:0a", "promisc": true, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"},
        "prevResult": {"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": pod.path()}]},
    });
    let ipam = json!({
        "type": "host-local",
        "dataDir": folder.join("networks"),
        "ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]],
    });
    let gateway = with(&with(&bridge(), "isDefaultGateway", json!(true)), "ipam", ipam);
    vec![
        plain("bridge on layer 2", bridge()),
        plain("bridge with addresses and gateway", gateway),
        plain(
            "bridge with port settings",
            with(&with(&bridge(), "hairpinMode", json!(true)), "mtu", json!(1400)),
        ),
        plain("bridge with a spoof check", with(&bridge(), "macspoofchk", json!(true))),
        Kind { name: "tuning", config: tuning, interface: "eth0", collects: false },
        Kind {
            collects: false,
            ..plain("tap", json!({"cniVersion": "1.1.0", "name": "net", "type": "tap", "mtu": 1400}))
        },
    ]
}

/// The calls in the order they were made: each by name, with its number among those of that name.
fn calls(trace: &str) -> Vec<(String, usize)> {
    let mut numbers = BTreeMap::new();
    let name = |line: &str| {
        let (name, _) = line.split_once('(')?;
        name.chars().all(|one| one.is_ascii_alphanumeric() || one == '_').then(|| name.to_owned())
    };
    // The first is strace's own: it starts the plugin.
    let numbered = trace.lines().filter_map(name).skip_while(|name| name == "execve").map(|name| {
        let number = numbers.entry(name.clone()).or_insert(0);
        *number += 1;
        (name, *number)
    });
    numbered.collect()
}

struct Stage {
    host: Host,
    pod: Namespace,
}

impl Stage {
    fn new() -> Self {
        let (host, pod) = (Host::new(), Namespace::new());
        pod.ip("link add eth0 type veth peer name other");
        for name in ["bridge", "host-local", "tuning", "tap"] {
            std::fs::remove_file(host.folder.path().join(name)).unwrap();
            std::os::unix::fs::symlink(shipped(), host.folder.path().join(name)).unwrap();
        }
        Self { host, pod }
    }

    /// A call under strace; what strace wrote.
    fn traced(&self, call: &Call, options: &[&str]) -> String {
        let report = self.host.folder.path().join("trace");
        let mut command = self.host.namespace.command("strace");
        command.args(options).arg("-o").arg(&report).arg(&call.plugin);
        // A memory that cannot be had ends even what comes before main.
        self.host.output(command, call);
        std::fs::read_to_string(&report).unwrap()
    }

    fn left(&self) -> (Vec<String>, Vec<String>, Vec<String>) {
        let folders = ["backups", "networks/net"].map(|name| self.host.folder.path().join(name).read_dir());
        let files = folders.into_iter().flatten().flatten();
        let files = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        // These two tell of no attachment.
        let files = files.filter(|name| name != "lock" && !name.starts_with("last_reserved_ip.")).collect();
        (self.host.namespace.names(), self.pod.names(), files)
    }

    fn state(&self) -> String {
        let link = self.pod.link("eth0");
        format!("{} {} {}", link["address"], link["mtu"], link["flags"])
    }
}

#[test]
fn killed_or_failed_at_every_system_call() {
    let every = count(19, 1);
    let stage = Stage::new();
    let first = stage.left();
    let untuned = stage.state();
    let mut hits = 0;
    for kind in kinds(stage.host.folder.path(), &stage.pod) {
        let call = |verb: &str| {
            let mut call = stage.host.call(verb, &stage.pod, &kind.config);
            call.interface = kind.interface.to_owned();
            call
        };
        // A bridge is made by its first ADD; every ADD that is hit is such a one.
        let fresh = || {
            // So are the folders of addresses.
            drop(std::fs::remove_dir_all(stage.host.folder.path().join("networks")));
            if stage.host.namespace.names().contains(&"br0".to_owned()) {
                stage.host.namespace.ip("link del br0");
            }
            // And forwarding, which a gateway switches on once.
            let off =
                "echo 0 > /proc/sys/net/ipv4/ip_forward; echo 0 > /proc/sys/net/ipv6/conf/all/forwarding";
            stage.host.namespace.run("sh", &["-c", off]);
        };
        let (mut of_kind, mut beyond) = (0, 0);
        let mut listed = Vec::new();
        for verb in ["ADD", "DEL"] {
            fresh();
            if verb == "DEL" {
                stage.host.make(&call("ADD")).result();
            }
            let list = calls(&stage.traced(&call(verb), &[]));
            stage.host.make(&call("DEL")).result();
            assert!(list.len() > 20, "{list:?}");
            listed.push(list.len());
            for (index, (name, number)) in list.iter().enumerate().skip(of_kind % every).step_by(every) {
                for injected in ["signal=KILL", "error=EIO", "error=ENOMEM"] {
                    // The end of a process cannot fail.
                    if injected != "signal=KILL" && name.starts_with("exit") {
                        continue;
                    }
                    let inject = format!("inject={name}:{injected}:when={number}");
                    let hit = if injected == "signal=KILL" { "killed by SIGKILL" } else { "(INJECTED)" };
                    let attempt = || {
                        fresh();
                        if verb == "DEL" {
                            stage.host.make(&call("ADD")).result();
                        }
                        stage.traced(&call(verb), &["-e", &format!("trace={name}"), "-e", &inject])
                    };
                    // How often the kernel is asked again depends on how fast it was; a call beyond the last one of
                    // this run may be there in the next.
                    let mut trace = attempt();
                    for _ in 0..4 {
                        if !trace.contains(hit) {
                            stage.host.make(&call("DEL")).result();
                            trace = attempt();
                        }
                    }
                    let what =
                        format!("{}: {verb}, call {index} ({name} {number}), {injected}: {trace}", kind.name);
                    if !trace.contains(hit) {
                        assert!(trace.contains("+++ exited with"), "{what}");
                        stage.host.make(&call("DEL")).result();
                        beyond += 1;
                        continue;
                    }
                    of_kind += 1;
                    let verb = if kind.collects && of_kind % 2 == 0 { "GC" } else { "DEL" };
                    let answer = stage.host.make(&call(verb));
                    assert!(answer.success, "{what}, then {verb}: {answer:?}");
                    let (mut host, pod, files) = stage.left();
                    host.retain(|name| name != "br0");
                    assert_eq!((host, pod, files), first, "{what}, then {verb}");
                    let rules = stage.host.namespace.run("nft", &["list", "ruleset"]);
                    assert!(!rules.contains("cni-br-iface"), "{what}, then {verb}: {rules}");
                    assert_eq!(stage.state(), untuned, "{what}, then {verb}");
                }
            }
        }
        println!(
            "{}: {of_kind} hits, {beyond} beyond the last call; ADD makes {} system calls, DEL {}",
            kind.name, listed[0], listed[1]
        );
        assert!(beyond * 20 <= of_kind + 60, "{}: {beyond} of {of_kind} not hit", kind.name);
        hits += of_kind;
    }
    assert!(hits > 30, "{hits}");
}
