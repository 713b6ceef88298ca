//! Network interfaces, and the networks they are on. Not here: attaching them (lib/guest).

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use api::kubevirt::{DhcpOptions as Options, Interface as Specified, Network, VirtualMachineInstanceSpec};
use api::launch::{Dhcp, DhcpOptions, Interface, NicModel, Word};
use api::net::Mac;

use super::volumes::is_label;
use super::{Resolution, Tap, board};

/// Most pairs of queues: what tap devices have been tried with upstream.
const QUEUES_MAX: u32 = 16;
/// Longest text of an option of DHCPv4, in bytes, and most servers in one.
const OPTION_MAX: usize = 255;
const SERVERS_MAX: usize = OPTION_MAX / 4;
/// Name of the interface that is made where none is asked for.
pub const DEFAULT_INTERFACE: &str = "default";

/// Interfaces as they are asked for, with the one on the pod network that is made where there is none.
pub fn interfaces_of(spec: &VirtualMachineInstanceSpec) -> Vec<Specified> {
    let devices = &spec.domain.devices;
    let attach = devices.autoattach_pod_interface.unwrap_or(true);
    if devices.interfaces.is_empty() && spec.networks.is_empty() && attach {
        return vec![Specified {
            name: DEFAULT_INTERFACE.to_owned(),
            masquerade: Some(api::kubevirt::MasqueradeBinding::default()),
            ..Specified::default()
        }];
    }
    devices.interfaces.clone()
}

/// Whether an interface has a binding other than masquerade and bridge.
fn has_other_binding(one: &Specified) -> bool {
    one.binding.is_some()
        || [&one.macvtap, &one.passt, &one.passt_binding, &one.slirp, &one.sriov]
            .iter()
            .any(|one| one.is_some())
}

/// Pairs of queues of an interface; none: one pair.
pub fn queues_of(spec: &VirtualMachineInstanceSpec, one: &Specified) -> Option<u32> {
    let multi = spec.domain.devices.network_interface_multiqueue.unwrap_or(false);
    let virtio = one.model.as_deref().is_none_or(|model| model == NicModel::Virtio.word());
    let processors = board::processors(spec);
    (multi && virtio && processors > 1).then_some(processors.min(QUEUES_MAX))
}

/// An Ethernet address in lower case with colons, if it is one of one device.
pub fn mac(text: &str) -> Option<String> {
    Mac::parse(text).filter(|mac| mac.is_usable()).map(|mac| mac.to_string())
}

/// The options of DHCPv4 that a spec adds, and what is wrong: fields below `dhcpOptions`, and texts, upstream's where it
/// refuses the same.
fn dhcp_options(asked: &Options) -> (DhcpOptions, Vec<(String, &'static str)>) {
    const LONG: &str = "longer than 255 bytes";
    let Options { boot_file_name, ntp_servers, private_options, tftp_server_name } = asked;
    let mut refused = Vec::new();
    let mut private = BTreeMap::new();
    for (index, one) in private_options.iter().enumerate() {
        let field = format!(".privateOptions[{index}]");
        let number = u8::try_from(one.option).ok().filter(|number| (224..=254).contains(number));
        let Some(number) = number else {
            let text = "provided DHCPPrivateOptions are out of range, must be in range 224 to 254";
            refused.push((field, text));
            continue;
        };
        if private.insert(number, one.value.clone()).is_some() {
            let text = "Found Duplicates: you have provided duplicate DHCPPrivateOptions";
            refused.push((String::new(), text));
        }
        if one.value.len() > OPTION_MAX {
            refused.push((format!("{field}.value"), LONG));
        }
    }
    let mut servers: Vec<Ipv4Addr> = Vec::new();
    for (index, server) in ntp_servers.iter().enumerate() {
        match server.parse() {
            Ok(server) => servers.push(server),
            Err(_) => refused.push((
                format!(".ntpServers[{index}]"),
                "NTP servers must be a list of valid IPv4 addresses.",
            )),
        }
    }
    if servers.len() > SERVERS_MAX {
        refused.push((".ntpServers".to_owned(), "more than 63 servers"));
    }
    for (field, text) in [(".bootFileName", boot_file_name), (".tftpServerName", tftp_server_name)] {
        if text.as_ref().is_some_and(|text| text.len() > OPTION_MAX) {
            refused.push((field.to_owned(), LONG));
        }
    }
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let options = DhcpOptions {
        boot_file: given(boot_file_name),
        tftp_server: given(tftp_server_name),
        ntp_servers: servers,
        private,
    };
    (options, refused)
}

impl Resolution<'_> {
    pub(super) fn interfaces(&mut self) -> Vec<Interface> {
        let asked = interfaces_of(self.spec);
        self.networks(&asked);
        let mut interfaces = Vec::new();
        for (index, one) in asked.iter().enumerate() {
            let at = format!("domain.devices.interfaces[{index}]");
            if !is_label(&one.name) {
                self.error(&format!("{at}.name"), "not a name of lower-case letters, digits and -");
                continue;
            }
            if asked[..index].iter().any(|other| other.name == one.name) {
                self.error(&format!("{at}.name"), format!("{:?} is given twice", one.name));
            }
            interfaces.extend(self.interface(&at, one));
        }
        interfaces
    }

    fn interface(&mut self, at: &str, one: &Specified) -> Option<Interface> {
        self.binding(at, one);
        self.ports(at, one);
        self.port_ranges(at, one);
        let model: Option<NicModel> =
            self.findings.word(&self.path(&format!("{at}.model")), one.model.as_deref());
        let model = model.unwrap_or(NicModel::Virtio);
        let wanted = one.mac_address.as_deref().filter(|text| !text.is_empty());
        let wanted_mac = wanted.and_then(mac);
        if wanted.is_some() && wanted_mac.is_none() {
            self.error(
                &format!("{at}.macAddress"),
                "not an Ethernet address of one device, like 02:00:00:12:34:56",
            );
        }
        if one.acpi_index == Some(0) {
            self.error(&format!("{at}.acpiIndex"), "must be 1 or more");
        }
        self.tag(at, one.tag.as_deref());
        let (options, refused) = one.dhcp_options.as_ref().map(dhcp_options).unwrap_or_default();
        for (field, text) in refused {
            self.error(&format!("{at}.dhcpOptions{field}"), text);
        }
        let is_express = match model {
            NicModel::Virtio => !self.spec.domain.devices.use_virtio_transitional.unwrap_or(false),
            NicModel::E1000e => true,
            NicModel::E1000 | NicModel::Ne2kPci | NicModel::Pcnet | NicModel::Rtl8139 => false,
        };
        let device = format!("interface {}", self.path(&format!("{at}.name")));
        let field = format!("{at}.pciAddress");
        let pci_address = self.pci_address(&field, &device, one.pci_address.as_deref(), is_express);
        let link_up = match one.state.as_deref() {
            None | Some("" | "up") => true,
            Some("down") => false,
            // Taken away, or never there.
            Some("absent") => return None,
            Some(other) => {
                self.error(&format!("{at}.state"), format!("{other:?} is not one of up, down, absent"));
                true
            }
        };
        let Some(Tap { link, mac: given, mtu, many_queues, dhcp }) = self.made.taps.get(&one.name) else {
            self.error(&format!("{at}.name"), "the interface is not attached to its network");
            return None;
        };
        Some(Interface {
            name: one.name.clone(),
            tap: link.clone(),
            mac: wanted_mac.unwrap_or_else(|| given.clone()),
            mtu: *mtu,
            model,
            // A tap device is made for one queue or for many, and takes no others.
            queues: queues_of(self.spec, one).filter(|_| *many_queues),
            boot_order: one.boot_order.filter(|order| *order > 0),
            acpi_index: one.acpi_index,
            pci_address,
            link_up,
            dhcp: dhcp.clone().map(|dhcp| Dhcp { options, ..dhcp }),
        })
    }

    fn binding(&mut self, at: &str, one: &Specified) {
        let network = self.spec.networks.iter().find(|network| network.name == one.name);
        let pod = network.is_none_or(|network| network.multus.is_none());
        match (&one.masquerade, &one.bridge) {
            (Some(_), Some(_)) => self.error(at, "masquerade and bridge exclude each other"),
            (Some(_), None) if !pod => {
                self.error(&format!("{at}.masquerade"), "only for the pod network; use bridge here");
            }
            // The table of fields refuses other bindings.
            (None, None) if !has_other_binding(one) => {
                self.error(at, "the binding is missing: set masquerade: {} or bridge: {}");
            }
            (Some(_) | None, _) => {}
        }
    }

    fn ports(&mut self, at: &str, one: &Specified) {
        if one.ports.len() > 65_535 {
            self.error(&format!("{at}.ports"), "more than 65535 ports");
            return;
        }
        let mut names = BTreeSet::new();
        for (index, port) in one.ports.iter().enumerate() {
            let at = format!("{at}.ports[{index}]");
            if port.port.is_none_or(|number| number == 0) {
                self.error(&format!("{at}.port"), "not between 1 and 65535");
            }
            if let Some(protocol) = port.protocol.as_deref()
                && !["TCP", "UDP"].contains(&protocol)
            {
                self.error(&format!("{at}.protocol"), format!("{protocol:?} is neither TCP nor UDP"));
            }
            let named = port.name.as_deref().filter(|name| !name.is_empty());
            if named.is_some_and(|name| !names.insert(name)) {
                self.error(&format!("{at}.name"), "is given twice");
            }
        }
    }

    /// Rules and texts are upstream's.
    fn port_ranges(&mut self, at: &str, one: &Specified) {
        let ranges = &one.port_ranges;
        if !ranges.is_empty() && one.masquerade.is_none() {
            self.error(&format!("{at}.name"), "portRanges are only supported on masquerade interfaces");
        }
        if !ranges.is_empty() && !one.ports.is_empty() {
            self.error(&format!("{at}.name"), "Cannot define both ports and portRanges on interface");
        }
        let is_port = |number: i32| (1..=65_535).contains(&number);
        let mut sorted = Vec::new();
        for (index, range) in ranges.iter().enumerate() {
            let at = format!("{at}.portRanges[{index}]");
            if !["TCP", "UDP"].contains(&range.protocol.as_str()) {
                self.error(&format!("{at}.protocol"), "Unknown protocol, only TCP or UDP allowed");
            }
            if !is_port(range.start) {
                self.error(&format!("{at}.start"), "Start must be a valid port number, 0 < x < 65536");
            } else if !is_port(range.end) {
                self.error(&format!("{at}.end"), "End must be a valid port number, 0 < x < 65536");
            } else if range.start > range.end {
                self.error(&format!("{at}.start"), "Start must be less than or equal to end");
            } else {
                sorted.push((range.protocol.as_str(), range.start, range.end));
            }
        }
        sorted.sort_unstable();
        let overlapping = sorted.windows(2).find_map(|pair| match pair {
            [(protocol, from, to), (other, start, end)] if protocol == other && start <= to => {
                Some(format!("{protocol} portRanges [{from}-{to}] and [{start}-{end}] overlap"))
            }
            _ => None,
        });
        if let Some(text) = overlapping {
            self.error(&format!("{at}.portRanges"), text);
        }
    }

    /// Each network is one, and has exactly one interface, as each interface has a network.
    fn networks(&mut self, interfaces: &[Specified]) {
        let networks: &[Network] = &self.spec.networks;
        for (index, network) in networks.iter().enumerate() {
            let at = format!("networks[{index}]");
            if !is_label(&network.name) {
                self.error(&format!("{at}.name"), "not a name of lower-case letters, digits and -");
            } else if networks[..index].iter().any(|other| other.name == network.name) {
                self.error(&format!("{at}.name"), format!("{:?} is given twice", network.name));
            } else if !interfaces.iter().any(|one| one.name == network.name) {
                self.error(&format!("{at}.name"), format!("no interface is called {:?}", network.name));
            }
            match (&network.pod, &network.multus) {
                (Some(_), Some(_)) => self.error(&at, "pod and multus exclude each other"),
                (None, None) if network.resource_claim.is_none() => self.error(&at, "needs pod or multus"),
                (Some(_), None) if networks[..index].iter().any(|other| other.pod.is_some()) => {
                    self.error(&format!("{at}.pod"), "only one network can be the pod network");
                }
                (None, Some(multus)) if multus.network_name.is_empty() => {
                    self.error(&format!("{at}.multus.networkName"), "missing");
                }
                (Some(_) | None, _) => {}
            }
        }
        if networks.is_empty() && interfaces.len() == 1 && self.spec.domain.devices.interfaces.is_empty() {
            return;
        }
        for (index, one) in interfaces.iter().enumerate() {
            if !networks.iter().any(|network| network.name == one.name) {
                let text = format!("there is no network {:?}", one.name);
                self.error(&format!("domain.devices.interfaces[{index}].name"), text);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn options_of_dhcp_are_read_or_refused_by_field() {
        let of = |value: serde_json::Value| dhcp_options(&serde_json::from_value(value).unwrap());
        let private = json!([{"option": 224, "value": "a"}, {"option": 254, "value": ""}]);
        let (options, refused) = of(json!({
            "bootFileName": "boot.efi", "tftpServerName": "", "ntpServers": ["192.0.2.1"], "privateOptions": private,
        }));
        assert_eq!((options.boot_file.as_deref(), options.tftp_server), (Some("boot.efi"), None));
        assert_eq!(options.ntp_servers, [Ipv4Addr::new(192, 0, 2, 1)]);
        assert_eq!(options.private, [(224, "a".to_owned()), (254, String::new())].into());
        assert!(refused.is_empty(), "{refused:?}");
        let long = "x".repeat(256);
        for (value, fields) in [
            (json!({"bootFileName": long}), &[".bootFileName"][..]),
            (json!({"tftpServerName": long}), &[".tftpServerName"]),
            (json!({"ntpServers": ["::1", "192.0.2.1", "host"]}), &[".ntpServers[0]", ".ntpServers[2]"]),
            (json!({"ntpServers": vec!["192.0.2.1"; 64]}), &[".ntpServers"]),
            (json!({"privateOptions": [{"option": 223, "value": ""}]}), &[".privateOptions[0]"]),
            (json!({"privateOptions": [{"option": -1, "value": ""}]}), &[".privateOptions[0]"]),
            (json!({"privateOptions": [{"option": 224, "value": long}]}), &[".privateOptions[0].value"]),
            (
                json!({"privateOptions": [{"option": 224, "value": "a"}, {"option": 224, "value": "b"}]}),
                &[""],
            ),
        ] {
            let (_, refused) = of(value.clone());
            let found: Vec<&str> = refused.iter().map(|(field, _)| field.as_str()).collect();
            assert_eq!(found, fields, "{value}");
        }
    }
}
