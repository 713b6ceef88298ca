//! Devices of the host for a guest: their addresses, and what its launcher needs to use them without a privilege.
//!
//! The kubelet gives a container the device nodes, and the device plugin adds a variable with the addresses to its
//! environment. A launcher that changes its environment gains nothing: it can open the nodes of its container only.
//!
//! Not here: which devices there are ([`crate::devices::pci`]).

use std::collections::BTreeMap;

use api::kubevirt::VirtualMachineInstanceSpec;
use api::launch::{NotPciAddress, PciAddress};
use virt::host_devices::resources;

use super::disks;
use crate::devices::pci;
use crate::error::{Error, Kind, Result};
use crate::pods::process::Process;

/// Directory of the devices' nodes.
const NODES: &str = "/dev/vfio";
/// Memory that may be locked in addition to the guest's: the devices' own.
const DEVICE_MEMORY: u64 = 1 << 30;

/// Addresses of the devices that the kubelet gave to a launcher, by resource.
///
/// # Errors
/// [`Kind::Content`]: a variable is no list of addresses; others: the launcher is gone.
pub(super) fn given(
    spec: &VirtualMachineInstanceSpec,
    launcher: &Process,
) -> Result<BTreeMap<String, Vec<PciAddress>>> {
    let resources = resources(spec);
    if resources.is_empty() {
        return Ok(BTreeMap::new());
    }
    addresses(resources.into_keys(), &launcher.environment()?)
}

/// Addresses by resource, from the variables of an environment.
fn addresses<'a>(
    resources: impl Iterator<Item = &'a str>,
    environment: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, Vec<PciAddress>>> {
    let mut found = BTreeMap::new();
    for resource in resources {
        let variable = pci::variable(resource);
        let list = environment.get(&variable).map_or("", String::as_str);
        let parsed = list.split(',').map(str::trim).filter(|one| !one.is_empty()).map(str::parse);
        let parsed: std::result::Result<Vec<PciAddress>, NotPciAddress> = parsed.collect();
        let wrong = |error| {
            let text = format!("{variable} of the launcher's container is no list of PCI addresses");
            Error::with(Kind::Content, text, error)
        };
        found.insert(resource.to_owned(), parsed.map_err(wrong)?);
    }
    Ok(found)
}

/// Lets a launcher open the devices and lock the guest's memory for them.
///
/// # Errors
/// The launcher is gone, or the kernel refuses.
pub(super) fn open(spec: &VirtualMachineInstanceSpec, launcher: &Process) -> Result<()> {
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
    fn addresses_are_those_of_the_resources_variables() {
        let environment = |value: &str| {
            let pair = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
            [("PCI_RESOURCE_NVIDIA_COM_T4", value), ("PCI_RESOURCE_OTHER", "0000:01:00.0")].map(pair).into()
        };
        for (value, wanted) in [
            ("0000:65:00.0", Some(vec!["0000:65:00.0"])),
            ("0000:65:00.0,0000:b3:00.1", Some(vec!["0000:65:00.0", "0000:b3:00.1"])),
            ("0000:65:00.0,", Some(vec!["0000:65:00.0"])),
            ("", Some(vec![])),
            ("65:00.0", None),
            ("0000:65:20.0", None),
            ("../../x", None),
        ] {
            let found = addresses(["nvidia.com/T4"].into_iter(), &environment(value));
            let found = found.ok().map(|mut all| all.remove("nvidia.com/T4").unwrap());
            let wanted: Option<Vec<PciAddress>> =
                wanted.map(|all| all.into_iter().map(|one| one.parse().unwrap()).collect());
            assert_eq!(found, wanted, "{value}");
        }
        // Nothing was given: the rules of the guest find too few.
        let found = addresses(["nvidia.com/T5"].into_iter(), &environment("")).unwrap();
        assert_eq!(found["nvidia.com/T5"], []);
    }
}
