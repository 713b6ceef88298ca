//! DEL where the attachment is no longer, or never was, as its ADD would have made it.

use serde_json::json;

use crate::support::place::walk;
use crate::support::{Host, Namespace, bridge_with};

#[test]
fn a_pair_with_both_ends_renamed_is_removed() {
    for pod_is_known in [true, false] {
        let (host, pods) = (Host::new(), [Namespace::new(), Namespace::new()]);
        let config = host.with_ranges(
            &json!([[{"subnet": "10.77.0.0/24"}]]),
            json!({"macspoofchk": true, "spoofchkBackend": "nftables"}),
        );
        host.add(&pods[0], &config).result();
        let port = host.namespace.names().into_iter().find(|name| name.starts_with("veth")).unwrap();
        let mut other = host.call("ADD", &pods[1], &config);
        other.container = "c2".to_owned();
        host.make(&other).result();
        host.namespace.ip(&format!("link set {port} down"));
        host.namespace.ip(&format!("link set {port} name theirs"));
        pods[0].ip("link set net1 down");
        pods[0].ip("link set net1 name theirs");

        let mut delete = host.call("DEL", &pods[0], &config);
        if !pod_is_known {
            delete.netns = String::new();
        }
        host.make(&delete).result();
        assert!(pods[0].names().is_empty(), "{:?}", pods[0].names());
        assert!(!host.namespace.names().contains(&"theirs".to_owned()));
        assert!(!host.namespace.run("nft", &["list", "ruleset"]).contains("c1-net1"));
        // The other one is not touched.
        assert_eq!((pods[1].names().len(), host.namespace.names().len()), (1, 2));
        assert_eq!(walk(&host.networks()), 2);
        host.make(&delete).result();
    }
}

/// An ADD refuses a container id that does not fit into a comment of a rule; the DEL that follows has nothing to do.
#[test]
fn del_accepts_container_ids_too_long_for_add() {
    let (host, pod) = (Host::new(), Namespace::new());
    let config = bridge_with(json!({"macspoofchk": true, "spoofchkBackend": "nftables"}));
    for length in [111, 112, 116, 117, 232, 238, 255, 300, 5000] {
        for verb in ["ADD", "DEL"] {
            let mut call = host.call(verb, &pod, &config);
            call.container = "c".repeat(length);
            let answer = host.make(&call);
            let succeeds = verb == "DEL" || length <= 111;
            assert_eq!(answer.success, succeeds, "{verb} {length}: {answer:?}");
        }
    }
    assert!(pod.names().is_empty());
}

#[test]
fn del_accepts_interface_names_that_add_rejects() {
    let (host, pod) = (Host::new(), Namespace::new());
    for verb in ["ADD", "DEL", "DEL"] {
        let mut call = host.call(verb, &pod, &bridge_with(json!({})));
        call.interface = "lo".to_owned();
        let answer = host.make(&call);
        assert_eq!(answer.success, verb == "DEL", "{answer:?}");
        assert!(host.namespace.names().is_empty());
    }
    assert_eq!(pod.links().len(), 1);
}
