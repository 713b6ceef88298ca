//! Together with the Go reference plugins v1.9.1: what one side attached, the other checks and takes away; and real
//! libcni, through its cnitool, drives ours. `make peers` builds them.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use serde_json::{Value, json};
use support::{Answer, Call, Host, Namespace, bridge, peer, with};

/// The same call to the reference plugin.
fn theirs(host: &Host, mut call: Call) -> Answer {
    call.plugin = peer(call.plugin.file_name().unwrap().to_str().unwrap());
    host.make(&call)
}

#[test]
fn go_attaches_and_ours_checks_and_deletes() {
    for version in ["0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let (host, pod) = (Host::new(), Namespace::new());
        let config = with(&bridge(), "cniVersion", json!(version));
        let result = theirs(&host, host.call("ADD", &pod, &config)).result();
        if version >= "0.4.0" {
            let check = host.check(&pod, &config, &result);
            assert!(check.success, "{check:?}");
        }
        host.del(&pod, &config).result();
        assert_eq!(host.namespace.names(), ["br0"]);
        assert!(pod.names().is_empty());
    }
}

#[test]
fn ours_attaches_and_go_deletes() {
    let (host, pod) = (Host::new(), Namespace::new());
    host.add(&pod, &bridge()).result();
    theirs(&host, host.call("DEL", &pod, &bridge())).result();
    assert_eq!(host.namespace.names(), ["br0"]);
    assert!(pod.names().is_empty());
}

/// The answers have the same members with the same values, but for what each run chooses and the MTU, which the reference
/// leaves out.
#[test]
fn the_answers_are_the_references() {
    for version in ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let (host, pod) = (Host::new(), Namespace::new());
        let config = with(&bridge(), "cniVersion", json!(version));
        let plain = |mut result: Value| {
            for interface in result["interfaces"].as_array_mut().unwrap() {
                let interface = interface.as_object_mut().unwrap();
                assert_eq!(interface.remove("mac").unwrap().as_str().unwrap().len(), 17);
                interface.remove("mtu");
                if interface["name"].as_str().unwrap().starts_with("veth") {
                    assert_eq!(interface.remove("name").unwrap().as_str().unwrap().len(), 12);
                }
            }
            result
        };
        let reference = plain(theirs(&host, host.call("ADD", &pod, &config)).result());
        host.del(&pod, &config).result();
        assert_eq!(plain(host.add(&pod, &config).result()), reference);
    }
}

/// cnitool with a network list of ours; the verbs in order.
#[test]
fn cnitool_drives_a_chain() {
    let (host, pod) = (Host::new(), Namespace::new());
    let folder = host.folder.path();
    let list = json!({
        "cniVersion": "1.1.0",
        "name": "net",
        "plugins": [{"type": "bridge", "bridge": "br0", "capabilities": {"mac": true}}],
    });
    std::fs::create_dir(folder.join("net.d")).unwrap();
    std::fs::write(folder.join("net.d/net.conflist"), list.to_string()).unwrap();
    let tool = |verb: &str| {
        let output = host
            .namespace
            .command(peer("cnitool"))
            .args([verb, "net", &pod.path()])
            .env("NETCONFPATH", folder.join("net.d"))
            .env("CNI_PATH", folder)
            .env("CNI_IFNAME", "net1")
            .env("CAP_ARGS", r#"{"mac": "02:00:00:00:00:07"}"#)
            .output()
            .unwrap();
        assert!(output.status.success(), "{verb}: {output:?}");
        output.stdout
    };
    tool("status");
    let result: Value = serde_json::from_slice(&tool("add")).unwrap();
    assert_eq!(result["interfaces"][2]["mac"], "02:00:00:00:00:07");
    tool("check");
    tool("del");
    assert!(pod.names().is_empty());
    assert_eq!(host.namespace.names(), ["br0"]);
    tool("del");
    // cnitool calls no attachment valid.
    tool("add");
    tool("gc");
    assert!(pod.names().is_empty());
    assert_eq!(host.namespace.names(), ["br0"]);
}
