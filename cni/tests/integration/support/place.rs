//! A thread in a node's network namespace, which calls plugins and sees to it that each call either succeeds, and its DEL
//! leaves nothing, or answers one error document and has changed nothing.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};

use super::{Answer, Call, Host, Namespace, bridge, run};

/// How an ADD ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    NotParsed,
    Refused,
    Attached,
}

/// A thread in the host's namespace, so that no other program is needed between it and the plugin.
pub struct Place {
    pub host: Host,
    pub pod: Namespace,
    /// Its view of both namespaces' links.
    pod_devices: PathBuf,
    holder: std::process::Child,
    /// Where the configurations keep their files.
    folder: PathBuf,
}

impl Place {
    /// Moves this thread into a new node's namespace.
    pub fn enter() -> Self {
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

    fn names(&self, devices: &Path) -> Vec<String> {
        let text = std::fs::read_to_string(devices).unwrap();
        let mut names: Vec<String> =
            text.lines().skip(2).map(|line| line.split(':').next().unwrap().trim().to_owned()).collect();
        names.sort();
        names
    }

    /// Names of all links, and the number of files about attachments.
    pub fn names_of_all(&self) -> (Vec<String>, Vec<String>, usize) {
        let files = walk(&self.folder);
        (self.names("/proc/thread-self/net/dev".as_ref()), self.names(&self.pod_devices), files)
    }

    /// Everything that `ip` reports about the links of both, but a bridge's timers and its carrier: that follows its last
    /// port some time later.
    fn links_of_all(&self) -> String {
        let all = run("ip", &["-d", "link"]) + &self.pod.run("ip", &["-d", "link"]);
        let mut words = all.split_whitespace();
        let mut told = String::new();
        while let Some(word) = words.next() {
            if word.ends_with("_timer") || word == "state" {
                words.next();
            } else {
                told += &word.replace("NO-CARRIER,", "").replace(",LOWER_UP", "");
                told += " ";
            }
        }
        told
    }

    /// The packet filter's rules of attachments.
    pub fn rules(&self) -> Vec<String> {
        let rules = run("nft", &["list", "ruleset"]);
        let of_attachments =
            |line: &&str| ["cni-br-iface", ", net: ", "-net1"].iter().any(|part| line.contains(part));
        rules.lines().filter(of_attachments).map(str::to_owned).collect()
    }

    /// Makes a call.
    pub fn make(&self, call: &Call) -> Answer {
        self.host.run(Command::new(&call.plugin), call)
    }

    /// One ADD and what has to be true after it; how it ended.
    pub fn attempt(&self, add: &Call, what: &str, thorough: bool) -> Fate {
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
            let made = self.bridges_made(&before.0, what);
            let mut after = self.names_of_all();
            after.0.retain(|name| !made.contains(name));
            assert_eq!(after, before, "{what}");
            if thorough {
                assert_eq!(self.rules(), Vec::<String>::new(), "{what}");
            }
            return Fate::Attached;
        }
        let code = document["code"].as_u64().unwrap_or_else(|| panic!("{what}: {document}"));
        assert!(document["msg"].as_str().is_some_and(|words| !words.is_empty()), "{what}: {document}");
        assert!(document["cniVersion"].is_string(), "{what}: {document}");
        assert_eq!(self.names_of_all(), before, "{what}: {document}");
        if let Some(links) = links {
            assert_eq!(self.links_of_all(), links, "{what}: {document}");
            assert_eq!(self.rules(), Vec::<String>::new(), "{what}");
        }
        // A DEL of what was never attached changes nothing either, and does not crash.
        if thorough {
            self.make(&Call { verb: "DEL".to_owned(), ..add.clone() });
            assert_eq!(self.names_of_all(), before, "{what}");
        }
        // Undecodable, or an invalid version or name: not past parsing.
        if matches!(code, 1 | 4 | 6) { Fate::NotParsed } else { Fate::Refused }
    }

    /// A bridge stays when its last port has gone, by the plugin's contract. `br0` does here too; others go.
    fn bridges_made(&self, before: &[String], what: &str) -> Vec<String> {
        let mut made = self.names("/proc/thread-self/net/dev".as_ref());
        made.retain(|name| !before.contains(name));
        for name in &made {
            let shown = run("ip", &["-d", "link", "show", name, "type", "bridge"]);
            assert!(shown.contains("bridge_id"), "{what}: {name}");
            if name != "br0" {
                run("ip", &["link", "del", name]);
            }
        }
        made
    }

    /// Takes `br0` away, if it is there.
    pub fn forget_bridge(&self) {
        if self.names("/proc/thread-self/net/dev".as_ref()).contains(&"br0".to_owned()) {
            run("ip", &["link", "del", "br0"]);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(self.holder.kill());
        drop(self.holder.wait());
    }
}

/// The number of files about attachments below a directory.
pub fn walk(folder: &Path) -> usize {
    let Ok(entries) = folder.read_dir() else { return 0 };
    let tells = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name != "lock" && !name.starts_with("last_reserved_ip.")
    };
    let paths = entries.flatten().map(|entry| entry.path()).filter(tells);
    paths.map(|path| if path.is_dir() { walk(&path) } else { 1 }).sum()
}

/// Configurations of every plugin and mode, with everything in them that a mutant may break; and the interface each is for.
pub fn templates(place: &Place) -> Vec<(Value, &'static str)> {
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
    let host_local = json!({
        "type": "host-local",
        "dataDir": place.folder.join("networks"),
        "ranges": [
            [{"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.10", "rangeEnd": "10.1.2.200", "gateway": "10.1.2.1"}],
            [{"subnet": "fd00::/64"}],
        ],
        "routes": [{"dst": "0.0.0.0/0"}],
    });
    let fixed = json!({
        "type": "static",
        "addresses": [{"address": "10.1.2.3/24", "gateway": "10.1.2.1"}, {"address": "fd00::3/64"}],
        "routes": [{"dst": "192.0.2.0/24"}],
    });
    let of = |plugin: &str, ipam: &Value| json!({"cniVersion": "1.1.0", "name": "net", "type": plugin, "ipam": ipam, "runtimeConfig": {"ips": []}});
    vec![
        (of("host-local", &host_local), "net1"),
        (of("static", &fixed), "net1"),
        (json!({"cniVersion": "1.1.0", "name": "net", "type": "loopback"}), "lo"),
        (
            more(
                bridge(),
                json!({
                    "isGateway": true, "ipMasq": true, "ipMasqBackend": "nftables", "enabledad": false,
                    "forceAddress": true, "ipam": host_local, "runtimeConfig": {"ips": ["10.1.2.77"]},
                }),
            ),
            "net1",
        ),
        (
            more(
                bridge(),
                json!({"ipMasq": true, "macspoofchk": true, "spoofchkBackend": "nftables", "ipspoofchk": true, "ipam": fixed}),
            ),
            "net1",
        ),
        (
            more(
                bridge(),
                json!({"macspoofchk": true, "spoofchkBackend": "nftables", "runtimeConfig": {"mac": "02:00:00:00:00:0a"}}),
            ),
            "net1",
        ),
        (
            more(
                bridge(),
                json!({
                    "vlan": 100, "vlanTrunk": [{"id": 5}, {"minID": 7, "maxID": 9}], "preserveDefaultVlan": true,
                    "enableVlanFiltering": true,
                }),
            ),
            "net1",
        ),
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
