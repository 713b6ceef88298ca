//! A network's CNI configuration (specification 1.1.0, section 1): a list of plugins, or one alone, parsed, and turned into
//! the configuration of each plugin: pure.

use serde_json::{Map, Value, json};

/// Longest configuration, in bytes.
const TEXT_MAX: usize = 1 << 20;
/// Most plugins of a list.
const PLUGINS_MAX: usize = 64;
/// Versions of the protocol, oldest first.
const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// Plugins with no state but links, rules and files below /run, all of which end with a reboot.
const OF_LINKS: [&str; 9] =
    ["bandwidth", "bridge", "ipvlan", "loopback", "macvlan", "ptp", "tap", "tuning", "vlan"];

/// A network's configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Configuration {
    /// As it was written; what is kept is read again from it.
    text: String,
    /// The network's name.
    name: String,
    /// The protocol's version that is spoken.
    version: &'static str,
    check: bool,
    collect: bool,
    plugins: Vec<Map<String, Value>>,
}

impl Configuration {
    /// Reads a configuration or a list of them. `name` is the network's where it has none.
    ///
    /// # Errors
    /// The defect, with the key's name.
    pub fn read(text: &str, name: &str) -> Result<Self, String> {
        if text.len() > TEXT_MAX {
            return Err(format!(
                "a CNI configuration of {} bytes; {TEXT_MAX} bytes is the limit",
                text.len()
            ));
        }
        let mut whole: Map<String, Value> =
            serde_json::from_str(text).map_err(|error| format!("not a CNI configuration: {error}"))?;
        let version = version(&whole)?;
        let name = match whole.get("name") {
            None | Some(Value::Null) => name.to_owned(),
            Some(Value::String(own)) if own.is_empty() => name.to_owned(),
            Some(Value::String(own)) => own.clone(),
            Some(_) => return Err("\"name\": not a text".to_owned()),
        };
        if !is_name(&name) {
            return Err(format!("\"name\": {name:?} may have only letters, digits, _, . and -"));
        }
        let on = |key: &str| match whole.get(key) {
            None | Some(Value::Null | Value::Bool(false)) => Ok(true),
            Some(Value::Bool(true)) => Ok(false),
            Some(_) => Err(format!("{key:?}: neither true nor false")),
        };
        let (check, collect) = (on("disableCheck")?, on("disableGC")?);
        let plugins = match whole.remove("plugins") {
            None => vec![whole],
            Some(Value::Array(list)) if (1..=PLUGINS_MAX).contains(&list.len()) => {
                let object = |one| {
                    let Value::Object(plugin) = one else {
                        return Err("\"plugins\": not a list of objects".to_owned());
                    };
                    Ok(plugin)
                };
                list.into_iter().map(object).collect::<Result<_, _>>()?
            }
            Some(_) => return Err(format!("\"plugins\": not a list of 1 to {PLUGINS_MAX} objects")),
        };
        for plugin in &plugins {
            let kind = plugin.get("type").and_then(Value::as_str).unwrap_or_default();
            // It becomes the name of a file.
            if !is_name(kind) {
                return Err(format!("\"type\": {kind:?} is not the name of a plugin"));
            }
        }
        Ok(Self { text: text.to_owned(), name, version, check, collect, plugins })
    }

    /// The network's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The plugins' names, in order.
    pub fn kinds(&self) -> impl DoubleEndedIterator<Item = (usize, &str)> {
        let kind = |plugin: &'_ Map<String, Value>| plugin.get("type").and_then(Value::as_str).is_some();
        debug_assert!(self.plugins.iter().all(kind));
        self.plugins
            .iter()
            .enumerate()
            .map(|(index, plugin)| (index, plugin.get("type").and_then(Value::as_str).unwrap_or_default()))
    }

    /// The configuration of plugin `index`: its own, the network's name and version, the previous result, and those of
    /// `offered` (by capability) that it requests.
    pub fn request(
        &self,
        index: usize,
        previous: Option<&Value>,
        offered: &Map<String, Value>,
        more: &[(&str, Value)],
    ) -> Vec<u8> {
        let mut plugin = self.plugins.get(index).cloned().unwrap_or_default();
        let asked = plugin.remove("capabilities");
        let asks = |name: &str| asked.as_ref().and_then(|asked| asked.get(name)) == Some(&Value::Bool(true));
        let given: Map<String, Value> = offered
            .iter()
            .filter(|(name, _)| asks(name.as_str()))
            .map(|(a, b)| (a.clone(), b.clone()))
            .collect();
        // Upstream's way to ask `host-local` for an address where the network does not declare the capability.
        if let Some(addresses) = offered.get("ips").filter(|_| !asks("ips") && is_host_local(&plugin)) {
            let mut at = Some(plugin.entry("args").or_insert_with(|| json!({})));
            at = at.and_then(|args| Some(args.as_object_mut()?.entry("cni").or_insert_with(|| json!({}))));
            if let Some(cni) = at.and_then(Value::as_object_mut) {
                cni.insert("ips".to_owned(), addresses.clone());
            }
        }
        if !given.is_empty() {
            plugin.insert("runtimeConfig".to_owned(), Value::Object(given));
        }
        plugin.insert("name".to_owned(), json!(self.name));
        plugin.insert("cniVersion".to_owned(), json!(self.version));
        if let Some(previous) = previous {
            plugin.insert("prevResult".to_owned(), previous.clone());
        }
        for (key, value) in more {
            plugin.insert((*key).to_owned(), value.clone());
        }
        Value::Object(plugin).to_string().into_bytes()
    }

    /// Whether its addresses are from `host-local`, which gives one again that is asked for.
    pub fn is_host_local(&self) -> bool {
        self.plugins.iter().any(is_host_local)
    }

    /// Whether it may keep state on disk that a reboot does not end: addresses that were given out, or whatever an unknown
    /// plugin keeps.
    pub fn outlives_reboot(&self) -> bool {
        let ends = |plugin: &Map<String, Value>| {
            let text = |of: &Value| of.as_str().map(str::to_owned);
            let kind = plugin.get("type").and_then(text).unwrap_or_default();
            let addresses = plugin.get("ipam").and_then(|ipam| text(ipam.get("type")?)).unwrap_or_default();
            OF_LINKS.contains(&kind.strip_prefix("cnv-").unwrap_or(&kind))
                && ["", "static"].contains(&addresses.as_str())
        };
        !self.plugins.iter().all(ends)
    }

    /// The subnets that it gives addresses of, one of each set of ranges.
    pub fn subnets(&self) -> impl Iterator<Item = &str> {
        let ranges = self.plugins.iter().filter_map(|plugin| plugin.get("ipam")?.get("ranges")?.as_array());
        ranges.flatten().filter_map(|set| set.get(0)?.get("subnet")?.as_str())
    }

    /// Whether CHECK is there, and wanted.
    pub fn can_check(&self) -> bool {
        self.check && self.since("0.4.0")
    }

    /// Whether GC is there, and wanted.
    pub fn can_collect(&self) -> bool {
        self.collect && self.since("1.1.0")
    }

    /// Whether STATUS is there.
    pub fn has_status(&self) -> bool {
        self.since("1.1.0")
    }

    /// Whether DEL is given the answer of ADD.
    pub fn remembers(&self) -> bool {
        self.since("0.4.0")
    }

    fn since(&self, version: &str) -> bool {
        let place = |wanted: &str| VERSIONS.iter().position(|known| *known == wanted);
        place(self.version) >= place(version)
    }
}

fn is_host_local(plugin: &Map<String, Value>) -> bool {
    plugin.get("ipam").and_then(|ipam| ipam.get("type")) == Some(&json!("host-local"))
}

/// The newest version that both know.
fn version(whole: &Map<String, Value>) -> Result<&'static str, String> {
    let one = match whole.get("cniVersion") {
        None | Some(Value::Null) => "0.1.0",
        Some(Value::String(version)) => version,
        Some(_) => return Err("\"cniVersion\": not a text".to_owned()),
    };
    let mut all = vec![one];
    match whole.get("cniVersions") {
        None | Some(Value::Null) => {}
        Some(Value::Array(list)) => all.extend(list.iter().filter_map(Value::as_str)),
        Some(_) => return Err("\"cniVersions\": not a list".to_owned()),
    }
    VERSIONS
        .into_iter()
        .rev()
        .find(|known| all.contains(known))
        .ok_or_else(|| format!("\"cniVersion\": {one:?} is not supported; use one from 0.1.0 to 1.1.0"))
}

/// Whether CNI takes a text as a name.
pub fn is_name(text: &str) -> bool {
    text.len() <= 200
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str, previous: Option<&Value>) -> Value {
        let offered = Map::from_iter([("mac".to_owned(), json!("m")), ("ips".to_owned(), json!(["i"]))]);
        let read = Configuration::read(text, "given").unwrap();
        serde_json::from_slice(&read.request(0, previous, &offered, &[])).unwrap()
    }

    #[test]
    fn a_plugin_is_given_what_it_asks_for() {
        let alone = r#"{"cniVersion": "0.3.1", "type": "bridge", "bridge": "br0"}"#;
        let previous = json!({"ips": []});
        assert_eq!(
            request(alone, Some(&previous)),
            json!({"cniVersion": "0.3.1", "name": "given", "type": "bridge", "bridge": "br0", "prevResult": previous})
        );
        let list = r#"{"cniVersion": "0.4.0", "cniVersions": ["1.0.0", "9.0.0"], "name": "own",
            "plugins": [{"type": "bridge", "capabilities": {"mac": true, "ips": false}}]}"#;
        assert_eq!(
            request(list, None),
            json!({"cniVersion": "1.0.0", "name": "own", "type": "bridge", "runtimeConfig": {"mac": "m"}})
        );
    }

    #[test]
    fn host_local_is_asked_for_addresses_with_and_without_the_capability() {
        let plugin = r#""type": "bridge", "ipam": {"type": "host-local"}"#;
        let asked = request(&format!(r#"{{"cniVersion": "1.0.0", {plugin}}}"#), None);
        assert_eq!(
            (&asked["args"], &asked["runtimeConfig"]),
            (&json!({"cni": {"ips": ["i"]}}), &Value::Null)
        );
        let asked = request(
            &format!(r#"{{"cniVersion": "1.0.0", {plugin}, "capabilities": {{"ips": true}}}}"#),
            None,
        );
        assert_eq!((&asked["args"], &asked["runtimeConfig"]), (&Value::Null, &json!({"ips": ["i"]})));
        let read = Configuration::read(
            r#"{"cniVersion": "1.0.0", "type": "bridge", "ipam": {"type": "static"}}"#,
            "a",
        );
        assert!(!read.unwrap().is_host_local());
    }

    #[test]
    fn state_outlives_a_reboot_with_addresses_and_unknown_plugins() {
        for (plugins, wanted) in [
            (r#"[{"type": "cnv-bridge"}, {"type": "tuning"}]"#, false),
            (r#"[{"type": "bridge", "ipam": {}}]"#, false),
            (r#"[{"type": "bridge", "ipam": {"type": "static"}}]"#, false),
            (r#"[{"type": "macvlan", "ipam": {"type": "host-local"}}]"#, true),
            (r#"[{"type": "bridge", "ipam": {"type": "whereabouts"}}]"#, true),
            (r#"[{"type": "bridge"}, {"type": "ovs"}]"#, true),
        ] {
            let text = format!(r#"{{"cniVersion": "1.0.0", "plugins": {plugins}}}"#);
            assert_eq!(Configuration::read(&text, "net").unwrap().outlives_reboot(), wanted, "{plugins}");
        }
    }

    #[test]
    fn invalid_configurations_are_refused_by_key() {
        for (text, key) in [
            ("{", "not a CNI configuration"),
            ("[]", "not a CNI configuration"),
            (r#"{"cniVersion": "2.0.0", "type": "bridge"}"#, "cniVersion"),
            (r#"{"cniVersion": 1, "type": "bridge"}"#, "cniVersion"),
            (r#"{"cniVersion": "1.0.0"}"#, "type"),
            (r#"{"cniVersion": "1.0.0", "type": "../sh"}"#, "type"),
            (r#"{"cniVersion": "1.0.0", "name": "a/b", "type": "bridge"}"#, "name"),
            (r#"{"cniVersion": "1.0.0", "plugins": []}"#, "plugins"),
            (r#"{"cniVersion": "1.0.0", "plugins": ["bridge"]}"#, "plugins"),
            (r#"{"cniVersion": "1.0.0", "disableCheck": "yes", "type": "bridge"}"#, "disableCheck"),
        ] {
            let said = Configuration::read(text, "net").unwrap_err();
            assert!(said.contains(key), "{text}: {said}");
        }
    }

    #[test]
    fn verbs_are_there_since_their_version() {
        let of = |version: &str| {
            let text = format!(r#"{{"cniVersion": "{version}", "type": "bridge"}}"#);
            let read = Configuration::read(&text, "net").unwrap();
            (read.can_check(), read.can_collect(), read.has_status(), read.remembers())
        };
        assert_eq!(of("0.3.1"), (false, false, false, false));
        assert_eq!(of("0.4.0"), (true, false, false, true));
        assert_eq!(of("1.1.0"), (true, true, true, true));
    }
}
