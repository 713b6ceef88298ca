//! Network interfaces as metrics name them: binding and network. Pure.
//!
//! Not here: what an interface becomes in the guest ([`crate::resolve`]).

use api::kubevirt::{Interface, Network};

/// Type and name of an interface's binding; `None`: it has none that metrics name.
pub fn binding(interface: &Interface) -> Option<(&'static str, &str)> {
    let Interface { masquerade, bridge, sriov, binding, .. } = interface;
    if let Some(plugin) = binding {
        return Some(("plugin", plugin.name.as_str()));
    }
    let core =
        [("masquerade", masquerade.is_some()), ("bridge", bridge.is_some()), ("sriov", sriov.is_some())];
    core.into_iter().find(|(_, set)| *set).map(|(name, _)| ("core", name))
}

/// The network of the interface of this name: its definition's name, or `pod networking`.
pub fn network<'a>(networks: &'a [Network], interface: &str) -> Option<&'a str> {
    let network = networks.iter().find(|network| network.name == interface)?;
    let multus = network.multus.as_ref().map(|multus| multus.network_name.as_str());
    multus.or_else(|| network.pod.as_ref().map(|_| "pod networking"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn interfaces_are_named_by_binding_and_network() {
        let networks = json!([
            {"name": "default", "pod": {}}, {"name": "lan", "multus": {"networkName": "n/lan"}}, {"name": "claimed"},
        ]);
        let networks: Vec<Network> = serde_json::from_value(networks).unwrap();
        let named = |interface: Value| {
            let interface: Interface = serde_json::from_value(interface).unwrap();
            let (kind, name) = binding(&interface).unwrap_or(("none", "none"));
            format!("{kind} {name} {}", network(&networks, &interface.name).unwrap_or("none"))
        };
        for (interface, expected) in [
            (json!({"name": "default", "masquerade": {}}), "core masquerade pod networking"),
            (json!({"name": "lan", "bridge": {}}), "core bridge n/lan"),
            (json!({"name": "lan", "sriov": {}}), "core sriov n/lan"),
            (json!({"name": "lan", "binding": {"name": "passt"}}), "plugin passt n/lan"),
            (json!({"name": "claimed"}), "none none none"),
            (json!({"name": "absent", "bridge": {}}), "core bridge none"),
        ] {
            assert_eq!(named(interface.clone()), expected, "{interface}");
        }
    }
}
