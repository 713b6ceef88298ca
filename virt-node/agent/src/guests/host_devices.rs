//! Devices of the host for a guest: their addresses, and what its launcher needs to use them without a privilege.
//!
//! The kubelet gives a container the device nodes, and the device plugin adds a variable with the addresses to its
//! environment. A launcher that changes its environment gains nothing: it can open the nodes of its container only.
//!
//! Not here: which devices there are ([`crate::devices::permitted`]).

use std::collections::BTreeMap;

use api::kubevirt::VirtualMachineInstanceSpec;
use api::launch::is_uuid;
use virt::host_devices::resources;
use virt::resolve::HostAddress;

use super::disks;
use crate::devices::{mediated, pci};
use crate::error::{Error, Kind, Result};
use crate::pods::process::Process;

/// Directory of the devices' nodes.
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
    addresses(resources.into_keys(), &launcher.environment()?)
}

/// Devices by resource, from the variables of an environment.
fn addresses<'a>(
    resources: impl Iterator<Item = &'a str>,
    environment: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, Vec<HostAddress>>> {
    let pci = |text: &str| text.parse().ok().map(HostAddress::Pci);
    let mediated = |text: &str| is_uuid(text).then(|| HostAddress::Mediated(text.to_owned()));
    let read = |variable: String, what: &str, parse: &dyn Fn(&str) -> Option<HostAddress>| {
        let list = environment.get(&variable).map_or("", String::as_str);
        let parsed = list.split(',').map(str::trim).filter(|one| !one.is_empty()).map(parse);
        let wrong = || {
            let text = format!("{variable} of the launcher's container is no list of {what}");
            Error::new(Kind::Content, text)
        };
        parsed.collect::<Option<Vec<HostAddress>>>().ok_or_else(wrong)
    };
    let mut found = BTreeMap::new();
    for resource in resources {
        let mut all = read(pci::variable(resource), "PCI addresses", &pci)?;
        all.extend(read(mediated::variable(resource), "UUIDs of mediated devices", &mediated)?);
        found.insert(resource.to_owned(), all);
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
            let found = addresses(["nvidia.com/T4"].into_iter(), &environment(addresses_given, uuids));
            let found = found.ok().map(|mut all| all.remove("nvidia.com/T4").unwrap());
            assert_eq!(found, wanted, "{addresses_given} {uuids}");
        }
        // Nothing was given: the rules of the guest find too few.
        let found = addresses(["nvidia.com/T5"].into_iter(), &environment("", "")).unwrap();
        assert_eq!(found["nvidia.com/T5"], []);
    }
}
