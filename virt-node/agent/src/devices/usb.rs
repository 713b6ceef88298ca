//! USB devices of the node that guests may have: sets of those that `permittedHostDevices` selects, of each selector one.
//!
//! Not here: their plugins ([`super::permitted`]), resources of other device plugins (`externalResourceProvider`), devices of
//! clients (`usbredir`).

use std::collections::BTreeMap;
use std::path::Path;

use api::kubevirt::{PermittedUsbDevice, UsbSelector};
use api::launch::UsbAddress;

use super::Units;

/// Most devices of a set: a guest's controller has no more ports.
const SET_MAX: usize = 15;

/// A device of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Found {
    address: UsbAddress,
    vendor: u16,
    product: u16,
}

/// A number of four hexadecimal digits.
fn hex(text: &str) -> Option<u16> {
    u16::from_str_radix(text.trim(), 16).ok()
}

/// The device of a directory; `None`: it is an interface of a device, or just gone.
fn found(device: &Path) -> Option<Found> {
    let text = |name: &str| std::fs::read_to_string(device.join(name)).ok();
    let number = |name: &str| text(name)?.trim().parse::<u8>().ok();
    let address = UsbAddress { bus: number("busnum")?, device: number("devnum")? };
    Some(Found { address, vendor: hex(&text("idVendor")?)?, product: hex(&text("idProduct")?)? })
}

/// All devices but the controllers' own hubs, by their addresses.
fn all(devices: &Path) -> Vec<Found> {
    let entries = std::fs::read_dir(devices).into_iter().flatten().flatten();
    let others = entries.filter(|entry| !entry.file_name().to_string_lossy().starts_with("usb"));
    let mut all: Vec<Found> = others.filter_map(|entry| found(&entry.path())).collect();
    all.sort_unstable();
    all
}

/// Takes a device of each selector out of those that are free; `None`: one is missing, and none is taken.
fn take(selectors: &[UsbSelector], free: &mut Vec<Found>) -> Option<Vec<UsbAddress>> {
    let mut left = free.clone();
    let mut taken = Vec::with_capacity(selectors.len());
    for selector in selectors {
        let (vendor, product) = (hex(&selector.vendor)?, hex(&selector.product)?);
        let place = left.iter().position(|one| (one.vendor, one.product) == (vendor, product))?;
        taken.push(left.remove(place).address);
    }
    *free = left;
    Some(taken)
}

/// The name of a set.
fn name(set: &[UsbAddress]) -> String {
    set.iter().map(UsbAddress::to_string).collect::<Vec<_>>().join(",")
}

/// Takes the devices of the set of this name, where all of them are free; whether it did.
fn take_again(set: &str, selectors: &[UsbSelector], free: &mut Vec<Found>) -> bool {
    let is_in_set = |one: &Found| set.split(',').any(|address| address == one.address.to_string());
    let (mut own, others): (Vec<Found>, Vec<Found>) = free.iter().copied().partition(is_in_set);
    let taken = take(selectors, &mut own).is_some_and(|taken| name(&taken) == set);
    if taken {
        *free = others;
    }
    taken
}

/// The node's sets of each resource, by the addresses of their devices. A device is in one set only. Those that were offered
/// `before` stay together, since a guest may have them, whatever else was plugged in.
pub(super) fn offered(
    permitted: &[PermittedUsbDevice],
    devices: &Path,
    before: &BTreeMap<String, Units>,
) -> BTreeMap<String, Units> {
    let mut free = if permitted.is_empty() { Vec::new() } else { all(devices) };
    let own = || permitted.iter().filter(|one| one.external_resource_provider != Some(true));
    let mut resources: BTreeMap<String, Units> = BTreeMap::new();
    for one in own() {
        let units = resources.entry(one.resource_name.clone()).or_default();
        let known = before.get(&one.resource_name).into_iter().flat_map(BTreeMap::keys);
        units.extend(
            known.filter(|set| take_again(set, &one.selectors, &mut free)).map(|set| (set.clone(), true)),
        );
    }
    for one in own().filter(|one| (1..=SET_MAX).contains(&one.selectors.len())) {
        let units = resources.entry(one.resource_name.clone()).or_default();
        while let Some(set) = take(&one.selectors, &mut free) {
            units.insert(name(&set), true);
        }
    }
    resources
}

/// The device nodes of a set; `None`: a device of it is gone.
pub(super) fn nodes(devices: &Path, set: &str) -> Option<Vec<String>> {
    let all = all(devices);
    let node = |text: &str| {
        let address = UsbAddress::parse(text)?;
        all.iter().any(|one| one.address == address).then(|| address.node())
    };
    set.split(',').map(node).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::devices::Bus;

    /// A hub of a controller, an interface, two sticks, two keyboards and one mouse.
    fn node() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, address, id) in [
            ("usb1", (1, 1), ("1d6b", "0002")),
            ("1-2", (1, 14), ("46f4", "0001")),
            ("1-1.2", (1, 4), ("46f4", "0001")),
            ("2-1", (2, 3), ("046d", "C31C")),
            ("2-2", (2, 5), ("046d", "c31c")),
            ("2-3", (2, 4), ("046d", "c077")),
        ] {
            let device = directory.path().join(name);
            std::fs::create_dir(&device).unwrap();
            for (file, text) in [
                ("busnum", address.0.to_string()),
                ("devnum", address.1.to_string()),
                ("idVendor", id.0.to_owned()),
                ("idProduct", id.1.to_owned()),
            ] {
                std::fs::write(device.join(file), text + "\n").unwrap();
            }
        }
        std::fs::create_dir(directory.path().join("1-2:1.0")).unwrap();
        directory
    }

    #[test]
    fn sets_of_permitted_devices_are_offered() {
        let node = node();
        let stick = json!({"vendor": "46F4", "product": "0001"});
        let keyboard = json!({"vendor": "046d", "product": "c31c"});
        let mouse = json!({"vendor": "46d", "product": "c077"});
        let one = |name: &str, selectors: &[&Value]| json!({"resourceName": name, "selectors": selectors});
        let external = json!({"resourceName": "a/b", "selectors": [stick], "externalResourceProvider": true});
        for (permitted, wanted) in [
            (vec![], vec![]),
            (vec![one("a/stick", &[&stick])], vec![("a/stick", vec!["1:14", "1:4"])]),
            (vec![external], vec![]),
            // One mouse is there: one set.
            (vec![one("a/desk", &[&keyboard, &mouse])], vec![("a/desk", vec!["2:3,2:4"])]),
            (vec![one("a/two", &[&stick, &stick])], vec![("a/two", vec!["1:4,1:14"])]),
            // A device is in the first set that it fits.
            (
                vec![
                    one("a/keys", &[&keyboard]),
                    one("a/desk", &[&keyboard, &mouse]),
                    one("a/mouse", &[&mouse]),
                ],
                vec![("a/desk", vec![]), ("a/keys", vec!["2:3", "2:5"]), ("a/mouse", vec!["2:4"])],
            ),
            (vec![one("a/none", &[])], vec![("a/none", vec![])]),
            (vec![one("a/bad", &[&json!({"vendor": "x", "product": "0001"})])], vec![("a/bad", vec![])]),
            (vec![one("a/hub", &[&json!({"vendor": "1d6b", "product": "0002"})])], vec![("a/hub", vec![])]),
        ] {
            let permitted: Vec<PermittedUsbDevice> =
                permitted.into_iter().map(|one| serde_json::from_value(one).unwrap()).collect();
            let found = offered(&permitted, node.path(), &BTreeMap::new());
            let found: Vec<(&str, Vec<&str>)> = found
                .iter()
                .map(|(resource, units)| (resource.as_str(), units.keys().map(String::as_str).collect()))
                .collect();
            assert_eq!(found, wanted, "{permitted:?}");
        }
    }

    #[test]
    fn devices_of_a_set_stay_together() {
        let node = node();
        let keyboard = json!({"vendor": "046d", "product": "c31c"});
        let mouse = json!({"vendor": "046d", "product": "c077"});
        let permitted: Vec<PermittedUsbDevice> = serde_json::from_value(json!([
            {"resourceName": "a/keys", "selectors": [keyboard]},
            {"resourceName": "a/desk", "selectors": [keyboard, mouse]},
        ]))
        .unwrap();
        for (before, keys, desk) in [
            // A guest may have the set, and a keyboard with a lower address was plugged in.
            ("2:5,2:4", vec!["2:3"], vec!["2:5,2:4"]),
            // One of the devices is gone.
            ("2:9,2:4", vec!["2:3", "2:5"], vec![]),
            ("", vec!["2:3", "2:5"], vec![]),
        ] {
            let known = BTreeMap::from([("a/desk".to_owned(), Units::from([(before.to_owned(), true)]))]);
            let found = offered(&permitted, node.path(), &known);
            let of = |resource: &str| found[resource].keys().map(String::as_str).collect::<Vec<_>>();
            assert_eq!((of("a/keys"), of("a/desk")), (keys, desk), "{before}");
        }
    }

    #[test]
    fn a_container_gets_the_nodes_of_its_sets_and_their_addresses() {
        let node = node();
        let ids = ["2:3,2:4".to_owned(), "1:4".to_owned()];
        let answer = Bus::Usb.allocate(node.path(), "kubevirt.io/desk", &ids).unwrap();
        let nodes: Vec<&str> = answer.devices.iter().map(|one| one.host_path.as_str()).collect();
        assert_eq!(nodes, ["/dev/bus/usb/001/004", "/dev/bus/usb/002/003", "/dev/bus/usb/002/004"]);
        let value = answer.envs.get("USB_RESOURCE_KUBEVIRT_IO_DESK");
        assert_eq!(value.map(String::as_str), Some("2:3,2:4,1:4"));
        for id in ["1:5", "1:4,1:5", "1:1", "../..", ""] {
            let refused = Bus::Usb.allocate(node.path(), "a/b", &[id.to_owned()]).unwrap_err();
            assert!(refused.contains(id), "{refused}");
        }
    }
}
