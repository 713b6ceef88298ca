//! Hostile calls: mutants of configurations, variables that make no sense, results that lie. Every ADD either succeeds,
//! and its DEL leaves nothing, or answers one error document, exits non-zero and has changed nothing.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Map, Value, json};
use support::{Answer, Call, Host, Namespace, bridge, count, with};

const SEED: u64 = 0x0ff0_c111_0000_0001;

/// xorshift64*: the same mutants every time.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let value = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16;
        usize::try_from(value).unwrap() % below
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.next(from.len())]
    }
}

/// How an ADD ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    NotParsed,
    Refused,
    Attached,
}

/// A thread in the host's namespace, so that no other program is needed between it and the plugin.
struct Place {
    host: Host,
    pod: Namespace,
    /// Its view of both namespaces' links.
    pod_devices: PathBuf,
    holder: std::process::Child,
    folder: PathBuf,
}

impl Place {
    fn enter() -> Self {
        let (host, pod) = (Host::new(), Namespace::new());
        // A tuned interface, and a bridge in the pod for tap.
        pod.ip("link add eth0 type veth peer name other");
        let mut sleep = pod.command("sleep");
        let holder = sleep.arg("100000").spawn().unwrap();
        let pod_devices = PathBuf::from(format!("/proc/{}/net/dev", holder.id()));
        let file = File::open(host.namespace.path()).unwrap();
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        let folder = host.folder.path().join("state");
        std::fs::create_dir(&folder).unwrap();
        let place = Self { host, pod, pod_devices, holder, folder };
        // nsenter has to have arrived.
        while place.names(&place.pod_devices) != ["eth0", "lo", "other"] {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        place
    }

    fn names(&self, devices: &std::path::Path) -> Vec<String> {
        let text = std::fs::read_to_string(devices).unwrap();
        let mut names: Vec<String> =
            text.lines().skip(2).map(|line| line.split(':').next().unwrap().trim().to_owned()).collect();
        names.sort();
        names
    }

    /// Names of all links, and files of state.
    fn names_of_all(&self) -> (Vec<String>, Vec<String>, usize) {
        let files = walk(&self.folder);
        (self.names("/proc/thread-self/net/dev".as_ref()), self.names(&self.pod_devices), files)
    }

    /// Everything that `ip` tells of the links of both.
    fn links_of_all(&self) -> String {
        self.host.namespace.run("ip", &["-d", "link"]) + &self.pod.run("ip", &["-d", "link"])
    }

    fn make(&self, call: &Call) -> Answer {
        self.host.run(Command::new(&call.plugin), call)
    }

    /// One ADD and what has to be true after it; how it ended.
    fn attempt(&self, add: &Call, what: &str, thorough: bool) -> Fate {
        let before = self.names_of_all();
        let links = thorough.then(|| self.links_of_all());
        let answer = self.make(add);
        let document = answer.document.as_ref().unwrap_or_else(|| panic!("no document: {what}"));
        if answer.success {
            assert!(
                document.get("code").is_none() && document["cniVersion"].is_string(),
                "{what}: {document}"
            );
            let delete = Call { verb: "DEL".to_owned(), ..add.clone() };
            let gone = self.make(&delete);
            assert!(gone.success && gone.document.is_none(), "{what}: {gone:?}");
            self.forget_bridges(&before.0, what);
            assert_eq!(self.names_of_all(), before, "{what}");
            return Fate::Attached;
        }
        let code = document["code"].as_u64().unwrap_or_else(|| panic!("{what}: {document}"));
        assert!(document["msg"].as_str().is_some_and(|words| !words.is_empty()), "{what}: {document}");
        assert!(document["cniVersion"].is_string(), "{what}: {document}");
        assert_eq!(self.names_of_all(), before, "{what}: {document}");
        if let Some(links) = links {
            assert_eq!(self.links_of_all(), links, "{what}: {document}");
        }
        // A DEL of what was never attached changes nothing either, and does not crash.
        if thorough {
            self.make(&Call { verb: "DEL".to_owned(), ..add.clone() });
            assert_eq!(self.names_of_all(), before, "{what}");
        }
        // Undecodable, or a version or names that make no sense: not past parsing.
        if matches!(code, 1 | 4 | 6) { Fate::NotParsed } else { Fate::Refused }
    }

    /// A bridge stays when its last port has gone, by the plugin's contract; here it goes.
    fn forget_bridges(&self, before: &[String], what: &str) {
        for name in self.names("/proc/thread-self/net/dev".as_ref()) {
            if !before.contains(&name) {
                assert_eq!(
                    self.host.namespace.link(&name)["linkinfo"]["info_kind"],
                    "bridge",
                    "{what}: {name}"
                );
                self.host.namespace.run("ip", &["link", "del", &name]);
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(self.holder.kill());
        drop(self.holder.wait());
    }
}

fn walk(folder: &std::path::Path) -> usize {
    let Ok(entries) = folder.read_dir() else { return 0 };
    let entries = entries.flatten().map(|entry| entry.path());
    entries.map(|path| if path.is_dir() { walk(&path) } else { 1 }).sum()
}

/// Configurations with everything in them that a mutant may break.
fn templates(place: &Place) -> Vec<(Value, &'static str)> {
    let previous = json!({
        "cniVersion": "1.1.0",
        "interfaces": [
            {"name": "br0", "mac": "02:00:00:00:00:05"},
            {"name": "eth0", "mac": "02:00:00:00:00:01", "mtu": 1500, "sandbox": place.pod.path()},
        ],
        "ips": [{"address": "192.0.2.2/24", "gateway": "192.0.2.1", "interface": 1}],
        "routes": [{"dst": "0.0.0.0/0", "gw": "192.0.2.1", "priority": 5}],
        "dns": {"nameservers": ["192.0.2.1"]},
    });
    let more = |base: Value, keys: Value| {
        let mut base = base;
        base.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        base
    };
    vec![
        (
            more(
                bridge(),
                json!({
                    "mtu": 1400, "hairpinMode": true, "promiscMode": false, "portIsolation": true, "vlan": 0,
                    "vlanTrunk": null, "preserveDefaultVlan": false, "disableContainerInterface": false,
                    "enabledad": true, "isGateway": false, "forceAddress": false, "ipMasq": false,
                    "ipMasqBackend": "nftables", "ipam": {}, "dns": {}, "macspoofchk": false,
                    "args": {"cni": {"mac": "02:00:00:00:00:0b"}},
                    "runtimeConfig": {"mac": "02:00:00:00:00:0a"},
                }),
            ),
            "net1",
        ),
        (
            more(
                bridge(),
                json!({
                    "isGateway": true, "isDefaultGateway": true, "forceAddress": true, "enabledad": false,
                    "dns": {"domain": "d", "nameservers": ["192.0.2.1"]},
                    "ipam": {
                        "type": "static",
                        "addresses": [
                            {"address": "10.1.2.3/24", "gateway": "10.1.2.1"},
                            {"address": "fd00::3/64"},
                        ],
                        "routes": [
                            {"dst": "192.0.2.0/24", "gw": "10.1.2.9", "mtu": 1300, "table": 77, "scope": 0},
                            {"dst": "fd01::/64", "priority": 5, "advmss": 1200},
                        ],
                        "dns": {"search": ["a"]},
                    },
                    "args": {"cni": {"ips": null}},
                    "runtimeConfig": {"ips": null},
                }),
            ),
            "net1",
        ),
        (
            json!({
                "cniVersion": "1.1.0", "name": "net", "type": "tuning", "mac": "02:00:00:00:00:0a", "mtu": 1400,
                "promisc": true, "allmulti": true, "txQLen": 77, "dataDir": place.folder.join("tuning"),
                "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}, "args": {"cni": {"mtu": 1300}},
                "runtimeConfig": {"mac": "02:00:00:00:00:0c"}, "prevResult": previous,
            }),
            "eth0",
        ),
        (
            json!({
                "cniVersion": "1.0.0", "name": "net", "type": "tap", "mac": "02:00:00:00:00:0a", "mtu": 1400,
                "owner": 107, "group": 107, "multiQueue": true, "bridge": "", "selinuxContext": "", "dns": {},
            }),
            "net1",
        ),
    ]
}

/// Values that somebody might write, by accident or not.
fn odd_value(random: &mut Random) -> Value {
    match random.next(16) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!("true"),
        3 => json!(random.next(5000)),
        4 => json!(-1),
        5 => json!(i64::MAX),
        6 => json!(u64::MAX),
        7 => json!(1.5e300),
        8 => json!(""),
        9 => json!(random.pick(&[
            "a/b",
            "../..",
            "..",
            ".",
            "a b",
            "a\0b",
            "\u{202e}",
            "é",
            "a234567890123456",
            "%s"
        ])),
        10 => json!("x".repeat(random.next(3000))),
        11 => json!([]),
        12 => json!({}),
        13 => json!([[[[[[[[1]]]]]]]]),
        14 => json!({"type": "bridge", "name": "x", "id": 1, "minID": 2, "maxID": 1}),
        _ => json!(random.pick(&[
            "02:00:00:00:00:01",
            "192.0.2.1/24",
            "::/0",
            "0.3.1",
            "br1",
            "lo",
            "eth0",
            "nftables"
        ])),
    }
}

fn keys(object: &Map<String, Value>) -> Vec<String> {
    object.keys().cloned().collect()
}

/// Changes one thing somewhere below `value`.
fn mutate(value: &mut Value, random: &mut Random) {
    if let Value::Object(object) = value
        && !object.is_empty()
    {
        let key = random.pick(&keys(object)).clone();
        match random.next(8) {
            0 => drop(object.remove(&key)),
            1 => {
                let member = object.remove(&key).unwrap();
                let key = if random.next(2) == 0 { key.to_uppercase() } else { key.to_lowercase() };
                object.insert(key, member);
            }
            2 => drop(object.insert(key.to_uppercase(), odd_value(random))),
            3 => drop(object.insert(odd_value(random).to_string(), odd_value(random))),
            4 => drop(object.insert(key, odd_value(random))),
            _ => match object.get_mut(&key) {
                Some(member @ (Value::Object(_) | Value::Array(_))) => mutate(member, random),
                Some(member) => *member = odd_value(random),
                None => {}
            },
        }
    } else if let Value::Array(list) = value
        && !list.is_empty()
    {
        let index = random.next(list.len());
        match random.next(4) {
            0 => drop(list.remove(index)),
            1 => list.push(list[index].clone()),
            _ => mutate(&mut list[index], random),
        }
    } else {
        *value = odd_value(random);
    }
}

fn mutant(template: &Value, random: &mut Random) -> String {
    let mut config = template.clone();
    for _ in 0..=random.next(3) {
        mutate(&mut config, random);
    }
    let mut text = config.to_string();
    // One in six is broken as text as well.
    if random.next(6) == 0 {
        for _ in 0..=random.next(3) {
            let at = random.next(text.len() + 1);
            let Some((before, after)) = text.split_at_checked(at) else { continue };
            let middle = random.pick(&[
                "", "\"", "{", "}", "[", "\\", "\\u0000", "\\ud800", ",", "null", "9", "e9", "\u{feff}",
            ]);
            text = match random.next(3) {
                0 => before.to_owned(),
                1 => format!("{before}{middle}{}", after.chars().skip(1).collect::<String>()),
                _ => format!("{before}{middle}{after}"),
            };
            if text.is_empty() {
                break;
            }
        }
    }
    text
}

#[test]
fn mutants_of_configurations() {
    // Most of the time is the kernel's, waiting until nobody sees a removed link any more.
    const THREADS: usize = 8;
    let wanted = count(5000, 100_000);
    let (mut made, mut past, mut attached) = (0, 0, 0);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    let place = Place::enter();
                    let templates = templates(&place);
                    let mut random = Random(SEED + thread as u64);
                    let mut fates = Vec::new();
                    for number in 0..wanted / THREADS {
                        let (template, interface) = random.pick(&templates);
                        let mut call = place.host.call("ADD", &place.pod, template);
                        call.interface = (*interface).to_owned();
                        call.config = mutant(template, &mut random);
                        let what = format!("mutant {number} of thread {thread}: {}", call.config);
                        fates.push(place.attempt(&call, &what, number % 64 == 0));
                    }
                    let rules = place.host.namespace.run("nft", &["list", "ruleset"]);
                    assert!(!rules.contains("cni-br-iface"), "{rules}");
                    fates
                })
            })
            .collect();
        for thread in threads {
            let fates = thread.join().unwrap();
            made += fates.len();
            past += fates.iter().filter(|fate| **fate != Fate::NotParsed).count();
            attached += fates.iter().filter(|fate| **fate == Fate::Attached).count();
        }
    });
    println!("{made} mutants, {past} past parsing, {attached} attached and taken away again");
    assert!(past * 10 >= made, "{past} of {made} past parsing");
}

#[test]
fn variables_that_make_no_sense() {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let place = Place::enter();
            let good = place.host.call("ADD", &place.pod, &bridge());
            let long = "x".repeat(50_000);
            let names = [
                "a/b",
                "a234567890123456",
                "",
                ".",
                "..",
                "a b",
                "a:b",
                "a\nb",
                "é\u{301}",
                "%d",
                "-",
                long.as_str(),
            ];
            for name in names {
                for change in [
                    |call: &mut Call, name: &str| call.interface = name.to_owned(),
                    |call: &mut Call, name: &str| call.container = name.to_owned(),
                    |call: &mut Call, name: &str| call.netns = name.to_owned(),
                    |call: &mut Call, name: &str| call.verb = format!("x{name}"),
                    |call: &mut Call, name: &str| call.path = name.to_owned(),
                    |call: &mut Call, name: &str| call.arguments = format!("IgnoreUnknown=1;{name}"),
                    |call: &mut Call, name: &str| call.arguments = format!("IgnoreUnknown={name};MAC={name}"),
                    |call: &mut Call, name: &str| call.arguments = format!("{name}={name};;=;=="),
                ] {
                    let mut call = good.clone();
                    change(&mut call, name);
                    place.attempt(&call, &format!("{:.200}", format!("{call:?}")), true);
                }
            }
            // What is no text.
            for variable in
                ["CNI_COMMAND", "CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS", "CNI_ARGS", "CNI_PATH"]
            {
                let before = place.names_of_all();
                let mut command = Command::new("env");
                let mut assignment = format!("{variable}=").into_bytes();
                assignment.extend([0xff, 0xfe, b'/']);
                command.arg(std::ffi::OsString::from_vec(assignment)).arg(&good.plugin);
                let answer = place.host.run(command, &good);
                assert!(answer.document.is_some(), "{variable}");
                if answer.success {
                    assert!(place.make(&Call { verb: "DEL".to_owned(), ..good.clone() }).success);
                    place.forget_bridges(&before.0, variable);
                }
                assert_eq!(place.names_of_all(), before, "{variable}");
            }
        });
    });
}

#[test]
fn large_configurations_and_none() {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let place = Place::enter();
            let mut call = place.host.call("ADD", &place.pod, &bridge());
            let many: Map<String, Value> =
                (0..60_000).map(|index| (format!("key{index}"), json!([index]))).collect();
            for (config, wanted) in [
                (with(&bridge(), "ignored", json!("x".repeat(1 << 20))).to_string(), true),
                (with(&bridge(), "ignored", Value::Object(many)).to_string(), true),
                (with(&bridge(), "ignored", json!("x".repeat(5 << 20))).to_string(), false),
                ("[".repeat(1 << 20), false),
                (bridge().to_string().replace('}', ",\"a\":") + &"{\"a\":".repeat(10_000), false),
                (" ".repeat(1 << 20), false),
                (String::new(), false),
                ("\0".repeat(100), false),
            ] {
                call.config = config;
                let what = format!("{:.60}", call.config);
                assert_eq!(place.attempt(&call, &what, true) == Fate::Attached, wanted, "{what}");
            }
            // Nobody on the other side of standard input, and nobody who takes the answer.
            let before = place.names_of_all();
            let status = Command::new("sh")
                .args(["-c", "printf %s \"$CONFIG\" | \"$PLUGIN\" >/dev/full"])
                .env("CONFIG", bridge().to_string())
                .env("PLUGIN", &call.plugin)
                .env("CNI_COMMAND", "ADD")
                .env("CNI_CONTAINERID", "c1")
                .env("CNI_IFNAME", "net1")
                .env("CNI_NETNS", place.pod.path())
                .env("CNI_PATH", "/x")
                .stderr(Stdio::null())
                .status();
            assert!(!status.unwrap().success());
            place.forget_bridges(&before.0, "no reader");
            assert_eq!(place.names_of_all(), before, "an attachment whose answer nobody got is undone");
        });
    });
}

/// Every verb with results that were never answered.
#[test]
fn previous_results_that_lie() {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let place = Place::enter();
            let pod = place.pod.path();
            let lies = [
                json!({}),
                json!([]),
                json!("text"),
                json!({"cniVersion": "9.9.9"}),
                json!({"interfaces": {"name": "x"}}),
                json!({"interfaces": [{"name": "eth0", "sandbox": pod}, {"name": "other", "sandbox": ""}]}),
                json!({"interfaces": [{"name": "lo"}, {"name": "br0"}, {"name": "net1", "mac": "nonsense", "sandbox": pod}]}),
                json!({"interfaces": [null, null]}),
                json!({"interfaces": [{"name": "../../etc", "mtu": -1}]}),
                json!({"ips": [{"address": "192.0.2.1/33"}]}),
                json!({"ips": [{"address": "192.0.2.1/24", "interface": 99}]}),
                json!({"ips": [{"address": "192.0.2.1/24", "interface": -1}]}),
                json!({"routes": [{"dst": "nonsense"}]}),
                json!({"dns": [1]}),
                json!({"cniVersion": "0.2.0", "ip4": {"ip": 7}}),
            ];
            for (template, interface) in templates(&place) {
                for lie in &lies {
                    let config = with(&template, "prevResult", lie.clone());
                    let mut call = place.host.call("ADD", &place.pod, &config);
                    call.interface = interface.to_owned();
                    place.attempt(&call, &config.to_string(), true);
                    let before = place.names_of_all();
                    for verb in ["CHECK", "DEL", "GC", "STATUS"] {
                        call.verb = verb.to_owned();
                        if (verb, interface) != ("DEL", "eth0") {
                            place.make(&call);
                        }
                        assert_eq!(place.names_of_all(), before, "{verb} {config}");
                    }
                }
            }
        });
    });
}
