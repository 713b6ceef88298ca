//! The result of an ADD, and its shape in each version of the specification, both ways: ours going out, and the results
//! of earlier plugins (`prevResult`) and of IPAM plugins coming in.

use std::net::IpAddr;

use ipnet::IpNet;
use link::netlink::Route;
use serde_json::{Map, Value, json};

use crate::error::{Error, Kind};
use crate::protocol::{Json, Object, Version};

/// The result of an attachment, in the terms of the newest version.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) interfaces: Vec<Interface>,
    pub(crate) ips: Vec<IpConfig>,
    pub(crate) routes: Vec<Route>,
    pub(crate) dns: Dns,
}

/// An interface that was made, or belongs to what was made.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    /// The Ethernet address as text, empty when unknown.
    pub(crate) mac: String,
    /// In bytes; since 1.1.0.
    pub(crate) mtu: Option<u32>,
    /// Path of its network namespace, empty for the host's.
    pub(crate) sandbox: String,
    /// Since 1.1.0.
    pub(crate) socket_path: String,
    /// Since 1.1.0.
    pub(crate) pci_id: String,
}

/// An address with the length of its prefix.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct IpConfig {
    /// Index into [`Outcome::interfaces`].
    pub(crate) interface: Option<usize>,
    /// The address itself, host bits and all.
    pub(crate) address: IpNet,
    pub(crate) gateway: Option<IpAddr>,
}

/// How names are resolved.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Dns {
    pub(crate) nameservers: Vec<String>,
    pub(crate) domain: String,
    pub(crate) search: Vec<String>,
    pub(crate) options: Vec<String>,
}

impl Dns {
    /// Whether it is empty.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Reads the object at "dns" of `parent`.
    pub(crate) fn parse(parent: &Object) -> Result<Self, Error> {
        let dns = parent.object("dns")?;
        Ok(Self {
            nameservers: dns.texts("nameservers")?,
            domain: dns.text("domain")?.unwrap_or_default().to_owned(),
            search: dns.texts("search")?,
            options: dns.texts("options")?,
        })
    }

    fn render(&self) -> Value {
        let mut dns = Map::new();
        put_text(&mut dns, "domain", &self.domain);
        let lists =
            [("nameservers", &self.nameservers), ("search", &self.search), ("options", &self.options)];
        for (key, list) in lists {
            if !list.is_empty() {
                dns.insert(key.to_owned(), json!(list));
            }
        }
        Value::Object(dns)
    }
}

impl Outcome {
    /// The document in the shape of `version`.
    ///
    /// # Errors
    /// [`Kind::Unsupported`]: 0.1.0 and 0.2.0 cannot represent a result without addresses.
    pub(crate) fn render(&self, version: Version) -> Result<Value, Error> {
        let mut document = Map::new();
        document.insert("cniVersion".to_owned(), json!(version.as_str()));
        match version {
            Version::V0_1_0 | Version::V0_2_0 => self.families(&mut document)?,
            Version::V0_3_0 | Version::V0_3_1 | Version::V0_4_0 | Version::V1_0_0 | Version::V1_1_0 => {
                self.lists(&mut document, version);
            }
        }
        if version < Version::V1_0_0 || !self.dns.is_empty() {
            document.insert("dns".to_owned(), self.dns.render());
        }
        Ok(Value::Object(document))
    }

    /// Refuses early what [`Outcome::render`] would refuse late: an attachment without addresses before 0.3.0.
    pub(crate) fn refuse_without_addresses(version: Version) -> Result<(), Error> {
        if version >= Version::V0_3_0 {
            return Ok(());
        }
        // The words are libcni's; people search for them.
        let message = "cannot convert: no valid IP addresses";
        let version = version.as_str();
        let reason =
            format!("CNI {version} cannot express an interface without addresses; use 0.3.0 or later");
        Err(Error::with(Kind::Unsupported, message, reason))
    }

    fn families(&self, document: &mut Map<String, Value>) -> Result<(), Error> {
        for (key, four) in [("ip4", true), ("ip6", false)] {
            let Some(ip) = self.ips.iter().find(|ip| ip.address.addr().is_ipv4() == four) else { continue };
            let mut family = Map::new();
            family.insert("ip".to_owned(), json!(ip.address.to_string()));
            put_address(&mut family, "gateway", ip.gateway);
            let routes: Vec<Value> = self
                .routes
                .iter()
                .filter(|route| route.destination.addr().is_ipv4() == four)
                .map(|route| render_route(route, Version::V0_1_0))
                .collect();
            put_list(&mut family, "routes", routes);
            document.insert(key.to_owned(), Value::Object(family));
        }
        if document.contains_key("ip4") || document.contains_key("ip6") {
            return Ok(());
        }
        Self::refuse_without_addresses(Version::V0_1_0)
    }

    fn lists(&self, document: &mut Map<String, Value>, version: Version) {
        put_list(document, "interfaces", self.interfaces.iter().map(|one| one.render(version)).collect());
        put_list(document, "ips", self.ips.iter().map(|one| one.render(version)).collect());
        put_list(document, "routes", self.routes.iter().map(|one| render_route(one, version)).collect());
    }

    /// Reads a result; its own `cniVersion` defines its shape, or `version` if it has none.
    ///
    /// # Errors
    /// [`Kind::Config`] when it is not a result of a version we speak.
    pub(crate) fn parse(document: &Object, version: Version) -> Result<Self, Error> {
        let version = match document.text("cniVersion")? {
            None | Some("") => version,
            name => Version::named(name).ok_or_else(|| {
                let name = name.unwrap_or_default().escape_debug();
                Error::config(format!("a result of CNI version \"{name}\" is not supported"))
            })?,
        };
        let mut outcome = Self { dns: Dns::parse(document)?, ..Self::default() };
        match version {
            Version::V0_1_0 | Version::V0_2_0 => {
                for key in ["ip4", "ip6"] {
                    if document.get(key).is_none() {
                        continue;
                    }
                    let family = document.object(key)?;
                    let address = network(family, "ip")?;
                    outcome.ips.push(IpConfig {
                        interface: None,
                        address,
                        gateway: address_at(family, "gateway")?,
                    });
                    for route in family.objects("routes")? {
                        outcome.routes.push(read_route(route)?);
                    }
                }
            }
            Version::V0_3_0 | Version::V0_3_1 | Version::V0_4_0 | Version::V1_0_0 | Version::V1_1_0 => {
                for interface in document.objects("interfaces")? {
                    outcome.interfaces.push(Interface::parse(interface)?);
                }
                for ip in document.objects("ips")? {
                    outcome.ips.push(IpConfig::parse(ip)?);
                }
                for route in document.objects("routes")? {
                    outcome.routes.push(read_route(route)?);
                }
            }
        }
        Ok(outcome)
    }

    /// The configuration's `prevResult`, if it has one.
    ///
    /// # Errors
    /// As [`Outcome::parse`].
    pub(crate) fn previous(config: &Object, version: Version) -> Result<Option<Self>, Error> {
        match config.get("prevResult") {
            None => Ok(None),
            Some(Json::Object(_)) => Self::parse(config.object("prevResult")?, version).map(Some),
            Some(_) => config.object("prevResult").map(|_| None),
        }
    }
}

impl Interface {
    fn render(&self, version: Version) -> Value {
        let mut interface = Map::new();
        interface.insert("name".to_owned(), json!(self.name));
        put_text(&mut interface, "mac", &self.mac);
        put_text(&mut interface, "sandbox", &self.sandbox);
        if version >= Version::V1_1_0 {
            put_number(&mut interface, "mtu", self.mtu);
            put_text(&mut interface, "socketPath", &self.socket_path);
            put_text(&mut interface, "pciID", &self.pci_id);
        }
        Value::Object(interface)
    }

    fn parse(object: &Object) -> Result<Self, Error> {
        let text = |key| Ok::<_, Error>(object.text(key)?.unwrap_or_default().to_owned());
        Ok(Self {
            name: text("name")?,
            mac: text("mac")?,
            mtu: number(object, "mtu")?,
            sandbox: text("sandbox")?,
            socket_path: text("socketPath")?,
            pci_id: text("pciID")?,
        })
    }
}

impl IpConfig {
    fn render(&self, version: Version) -> Value {
        let mut ip = Map::new();
        ip.insert("address".to_owned(), json!(self.address.to_string()));
        put_address(&mut ip, "gateway", self.gateway);
        put_number(&mut ip, "interface", self.interface);
        if version < Version::V1_0_0 {
            let family = if self.address.addr().is_ipv4() { "4" } else { "6" };
            ip.insert("version".to_owned(), json!(family));
        }
        Value::Object(ip)
    }

    fn parse(object: &Object) -> Result<Self, Error> {
        let interface = match object.integer("interface")? {
            None => None,
            Some(index) => Some(usize::try_from(index).map_err(|_| {
                Error::config(format!("\"interface\" of an address must be an index, not {index}"))
            })?),
        };
        Ok(Self { interface, address: network(object, "address")?, gateway: address_at(object, "gateway")? })
    }
}

fn render_route(of: &Route, version: Version) -> Value {
    let mut route = Map::new();
    route.insert("dst".to_owned(), json!(of.destination.to_string()));
    put_address(&mut route, "gw", of.gateway);
    if version >= Version::V1_1_0 {
        put_number(&mut route, "mtu", of.mtu);
        put_number(&mut route, "advmss", of.advmss);
        put_number(&mut route, "priority", of.priority);
        put_number(&mut route, "table", of.table);
        put_number(&mut route, "scope", of.scope);
    }
    Value::Object(route)
}

/// Reads one element of `routes`, of a result or of an IPAM configuration.
pub(crate) fn read_route(object: &Object) -> Result<Route, Error> {
    let scope = match number(object, "scope")? {
        None => None,
        Some(scope) => Some(u8::try_from(scope).map_err(|_| {
            Error::config(format!("\"scope\" of a route must be between 0 and 255, not {scope}"))
        })?),
    };
    Ok(Route {
        destination: network(object, "dst")?,
        gateway: address_at(object, "gw")?,
        mtu: number(object, "mtu")?.filter(|mtu| *mtu > 0),
        advmss: number(object, "advmss")?.filter(|advmss| *advmss > 0),
        priority: number(object, "priority")?.filter(|priority| *priority > 0),
        table: number(object, "table")?,
        scope,
    })
}
fn put_text(object: &mut Map<String, Value>, key: &str, text: &str) {
    if !text.is_empty() {
        object.insert(key.to_owned(), json!(text));
    }
}

fn put_number<N: Into<Value>>(object: &mut Map<String, Value>, key: &str, number: Option<N>) {
    if let Some(number) = number {
        object.insert(key.to_owned(), number.into());
    }
}

fn put_address(object: &mut Map<String, Value>, key: &str, address: Option<IpAddr>) {
    if let Some(address) = address {
        object.insert(key.to_owned(), json!(address.to_string()));
    }
}

fn put_list(object: &mut Map<String, Value>, key: &str, list: Vec<Value>) {
    if !list.is_empty() {
        object.insert(key.to_owned(), Value::Array(list));
    }
}

fn number(object: &Object, key: &str) -> Result<Option<u32>, Error> {
    match object.integer(key)? {
        None => Ok(None),
        Some(number) => u32::try_from(number).map(Some).map_err(|_| {
            Error::config(format!("\"{key}\" must be between 0 and {}, not {number}", u32::MAX))
        }),
    }
}

/// The address with its prefix at `key`, host bits kept.
pub(crate) fn network(object: &Object, key: &str) -> Result<IpNet, Error> {
    let text = object.text(key)?.ok_or_else(|| Error::config(format!("\"{key}\" is missing")))?;
    text.parse().map_err(|_| {
        Error::config(format!(
            "\"{key}\": \"{}\" is not an address with a prefix length",
            text.escape_debug()
        ))
    })
}

/// The address at `key`; an empty string is none.
pub(crate) fn address_at(object: &Object, key: &str) -> Result<Option<IpAddr>, Error> {
    match object.text(key)? {
        None | Some("") => Ok(None),
        Some(text) => text
            .parse()
            .map(Some)
            .map_err(|_| Error::config(format!("\"{key}\": \"{}\" is not an address", text.escape_debug()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Outcome {
        let interface = |name: &str, sandbox: &str| Interface {
            name: name.into(),
            mac: "02:00:00:00:00:01".into(),
            mtu: Some(1500),
            sandbox: sandbox.into(),
            ..Interface::default()
        };
        Outcome {
            interfaces: vec![interface("br0", ""), interface("veth1", ""), interface("eth0", "/run/netns/a")],
            ips: vec![
                IpConfig {
                    interface: Some(2),
                    address: "10.1.2.3/24".parse().unwrap(),
                    gateway: Some("10.1.2.1".parse().unwrap()),
                },
                IpConfig { interface: Some(2), address: "fd00::3/64".parse().unwrap(), gateway: None },
            ],
            routes: vec![Route {
                priority: Some(100),
                ..Route::new("0.0.0.0/0".parse().unwrap(), Some("10.1.2.1".parse().unwrap()))
            }],
            dns: Dns { nameservers: vec!["10.1.2.1".into()], ..Dns::default() },
        }
    }

    #[test]
    fn every_version_has_its_shape() {
        for version in Version::ALL {
            let file =
                format!("{}/tests/golden/result-{}.json", env!("CARGO_MANIFEST_DIR"), version.as_str());
            let shown = serde_json::to_string_pretty(&sample().render(version).unwrap()).unwrap() + "\n";
            if std::env::var_os("FERROVIRT_BLESS").is_some() {
                std::fs::write(&file, &shown).unwrap();
            }
            assert_eq!(std::fs::read_to_string(&file).unwrap(), shown, "{file}");
        }
    }

    #[test]
    fn results_survive_a_round_trip_as_far_as_the_version_allows() {
        for version in Version::ALL {
            let text = sample().render(version).unwrap().to_string();
            let read =
                Outcome::parse(&Object::parse(text.as_bytes(), "it").unwrap(), Version::V0_1_0).unwrap();
            assert_eq!(read.render(version).unwrap(), sample().render(version).unwrap());
            if version == Version::V1_1_0 {
                assert_eq!(read, sample());
            }
        }
    }

    #[test]
    fn a_result_without_addresses_needs_0_3_0() {
        let outcome = Outcome { ips: Vec::new(), ..sample() };
        for version in Version::ALL {
            assert_eq!(outcome.render(version).is_err(), version < Version::V0_3_0, "{version:?}");
            assert_eq!(Outcome::refuse_without_addresses(version).is_err(), version < Version::V0_3_0);
        }
    }
}
