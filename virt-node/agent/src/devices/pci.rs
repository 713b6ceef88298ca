//! PCI devices of the node that guests may have: those of `permittedHostDevices` that are bound to the driver vfio-pci.
//!
//! Not here: their plugins ([`super::permitted`]), resources of other device plugins (`externalResourceProvider`), binding
//! drivers.

use std::collections::BTreeMap;
use std::path::Path;

use api::kubevirt::PermittedPciDevice;
use api::launch::PciAddress;

use super::{Units, linked};

/// The driver that gives a device to a program.
const DRIVER: &str = "vfio-pci";

/// A device of the node that can be given to a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    /// Vendor and product, such as `10de:1eb8`.
    id: String,
    /// The group of devices that are isolated together.
    group: String,
}

/// A device, if it is bound to the driver and isolated.
fn found(devices: &Path, address: PciAddress) -> Option<Found> {
    let device = devices.join(address.to_string());
    let number = |name: &str| {
        let text = std::fs::read_to_string(device.join(name)).ok()?;
        text.trim().strip_prefix("0x").map(str::to_owned)
    };
    if linked(&device.join("driver"))? != DRIVER {
        return None;
    }
    let (vendor, product) = (number("vendor")?, number("device")?);
    let group = linked(&device.join("iommu_group"))?;
    Some(Found { id: format!("{vendor}:{product}"), group })
}

/// All devices that can be given to guests.
fn all(devices: &Path) -> BTreeMap<PciAddress, Found> {
    let entries = std::fs::read_dir(devices).into_iter().flatten().flatten();
    let addresses = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<PciAddress>().ok());
    addresses.filter_map(|address| Some((address, found(devices, address)?))).collect()
}

/// The node's devices of each resource that is permitted and not another plugin's, by their addresses.
fn units(permitted: &[PermittedPciDevice], devices: &BTreeMap<PciAddress, Found>) -> BTreeMap<String, Units> {
    let mut resources: BTreeMap<String, Units> = BTreeMap::new();
    for one in permitted.iter().filter(|one| one.external_resource_provider != Some(true)) {
        let of_kind =
            devices.iter().filter(|(_, found)| found.id.eq_ignore_ascii_case(&one.pci_vendor_selector));
        let units = resources.entry(one.resource_name.clone()).or_default();
        units.extend(of_kind.map(|(address, _)| (address.to_string(), true)));
    }
    resources
}

/// The node's devices of each resource, found in the kernel's list `devices`.
pub(super) fn offered(permitted: &[PermittedPciDevice], devices: &Path) -> BTreeMap<String, Units> {
    if permitted.is_empty() { BTreeMap::new() } else { units(permitted, &all(devices)) }
}

/// The group of devices that the device of this address is isolated with.
pub(super) fn group(devices: &Path, address: &str) -> Option<String> {
    found(devices, address.parse().ok()?).map(|found| found.group)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use serde_json::json;

    use super::*;
    use crate::devices::Bus;

    /// Two cards of one kind that guests can have, one that the node uses, one without an IOMMU, and another kind.
    fn node() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (address, device, driver, group) in [
            ("0000:65:00.0", "0x1eb8", DRIVER, Some("7")),
            ("0000:65:00.1", "0x1eb8", DRIVER, Some("8")),
            ("0000:66:00.0", "0x1eb8", "nvidia", Some("9")),
            ("0000:67:00.0", "0x1eb8", DRIVER, None),
            ("0000:68:00.0", "0x1eb9", DRIVER, Some("10")),
        ] {
            let folder = directory.path().join(address);
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("vendor"), "0x10de\n").unwrap();
            std::fs::write(folder.join("device"), format!("{device}\n")).unwrap();
            symlink(format!("../../../bus/pci/drivers/{driver}"), folder.join("driver")).unwrap();
            if let Some(group) = group {
                symlink(format!("../../../kernel/iommu_groups/{group}"), folder.join("iommu_group")).unwrap();
            }
        }
        std::fs::create_dir(directory.path().join("not-an-address")).unwrap();
        directory
    }

    #[test]
    fn devices_of_permitted_kinds_are_offered() {
        let node = node();
        let devices = all(node.path());
        let device = |selector: &str, name: &str, external: bool| json!({"pciVendorSelector": selector, "resourceName": name, "externalResourceProvider": external});
        let found = |ids: &[&str]| -> Units { ids.iter().map(|id| ((*id).to_owned(), true)).collect() };
        for (permitted, wanted) in [
            (vec![], vec![]),
            (
                vec![device("10DE:1EB8", "nvidia.com/T4", false)],
                vec![("nvidia.com/T4", found(&["0000:65:00.0", "0000:65:00.1"]))],
            ),
            (vec![device("10DE:1EB8", "nvidia.com/T4", true)], vec![]),
            // Two kinds of one resource; a kind that the node does not have.
            (
                vec![device("10de:1eb8", "a/b", false), device("10DE:1EB9", "a/b", false)],
                vec![("a/b", found(&["0000:65:00.0", "0000:65:00.1", "0000:68:00.0"]))],
            ),
            (vec![device("8086:1eb8", "a/b", false)], vec![("a/b", Units::new())]),
        ] {
            let permitted: Vec<PermittedPciDevice> =
                permitted.into_iter().map(|one| serde_json::from_value(one).unwrap()).collect();
            let wanted: BTreeMap<String, Units> =
                wanted.into_iter().map(|(name, units)| (name.to_owned(), units)).collect();
            assert_eq!(units(&permitted, &devices), wanted, "{permitted:?}");
        }
    }

    #[test]
    fn a_container_gets_the_nodes_of_its_devices_and_their_addresses() {
        let node = node();
        let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
        let both = ids(&["0000:65:00.0", "0000:65:00.1"]);
        let answer = Bus::Pci.allocate(node.path(), "nvidia.com/TU104GL-T4", &both).unwrap();
        let nodes: Vec<&str> = answer.devices.iter().map(|one| one.host_path.as_str()).collect();
        assert_eq!(nodes, ["/dev/vfio/7", "/dev/vfio/8", "/dev/vfio/vfio"]);
        let name = "PCI_RESOURCE_NVIDIA_COM_TU104GL-T4";
        assert_eq!(answer.envs.get(name).map(String::as_str), Some("0000:65:00.0,0000:65:00.1"));
        for id in ["0000:66:00.0", "0000:67:00.0", "0000:99:00.0", "../.."] {
            let refused = Bus::Pci.allocate(node.path(), "a/b", &ids(&[id])).unwrap_err();
            assert!(refused.contains(id), "{refused}");
        }
    }
}
