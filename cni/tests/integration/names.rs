//! Names of links that the kernel would read otherwise than they are written.

use serde_json::{Value, json};

use crate::support::{Host, Namespace, bridge, with};

/// The kernel takes `%d` for the place of a number, and makes a link of another name.
#[test]
fn a_name_is_no_template() {
    let tap = json!({"cniVersion": "1.1.0", "name": "net", "type": "tap"});
    for name in ["e%d", "%", "e%s", "%%"] {
        let (host, pod) = (Host::new(), Namespace::new());
        let refused = |config: &Value, interface: &str, wanted: u64| {
            let mut call = host.call("ADD", &pod, config);
            call.interface = interface.to_owned();
            let (code, words) = host.make(&call).error();
            assert!(code == wanted && words.contains(name), "{name}: {code}: {words}");
            assert!(host.namespace.names().is_empty() && pod.names().is_empty(), "{name}: {words}");
            // The DEL that follows every refused ADD has nothing to do.
            call.verb = "DEL".to_owned();
            host.make(&call).result();
        };
        refused(&bridge(), name, 4);
        refused(&tap, name, 4);
        refused(&with(&bridge(), "bridge", json!(name)), "net1", 7);
        refused(&with(&tap, "bridge", json!(name)), "net1", 7);
        let status = with(&bridge(), "bridge", json!(name));
        assert_eq!(host.make(&host.call("STATUS", &pod, &status)).error().0, 7);
    }
}
