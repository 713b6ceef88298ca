//! GC: the valid attachments. Removal by kind of resource is in `bridge`, `layer3`, `packet_filter` and `iptables`.

use serde_json::{Value, json};

use crate::support::place::walk;
use crate::support::{Host, Namespace, with};

#[test]
fn a_list_that_is_not_understood_collects_nothing() {
    let (host, pod) = (Host::new(), Namespace::new());
    let config = host.with_ranges(
        &json!([[{"subnet": "10.77.0.0/24"}]]),
        json!({"macspoofchk": true, "spoofchkBackend": "nftables"}),
    );
    host.add(&pod, &config).result();
    let state =
        || (host.namespace.names(), host.namespace.run("nft", &["list", "ruleset"]), walk(&host.networks()));
    let before = state();
    let collect = |key: &str, list: Value| host.make(&host.call("GC", &pod, &with(&config, key, list)));
    for list in
        [json!([null]), json!([[]]), json!({}), json!("c1"), json!([{"containerID": "c1", "ifname": null}])]
    {
        assert_eq!(collect("cni.dev/valid-attachments", list.clone()).error().0, 7, "{list}");
        assert_eq!(state(), before, "{list}");
    }
    // The specification's other name of the key.
    collect("cni.dev/attachments", json!([{"containerID": "c1", "ifname": "net1"}])).result();
    assert_eq!(state(), before);
    // libcni's words for a caller without attachments.
    collect("cni.dev/valid-attachments", Value::Null).result();
    assert_eq!((host.namespace.names(), walk(&host.networks())), (vec!["br0".to_owned()], 0));
}
