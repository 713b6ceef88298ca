//! The node's network and those of its guests' pods as JSON, for support bundles: links, VLANs of ports, addresses that
//! bridges have fixed, addresses, routes, and the packet filter's tables of the network plugins.
//!
//! Not here: keys of tunnels, rules of other programs, and the conditions of rules.

use std::net::{Ipv4Addr, Ipv6Addr};

use link::netlink::{Address, Forwarding, KernelRoute, Link, Router};
use link::nft::batch::{BRIDGE, INET, Set, Table};
use link::nft::{Filter, Rule};
use link::{Mac, Namespace};
use serde_json::{Value, json};

use crate::error::Result;
use crate::pods::process;

/// Most entries of a list; of those beyond, the number is shown.
const MOST: usize = 1024;
/// Most guests.
const GUESTS: usize = 128;
/// Tables of the packet filter that the network plugins make.
const TABLES: [Table; 3] =
    [Table { family: BRIDGE, name: "nat" }, PINS, Table { family: INET, name: "cni_plugins_masquerade" }];
/// The table of the addresses that ports may use, and its sets.
const PINS: Table = Table { family: BRIDGE, name: "cni_address_pins" };
const SETS: [&str; 6] = ["ports", "pins4", "pins6", "mac_ports", "macs", "any_link_local"];
/// Bytes of a link's name at the start of a key.
const NAME: usize = 16;

/// The network of a namespace. A list that cannot be read has the reason in its place.
///
/// # Errors
/// The namespace cannot be entered, or has no netlink.
pub(crate) fn show(namespace: &Namespace) -> Result<Value> {
    namespace.on_a_thread(|| {
        let mut router = Router::open()?;
        let mut filter = Filter::open()?;
        Ok(json!({
            "links": list(links(&mut router)),
            "ports": list(ports(&mut router)),
            "fixed": list(fixed(&mut router)),
            "addresses": list(addresses(&mut router)),
            "routes": list(routes(&mut router)),
            "chains": list(chains(&mut filter)),
            "rules": list(rules(&mut filter)),
            "pins": list(pins(&mut filter)),
        }))
    })
}

/// The networks of launchers' pods, by namespace and name of the instance. A launcher that has ended is left out.
pub(crate) fn guests() -> Result<Vec<Value>> {
    let mut all = Vec::new();
    for process in process::all()? {
        let words = process.command_line().unwrap_or_default();
        let Some((namespace, name)) = instance(&words) else { continue };
        let Ok(Some(network)) = Namespace::find(&process.network()) else { continue };
        if let Ok(network) = show(&network) {
            all.push(json!({"namespace": namespace, "name": name, "network": network}));
        }
        if all.len() == GUESTS {
            break;
        }
    }
    Ok(all)
}

/// Namespace and name of the instance in a launcher's command line.
fn instance(words: &[String]) -> Option<(&str, &str)> {
    let after = |option: &str| {
        let at = words.iter().position(|word| word == option)?;
        words.get(at + 1).map(String::as_str)
    };
    let program = words.first()?.rsplit('/').next()?;
    let is_launcher = program == "virt-launcher" && words.iter().any(|word| word == "--pod");
    is_launcher.then(|| Some((after("--namespace")?, after("--name")?))).flatten()
}

/// The first entries and the number of the rest, or the reason why there are none.
fn list(found: Result<Vec<Value>>) -> Value {
    match found {
        Ok(mut entries) => {
            let more = entries.len().saturating_sub(MOST);
            entries.truncate(MOST);
            json!({"entries": entries, "more": more})
        }
        Err(error) => json!({"error": error.chain()}),
    }
}

fn links(router: &mut Router) -> Result<Vec<Value>> {
    let links = Link::all(&router.ask(Link::list(None))?);
    let show = |link: &Link| {
        json!({
            "index": link.index,
            "name": link.name,
            "alias": link.alias,
            "kind": link.kind.as_ref().map(ToString::to_string),
            "mac": link.mac.map(|mac| mac.to_string()),
            "mtu": link.mtu,
            "master": link.master,
            "peer": link.peer,
            "peerNamespace": link.peer_namespace,
            "up": link.up,
            "carries": link.carries,
            "promiscuous": link.promiscuous,
            "bridge": link.bridge.map(|bridge| {
                json!({"vlanFiltering": bridge.vlan_filtering, "defaultVlan": bridge.default_vlan})
            }),
            "port": link.port.map(|port| {
                json!({"hairpin": port.hairpin, "isolated": port.isolated, "locked": port.locked})
            }),
        })
    };
    Ok(links.iter().map(show).collect())
}

/// VLANs of bridges and their ports.
fn ports(router: &mut Router) -> Result<Vec<Value>> {
    let ports = Link::all(&router.ask(Link::list_vlans())?);
    let show = |port: &Link| {
        let vlans = port
            .vlans
            .iter()
            .map(|range| json!({"first": range.first, "last": range.last, "native": range.native}));
        json!({"name": port.name, "master": port.master, "vlans": vlans.collect::<Vec<_>>()})
    };
    Ok(ports.iter().map(show).collect())
}

/// Forwarding entries that were not learned from frames.
fn fixed(router: &mut Router) -> Result<Vec<Value>> {
    let links = Link::all(&router.ask(Link::list(None))?);
    let mut strict = Router::open()?;
    strict.strict()?;
    let mut all = Vec::new();
    for bridge in links.iter().filter(|link| link.is_bridge()) {
        let entries = strict.ask(Forwarding::list(bridge.index))?;
        all.extend(entries.iter().filter_map(Forwarding::read).filter(|entry| entry.fixed).map(|entry| {
            json!({
                "bridge": bridge.name,
                "port": entry.port,
                "mac": entry.mac.map(|mac| mac.to_string()),
                "vlan": entry.vlan,
                "sticky": entry.sticky,
            })
        }));
    }
    Ok(all)
}

fn addresses(router: &mut Router) -> Result<Vec<Value>> {
    let addresses = Address::all(&router.ask(Address::list(None))?);
    let show = |address: &Address| {
        json!({
            "link": address.link,
            "address": address.network.to_string(),
            "tentative": address.tentative,
            "duplicate": address.duplicate,
        })
    };
    Ok(addresses.iter().map(show).collect())
}

fn routes(router: &mut Router) -> Result<Vec<Value>> {
    let routes = KernelRoute::all(&router.ask(KernelRoute::list())?);
    let show = |route: &KernelRoute| {
        json!({
            "destination": route.destination.to_string(),
            "gateway": route.gateway.map(|gateway| gateway.to_string()),
            "table": route.table,
            "link": route.link,
        })
    };
    Ok(routes.iter().map(show).collect())
}

fn chains(filter: &mut Filter) -> Result<Vec<Value>> {
    let mut all = Vec::new();
    for table in TABLES {
        all.extend(filter.chains(table)?.iter().map(|chain| {
            let hook = chain.base.as_ref().map(|base| {
                let policy = if base.drops { "drop" } else { "accept" };
                json!({"type": base.kind, "number": base.number, "priority": base.priority, "policy": policy})
            });
            json!({"table": table.words(), "chain": chain.name, "hook": hook})
        }));
    }
    Ok(all)
}

/// Rules by their comments, which name the attachment, and where they lead.
fn rules(filter: &mut Filter) -> Result<Vec<Value>> {
    let mut all = Vec::new();
    for table in TABLES {
        for chain in filter.chains(table)?.into_iter().take(MOST) {
            let show = |rule: Rule| {
                json!({
                    "table": table.words(),
                    "chain": chain.name,
                    "handle": rule.handle,
                    "comment": rule.comment,
                    "input": rule.input,
                    "target": rule.target,
                })
            };
            all.extend(filter.rules(table, &chain.name)?.into_iter().map(show));
        }
    }
    Ok(all)
}

/// Elements of the sets of [`PINS`].
fn pins(filter: &mut Filter) -> Result<Vec<Value>> {
    let mut all = Vec::new();
    for name in SETS {
        let set = Set { name, key_type: 0, key_length: 0 };
        for element in filter.elements(PINS, set)? {
            let (link, address) = element.key.split_at(element.key.len().min(NAME));
            let link = String::from_utf8_lossy(link);
            let link = link.trim_end_matches('\0');
            all.push(json!({
                "set": name, "link": link, "address": address_of(address), "comment": element.comment,
            }));
        }
    }
    Ok(all)
}

/// The address after a link's name in a key, by its length; Ethernet addresses are padded to words of four bytes.
fn address_of(bytes: &[u8]) -> Option<String> {
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes) {
        return Some(Ipv4Addr::from(bytes).to_string());
    }
    if let Ok(bytes) = <[u8; 16]>::try_from(bytes) {
        return Some(Ipv6Addr::from(bytes).to_string());
    }
    bytes.get(..6).and_then(Mac::from_bytes).map(|mac| mac.to_string())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::error::Error;

    #[test]
    fn bridges_addresses_and_pins_of_a_node_are_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node");
        let (namespace, _) = Namespace::create(&path).unwrap();
        let run = |program: &str, words: &str| {
            let run = || {
                let output = std::process::Command::new(program).args(words.split(' ')).output().unwrap();
                assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
                Ok::<_, Error>(())
            };
            namespace.on_a_thread(run).unwrap();
        };
        run("ip", "link add br0 type bridge");
        run("ip", "link add p0 type veth peer name p1");
        run("ip", "link set p0 master br0 up");
        run("ip", "link set br0 up");
        run("ip", "address add 192.0.2.1/24 dev br0");
        run("bridge", "fdb add 02:00:00:00:00:07 dev p0 master permanent");
        run("nft", "add table bridge cni_address_pins");
        run("nft", "add set bridge cni_address_pins pins4 { type ifname . ipv4_addr ; }");
        run("nft", "add element bridge cni_address_pins pins4 { \"p0\" . 192.0.2.9 comment \"ours\" }");
        run(
            "nft",
            "add chain bridge cni_address_pins prerouting { type filter hook prerouting priority -299 ; }",
        );
        run("nft", "add rule bridge cni_address_pins prerouting accept comment \"checked\"");
        run("nft", "add table inet others");
        let found = show(&namespace).unwrap();
        Namespace::remove(&path).unwrap();
        let one = |list: &str, field: &str, value: Value| {
            let entries = found[list]["entries"].as_array().unwrap_or_else(|| panic!("{list}: {found}"));
            entries
                .iter()
                .find(|one| one[field] == value)
                .unwrap_or_else(|| panic!("{list}: {found}"))
                .clone()
        };
        let bridge = one("links", "name", json!("br0"));
        assert_eq!((&bridge["kind"], &bridge["up"]), (&json!("bridge"), &json!(true)));
        assert_eq!(bridge["bridge"]["vlanFiltering"], false);
        let port = one("links", "name", json!("p0"));
        assert_eq!(port["master"], bridge["index"]);
        let entry = one("fixed", "mac", json!("02:00:00:00:00:07"));
        assert_eq!(entry["port"], port["index"]);
        assert_eq!(one("addresses", "address", json!("192.0.2.1/24"))["link"], bridge["index"]);
        assert_eq!(one("routes", "destination", json!("192.0.2.0/24"))["link"], bridge["index"]);
        let chain = one("chains", "chain", json!("prerouting"));
        assert_eq!(chain["table"], "bridge cni_address_pins");
        assert_eq!(chain["hook"]["priority"], -299);
        assert_eq!(one("rules", "comment", json!("checked"))["chain"], "prerouting");
        let pin = one("pins", "set", json!("pins4"));
        assert_eq!(
            (&pin["link"], &pin["address"], &pin["comment"]),
            (&json!("p0"), &json!("192.0.2.9"), &json!("ours"))
        );
        assert!(!found.to_string().contains("others"), "tables of other programs");
    }

    #[test]
    fn launchers_are_known_by_their_command_line() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let run =
            "/usr/bin/virt-launcher run /var/run/kubevirt-private --pod --name vm --uid u --namespace ns";
        assert_eq!(instance(&words(run)), Some(("ns", "vm")));
        for line in
            ["", "virt-launcher worker /x", "tail --pod --name vm --namespace ns", "virt-launcher run --pod"]
        {
            assert_eq!(instance(&words(line)), None, "{line}");
        }
    }

    #[test]
    fn guests_have_the_network_of_their_pod() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pod");
        let (namespace, _) = Namespace::create(&path).unwrap();
        let name = format!("vm{}", std::process::id());
        let line =
            format!("exec -a virt-launcher bash -c 'read -r' run /x --pod --name {name} --namespace ns");
        let start = || {
            let ip =
                std::process::Command::new("ip").args(["link", "add", "net1", "type", "bridge"]).status();
            assert!(ip.unwrap().success());
            let mut command = std::process::Command::new("bash");
            Ok::<_, Error>(command.args(["-c", &line]).stdin(std::process::Stdio::piped()).spawn().unwrap())
        };
        let mut launcher = namespace.on_a_thread(start).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        let found = loop {
            let all = guests().unwrap();
            if let Some(found) = all.into_iter().find(|one| one["name"] == name.as_str()) {
                break found;
            }
            assert_eq!(launcher.try_wait().unwrap(), None, "it waits for its input");
            assert!(Instant::now() < deadline, "it is not found");
            std::thread::sleep(Duration::from_millis(10));
        };
        launcher.kill().unwrap();
        launcher.wait().unwrap();
        Namespace::remove(&path).unwrap();
        assert_eq!(found["namespace"], "ns");
        let links = found["network"]["links"]["entries"].as_array().unwrap();
        assert!(links.iter().any(|link| link["name"] == "net1"), "{found}");
    }

    #[test]
    fn long_lists_are_cut_and_failures_take_their_place() {
        let cut = list(Ok(vec![json!(1); MOST + 3]));
        assert_eq!((cut["entries"].as_array().unwrap().len(), &cut["more"]), (MOST, &json!(3)));
        let failed = list(Err(Error::new(crate::error::Kind::System, "no answer")));
        assert_eq!(failed, json!({"error": "no answer"}));
    }
}
