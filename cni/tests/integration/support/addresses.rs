//! Attachments with addresses: configurations out of ranges, and what is to be seen of addresses on links and in files.

use serde_json::{Value, json};

use super::{Host, Namespace};

/// One range of IPv4.
pub fn four(host: &Host, keys: Value) -> Value {
    host.with_ranges(&json!([[{"subnet": "10.1.2.0/24"}]]), keys)
}

/// A range of each family.
pub fn both(host: &Host, keys: Value) -> Value {
    host.with_ranges(&json!([[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]), keys)
}

/// How many addresses of a network are reserved.
pub fn reserved(host: &Host, network: &str) -> usize {
    super::place::walk(&host.networks().join(network))
}

/// Addresses of a link, those of the link itself left out.
pub fn addresses(namespace: &Namespace, link: &str) -> Vec<String> {
    let shown: Value =
        serde_json::from_str(&namespace.run("ip", &["-j", "addr", "show", "dev", link])).unwrap();
    let of_link = |address: &&Value| address["scope"] != "link";
    let text = |address: &Value| format!("{}/{}", address["local"].as_str().unwrap(), address["prefixlen"]);
    shown[0]["addr_info"].as_array().unwrap().iter().filter(of_link).map(text).collect()
}

/// Routes of a family, `-4` or `-6`, as `ip` shows them; those of links' own networks left out.
pub fn routes(namespace: &Namespace, family: &str) -> Vec<String> {
    let shown = namespace.run("ip", &[family, "route"]);
    // The kernel says it of a link that has only just come up.
    let shown = shown.replace(" linkdown", "");
    shown.lines().map(|line| line.trim().to_owned()).filter(|line| !line.starts_with("fe80")).collect()
}
