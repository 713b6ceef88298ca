//! STATUS of the plugin `bridge`: the reasons why no ADD could succeed, and that asking changes nothing.

use serde_json::{Value, json};

use crate::support::{Answer, Host, Namespace, bridge_with, with};

fn with_address(host: &Host, keys: Value) -> Value {
    host.with_ranges(&json!([[{"subnet": "10.77.0.0/24"}]]), keys)
}

fn status(host: &Host, config: &Value) -> Answer {
    let pod = Namespace::new();
    host.make(&host.call("STATUS", &pod, config))
}

#[test]
fn asking_for_rules_makes_none() {
    let host = Host::new();
    for keys in [
        json!({"macspoofchk": true, "spoofchkBackend": "nftables"}),
        json!({"ipMasq": true}),
        json!({"ipMasq": true, "vlan": 0}),
    ] {
        status(&host, &with_address(&host, keys)).result();
    }
    assert_eq!(host.namespace.run("nft", &["list", "ruleset"]), "");
    assert!(host.namespace.names().is_empty());
    // And none goes that is there.
    let pod = Namespace::new();
    let all =
        with_address(&host, json!({"macspoofchk": true, "spoofchkBackend": "nftables", "ipMasq": true}));
    host.add(&pod, &all).result();
    let before = host.namespace.run("nft", &["-a", "list", "ruleset"]);
    status(&host, &all).result();
    assert_eq!(host.namespace.run("nft", &["-a", "list", "ruleset"]), before);
    host.del(&pod, &all).result();
}

/// A kernel that has no netlink family of the packet filter, played by strace.
#[test]
fn a_kernel_without_a_packet_filter() {
    let (host, pod) = (Host::new(), Namespace::new());
    let without = |verb: &str, config: &Value| {
        let mut call = host.call(verb, &pod, config);
        if verb == "DEL" {
            // It would need a second one into the pod.
            call.netns = String::new();
        }
        let mut command = host.namespace.command("strace");
        // The first socket is to links and addresses.
        command.args(["-f", "-o", "/dev/null", "-e", "inject=socket:error=EPROTONOSUPPORT:when=2+"]);
        command.arg(&call.plugin);
        host.run(command, &call)
    };
    for keys in [json!({"macspoofchk": true, "spoofchkBackend": "nftables"}), json!({"ipMasq": true})] {
        let config = with_address(&host, keys);
        let (code, words) = without("STATUS", &config).error();
        assert!(code == 50 && words.contains("nf_tables"), "{code}: {words}");
        let plain = with_address(&host, json!({}));
        without("STATUS", &plain).result();
        // A missing resource need not be removed; a pod can always be deleted.
        without("DEL", &config).result();
    }
    let (code, words) =
        without("ADD", &bridge_with(json!({"macspoofchk": true, "spoofchkBackend": "nftables"}))).error();
    assert!(code == 100 && words.contains("nf_tables"), "{code}: {words}");
    assert!(host.namespace.names().is_empty());
}

#[test]
fn a_defect_that_affects_attachments_is_code_51() {
    let (host, pod) = (Host::new(), Namespace::new());
    host.add(&pod, &bridge_with(json!({}))).result();
    let in_vlan = bridge_with(json!({"vlan": 5}));
    let (code, words) = status(&host, &in_vlan).error();
    assert!(code == 51 && words.contains("vlan_filtering"), "{code}: {words}");
    // Another network has no attachment yet.
    assert_eq!(status(&host, &with(&in_vlan, "name", json!("net2"))).error().0, 50);
    status(&host, &bridge_with(json!({}))).result();

    host.namespace.ip("link del br0");
    host.namespace.ip("link add br0 type veth peer name other");
    let (code, words) = status(&host, &bridge_with(json!({}))).error();
    assert!(code == 51 && words.contains("not a bridge"), "{code}: {words}");
    host.del(&pod, &bridge_with(json!({}))).result();
}

#[test]
fn a_bridge_without_room() {
    let host = Host::new();
    let mut lines = "link add br0 type bridge\n".to_owned();
    for port in 0..1023 {
        lines += &format!("link add p{port} master br0 type veth peer name q{port}\n");
    }
    let batch = host.folder.path().join("batch");
    std::fs::write(&batch, lines).unwrap();
    host.namespace.run("ip", &["-batch", batch.to_str().unwrap()]);
    let said = "br0 has 1023 ports";
    let (code, words) = status(&host, &bridge_with(json!({}))).error();
    assert!(code == 50 && words.contains(said), "{code}: {words}");
    let before = host.namespace.names().len();
    let pod = Namespace::new();
    let (code, words) = host.add(&pod, &bridge_with(json!({}))).error();
    assert!(code == 100 && words.contains(said), "{code}: {words}");
    assert_eq!((host.namespace.names().len(), pod.names().len()), (before, 0));
    host.namespace.ip("link del p7");
    status(&host, &bridge_with(json!({}))).result();
    host.add(&pod, &bridge_with(json!({}))).result();
}

/// A kernel without VLAN filtering of bridges, which the one under the tests may be.
#[test]
fn a_bridge_that_would_not_filter() {
    let (host, pod) = (Host::new(), Namespace::new());
    let in_vlan = bridge_with(json!({"vlan": 5}));
    let said = status(&host, &in_vlan);
    assert!(host.namespace.names().is_empty());
    let made = host.add(&pod, &in_vlan);
    assert_eq!(said.success, made.success, "{said:?}: {made:?}");
    if !said.success {
        let (code, words) = said.error();
        assert!(code == 50 && words.contains("does not filter VLANs"), "{code}: {words}");
        assert!(host.namespace.names().is_empty());
        host.namespace.ip("link add br0 type bridge");
        let switched = bridge_with(json!({"vlan": 5, "enableVlanFiltering": true}));
        assert_eq!((status(&host, &switched).error().0, host.add(&pod, &switched).success), (50, false));
    }
}

#[test]
fn a_bridge_that_is_the_gateway_of_others() {
    let (host, pod) = (Host::new(), Namespace::new());
    host.namespace.ip("link add br0 up type bridge");
    let config = with_address(&host, json!({"isGateway": true}));
    status(&host, &config).result();
    host.namespace.ip("addr add 10.77.0.9/24 dev br0");
    let (code, words) = status(&host, &config).error();
    assert!(code == 50 && words.contains("10.77.0.9") && words.contains("forceAddress"), "{code}: {words}");
    assert!(!host.add(&pod, &config).success);
    status(&host, &with(&config, "forceAddress", json!(true))).result();
    status(&host, &with(&config, "isGateway", json!(false))).result();
    // Of two ranges it is not known which will give.
    let mut two = with(&config, "ipam", config["ipam"].clone());
    two["ipam"]["ranges"] = json!([[{"subnet": "10.77.0.0/24"}, {"subnet": "10.78.0.0/24"}]]);
    status(&host, &two).result();
    let fixed = json!({"type": "static", "addresses": [{"address": "10.77.0.3/24", "gateway": "10.77.0.1"}]});
    assert_eq!(status(&host, &with(&config, "ipam", fixed)).error().0, 50);

    host.namespace.ip("addr flush dev br0");
    host.add(&pod, &config).result();
    status(&host, &config).result();
    // Those that are attached have lost their gateway.
    host.namespace.ip("addr flush dev br0");
    host.namespace.ip("addr add 10.77.0.9/24 dev br0");
    assert_eq!(status(&host, &config).error().0, 51);
    host.del(&pod, &config).result();
}

/// File systems without room, and without inodes.
#[test]
fn a_full_disk() {
    let host = Host::new();
    let data = host.folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let mut config = with_address(&host, json!({}));
    config["ipam"]["dataDir"] = json!(data);
    for (options, fill) in [
        ("size=1m", "head -c 2000000 /dev/zero > \"$0/fill\" 2>/dev/null"),
        ("nr_inodes=5", "for i in 1 2 3 4 5 6; do touch \"$0/$i\"; done 2>/dev/null"),
    ] {
        let full = |verb: &str, fill: &str| {
            let pod = Namespace::new();
            let call = host.call(verb, &pod, &config);
            let script =
                format!("mount -t tmpfs -o {options} none \"$0\"; mkdir \"$0/net\"; {fill}; exec \"$1\"");
            let mut command = host.namespace.command("unshare");
            command.args(["--mount", "sh", "-c", &script]).arg(&data).arg(&call.plugin);
            host.run(command, &call)
        };
        full("STATUS", "true").result();
        let (code, words) = full("STATUS", fill).error();
        assert!(code == 50 && words.contains("No space left"), "{options}: {code}: {words}");
        assert!(!full("ADD", fill).success, "{options}");
    }
}

#[test]
fn addresses_that_cannot_be_given() {
    let (host, pod) = (Host::new(), Namespace::new());
    let mut small = with_address(&host, json!({}));
    small["ipam"]["ranges"] = json!([[{"subnet": "10.1.2.0/30"}]]);
    status(&host, &small).result();
    host.add(&pod, &small).result();
    assert_eq!(status(&host, &small).error().0, 50);
    host.del(&pod, &small).result();
    host.namespace.ip("link del br0");
    status(&host, &small).result();

    let mut nobody = bridge_with(json!({}));
    nobody["ipam"] = json!({"type": "whereabouts"});
    let (code, words) = status(&host, &nobody).error();
    assert!(code == 50 && words.contains("whereabouts"), "{code}: {words}");

    // A disk that fell back to read-only.
    let data = host.folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let mut config = with_address(&host, json!({}));
    for below in ["", "/not/there/yet"] {
        config["ipam"]["dataDir"] = json!(format!("{}{below}", data.display()));
        let pod = Namespace::new();
        let call = |verb: &str| host.call(verb, &pod, &config);
        let read_only = |verb: &str| {
            let script = "mount -t tmpfs -o ro none \"$0\" && exec \"$1\"";
            let call = call(verb);
            let mut command = host.namespace.command("unshare");
            command.args(["--mount", "sh", "-c", script]).arg(&data).arg(&call.plugin);
            host.run(command, &call)
        };
        let (code, words) = read_only("STATUS").error();
        assert!(code == 50 && words.contains("Read-only"), "{code}: {words}");
        let (code, words) = read_only("ADD").error();
        assert!(code == 5 && words.contains("Read-only"), "{code}: {words}");
        assert!(!words.contains("removed"), "{words}");
        assert!(pod.names().is_empty());
        assert!(host.namespace.names().is_empty(), "{:?}", host.namespace.names());
        read_only("DEL").result();
        host.make(&call("STATUS")).result();
    }
}
