//! From a spec and the objects that it names to the wanted networks of a guest: pure. Rules between fields are in
//! [`virt::resolve`]; here are the errors that only a start can find: missing or invalid networks.

use std::collections::BTreeMap;
use std::path::Path;

use api::kubevirt::{Interface as Specified, Network, VirtualMachineInstanceSpec};
use api::multus::NetworkAttachmentDefinition;
use link::interface_mac;

use super::{Binding, Configuration, Interface, Resolvers, WantedNetworks};
use guest::network::{self as names, InvalidNetwork, Names};
use virt::finding::{Finding, Findings};
use virt::resolve::{interfaces_of, queues_of};

/// The guest, and the objects of its namespace.
#[derive(Clone, Debug)]
pub struct GuestObjects<'a> {
    /// Namespace of its object.
    pub namespace: &'a str,
    /// Name of its object.
    pub name: &'a str,
    /// The name of its network namespace; see [`WantedNetworks::container`].
    pub container: &'a str,
    /// The pod network.
    pub pod: &'a Configuration,
    /// Networks of its namespace and of others, by `NAMESPACE/NAME`.
    pub networks: &'a BTreeMap<String, NetworkAttachmentDefinition>,
    /// The DNS resolvers.
    pub resolvers: &'a Resolvers,
    /// The user and group that QEMU runs as.
    pub user: u32,
    /// The directory of [`super::Places`], which distinguishes machines without an id.
    pub state: &'a Path,
}

/// The wanted networks of a guest; `at` is the path of `spec` in its document.
///
/// # Errors
/// All that is wrong, by path.
pub fn of_guest(
    spec: &VirtualMachineInstanceSpec,
    given: &GuestObjects<'_>,
    at: &str,
) -> Result<WantedNetworks, Vec<Finding>> {
    let mut findings = Findings::default();
    let mut interfaces = Vec::new();
    for (index, one) in interfaces_of(spec).iter().enumerate() {
        if one.state.as_deref() == Some("absent") {
            continue;
        }
        let position = spec.networks.iter().position(|network| network.name == one.name);
        let network = position.and_then(|position| spec.networks.get(position));
        match interface(spec, one, network, given) {
            Ok(found) => interfaces.push(found),
            Err((Field::Network, said)) => {
                let path = match position {
                    Some(position) => format!("{at}.networks[{position}].multus.networkName"),
                    None => format!("{at}.networks"),
                };
                findings.error(path, said);
            }
            Err((Field::Pod(field), said)) => {
                findings.error(format!("{at}.networks[{}].pod.{field}", position.unwrap_or(0)), said);
            }
            Err((Field::Interface(field), said)) => {
                findings.error(format!("{at}.domain.devices.interfaces[{index}].{field}"), said);
            }
        }
    }
    if findings.failed() {
        return Err(findings.into_vec());
    }
    // The primary one first: its gateway is the namespace's.
    interfaces.sort_by_key(|one| one.names != Names::primary());
    Ok(WantedNetworks {
        container: given.container.to_owned(),
        namespace: given.namespace.to_owned(),
        name: given.name.to_owned(),
        interfaces,
        resolvers: given.resolvers.clone(),
        user: given.user,
    })
}

/// The field of an error.
enum Field {
    Network,
    Pod(&'static str),
    Interface(&'static str),
}

fn interface(
    spec: &VirtualMachineInstanceSpec,
    one: &Specified,
    network: Option<&Network>,
    given: &GuestObjects<'_>,
) -> Result<Interface, (Field, String)> {
    let multus = network.and_then(|network| network.multus.as_ref());
    let (names, configuration) = match multus {
        None => (Names::primary(), given.pod.clone()),
        Some(multus) => {
            let found = attachment(&multus.network_name, given).map_err(|said| (Field::Network, said))?;
            let default = multus.is_default.unwrap_or(false);
            (if default { Names::primary() } else { Names::secondary(&one.name) }, found)
        }
    };
    let mac = match one.mac_address.as_deref().filter(|text| !text.is_empty()) {
        None => names::mac(&names::machine(given.state), &[given.namespace, given.name, &one.name]),
        Some(text) => {
            interface_mac(text).map_err(|error| (Field::Interface("macAddress"), error.to_string()))?
        }
    };
    Ok(Interface {
        name: one.name.clone(),
        names,
        network: configuration,
        binding: Binding::of(one, network)
            .map_err(|InvalidNetwork { field, text }| (Field::Pod(field), text))?,
        mac,
        many_queues: queues_of(spec, one).is_some(),
    })
}

/// The configuration of a NetworkAttachmentDefinition, of the guest's namespace where none is named.
fn attachment(name: &str, given: &GuestObjects<'_>) -> Result<Configuration, String> {
    let full = if name.contains('/') { name.to_owned() } else { format!("{}/{name}", given.namespace) };
    let Some(found) = given.networks.get(&full) else {
        return Err(format!("there is no NetworkAttachmentDefinition {full}"));
    };
    let own = found.metadata.name.as_str();
    match found.spec.config.as_deref().filter(|text| !text.trim().is_empty()) {
        None => Err(format!("the NetworkAttachmentDefinition {full} has no spec.config")),
        Some(text) => Configuration::read(text, own)
            .map_err(|said| format!("the NetworkAttachmentDefinition {full}, spec.config: {said}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Port;
    use super::*;
    use guest::network::V4;

    fn wanted(spec: &str, networks: &[(&str, &str)]) -> Result<WantedNetworks, Vec<String>> {
        let pod = Configuration::read(r#"{"cniVersion": "1.1.0", "type": "bridge"}"#, "pod").unwrap();
        let nad = |config: &&str| NetworkAttachmentDefinition {
            metadata: api::resource::ObjectMeta { name: "own".to_owned(), ..Default::default() },
            spec: api::multus::NetworkSpec { config: Some((*config).to_owned()) },
            ..Default::default()
        };
        let given = GuestObjects {
            namespace: "ns",
            name: "vm",
            container: "c",
            pod: &pod,
            networks: &networks.iter().map(|(name, config)| ((*name).to_owned(), nad(config))).collect(),
            resolvers: &Resolvers::default(),
            user: 107,
            state: Path::new("/s"),
        };
        let said =
            |all: Vec<Finding>| all.into_iter().map(|one| format!("{}: {}", one.path, one.text)).collect();
        of_guest(&serde_json::from_str(spec).unwrap(), &given, "spec").map_err(said)
    }

    const BRIDGE: &str = r#"{"cniVersion": "0.3.1", "type": "cnv-bridge", "bridge": "br1"}"#;

    #[test]
    fn without_a_word_a_guest_is_on_the_pod_network() {
        let wanted = wanted(r#"{"domain": {}}"#, &[]).unwrap();
        let [one] = &wanted.interfaces[..] else { panic!("{wanted:?}") };
        assert_eq!((one.name.as_str(), one.names.pod.as_str()), ("default", "eth0"));
        let Binding::Masquerade { v4, ports, .. } = &one.binding else { panic!("{one:?}") };
        assert!(v4.to_string() == V4 && ports.is_empty() && !one.many_queues);
    }

    #[test]
    fn the_primary_one_comes_first_and_the_others_have_their_networks() {
        let spec = r#"{"domain": {"cpu": {"cores": 2}, "devices": {"networkInterfaceMultiqueue": true, "interfaces": [
            {"name": "blue", "bridge": {}, "macAddress": "02-00-00-00-00-0A"},
            {"name": "pod", "masquerade": {}, "model": "e1000", "ports": [{"port": 80}, {"port": 53, "protocol": "UDP"}],
             "portRanges": [{"protocol": "UDP", "start": 8000, "end": 8010}]}]}},
            "networks": [{"name": "blue", "multus": {"networkName": "other/blue"}},
                         {"name": "pod", "pod": {"vmNetworkCIDR": "10.7.0.0/24"}}]}"#;
        let wanted = wanted(spec, &[("other/blue", BRIDGE)]).unwrap();
        let [pod, blue] = &wanted.interfaces[..] else { panic!("{wanted:?}") };
        assert_eq!((pod.names.pod.as_str(), pod.many_queues), ("eth0", false));
        let Binding::Masquerade { v4, ports, .. } = &pod.binding else { panic!("{pod:?}") };
        assert_eq!(v4.to_string(), "10.7.0.0/24");
        let range = Port { tcp: false, number: 8000, last: 8010 };
        assert_eq!(ports[..], [Port::one(true, 80), Port::one(false, 53), range]);
        assert_eq!((blue.names.pod.as_str(), blue.many_queues), ("pod16477688c0e", true));
        assert_eq!((blue.network.name(), blue.mac.to_string()), ("own", "02:00:00:00:00:0a".to_owned()));
    }

    #[test]
    fn missing_networks_are_reported_by_path() {
        let of = |pod: &str, network: &str| {
            format!(
                r#"{{"domain": {{"devices": {{"interfaces": [{{"name": "a", "masquerade": {{}}}}, {{"name": "b", "bridge": {{}}}}]}}}},
                "networks": [{{"name": "a", "pod": {pod}}}, {{"name": "b", "multus": {{"networkName": "{network}"}}}}]}}"#
            )
        };
        for (spec, path) in [
            (
                of("{}", "gone"),
                "spec.networks[1].multus.networkName: there is no NetworkAttachmentDefinition ns/gone",
            ),
            (
                of("{}", "bad"),
                "spec.networks[1].multus.networkName: the NetworkAttachmentDefinition ns/bad, spec.config",
            ),
            (of(r#"{"vmNetworkCIDR": "10.0.0.0/31"}"#, "good"), "spec.networks[0].pod.vmNetworkCIDR"),
        ] {
            let said = wanted(&spec, &[("ns/bad", "{}"), ("ns/good", BRIDGE)]).unwrap_err();
            assert!(said.len() == 1 && said[0].starts_with(path), "{said:?}");
        }
    }
}
