//! The plugin `tuning` in network namespaces, alone and together with the Go reference's, and in chains that real libcni
//! drives.

use serde_json::{Value, json};

use crate::support::{Answer, Call, Host, Namespace, VERSIONS, bridge, with};

/// A pod with `net1`, and a result with it.
fn pod() -> (Namespace, Value) {
    let pod = Namespace::new();
    pod.ip("link add net1 address 02:00:00:00:00:01 type veth peer name other");
    pod.ip("link set net1 up");
    let result = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "net1", "mac": "02:00:00:00:00:01", "mtu": 1500, "sandbox": pod.path()}],
    });
    (pod, result)
}

fn tuning(host: &Host, previous: &Value) -> Value {
    json!({
        "cniVersion": "1.1.0",
        "name": "net",
        "type": "tuning",
        "dataDir": host.folder.path().join("backups"),
        "prevResult": previous,
    })
}

fn everything(host: &Host, previous: &Value) -> Value {
    let mut config = tuning(host, previous);
    let keys = json!({
        "mac": "02:00:00:00:00:0a",
        "mtu": 1400,
        "promisc": true,
        "allmulti": true,
        "txQLen": 77,
        "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1", "net/ipv4/ip_local_port_range": "20000 30000"},
    });
    config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    config
}

/// Everything of `net1` that can be tuned.
fn state(pod: &Namespace) -> String {
    let link = pod.link("net1");
    let mut flags: Vec<&str> =
        link["flags"].as_array().unwrap().iter().map(|flag| flag.as_str().unwrap()).collect();
    flags.sort_unstable();
    let sysctls = pod
        .run("cat", &["/proc/sys/net/ipv4/conf/net1/arp_filter", "/proc/sys/net/ipv4/ip_local_port_range"]);
    format!("{} {} {} {flags:?} {sysctls}", link["address"], link["mtu"], link["txqlen"])
}

fn files(host: &Host) -> Vec<String> {
    let Ok(folder) = std::fs::read_dir(host.folder.path().join("backups")) else { return Vec::new() };
    folder.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn everything_is_tuned_checked_and_restored() {
    let host = Host::new();
    let (pod, previous) = pod();
    let before = state(&pod);
    let config = everything(&host, &previous);
    let result = host.add(&pod, &config).result();
    let mut wanted = previous.clone();
    wanted["interfaces"][0]["mac"] = json!("02:00:00:00:00:0a");
    wanted["interfaces"][0]["mtu"] = json!(1400);
    assert_eq!(result, wanted);
    let link = pod.link("net1");
    assert_eq!(
        (&link["address"], &link["mtu"], &link["txqlen"]),
        (&json!("02:00:00:00:00:0a"), &json!(1400), &json!(77))
    );
    for flag in ["PROMISC", "ALLMULTI"] {
        assert!(link["flags"].as_array().unwrap().contains(&json!(flag)), "{link}");
    }
    assert_eq!(pod.run("cat", &["/proc/sys/net/ipv4/conf/net1/arp_filter"]), "1\n");
    assert_eq!(pod.run("cat", &["/proc/sys/net/ipv4/ip_local_port_range"]), "20000\t30000\n");
    assert_eq!(files(&host), ["c1_net1.json"]);
    let check = host.check(&pod, &config, &result);
    assert!(check.success, "{check:?}");

    pod.ip("link set net1 mtu 1300");
    let (code, words) = host.check(&pod, &config, &result).error();
    assert!(code == 101 && words.contains("MTU") && words.contains("1300"), "{code} {words}");
    for _ in 0..2 {
        assert!(host.del(&pod, &config).success);
    }
    // Sysctls of a namespace end with it.
    pod.run("sh", &["-c", "echo 0 > /proc/sys/net/ipv4/conf/net1/arp_filter; echo 32768 60999 > /proc/sys/net/ipv4/ip_local_port_range"]);
    assert_eq!(state(&pod), before);
    assert!(files(&host).is_empty());
}

#[test]
fn the_reference_and_ours_do_the_same_and_undo_each_other() {
    type Make = fn(&Host, Call) -> Answer;
    let ours: Make = |host, call| host.make(&call);
    let theirs: Make = |host, call| host.reference(call);
    let mut seen = Vec::new();
    for (attaches, detaches) in [(ours, theirs), (theirs, ours), (theirs, theirs)] {
        let host = Host::new();
        let (pod, previous) = pod();
        let mut config = everything(&host, &previous);
        // Read back with a tab, which the reference's CHECK takes for another value.
        config["sysctl"] = json!({"net.ipv4.conf.IFNAME.arp_filter": "1"});
        let before = state(&pod);
        let mut result = attaches(&host, host.call("ADD", &pod, &config)).result();
        result["interfaces"][0]["mtu"] = Value::Null;
        let file = std::fs::read_to_string(host.folder.path().join("backups/c1_net1.json")).unwrap();
        seen.push((file, result.to_string().replace(&pod.path(), ""), state(&pod)));
        let previous = attaches(&host, host.call("CHECK", &pod, &config));
        assert!(previous.success, "{previous:?}");
        let checked = detaches(&host, host.call("CHECK", &pod, &config));
        assert!(checked.success, "{checked:?}");
        assert!(detaches(&host, host.call("DEL", &pod, &config)).success);
        pod.run("sh", &["-c", "echo 0 > /proc/sys/net/ipv4/conf/net1/arp_filter"]);
        assert_eq!(state(&pod), before);
        assert!(files(&host).is_empty());
    }
    assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "{seen:#?}");
}

#[test]
fn precedence_of_tuned_values() {
    let host = Host::new();
    let (pod, previous) = pod();
    let mut config = tuning(&host, &previous);
    config["mac"] = json!("02:00:00:00:00:0b");
    config["mtu"] = json!(1400);
    let tuned = |config: &Value, arguments: &str| {
        let mut call = host.call("ADD", &pod, config);
        call.arguments = arguments.to_owned();
        host.make(&call).result();
        let link = pod.link("net1");
        assert!(host.del(&pod, config).success);
        (link["address"].as_str().unwrap().to_owned(), link["mtu"].as_u64().unwrap())
    };
    assert_eq!(tuned(&config, ""), ("02:00:00:00:00:0b".into(), 1400));
    assert_eq!(tuned(&config, "MAC=02:00:00:00:00:0c"), ("02:00:00:00:00:0c".into(), 1400));
    config["RuntimeConfig"] = json!({"mac": "02:00:00:00:00:0d"});
    assert_eq!(tuned(&config, "MAC=02:00:00:00:00:0c"), ("02:00:00:00:00:0d".into(), 1400));
    config["args"] =
        json!({"cni": {"mac": "02:00:00:00:00:0e", "mtu": 1300, "sysctl": {"net.ipv4.ip_forward": "1"}}});
    assert_eq!(tuned(&config, ""), ("02:00:00:00:00:0e".into(), 1300));
    assert_eq!(pod.run("cat", &["/proc/sys/net/ipv4/ip_forward"]), "1\n");
}

#[test]
fn a_failing_add_leaves_all_as_it_was() {
    let host = Host::new();
    let (pod, previous) = pod();
    let before = state(&pod);
    for (key, value, wanted) in [
        ("mtu", json!(10), "MTU"),
        ("sysctl", json!({"net.ipv4.conf.IFNAME.arp_filter": "1", "net.nothing": "1"}), "net.nothing"),
        ("sysctl", json!({"net.ipv4.conf.IFNAME.arp_filter": "1", "net.ipv4.ip_forward": "x"}), "ip_forward"),
        ("sysctl", json!({"net.ipv4.conf.IFNAME.arp_filter": "1", "net.ipv4.conf": "1"}), "net.ipv4.conf"),
        ("sysctl", json!({"kernel.panic": "1"}), "kernel.panic"),
        ("sysctl", json!({"net.ipv4.ip_forward": 1}), "ip_forward"),
        ("mac", json!("01:00:00:00:00:00"), "01:00"),
        ("dataDir", json!("/proc/nothing"), "/proc/nothing"),
        ("dataDir", json!("relative"), "relative"),
        ("prevResult", Value::Null, "prevResult"),
        ("cniVersion", json!("0.2.0"), "no valid IP addresses"),
    ] {
        let (_, words) = host.add(&pod, &with(&everything(&host, &previous), key, value)).error();
        assert!(words.contains(wanted), "{words}");
        assert_eq!(state(&pod), before, "{words}");
        assert!(files(&host).is_empty(), "{words}");
    }
    let twice = everything(&host, &previous)
        .to_string()
        .replace("\"sysctl\":{", "\"sysctl\":{\"net.x\":\"1\",\"net.x\":\"2\",");
    let mut call = host.call("ADD", &pod, &everything(&host, &previous));
    call.config = twice;
    assert!(host.make(&call).error().1.contains("twice"));
    call.config = everything(&host, &previous).to_string();
    call.netns = host.namespace.path();
    assert_eq!(host.make(&call).error().0, 8);
    call.interface = "gone".to_owned();
    call.netns = pod.path();
    assert_eq!(host.make(&call).error().0, 100);
    assert_eq!(state(&pod), before);
    assert!(files(&host).is_empty());
}

/// The list is at a fixed place: the plugin sees one of the test's own by a mount of its own.
#[test]
fn only_what_the_nodes_list_allows_is_tuned() {
    let host = Host::new();
    let (pod, previous) = pod();
    let config = everything(&host, &previous);
    let under = |list: &str| {
        let script = "mkdir -p /etc/cni && mount -t tmpfs none /etc/cni && mkdir /etc/cni/tuning && \
                      printf '%s' \"$1\" > /etc/cni/tuning/allowlist.conf && exec \"$2\"";
        let mut command = host.namespace.command("unshare");
        let plugin = host.folder.path().join("tuning");
        command.args(["-m", "sh", "-c", script, "sh", list]).arg(plugin);
        host.run(command, &host.call("ADD", &pod, &config))
    };
    assert_eq!(under("^net.ipv4.conf.IFNAME.[a-z_]*$\n").error().0, 7);
    assert_eq!(under("").error().0, 7);
    assert_eq!(under("(").error().0, 7);
    let result = under("^net.ipv4.conf.IFNAME.[a-z_]*$\n  ip_local  \n");
    assert!(result.success, "{result:?}");
}

#[test]
fn a_del_without_its_namespace_or_link_leaves_no_file() {
    let host = Host::new();
    for gone in ["namespace", "link", "none"] {
        let (pod, previous) = pod();
        let config = everything(&host, &previous);
        host.add(&pod, &config).result();
        let mut call = host.call("DEL", &pod, &config);
        match gone {
            "namespace" => drop(pod),
            "link" => drop(pod.ip("link del net1")),
            _ => call.netns = String::new(),
        }
        let answer = host.make(&call);
        assert!(answer.success, "{gone}: {answer:?}");
        assert!(files(&host).is_empty(), "{gone}");
    }
}

#[test]
fn results_of_every_version_pass_through() {
    for version in VERSIONS {
        let host = Host::new();
        let (pod, _) = pod();
        let address = json!({"address": "192.0.2.2/24", "interface": 0});
        let previous = match version {
            "0.1.0" | "0.2.0" => json!({"cniVersion": version, "ip4": {"ip": "192.0.2.2/24"}, "dns": {}}),
            "0.3.0" | "0.3.1" | "0.4.0" => json!({
                "cniVersion": version,
                "interfaces": [{"name": "net1", "sandbox": pod.path()}],
                "ips": [with(&address, "version", json!("4"))],
                "dns": {},
            }),
            _ => {
                json!({"cniVersion": version, "interfaces": [{"name": "net1", "sandbox": pod.path()}], "ips": [address]})
            }
        };
        let config = with(&with(&tuning(&host, &previous), "cniVersion", json!(version)), "mtu", json!(1400));
        assert_eq!(host.add(&pod, &config).result(), previous);
        assert!(host.del(&pod, &config).success);
    }
    assert_eq!(bridge()["type"], "bridge");
}

#[test]
fn a_broken_backup_is_reported_and_kept() {
    for (content, mtu) in [("", 1400), ("{\"mtu\": 1500", 1400), ("{\"mtu\": 1500, \"mac\": 7}", 1500)] {
        let host = Host::new();
        let (pod, previous) = pod();
        let config = with(&tuning(&host, &previous), "mtu", json!(1400));
        host.add(&pod, &config).result();
        std::fs::write(host.folder.path().join("backups/c1_net1.json"), content).unwrap();
        let answer = host.del(&pod, &config);
        assert!(answer.success && answer.document.is_none(), "{answer:?}");
        assert!(answer.stderr.contains("c1_net1.broken") && answer.stderr.contains("net1"), "{answer:?}");
        // Readable values are restored.
        assert_eq!(pod.link("net1")["mtu"], mtu, "{content}");
        assert_eq!(files(&host), ["c1_net1.broken"]);
        let kept = std::fs::read_to_string(host.folder.path().join("backups/c1_net1.broken")).unwrap();
        assert_eq!(kept, content);
        assert!(host.del(&pod, &config).stderr.is_empty());
    }
}
