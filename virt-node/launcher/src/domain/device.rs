//! Controllers, network interfaces, and all that is no disk.

use api::launch::{
    Bus, Input, InputBus, Interface, Launch, Layout, NicModel, PciAddress, Slot, SoundModel, UsbAddress,
    VideoModel, Word,
};

use super::board::{on_off, yes_no};
use super::layout::{
    self, BALLOON, BRIDGE, MEMORY, RNG, SCSI, SERIAL, SOUND, USB, USB_PORTS, WATCHDOG, input_alias,
    net_alias, unit_key, user_alias,
};
use super::xml::Element;

const KIB: u64 = 1 << 10;
/// Memory comes and goes in blocks of so many bytes.
pub(super) const MEMORY_BLOCK: u64 = 2 << 20;
/// First slot of the ports; the screen is before them.
const FIRST_PORT_SLOT: u8 = 2;

/// The model of virtio devices.
pub(super) fn virtio_model(launch: &Launch) -> &'static str {
    if launch.devices.transitional { "virtio-transitional" } else { "virtio-non-transitional" }
}

fn pci(bus: u8, slot: u8, function: u8) -> Element {
    numbers(Element::new("address").with("type", "pci"), PciAddress { domain: 0, bus, slot, function })
}

/// An address on PCI, in its parts.
fn numbers(element: Element, address: PciAddress) -> Element {
    let PciAddress { domain, bus, slot, function } = address;
    element
        .with("domain", format!("{domain:#06x}"))
        .with("bus", format!("{bus:#04x}"))
        .with("slot", format!("{slot:#04x}"))
        .with("function", format!("{function:#x}"))
}

/// A device's place on PCI.
pub(super) fn pci_address(layout: &Layout, slot: Slot) -> Element {
    match slot {
        Slot::Port(port) => pci(port, 0, 0),
        // The bridge's bus is the one behind all ports'.
        Slot::Conventional(slot) => pci(layout.ports.saturating_add(1), slot, 0),
        Slot::Root(slot) => pci(0, slot, 0),
    }
}

/// A place on SATA or SCSI.
pub(super) fn drive_address(controller: u16, unit: u16) -> Element {
    Element::new("address")
        .with("type", "drive")
        .with("controller", controller)
        .with("bus", 0)
        .with("target", 0)
        .with("unit", unit)
}

/// A place on USB.
pub(super) fn usb_address(port: u16) -> Element {
    Element::new("address").with("type", "usb").with("bus", 0).with("port", port)
}

/// A device's place on USB.
fn usb_place(layout: &Layout, alias: &str) -> Option<Element> {
    layout.units.get(&unit_key("usb", alias)).map(|port| usb_address(*port))
}

fn address(layout: &Layout, alias: &str) -> Option<Element> {
    layout.slots.get(alias).map(|slot| pci_address(layout, *slot))
}

fn controller(kind: &'static str, index: u16, model: &'static str) -> Element {
    Element::new("controller").with("type", kind).with("index", index).with("model", model)
}

/// All controllers.
pub(super) fn controllers(launch: &Launch, layout: &Layout) -> Vec<Element> {
    let mut all = vec![controller("pci", 0, "pcie-root")];
    for port in 1..=layout.ports {
        let (slot, function) = (FIRST_PORT_SLOT + (port - 1) / 8, (port - 1) % 8);
        let place = pci(0, slot, function);
        let place = if function == 0 { place.with("multifunction", "on") } else { place };
        all.push(controller("pci", port.into(), "pcie-root-port").child(place));
    }
    if layout.slots.contains_key(BRIDGE) {
        let index = u16::from(layout.ports) + 1;
        all.push(controller("pci", index, "pcie-to-pci-bridge").child(address(layout, BRIDGE)));
    }
    for (index, slot) in layout::sata_controllers(layout) {
        // There is one model, and the XML does not name it.
        let sata = Element::new("controller").with("type", "sata").with("index", index);
        all.push(sata.child(pci_address(layout, slot)));
    }
    if layout::has_scsi(launch) {
        let thread = launch.disks.iter().filter(|disk| disk.bus == Bus::Scsi).find_map(|disk| disk.io_thread);
        let driver = thread.map(|thread| Element::new("driver").with("iothread", thread));
        let scsi = controller("scsi", 0, virtio_model(launch));
        all.push(scsi.child(driver).child(address(layout, SCSI)));
    }
    if launch.devices.guest_agent {
        all.push(controller("virtio-serial", 0, virtio_model(launch)).child(address(layout, SERIAL)));
    }
    all.push(match layout.slots.get(USB) {
        Some(slot) => {
            controller("usb", 0, "qemu-xhci").with("ports", USB_PORTS).child(pci_address(layout, *slot))
        }
        None => controller("usb", 0, "none"),
    });
    all
}

/// All network interfaces.
pub(super) fn interfaces(launch: &Launch, layout: &Layout) -> Vec<Element> {
    launch.interfaces.iter().map(|one| interface(launch, layout, one)).collect()
}

fn interface(launch: &Launch, layout: &Layout, one: &Interface) -> Element {
    let model = match one.model {
        NicModel::Virtio => virtio_model(launch),
        NicModel::E1000 | NicModel::E1000e | NicModel::Ne2kPci | NicModel::Pcnet | NicModel::Rtl8139 => {
            one.model.word()
        }
    };
    let alias = net_alias(&one.name);
    Element::new("interface")
        .with("type", "ethernet")
        .child(Element::new("mac").with("address", &one.mac))
        .child(Element::new("target").with("dev", &one.tap).with("managed", "no"))
        .child(Element::new("model").with("type", model))
        .child(one.queues.map(|queues| Element::new("driver").with("queues", queues)))
        .child(Element::new("mtu").with("size", one.mtu))
        .child((!one.link_up).then(|| Element::new("link").with("state", "down")))
        .child(one.boot_order.is_none().then(|| Element::new("rom").with("enabled", "no")))
        .child(one.boot_order.map(|order| Element::new("boot").with("order", order)))
        .child(one.acpi_index.map(|index| Element::new("acpi").with("index", index)))
        .child(user_alias(&alias))
        .child(address(layout, &alias))
}

/// Devices of the host. The driver of those on PCI there is VFIO's already: the launcher may not bind drivers.
pub(super) fn host_devices(launch: &Launch, layout: &Layout) -> Vec<Element> {
    let device = |kind: &'static str| {
        Element::new("hostdev").with("mode", "subsystem").with("type", kind).with("managed", "no")
    };
    let sourced = |element: Element, at: Element, name: &str| {
        element.child(Element::new("source").child(at)).child(user_alias(name))
    };
    let placed =
        |element: Element, at: Element, name: &str| sourced(element, at, name).child(address(layout, name));
    let pci = launch
        .host_devices
        .iter()
        .map(|one| placed(device("pci"), numbers(Element::new("address"), one.address), &one.name));
    let mediated = launch.mediated_devices.iter().map(|one| {
        let element = device("mdev").with("model", "vfio-pci").with("display", on_off(one.display));
        let element = if one.ramfb { element.with("ramfb", "on") } else { element };
        placed(element, Element::new("address").with("uuid", &one.uuid), &one.name)
    });
    let usb = launch.usb_devices.iter().map(|one| {
        let UsbAddress { bus, device: number } = one.address;
        let at = Element::new("address").with("bus", bus).with("device", number);
        sourced(device("usb"), at, &one.name).child(usb_place(layout, &one.name))
    });
    pci.chain(mediated).chain(usb).collect()
}

/// Everything else.
pub(super) fn others(launch: &Launch, layout: &Layout) -> Vec<Element> {
    let devices = &launch.devices;
    let mut all = Vec::new();
    if let Some(serial) = &devices.serial {
        let log = serial.log.as_ref().map(|file| Element::new("log").with("file", file).with("append", "on"));
        all.push(
            socket(
                launch,
                "serial",
                "serial0",
                Element::new("target").with("type", "isa-serial").with("port", 0),
            )
            .child(log),
        );
        all.push(
            Element::new("console")
                .with("type", "unix")
                .child(Element::new("target").with("type", "serial").with("port", 0)),
        );
    }
    if devices.guest_agent {
        let target = Element::new("target").with("type", "virtio").with("name", "org.qemu.guest_agent.0");
        all.push(socket(launch, "channel", "agent", target));
    }
    all.extend(devices.inputs.iter().map(|one| input(layout, one)));
    all.extend(screen(launch));
    if let Some(model) = devices.sound {
        // The HD audio of the board has a place of its own.
        let place = (model == SoundModel::Ac97).then(|| address(layout, SOUND)).flatten();
        all.push(Element::new("sound").with("model", model.word()).child(place));
    }
    if let Some(tpm) = &devices.tpm {
        let backend = Element::new("backend")
            .with("type", "emulator")
            .with("version", "2.0")
            .with("persistent_state", yes_no(tpm.persistent));
        all.push(Element::new("tpm").with("model", tpm.model.word()).child(backend));
    }
    if let Some(action) = devices.watchdog {
        let watchdog = Element::new("watchdog").with("model", "i6300esb").with("action", action.word());
        all.push(watchdog.child(address(layout, WATCHDOG)));
    }
    if devices.rng {
        let source = Element::new("backend").with("model", "random").text("/dev/urandom");
        all.push(
            Element::new("rng").with("model", virtio_model(launch)).child(source).child(address(layout, RNG)),
        );
    }
    all.push(match devices.balloon {
        None => Element::new("memballoon").with("model", "none"),
        Some(balloon) => {
            let period = balloon.statistics_period;
            Element::new("memballoon")
                .with("model", virtio_model(launch))
                .with("freePageReporting", "on")
                .child((period > 0).then(|| Element::new("stats").with("period", period)))
                .child(address(layout, BALLOON))
        }
    });
    all.extend(layout::usb_channels(launch).map(|alias| {
        let channel = Element::new("redirdev").with("bus", "usb").with("type", "unix");
        channel.child(source(launch, &alias)).child(user_alias(&alias)).child(usb_place(layout, &alias))
    }));
    all.extend(devices.panic.iter().map(|model| Element::new("panic").with("model", model.word())));
    all.extend(more_memory(launch, layout, 0));
    all
}

/// A device with a socket in the run's directory as its other end.
fn socket(launch: &Launch, element: &'static str, name: &str, target: Element) -> Element {
    Element::new(element).with("type", "unix").child(source(launch, name)).child(target)
}

/// A socket in the run's directory that QEMU listens on.
fn source(launch: &Launch, name: &str) -> Element {
    Element::new("source").with("mode", "bind").with("path", super::in_folder(launch, name))
}

fn input(layout: &Layout, one: &Input) -> Element {
    let alias = input_alias(&one.name);
    let place = match one.bus {
        InputBus::Virtio => address(layout, &alias),
        InputBus::Usb => usb_place(layout, &alias),
    };
    Element::new("input")
        .with("type", "tablet")
        .with("bus", one.bus.word())
        .child(user_alias(&alias))
        .child(place)
}

fn screen(launch: &Launch) -> Vec<Element> {
    let video = |model: Element| Element::new("video").child(model);
    let Some(model) = launch.devices.video else {
        return vec![video(Element::new("model").with("type", "none"))];
    };
    let socket = super::in_folder(launch, "vnc");
    let graphics = Element::new("graphics")
        .with("type", "vnc")
        .child(Element::new("listen").with("type", "socket").with("socket", socket));
    let adapter = Element::new("model").with("type", model.word());
    let adapter = match model {
        VideoModel::Vga | VideoModel::Bochs => adapter.with("vram", 16_384).with("heads", 1),
        VideoModel::Virtio => adapter.with("heads", 1),
        VideoModel::Ramfb => adapter,
    };
    vec![graphics, video(adapter)]
}

/// The device by which memory is added, which the guest is to take so many bytes of.
pub(super) fn more_memory(launch: &Launch, layout: &Layout, requested: u64) -> Option<Element> {
    let size = launch.memory.max_guest.checked_sub(launch.memory.guest).filter(|size| *size > 0)?;
    let kib = |name: &'static str, bytes: u64| Element::new(name).with("unit", "KiB").text(bytes / KIB);
    let target = Element::new("target")
        .child(kib("size", size))
        .child(Element::new("node").text(0))
        .child(kib("block", MEMORY_BLOCK))
        .child(kib("requested", requested));
    Some(
        Element::new("memory")
            .with("model", "virtio-mem")
            .child(target)
            .child(user_alias(MEMORY))
            .child(address(layout, MEMORY)),
    )
}
