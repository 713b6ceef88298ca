//! Devices of the host for a guest: their addresses, and what its launcher needs to use them without a privilege.
//!
//! The kubelet gives a container the device nodes, and the device plugin adds a variable with the addresses to its
//! environment. A launcher that changes its environment gains nothing: it can open the nodes of its container only.
//!
//! Not here: which devices there are ([`crate::devices::permitted`]).

use std::collections::BTreeMap;

use api::kubevirt::VirtualMachineInstanceSpec;
use api::launch::{UsbAddress, is_uuid};
use virt::host_devices::resources;
use virt::resolve::HostAddress;

use super::disks;
use crate::devices::Bus;
use crate::error::{Error, Kind, Result};
use crate::pods::process::Process;

/// Directory of VFIO's nodes.
const NODES: &str = "/dev/vfio";
/// Memory that may be locked in addition to the guest's: the devices' own.
const DEVICE_MEMORY: u64 = 1 << 30;

/// The devices that the kubelet gave to a launcher, by resource.
///
/// # Errors
/// [`Kind::Content`]: a variable is no list of addresses or UUIDs; others: the launcher is gone.
pub(super) fn given(
    spec: &VirtualMachineInstanceSpec,
    launcher: &Process,
) -> Result<BTreeMap<String, Vec<HostAddress>>> {
    let resources = resources(spec);
    if resources.is_empty() {
        return Ok(BTreeMap::new());
    }
    addresses(&resources, &launcher.environment()?)
}

/// Devices by resource, from the variables of an environment. `resources` has how many of each are asked for.
fn addresses(
    resources: &BTreeMap<&str, usize>,
    environment: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, Vec<HostAddress>>> {
    let mut found = BTreeMap::new();
    for (resource, asked) in resources {
        let mut all: Vec<HostAddress> = list(environment, Bus::Pci, resource, "PCI addresses", |text| {
            text.parse().ok().map(HostAddress::Pci)
        })?;
        all.extend(list(environment, Bus::Mediated, resource, "UUIDs of mediated devices", |text| {
            is_uuid(text).then(|| HostAddress::Mediated(text.to_owned()))
        })?);
        let usb = list(environment, Bus::Usb, resource, "USB addresses", UsbAddress::parse)?;
        // Sets of one resource have the same number of devices.
        let sets = asked.saturating_sub(all.len()).max(1);
        if !usb.len().is_multiple_of(sets) {
            let text = format!("{} USB devices of {resource} are not {sets} sets of one size", usb.len());
            return Err(Error::new(Kind::Content, text));
        }
        all.extend(usb.chunks((usb.len() / sets).max(1)).map(|set| HostAddress::Usb(set.to_vec())));
        found.insert((*resource).to_owned(), all);
    }
    Ok(found)
}

/// The list in a resource's variable, which is one of `what`.
fn list<T>(
    environment: &BTreeMap<String, String>,
    bus: Bus,
    resource: &str,
    what: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Vec<T>> {
    let variable = bus.variable(resource);
    let text = environment.get(&variable).map_or("", String::as_str);
    let parsed = text.split(',').map(str::trim).filter(|one| !one.is_empty()).map(parse);
    parsed.collect::<Option<Vec<T>>>().ok_or_else(|| {
        Error::new(Kind::Content, format!("{variable} of the launcher's container is no list of {what}"))
    })
}

/// Lets a launcher open the devices and lock the guest's memory for those that need it.
///
/// # Errors
/// The launcher is gone, or the kernel refuses.
pub(super) fn open(
    spec: &VirtualMachineInstanceSpec,
    devices: &BTreeMap<String, Vec<HostAddress>>,
    launcher: &Process,
) -> Result<()> {
    let mut isolated = false;
    for device in devices.values().flatten() {
        match device {
            HostAddress::Pci(_) | HostAddress::Mediated(_) => isolated = true,
            HostAddress::Usb(set) => {
                set.iter().try_for_each(|address| disks::give_device(launcher, &address.node()))?;
            }
        }
    }
    if !isolated {
        return Ok(());
    }
    for node in launcher.directory(NODES)?.names()? {
        disks::give_device(launcher, &format!("{NODES}/{}", node.to_string_lossy()))?;
    }
    let memory = spec.domain.memory.as_ref();
    let most = memory.and_then(|memory| memory.max_guest.as_ref().or(memory.guest.as_ref()));
    let guest = most.and_then(|amount| amount.bytes().ok()).unwrap_or_default();
    launcher.let_lock(guest.saturating_add(DEVICE_MEMORY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_those_of_the_resources_variables() {
        const UUID: &str = "6b4f2c1e-0000-4000-8000-000000000001";
        let environment = |pci: &str, mediated: &str| {
            let pair = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
            let other = ("PCI_RESOURCE_OTHER", "0000:01:00.0");
            let both =
                [("PCI_RESOURCE_NVIDIA_COM_T4", pci), ("MDEV_PCI_RESOURCE_NVIDIA_COM_T4", mediated), other];
            both.map(pair).into()
        };
        let pci = |text: &str| HostAddress::Pci(text.parse().unwrap());
        let mediated = |text: &str| HostAddress::Mediated(text.to_owned());
        for (addresses_given, uuids, wanted) in [
            ("0000:65:00.0", "", Some(vec![pci("0000:65:00.0")])),
            ("0000:65:00.0,0000:b3:00.1", "", Some(vec![pci("0000:65:00.0"), pci("0000:b3:00.1")])),
            ("0000:65:00.0,", "", Some(vec![pci("0000:65:00.0")])),
            ("", UUID, Some(vec![mediated(UUID)])),
            ("0000:65:00.0", UUID, Some(vec![pci("0000:65:00.0"), mediated(UUID)])),
            ("", "", Some(vec![])),
            ("65:00.0", "", None),
            ("0000:65:20.0", "", None),
            ("../../x", "", None),
            ("", "../../x", None),
        ] {
            let asked = BTreeMap::from([("nvidia.com/T4", 2)]);
            let found = addresses(&asked, &environment(addresses_given, uuids));
            let found = found.ok().map(|mut all| all.remove("nvidia.com/T4").unwrap());
            assert_eq!(found, wanted, "{addresses_given} {uuids}");
        }
        // Nothing was given: the rules of the guest find too few.
        let found = addresses(&BTreeMap::from([("nvidia.com/T5", 1)]), &environment("", "")).unwrap();
        assert_eq!(found["nvidia.com/T5"], []);
    }

    #[test]
    fn usb_devices_are_sets_of_one_size() {
        let usb = |set: &[(u8, u8)]| {
            HostAddress::Usb(set.iter().map(|&(bus, device)| UsbAddress { bus, device }).collect())
        };
        for (asked, value, wanted) in [
            (1, "1:4", Some(vec![usb(&[(1, 4)])])),
            (2, "1:4,2:7", Some(vec![usb(&[(1, 4)]), usb(&[(2, 7)])])),
            (1, "1:4,2:7", Some(vec![usb(&[(1, 4), (2, 7)])])),
            (2, "1:4,2:7,1:5,2:8", Some(vec![usb(&[(1, 4), (2, 7)]), usb(&[(1, 5), (2, 8)])])),
            (2, "", Some(vec![])),
            (2, "1:4,2:7,1:5", None),
            (1, "1:4,../x", None),
        ] {
            let environment = BTreeMap::from([("USB_RESOURCE_A_B".to_owned(), value.to_owned())]);
            let found = addresses(&BTreeMap::from([("a/b", asked)]), &environment);
            assert_eq!(found.ok().map(|mut all| all.remove("a/b").unwrap()), wanted, "{asked} {value}");
        }
    }
}
