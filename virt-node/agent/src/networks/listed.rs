//! The annotation `k8s.v1.cni.cncf.io/network-status` (specification of the Network Plumbing Working Group 1.3): read as
//! far as it is acted on, and written with this agent's attachments among those of others. Pure.
//!
//! Every user that may write the pod may write the annotation, so it is a claim: the kernel decides whether an interface
//! exists.

use guest::network::CniResult;
use serde_json::{Map, Value, json};

use super::STATUS_MAX;

/// Most networks that are read.
const NETWORKS_MAX: usize = 256;

/// The content of the annotation.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Listed {
    networks: Vec<Map<String, Value>>,
}

/// A network that belongs in the annotation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry<'a> {
    /// `NAMESPACE/NAME`, or the name of the cluster's network.
    pub(crate) name: &'a str,
    /// The interface's name in the pod.
    pub(crate) interface: &'a str,
    pub(crate) outcome: &'a CniResult,
    /// Largest packet in bytes, where the plugin reported it.
    pub(crate) mtu: Option<u64>,
    /// Whether it is the pod network.
    pub(crate) default: bool,
}

impl Listed {
    /// Reads the annotation; without one, nothing is listed.
    ///
    /// # Errors
    /// It is too long or not of its form.
    pub(crate) fn read(text: Option<&str>) -> Result<Self, String> {
        let Some(text) = text.filter(|text| !text.trim().is_empty()) else { return Ok(Self::default()) };
        if text.len() > STATUS_MAX {
            return Err(format!("{} bytes; {STATUS_MAX} bytes is the limit", text.len()));
        }
        let networks: Vec<Map<String, Value>> =
            serde_json::from_str(text).map_err(|error| format!("not a JSON list of networks: {error}"))?;
        if networks.len() > NETWORKS_MAX {
            return Err(format!("{} networks; {NETWORKS_MAX} is the limit", networks.len()));
        }
        Ok(Self { networks })
    }

    /// Whether a network other than the pod network is listed with this interface.
    pub(crate) fn has(&self, interface: &str) -> bool {
        self.networks.iter().any(|one| text(one, "interface") == interface && !is_default(one))
    }

    /// Whether the network of this name is listed as the one in the pod network's place.
    pub(crate) fn has_default(&self, name: &str) -> bool {
        self.networks.iter().any(|one| is_default(one) && text(one, "name") == name)
    }

    /// Whether any network is listed as the pod's default.
    pub(crate) fn names_a_default(&self) -> bool {
        self.networks.iter().any(is_default)
    }

    /// The annotation without the interfaces that are `gone`; `None`: it lists none of them. The pod network stays.
    pub(crate) fn without(&self, gone: &[&str]) -> Option<String> {
        let mut networks = self.networks.clone();
        networks.retain(|one| is_default(one) || !gone.contains(&text(one, "interface")));
        self.changed(networks)
    }

    /// The annotation with these networks, each in place of what its interface had before; `None`: it is as it should be.
    pub(crate) fn with(&self, entries: &[Entry<'_>]) -> Option<String> {
        let mut networks = self.networks.clone();
        for entry in entries {
            let new = written(entry);
            match networks.iter_mut().find(|one| text(one, "interface") == entry.interface) {
                Some(old) => *old = new,
                None if entry.default => networks.insert(0, new),
                None => networks.push(new),
            }
        }
        self.changed(networks)
    }

    fn changed(&self, networks: Vec<Map<String, Value>>) -> Option<String> {
        (networks != self.networks)
            .then(|| Value::Array(networks.into_iter().map(Value::Object).collect()).to_string())
    }
}

fn text<'a>(network: &'a Map<String, Value>, key: &str) -> &'a str {
    network.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn is_default(network: &Map<String, Value>) -> bool {
    network.get("default") == Some(&Value::Bool(true))
}

fn written(entry: &Entry<'_>) -> Map<String, Value> {
    let Entry { name, interface, outcome, mtu, default } = entry;
    let mut network = Map::new();
    network.insert("name".into(), json!(name));
    network.insert("interface".into(), json!(interface));
    let ips: Vec<String> = outcome.addresses.iter().map(|(net, _)| net.addr().to_string()).collect();
    if !ips.is_empty() {
        network.insert("ips".into(), json!(ips));
    }
    // Of default routes, as in the reference implementation.
    let routes = outcome.routes.iter().filter(|(to, _)| to.prefix_len() == 0);
    let gateways: Vec<String> =
        routes.filter_map(|(_, gateway)| Some(gateway.as_ref()?.to_string())).collect();
    if !gateways.is_empty() {
        network.insert("gateway".into(), json!(gateways));
    }
    if let Some(mac) = outcome.mac {
        network.insert("mac".into(), json!(mac.to_string()));
    }
    if let Some(mtu) = mtu {
        network.insert("mtu".into(), json!(mtu));
    }
    if *default {
        network.insert("default".into(), json!(true));
    }
    let mut dns = Map::new();
    if !outcome.resolvers.is_empty() {
        let servers: Vec<String> = outcome.resolvers.iter().map(ToString::to_string).collect();
        dns.insert("nameservers".into(), json!(servers));
    }
    if !outcome.search.is_empty() {
        dns.insert("search".into(), json!(outcome.search));
    }
    network.insert("dns".into(), Value::Object(dns));
    network
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome() -> CniResult {
        let answer = json!({
            "cniVersion": "1.0.0",
            "interfaces": [{"name": "pod1", "mac": "02:00:00:00:00:01", "sandbox": "x"}],
            "ips": [{"interface": 0, "address": "10.1.0.2/16"}, {"interface": 0, "address": "fd00::2/64"}],
            "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}, {"dst": "10.9.0.0/16", "gw": "10.1.0.9"}, {"dst": "::/0"}],
            "dns": {"nameservers": ["10.1.0.1"], "search": ["a.b"]},
        });
        CniResult::read(&answer, "pod1")
    }

    #[test]
    fn attachments_of_others_are_kept() {
        let before = r#"[{"name": "pods", "interface": "eth0", "default": true, "dns": {}, "later": 1},
                         {"name": "ns/blue", "interface": "pod9"}]"#;
        let listed = Listed::read(Some(before)).unwrap();
        assert!(listed.has("pod9") && !listed.has("eth0") && !listed.has("pod1") && listed.names_a_default());
        assert!(listed.has_default("pods") && !listed.has_default("ns/blue"));
        let outcome = outcome();
        let entry =
            Entry { name: "ns/red", interface: "pod1", outcome: &outcome, mtu: Some(9000), default: false };
        let text = listed.with(std::slice::from_ref(&entry)).unwrap();
        let written: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(written[0]["later"], 1, "what others wrote stays");
        assert_eq!(
            written[2],
            json!({
                "name": "ns/red", "interface": "pod1", "ips": ["10.1.0.2", "fd00::2"], "mac": "02:00:00:00:00:01",
                "gateway": ["10.1.0.1"], "mtu": 9000, "dns": {"nameservers": ["10.1.0.1"], "search": ["a.b"]},
            })
        );
        let again = Listed::read(Some(&text)).unwrap();
        assert_eq!(again.with(&[entry]), None, "a second time nothing changes");
        assert_eq!(again.without(&["eth0", "pod7"]), None);
        let without = again.without(&["pod1", "eth0", "pod7"]).unwrap();
        let without: Value = serde_json::from_str(&without).unwrap();
        let names: Vec<&Value> = without.as_array().unwrap().iter().map(|one| &one["interface"]).collect();
        assert_eq!(names, ["eth0", "pod9"], "the pod network stays");
    }

    #[test]
    fn the_pod_network_comes_first_and_pure_layer_2_has_no_addresses() {
        let (listed, outcome) = (Listed::read(None).unwrap(), CniResult::default());
        let entry =
            |name, interface, default| Entry { name, interface, outcome: &outcome, mtu: None, default };
        let text = listed.with(&[entry("ns/red", "pod1", false), entry("pods", "eth0", true)]).unwrap();
        let written: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            written,
            json!([
                {"name": "pods", "interface": "eth0", "default": true, "dns": {}},
                {"name": "ns/red", "interface": "pod1", "dns": {}},
            ])
        );
    }

    #[test]
    fn oversized_and_malformed_annotations_are_refused() {
        let many = Value::Array(vec![json!({}); NETWORKS_MAX + 1]).to_string();
        for text in ["{}", "[1]", "x", &" x".repeat(STATUS_MAX), &many] {
            assert!(Listed::read(Some(text)).is_err(), "{}", &text[..text.len().min(20)]);
        }
        assert_eq!(Listed::read(Some("")).unwrap(), Listed::default());
    }
}
