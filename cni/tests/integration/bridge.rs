//! The plugin `bridge` on layer 2, in network namespaces: what it makes, what it answers, and that nothing is left.

use serde_json::{Value, json};

use crate::support::{Host, Namespace, VERSIONS, bridge, count, golden, stable, with};

#[test]
fn an_attachment_is_made_answered_checked_and_taken_away() {
    for version in VERSIONS {
        let (host, pod) = (Host::new(), Namespace::new());
        let config = with(&bridge(), "cniVersion", json!(version));
        let answer = host.add(&pod, &config);
        if version < "0.3.0" {
            let (code, words) = answer.error();
            assert_eq!(code, 2, "{words}");
            assert!(words.contains("no valid IP addresses"), "{words}");
            assert!(host.namespace.names().is_empty() && pod.names().is_empty(), "nothing was made");
            assert!(host.del(&pod, &config).success);
            continue;
        }
        let result = answer.result();
        golden(&format!("bridge-l2-{version}.json"), &stable(&result, &pod));

        let host_end = host.namespace.link(result["interfaces"][1]["name"].as_str().unwrap());
        assert_eq!(host_end["master"], "br0");
        assert_eq!(host_end["operstate"], "UP");
        assert_eq!(host_end["ifalias"], "net/c1/net1");
        assert_eq!(host_end["address"], result["interfaces"][1]["mac"]);
        // On a busy machine the kernel reports the other end's state with a delay.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(3);
        let mut pod_end = pod.link("net1");
        while pod_end["operstate"] != "UP" && std::time::Instant::now() < until {
            pod_end = pod.link("net1");
        }
        assert_eq!(pod_end["operstate"], "UP");
        assert_eq!(pod_end["address"], result["interfaces"][2]["mac"]);
        assert_eq!(host.namespace.link("br0")["address"], result["interfaces"][0]["mac"]);
        assert_eq!(host.namespace.link("br0")["operstate"], "UP");
        assert_eq!(host.namespace.run("cat", &["/proc/sys/net/ipv6/conf/br0/accept_ra"]).trim(), "0");

        let check = host.check(&pod, &config, &result);
        if version < "0.4.0" {
            assert_eq!(check.error().0, 1);
        } else {
            assert!(check.success, "{check:?}");
        }
        for _ in 0..2 {
            let answer = host.del(&pod, &config);
            assert!(answer.success && answer.document.is_none(), "{answer:?}");
            assert_eq!(host.namespace.names(), ["br0"]);
            assert!(pod.names().is_empty());
        }
    }
}

#[test]
fn version_is_answered_without_anything_else() {
    let (host, pod) = (Host::new(), Namespace::new());
    let mut call = host.call("VERSION", &pod, &bridge());
    call.config = "nonsense".to_owned();
    call.path = String::new();
    golden("version.json", &host.make(&call).result());
    call.verb = String::new();
    let about = host.make(&call);
    assert!(about.success && about.document.is_none());
    assert!(about.stderr.starts_with("CNI plugin bridge"), "{}", about.stderr);
}

#[test]
fn frames_pass_between_two_pods() {
    let (host, one, two) = (Host::new(), Namespace::new(), Namespace::new());
    host.add(&one, &bridge()).result();
    let mut call = host.call("ADD", &two, &bridge());
    call.container = "c2".to_owned();
    host.make(&call).result();
    one.ip("addr add 192.0.2.1/24 dev net1");
    two.ip("addr add 192.0.2.2/24 dev net1");
    one.run("busybox", &["ping", "-c1", "-W2", "192.0.2.2"]);
}

#[test]
fn mtu_hairpin_promiscuity_isolation_and_a_pod_end_that_stays_down() {
    let (host, pod) = (Host::new(), Namespace::new());
    let config = with(
        &with(&with(&bridge(), "mtu", json!(1400)), "hairpinMode", json!(true)),
        "portIsolation",
        json!("true"),
    );
    let result = host.add(&pod, &config).result();
    let host_end = host.namespace.link(result["interfaces"][1]["name"].as_str().unwrap());
    assert_eq!(host_end["mtu"], 1400);
    assert_eq!(pod.link("net1")["mtu"], 1400);
    assert_eq!(host.namespace.link("br0")["mtu"], 1400);
    assert_eq!(host_end["linkinfo"]["info_slave_data"]["hairpin"], true);
    assert_eq!(host_end["linkinfo"]["info_slave_data"]["isolated"], true);
    assert_eq!(result["interfaces"][2]["mtu"], 1400);
    assert!(host.check(&pod, &config, &result).success);
    let changed = host.check(&pod, &bridge(), &result).error();
    assert!(changed.1.contains("hairpin"), "{changed:?}");
    host.del(&pod, &config).result();

    let config = with(&bridge(), "promiscMode", json!(true));
    let result = host.add(&pod, &config).result();
    assert_ne!(host.namespace.link("br0")["promiscuity"], 0);
    assert!(host.check(&pod, &config, &result).success);
    // An administrator's, or a capture's, is no fault of an attachment that does not ask for it; the lack of it is.
    assert!(host.check(&pod, &bridge(), &result).success);
    host.namespace.ip("link set br0 promisc off");
    let (code, words) = host.check(&pod, &config, &result).error();
    assert!(code == 101 && words.contains("not promiscuous"), "{code}: {words}");
    host.del(&pod, &config).result();

    let config = with(&bridge(), "disableContainerInterface", json!(true));
    host.add(&pod, &config).result();
    assert_eq!(pod.link("net1")["operstate"], "DOWN");
}

#[test]
fn precedence_of_ethernet_addresses() {
    let macs = ["02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03"];
    let runtime = json!({"MAC": macs[0]});
    let cni = json!({"cni": {"mac": macs[1]}});
    let variable = format!("IgnoreUnknown=1;K8S_POD_NAME=p;MAC={}", macs[2]);
    for (keys, wanted) in [
        (vec![("RuntimeConfig", runtime), ("args", cni.clone())], macs[0]),
        (vec![("args", cni)], macs[1]),
        (vec![("runtimeConfig", Value::Null)], macs[2]),
    ] {
        let (host, pod) = (Host::new(), Namespace::new());
        let config = keys.into_iter().fold(bridge(), |config, (key, value)| with(&config, key, value));
        let mut call = host.call("ADD", &pod, &config);
        call.arguments = variable.clone();
        let result = host.make(&call).result();
        assert_eq!(result["interfaces"][2]["mac"], wanted);
        assert_eq!(pod.link("net1")["address"], wanted);
    }
}

#[test]
fn invalid_configurations_are_refused_before_any_change() {
    let (host, pod) = (Host::new(), Namespace::new());
    for (key, value) in [
        ("bridge", json!("a/b")),
        ("bridge", json!("a234567890123456")),
        ("bridge", json!(7)),
        ("mtu", json!(-1)),
        ("mtu", json!(67)),
        ("mtu", json!("1500")),
        ("vlan", json!(4095)),
        ("vlan", json!(-1)),
        ("vlanTrunk", json!([{"minID": 5}])),
        ("vlanTrunk", json!([{"maxID": 5}])),
        ("vlanTrunk", json!([{"minID": 6, "maxID": 5}])),
        ("vlanTrunk", json!([{"id": 0}])),
        ("runtimeConfig", json!({"mac": "01:00:00:00:00:00"})),
        ("args", json!({"cni": {"mac": "nonsense"}})),
        ("ipam", json!({"type": "../../bin/sh"})),
        ("ipam", json!({"type": "absent"})),
        ("ipMasqBackend", json!("pf")),
        ("isGateway", json!(1)),
    ] {
        let config = with(&bridge(), key, value.clone());
        let (code, words) = host.add(&pod, &config).error();
        assert_eq!(code, 7, "{key} {value}: {words}");
        assert!(host.namespace.names().is_empty() && pod.names().is_empty(), "{key} {value}: {words}");
    }
    let both = with(&with(&bridge(), "hairpinMode", json!(true)), "promiscMode", json!(true));
    assert_eq!(host.add(&pod, &both).error().0, 7);
    let mut call = host.call("ADD", &pod, &bridge());
    call.arguments = "MAC=02:00:00:00:00:01;K8S_POD_NAME=p".to_owned();
    assert_eq!(host.make(&call).error().0, 4);
    call.arguments.clear();
    call.netns = host.namespace.path();
    assert_eq!(host.make(&call).error().0, 8);
    call.netns = "/proc/self/status".to_owned();
    assert_eq!(host.make(&call).error().0, 8);
    call.netns = "/nowhere".to_owned();
    assert_eq!(host.make(&call).error().0, 8);
    assert!(host.namespace.names().is_empty() && pod.names().is_empty());
}

#[test]
fn a_failing_add_leaves_all_as_it_was() {
    let (host, pod) = (Host::new(), Namespace::new());
    // The name is taken in the pod: the bridge that was made for it goes again.
    pod.ip("link add net1 type veth peer name other");
    let (code, words) = host.add(&pod, &bridge()).error();
    assert_eq!(code, 101, "{words}");
    assert!(words.contains("net1") && words.contains(&pod.path()), "{words}");
    assert!(host.namespace.names().is_empty(), "{:?}", host.namespace.names());
    assert_eq!(pod.names(), ["net1", "other"]);

    // A bridge that was there keeps what it was.
    host.namespace.ip("link add br0 type bridge");
    host.add(&pod, &with(&bridge(), "promiscMode", json!(true))).error();
    let link = host.namespace.link("br0");
    assert_eq!((&link["promiscuity"], &link["operstate"]), (&json!(0), &json!("DOWN")));
    assert!(!link["flags"].as_array().unwrap().contains(&json!("UP")));

    // A link that is no bridge stays one that is no bridge.
    host.namespace.ip("link add br1 type veth peer name br2");
    let (_, words) = host.add(&Namespace::new(), &with(&bridge(), "bridge", json!("br1"))).error();
    assert!(words.contains("br1") && words.contains("not a bridge"), "{words}");
    assert_eq!(host.namespace.names(), ["br0", "br1", "br2"]);
}

#[test]
fn a_bridge_that_does_not_filter_is_refused_for_vlans() {
    let (host, pod) = (Host::new(), Namespace::new());
    host.namespace.ip("link add br0 type bridge");
    for keys in [json!({"vlan": 5}), json!({"vlanTrunk": [{"minID": 5, "maxID": 9}]})] {
        let mut config = bridge();
        config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        let (code, words) = host.add(&pod, &config).error();
        assert_eq!(code, 101);
        assert!(words.contains("vlan_filtering") && words.contains("br0"), "{words}");
        assert_eq!(host.namespace.names(), ["br0"]);
        let (code, words) = host.make(&host.call("STATUS", &pod, &config)).error();
        assert_eq!(code, 50, "{words}");
    }
}

#[test]
fn attaching_twice_is_refused() {
    let (host, pod) = (Host::new(), Namespace::new());
    host.add(&pod, &bridge()).result();
    let before = (host.namespace.names(), pod.names());
    let (code, words) = host.add(&pod, &bridge()).error();
    assert_eq!(code, 101);
    assert!(words.contains("attached"), "{words}");
    assert_eq!((host.namespace.names(), pod.names()), before);
}

#[test]
fn a_del_finds_its_attachment_without_the_pod() {
    let host = Host::new();
    // The namespace lives on without its file: a process holds it.
    let pod = Namespace::new();
    let mut holder = pod.command("sleep").arg("60").spawn().unwrap();
    host.add(&pod, &bridge()).result();
    assert_eq!(host.namespace.names().len(), 2);
    let path = pod.path();
    drop(pod);
    let gone = Namespace::new();
    let mut call = host.call("DEL", &gone, &bridge());
    call.netns = path;
    let answer = host.make(&call);
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert!(answer.success, "{answer:?}");
    assert_eq!(host.namespace.names(), ["br0"]);

    // No CNI_NETNS at all, and a file that is no namespace any more.
    for netns in ["", "/etc/hostname", "/proc/999999999/ns/net"] {
        let pod = Namespace::new();
        host.add(&pod, &bridge()).result();
        let mut call = host.call("DEL", &pod, &bridge());
        call.netns = netns.to_owned();
        assert!(host.make(&call).success, "{netns}");
        assert_eq!(host.namespace.names(), ["br0"]);
    }
}

#[test]
fn a_del_in_the_plugins_own_namespace_touches_no_link_of_the_host() {
    let host = Host::new();
    host.namespace.ip("link add net1 type veth peer name net2");
    let mut call = host.call("DEL", &host.namespace, &bridge());
    assert!(host.make(&call).success);
    call.netns = "/proc/self/ns/net".to_owned();
    assert!(host.make(&call).success);
    assert_eq!(host.namespace.names(), ["net1", "net2"]);
}

/// Its process number was given to another pod's process.
#[test]
fn a_del_leaves_the_pod_that_took_the_place() {
    let (host, pod) = (Host::new(), Namespace::new());
    let mut other = host.call("ADD", &pod, &bridge());
    other.container = "c2".to_owned();
    host.make(&other).result();
    host.del(&pod, &bridge()).result();
    assert_eq!(pod.names(), ["net1"]);
    other.verb = "DEL".to_owned();
    host.make(&other).result();
    assert!(pod.names().is_empty());
}

/// KubeVirt renames the pod's end, gives it another address, and puts a link with the old name and address in its place.
/// A bridge stands for its dummy, which this kernel may lack.
#[test]
fn an_interface_that_kubevirt_renamed_is_checked_and_deleted() {
    let (host, pod) = (Host::new(), Namespace::new());
    let result = host.add(&pod, &bridge()).result();
    let mac = result["interfaces"][2]["mac"].as_str().unwrap();
    pod.ip("link set net1 down");
    pod.ip("link set net1 name net1-nic");
    pod.ip("link set net1-nic address 02:00:00:00:00:09 up");
    pod.ip(&format!("link add net1 address {mac} type bridge"));
    let check = host.check(&pod, &bridge(), &result);
    assert!(check.success, "{check:?}");
    host.del(&pod, &bridge()).result();
    assert_eq!(host.namespace.names(), ["br0"]);
    assert!(pod.names().is_empty());
}

/// Another port lets only smaller frames pass.
#[test]
fn a_pod_mtu_above_the_bridges_is_logged_and_fails_check() {
    let (host, pod) = (Host::new(), Namespace::new());
    host.namespace.ip("link add br0 up type bridge");
    host.namespace.ip("link add uplink mtu 1400 up master br0 type veth peer name other mtu 1400");
    let answer = host.add(&pod, &bridge());
    let said = "net1 has the MTU 1500 and the bridge br0 1400";
    assert!(answer.success && answer.stderr.contains(said), "{answer:?}");
    let (code, words) = host.check(&pod, &bridge(), &answer.result()).error();
    assert!(code == 101 && words.contains(said), "{code}: {words}");
    host.del(&pod, &bridge()).result();

    let small = with(&bridge(), "mtu", json!(1400));
    let answer = host.add(&pod, &small);
    assert!(answer.success && answer.stderr.is_empty(), "{answer:?}");
    assert!(host.check(&pod, &small, &answer.result()).success);
    host.del(&pod, &small).result();
}

#[test]
fn a_check_reports_changes() {
    type Change = fn(&Host, &Namespace, &str);
    let changes: [(&str, Change); 5] = [
        ("no port", |host, _, end| drop(host.namespace.ip(&format!("link set {end} nomaster")))),
        ("is down", |host, _, end| drop(host.namespace.ip(&format!("link set {end} down")))),
        ("gone", |host, _, end| drop(host.namespace.ip(&format!("link del {end}")))),
        ("Ethernet address", |_, pod, _| drop(pod.ip("link set net1 address 02:00:00:00:00:09"))),
        ("is down", |_, pod, _| drop(pod.ip("link set net1 down"))),
    ];
    for (wanted, change) in changes {
        let (host, pod) = (Host::new(), Namespace::new());
        let result = host.add(&pod, &bridge()).result();
        change(&host, &pod, result["interfaces"][1]["name"].as_str().unwrap());
        let (code, words) = host.check(&pod, &bridge(), &result).error();
        assert_eq!(code, 101, "{words}");
        assert!(words.contains(wanted), "{wanted}: {words}");
        host.del(&pod, &bridge()).result();
    }
}

#[test]
fn a_collection_sweeps_one_network_and_keeps_its_valid_attachments() {
    let host = Host::new();
    let stale = count(20, 500);
    let other = with(&bridge(), "name", json!("net2"));
    let pods: Vec<Namespace> = (0..stale + 2).map(|_| Namespace::new()).collect();
    let add = |index: usize, config: &Value| {
        let mut call = host.call("ADD", &pods[index], config);
        call.container = format!("c{index}");
        host.make(&call).result()
    };
    (0..=stale).for_each(|index| drop(add(index, &bridge())));
    let kept = add(stale + 1, &other)["interfaces"][1]["name"].clone();
    let valid = json!([{"containerID": format!("c{stale}"), "ifname": "net1"}]);
    let config = with(&bridge(), "cni.dev/valid-attachments", valid);
    let start = std::time::Instant::now();
    host.make(&host.call("GC", &pods[0], &config)).result();
    println!("GC of {stale} stale attachments: {:?}", start.elapsed());
    let left = host.namespace.links();
    let aliases: Vec<&str> = left.iter().filter_map(|link| link["ifalias"].as_str()).collect();
    assert_eq!(aliases.len(), 2, "{aliases:?}");
    assert!(aliases.contains(&format!("net/c{stale}/net1").as_str()), "{aliases:?}");
    assert!(host.namespace.names().contains(&kept.as_str().unwrap().to_owned()));
    assert_eq!(pods[stale].names(), ["net1"]);

    // Attachments that are not understood might be valid: nothing goes.
    let config = with(&bridge(), "cni.dev/valid-attachments", json!([{"containerID": "x"}]));
    assert_eq!(host.make(&host.call("GC", &pods[0], &config)).error().0, 7);
    assert_eq!(host.namespace.names().len(), 3);
}
