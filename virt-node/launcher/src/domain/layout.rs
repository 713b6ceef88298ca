//! Where devices are: PCI Express ports, slots of conventional PCI, places on SATA, SCSI and USB.
//!
//! Guests name network cards and disks by where they are, so a device keeps its place for as long as it is there, whatever
//! comes and goes around it, unless its owner requests another place. What is new takes the lowest free place, in this
//! order at the first start: network cards, room for four of them, controllers, disks, the rest. Free ports are left for
//! devices that come while the guest runs: 16 ports, 6 of them free, above 2 GiB of memory; 8 and 3 below; none where
//! nothing can come.
//!
//! ```text
//! pcie.0 ┬ 01.0 screen ┬ 02.0 port 1 ─ card   ┬ 02.7 port 8 …   ┬ 05.7 port 32   1f.2 SATA
//!                      └ 02.1 port 2 ─ …      └ port n ─ bridge ─ slots 1–31 of conventional PCI
//!        └ 06.0 … 1a.0 devices that were requested there
//! ```

use std::collections::{BTreeMap, BTreeSet};

use api::launch::{Bus, Disk, InputBus, Launch, Layout, NicModel, Slot, SoundModel, usb_channel};

use super::DomainError;

/// Most ports: four slots of eight functions.
const PORTS_MAX: u8 = 32;
/// Slots of the conventional bus.
const SLOTS_MAX: u8 = 31;
/// Disks of one SATA controller.
pub(super) const SATA_UNITS: u16 = 6;
/// Ports of the USB controller.
pub(super) const USB_PORTS: u16 = 15;
/// Disks of the SCSI controller.
const SCSI_UNITS: u16 = 1024;
/// Above this memory a guest gets more free ports.
const LARGE: u64 = 2 << 30;
/// Network cards that there is room for.
const CARDS: usize = 4;

/// Aliases of devices there is one of.
pub(super) const SCSI: &str = "scsi0";
pub(super) const SERIAL: &str = "virtio-serial0";
pub(super) const BALLOON: &str = "balloon0";
pub(super) const RNG: &str = "rng0";
pub(super) const MEMORY: &str = "virtiomem0";
pub(super) const USB: &str = "usb0";
pub(super) const WATCHDOG: &str = "watchdog0";
pub(super) const SOUND: &str = "sound0";
/// The bridge to the conventional bus.
pub(super) const BRIDGE: &str = "pci-bridge0";

/// Alias of a disk.
pub(super) fn disk_alias(name: &str) -> String {
    format!("disk-{name}")
}

/// Alias of an interface.
pub(super) fn net_alias(name: &str) -> String {
    format!("net-{name}")
}

/// Alias of an input device.
pub(super) fn input_alias(name: &str) -> String {
    format!("input-{name}")
}

/// Alias of the n-th SATA controller, from 1: the board's own is not on a list.
fn sata_alias(index: u16) -> String {
    format!("sata{index}")
}

/// Key of a device's place on a bus that is not PCI.
pub(super) fn unit_key(bus: &str, alias: &str) -> String {
    format!("{bus}/{alias}")
}

/// Which kind of PCI a device is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Express,
    Conventional,
}

/// Places that the guest's owner requests for devices, by alias.
fn requested(launch: &Launch) -> BTreeMap<String, Slot> {
    let disks = launch.disks.iter().map(|one| (disk_alias(&one.name), one.pci_address));
    let cards = launch.interfaces.iter().map(|one| (net_alias(&one.name), one.pci_address));
    disks.chain(cards).filter_map(|(alias, address)| Some((alias, Slot::at(address?)?))).collect()
}

/// Places for all devices of `launch`: those it requests, those it records, and new ones.
pub(super) fn plan(launch: &Launch) -> Result<Layout, DomainError> {
    let units = units(launch)?;
    let devices = devices(launch, &units);
    let recorded = &launch.layout;
    let first = recorded.slots.is_empty();
    let mut slots = requested(launch);
    let mut taken: BTreeSet<Slot> = slots.values().copied().collect();
    for (alias, kind) in &devices {
        let kept = recorded.slots.get(alias).filter(|slot| match slot {
            Slot::Port(_) => *kind == Kind::Express,
            Slot::Conventional(_) => *kind == Kind::Conventional,
            Slot::Root(_) => true,
        });
        if let Some(slot) = kept.filter(|slot| !slots.contains_key(alias) && !taken.contains(*slot)) {
            taken.insert(*slot);
            slots.insert(alias.clone(), *slot);
        }
    }
    let cards = devices.iter().filter(|(alias, _)| alias.starts_with("net-")).count();
    for (position, (alias, kind)) in devices.iter().enumerate() {
        if slots.contains_key(alias) {
            continue;
        }
        // Room for more cards lies behind the last card of a first start.
        let skipped = if first && launch.devices.hotplug && position >= cards {
            CARDS.saturating_sub(cards)
        } else {
            0
        };
        let from = if skipped > 0 { u8::try_from(CARDS + 1).unwrap_or(u8::MAX) } else { 1 };
        let slot = match kind {
            Kind::Express => (from..=PORTS_MAX).map(Slot::Port).find(|slot| !taken.contains(slot)),
            Kind::Conventional => (1..=SLOTS_MAX).map(Slot::Conventional).find(|slot| !taken.contains(slot)),
        };
        let slot = slot.ok_or_else(|| DomainError::Full { bus: "PCI", device: alias.clone() })?;
        taken.insert(slot);
        slots.insert(alias.clone(), slot);
    }
    Ok(Layout { ports: ports(launch, &slots), slots, units })
}

/// How many ports there are. They never become fewer: a device in a guest's way may be on any.
fn ports(launch: &Launch, slots: &BTreeMap<String, Slot>) -> u8 {
    let ports = slots.values().filter_map(|slot| match slot {
        Slot::Port(port) => Some(*port),
        Slot::Conventional(_) | Slot::Root(_) => None,
    });
    let used: Vec<u8> = ports.collect();
    let last = used.iter().copied().max().unwrap_or(0);
    let count = u8::try_from(used.len()).unwrap_or(PORTS_MAX);
    let wanted = match (launch.devices.hotplug, launch.memory.guest > LARGE) {
        (false, _) => 0,
        (true, true) => 16.max(count.saturating_add(6)),
        (true, false) => 8.max(count.saturating_add(3)),
    };
    last.max(wanted).max(launch.layout.ports).min(PORTS_MAX)
}

/// Devices on PCI by alias, in the order in which they get their places.
fn devices(launch: &Launch, units: &BTreeMap<String, u16>) -> Vec<(String, Kind)> {
    let virtio = if launch.devices.transitional { Kind::Conventional } else { Kind::Express };
    let mut devices: Vec<(String, Kind)> = Vec::new();
    for interface in &launch.interfaces {
        let kind = match interface.model {
            NicModel::Virtio => virtio,
            NicModel::E1000e => Kind::Express,
            NicModel::E1000 | NicModel::Ne2kPci | NicModel::Pcnet | NicModel::Rtl8139 => Kind::Conventional,
        };
        devices.push((net_alias(&interface.name), kind));
    }
    if has_scsi(launch) {
        devices.push((SCSI.to_owned(), virtio));
    }
    if launch.devices.guest_agent {
        devices.push((SERIAL.to_owned(), virtio));
    }
    let sata = units.iter().filter(|(key, _)| key.starts_with("sata/")).map(|(_, unit)| unit / SATA_UNITS);
    let sata: BTreeSet<u16> = sata.filter(|index| *index > 0).collect();
    devices.extend(sata.into_iter().map(|index| (sata_alias(index), Kind::Conventional)));
    let disks = launch.disks.iter().filter(|disk| disk.bus == Bus::Virtio);
    devices.extend(disks.map(|disk| (disk_alias(&disk.name), virtio)));
    let mediated = launch.mediated_devices.iter().map(|one| &one.name);
    let host_devices = launch.host_devices.iter().map(|one| &one.name).chain(mediated);
    devices.extend(host_devices.map(|name| (name.clone(), Kind::Express)));
    for (wanted, alias, kind) in [
        (launch.devices.balloon.is_some(), BALLOON, virtio),
        (launch.devices.rng, RNG, virtio),
        (launch.memory.max_guest > launch.memory.guest, MEMORY, Kind::Express),
        (has_usb(launch), USB, Kind::Express),
        (launch.devices.watchdog.is_some(), WATCHDOG, Kind::Conventional),
        (launch.devices.sound == Some(SoundModel::Ac97), SOUND, Kind::Conventional),
    ] {
        if wanted {
            devices.push((alias.to_owned(), kind));
        }
    }
    let inputs = launch.devices.inputs.iter().filter(|input| input.bus == InputBus::Virtio);
    devices.extend(inputs.map(|input| (input_alias(&input.name), virtio)));
    let elsewhere = requested(launch);
    if devices.iter().any(|(alias, kind)| *kind == Kind::Conventional && !elsewhere.contains_key(alias)) {
        devices.push((BRIDGE.to_owned(), Kind::Express));
    }
    devices
}

/// Whether there is a SCSI controller.
pub(super) fn has_scsi(launch: &Launch) -> bool {
    launch.devices.scsi_controller || launch.disks.iter().any(|disk| disk.bus == Bus::Scsi)
}

/// Whether there is a USB controller.
pub(super) fn has_usb(launch: &Launch) -> bool {
    launch.disks.iter().any(|disk| disk.bus == Bus::Usb)
        || launch.devices.inputs.iter().any(|input| input.bus == InputBus::Usb)
        || !launch.usb_devices.is_empty()
        || launch.devices.usb_channels.is_some()
}

/// Aliases of the USB redirection channels.
pub(super) fn usb_channels(launch: &Launch) -> impl Iterator<Item = String> {
    (0..launch.devices.usb_channels.unwrap_or(0)).map(usb_channel)
}

/// Indexes of SATA controllers other than the board's own, with their slots.
pub(super) fn sata_controllers(layout: &Layout) -> Vec<(u16, Slot)> {
    let index = |alias: &str| alias.strip_prefix("sata").and_then(|rest| rest.parse().ok());
    layout.slots.iter().filter_map(|(alias, slot)| Some((index(alias)?, *slot))).collect()
}

/// Places on SATA and SCSI (from 0) and USB (from 1).
fn units(launch: &Launch) -> Result<BTreeMap<String, u16>, DomainError> {
    let on = |bus: Bus| {
        let disks = launch.disks.iter().filter(move |disk: &&Disk| disk.bus == bus);
        disks.map(|disk| disk_alias(&disk.name)).collect::<Vec<_>>()
    };
    let tablets = launch.devices.inputs.iter().filter(|input| input.bus == InputBus::Usb);
    let tablets = tablets.map(|input| input_alias(&input.name));
    let of_host = launch.usb_devices.iter().map(|one| one.name.clone());
    let usb = on(Bus::Usb).into_iter().chain(tablets).chain(of_host).chain(usb_channels(launch)).collect();
    let mut units = BTreeMap::new();
    for (bus, name, aliases, range) in [
        ("sata", "SATA", on(Bus::Sata), 0..=SATA_UNITS * 8 - 1),
        ("scsi", "SCSI", on(Bus::Scsi), 0..=SCSI_UNITS - 1),
        ("usb", "USB", usb, 1..=USB_PORTS),
    ] {
        let aliases: Vec<String> = aliases;
        let recorded = |alias: &str| {
            launch.layout.units.get(&unit_key(bus, alias)).copied().filter(|unit| range.contains(unit))
        };
        let mut taken: BTreeSet<u16> = aliases.iter().filter_map(|alias| recorded(alias)).collect();
        for alias in &aliases {
            let unit = match recorded(alias) {
                Some(unit) => unit,
                None => range
                    .clone()
                    .find(|unit| !taken.contains(unit))
                    .ok_or_else(|| DomainError::Full { bus: name, device: alias.clone() })?,
            };
            taken.insert(unit);
            units.insert(unit_key(bus, alias), unit);
        }
    }
    Ok(units)
}

/// An alias as libvirt takes it from outside.
pub(super) fn user_alias(alias: &str) -> super::xml::Element {
    super::xml::Element::new("alias").with("name", format!("ua-{alias}"))
}
