//! The part of an instance's networks that is in its pod: annotations for Multus and Istio, and ports.
//!
//! virt-agent attaches networks that the pod's network status does not show, so Multus may be absent.

use api::kubevirt::VirtualMachineInstanceSpec;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use virt::live::is_absent;

/// The annotation with the networks that a pod is attached to.
pub(in crate::compute) const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
/// Most secondary networks of a guest: virt-agent attaches no more.
pub(in crate::compute) const NETWORKS_MAX: usize = 32;

/// The pod's side of a secondary network: `pod` and eleven hexadecimal digits of the network's name.
pub(in crate::compute) fn interface_name(network: &str) -> String {
    let digest: String = Sha256::digest(network).iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    format!("pod{}", digest.get(..11).unwrap_or_default())
}

/// Annotations for the pod's networks.
pub(super) fn annotations(spec: &VirtualMachineInstanceSpec, namespace: &str) -> Vec<(&'static str, String)> {
    let mut all = Vec::new();
    let mut secondary = Vec::new();
    for network in &spec.networks {
        let Some(multus) = &network.multus else { continue };
        if multus.is_default == Some(true) {
            all.push(("v1.multus-cni.io/default-network", multus.network_name.clone()));
            continue;
        }
        let interface =
            spec.domain.devices.interfaces.iter().find(|interface| interface.name == network.name);
        if interface.is_some_and(is_absent) {
            continue;
        }
        let (of, name) = multus.network_name.split_once('/').unwrap_or((namespace, &multus.network_name));
        let mut entry = json!({"name": name, "namespace": of, "interface": interface_name(&network.name)});
        if let Some(mac) = interface.and_then(|interface| interface.mac_address.as_ref()) {
            entry["mac"] = json!(mac);
        }
        secondary.push(entry);
    }
    if !secondary.is_empty() {
        all.push((NETWORKS, Value::Array(secondary).to_string()));
    }
    if spec.domain.devices.interfaces.iter().any(|interface| interface.masquerade.is_some()) {
        all.push(("traffic.sidecar.istio.io/kubevirtInterfaces", "k6t-eth0".to_owned()));
        all.push(("istio.io/reroute-virtual-interfaces", "k6t-eth0".to_owned()));
    }
    all
}

/// The annotation [`NETWORKS`] without the networks of interfaces that are unplugged; `None`: it has none of them, or is not a
/// JSON list.
pub(in crate::compute) fn networks_without(text: &str, unplugged: &[String]) -> Option<String> {
    let mut networks: Vec<Value> = serde_json::from_str(text).ok()?;
    let gone: Vec<String> = unplugged.iter().map(|name| interface_name(name)).collect();
    let count = networks.len();
    networks.retain(|one| !gone.iter().any(|name| one["interface"] == name.as_str()));
    (networks.len() < count).then(|| Value::Array(networks).to_string())
}

/// The NetworkAttachmentDefinitions of an instance's networks, as namespace and name, once for each network.
pub(in crate::compute) fn definitions(
    spec: &VirtualMachineInstanceSpec,
    namespace: &str,
) -> Vec<(String, String)> {
    let named = spec.networks.iter().filter_map(|network| network.multus.as_ref());
    let split = |name: &str| match name.split_once('/') {
        Some((of, name)) => (of.to_owned(), name.to_owned()),
        None => (namespace.to_owned(), name.to_owned()),
    };
    named.map(|multus| split(&multus.network_name)).collect()
}

/// Asks for one more of each of these resources, such as `bridge.network.kubevirt.io/br1`: the scheduler then chooses a
/// node that has the network.
pub(super) fn request(resources: &mut Value, names: &[String]) {
    for list in ["requests", "limits"] {
        for name in names {
            let count = resources[list][name].as_str().and_then(|count| count.parse::<u64>().ok());
            resources[list][name] = json!((count.unwrap_or(0) + 1).to_string());
        }
    }
}

/// Ports of the guest, as container ports.
pub(super) fn ports(spec: &VirtualMachineInstanceSpec) -> Vec<Value> {
    let ports = spec.domain.devices.interfaces.iter().flat_map(|interface| &interface.ports);
    ports
        .filter_map(|port| {
            let mut entry = json!({
                "containerPort": port.port?, "protocol": port.protocol.as_deref().unwrap_or("TCP"),
            });
            if let Some(name) = &port.name {
                entry["name"] = json!(name);
            }
            Some(entry)
        })
        .collect()
}
