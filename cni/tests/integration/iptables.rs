//! `ipMasq` by iptables, of both kinds: the one over nf_tables, and the legacy one. Ours compared with the Go reference
//! plugin, and the behaviour when the programs are missing. `make peers` builds the reference.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Call, Host, Namespace, PROGRAMS, with};

/// Which iptables a node has.
#[derive(Clone, Copy, Debug)]
enum Kind {
    NfTables,
    Legacy,
}

const KINDS: [Kind; 2] = [Kind::NfTables, Kind::Legacy];

/// A node with iptables of one kind.
struct Node {
    host: Host,
    kind: Kind,
    programs: String,
}

impl Node {
    fn new(kind: Kind) -> Self {
        let host = Host::new();
        let folder = host.folder.path().join("programs");
        std::fs::create_dir(&folder).unwrap();
        for name in ["iptables", "ip6tables"] {
            for what in ["", "-save", "-restore"] {
                let kind = if matches!(kind, Kind::Legacy) { "legacy" } else { "nft" };
                symlink(format!("/usr/sbin/{name}-{kind}{what}"), folder.join(format!("{name}{what}")))
                    .unwrap();
            }
        }
        let programs = format!("{}:{PROGRAMS}", folder.display());
        Self { host, kind, programs }
    }

    fn config(&self, keys: &Value) -> Value {
        let ranges = json!([[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]]);
        let mut config = self.host.with_ranges(&ranges, json!({"ipMasq": true, "ipMasqBackend": "iptables"}));
        config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        config
    }

    fn call(&self, verb: &str, pod: &Namespace, container: &str, config: &Value) -> Call {
        let mut call = self.host.call(verb, pod, config);
        call.container = container.to_owned();
        call.programs = self.programs.clone();
        call
    }

    /// Lines of both families that name a container's chain.
    fn rules(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for program in ["iptables", "ip6tables"] {
            let kind = if matches!(self.kind, Kind::Legacy) { "legacy" } else { "nft" };
            let saved = self.host.namespace.run(&format!("{program}-{kind}-save"), &["-t", "nat"]);
            lines.extend(saved.lines().filter(|line| line.contains("CNI-")).map(str::to_owned));
        }
        lines
    }
}

/// Whether a rule's comment names the container.
fn is_of(line: &str, container: &str) -> bool {
    line.contains(&format!("id: \\\"{container}\\\""))
}

/// A chain, two rules in it and one that leads there, in both families.
const OF_ONE: usize = 8;

#[test]
fn rules_equal_the_references() {
    for kind in KINDS {
        let [ours, go] = [Node::new(kind), Node::new(kind)];
        let pod = Namespace::new();
        ours.host.make(&ours.call("ADD", &pod, "c1", &ours.config(&json!({})))).result();
        let shown = ours.rules();
        ours.host.make(&ours.call("DEL", &pod, "c1", &ours.config(&json!({})))).result();
        assert!(ours.rules().is_empty(), "{kind:?}: {:?}", ours.rules());
        go.host.reference(go.call("ADD", &pod, "c1", &go.config(&json!({})))).result();
        assert_eq!(shown, go.rules(), "{kind:?}");
        assert_eq!(shown.len(), OF_ONE, "{kind:?}: {shown:?}");
    }
}

#[test]
fn either_side_attaches_and_the_other_checks_and_deletes() {
    for kind in KINDS {
        let node = Node::new(kind);
        let pods = [Namespace::new(), Namespace::new()];
        node.host.make(&node.call("ADD", &pods[1], "c2", &node.config(&json!({})))).result();
        for go_adds in [true, false] {
            for backend in ["iptables", "nftables"] {
                let config = node.config(&json!({}));
                let add = node.call("ADD", &pods[0], "c1", &config);
                let result = if go_adds { node.host.reference(add) } else { node.host.make(&add) }.result();
                assert_eq!(node.rules().len(), 2 * OF_ONE, "{kind:?} {go_adds}");
                // The configuration may name the other backend by now.
                let config = node.config(&json!({"ipMasqBackend": backend, "prevResult": result}));
                let check = node.host.make(&node.call("CHECK", &pods[0], "c1", &config));
                assert!(check.success, "{kind:?} {go_adds}: {check:?}");
                let del = node.call("DEL", &pods[0], "c1", &config);
                if go_adds { node.host.make(&del) } else { node.host.reference(del) }.result();
                let left = node.rules();
                assert!(
                    left.len() == OF_ONE && !left.iter().any(|line| is_of(line, "c1")),
                    "{kind:?} {left:?}"
                );
                assert!(pods[0].names().is_empty());
            }
        }
    }
}

#[test]
fn a_check_misses_masquerading() {
    let backends = [(Kind::NfTables, "iptables"), (Kind::Legacy, "iptables"), (Kind::NfTables, "nftables")];
    for (kind, backend) in backends {
        let (node, pod) = (Node::new(kind), Namespace::new());
        let config = node.config(&json!({"ipMasqBackend": backend}));
        let result = node.host.make(&node.call("ADD", &pod, "c1", &config)).result();
        let config = with(&config, "prevResult", result);
        assert!(node.host.make(&node.call("CHECK", &pod, "c1", &config)).success);
        let program = if matches!(kind, Kind::Legacy) { "ip6tables-legacy" } else { "ip6tables-nft" };
        match backend {
            "iptables" => node.host.namespace.run(program, &["-t", "nat", "-F", "POSTROUTING"]),
            _ => node.host.namespace.run("nft", &["flush chain inet cni_plugins_masquerade postrouting"]),
        };
        let (code, words) = node.host.make(&node.call("CHECK", &pod, "c1", &config)).error();
        assert!(code == 101 && words.contains("no longer masqueraded"), "{kind:?} {backend}: {words}");
        node.host.make(&node.call("DEL", &pod, "c1", &config)).result();
        assert!(node.rules().is_empty(), "{kind:?} {backend}: {:?}", node.rules());
    }
}

#[test]
fn a_collection_takes_what_is_of_its_network_and_nobodys() {
    for kind in KINDS {
        let node = Node::new(kind);
        let pods = [(); 5].map(|()| Namespace::new());
        let config = node.config(&json!({}));
        let other = with(&config, "name", json!("net2"));
        node.host.make(&node.call("ADD", &pods[0], "c0", &config)).result();
        node.host.make(&node.call("ADD", &pods[1], "c1", &config)).result();
        node.host.reference(node.call("ADD", &pods[2], "c2", &config)).result();
        node.host.reference(node.call("ADD", &pods[3], "c3", &config)).result();
        node.host.make(&node.call("ADD", &pods[4], "c4", &other)).result();
        assert_eq!(node.rules().len(), 5 * OF_ONE);
        let valid = json!([{"containerID": "c1", "ifname": "net1"}, {"containerID": "c3", "ifname": "net1"}]);
        let config = with(&config, "cni.dev/valid-attachments", valid);
        node.host.make(&node.call("GC", &pods[0], "", &config)).result();
        let left = node.rules();
        assert_eq!(left.len(), 3 * OF_ONE, "{kind:?}: {left:?}");
        assert!(!left.iter().any(|line| is_of(line, "c0") || is_of(line, "c2")), "{kind:?}: {left:?}");
    }
}

/// A container uses the legacy kind; the node itself has no program of either.
#[test]
fn a_node_without_iptables_lets_its_pods_go() {
    let (node, pod) = (Node::new(Kind::Legacy), Namespace::new());
    let config = node.config(&json!({"ipMasqBackend": "nftables"}));
    node.host.make(&node.call("ADD", &pod, "c1", &config)).result();
    node.host.namespace.run("iptables-legacy", &["-t", "nat", "-N", "KUBE-X"]);
    let bare = node.host.folder.path().join("bare");
    std::fs::create_dir(&bare).unwrap();
    symlink("/usr/bin/nsenter", bare.join("nsenter")).unwrap();
    let bare = bare.display().to_string();
    let mut del = node.call("DEL", &pod, "c1", &config);
    del.programs.clone_from(&bare);
    let answer = node.host.make(&del);
    assert!(answer.success && answer.stderr.contains("ip_tables_names"), "{answer:?}");
    let mut add = node.call("ADD", &pod, "c1", &node.config(&json!({})));
    add.programs.clone_from(&bare);
    let (code, words) = node.host.make(&add).error();
    assert!(code == 2 && words.contains("iptables-restore"), "{code}: {words}");
    let mut status = add.clone();
    status.verb = "STATUS".to_owned();
    let (code, words) = node.host.make(&status).error();
    assert!(code == 50 && words.contains("iptables-restore"), "{code}: {words}");
    assert!(pod.names().is_empty());
    assert_eq!(node.host.namespace.names(), ["br0"]);
}

/// A program that, for example, waits for another's lock when its ADD is killed.
#[test]
fn a_killed_add_does_not_continue_after_its_del() {
    let (node, pod) = (Node::new(Kind::NfTables), Namespace::new());
    let restore = node.host.folder.path().join("programs/iptables-restore");
    let begun = node.host.folder.path().join("begun");
    std::fs::remove_file(&restore).unwrap();
    let script =
        format!("#!/bin/sh\n: >{}\nsleep 2\nexec /usr/sbin/iptables-nft-restore \"$@\"\n", begun.display());
    std::fs::write(&restore, script).unwrap();
    std::fs::set_permissions(&restore, PermissionsExt::from_mode(0o755)).unwrap();
    let add = node.call("ADD", &pod, "c1", &node.config(&json!({})));
    let mut command = node.host.namespace.command("timeout");
    command.args(["--foreground", "-s", "KILL", "1"]).arg(&add.plugin);
    assert!(!node.host.output(command, &add).status.success());
    assert!(begun.exists());
    node.host.make(&Call { verb: "DEL".to_owned(), ..add }).result();
    std::thread::sleep(Duration::from_millis(2200));
    assert!(node.rules().is_empty(), "{:?}", node.rules());
}
