//! Disks: a volume, a drive or a small CD as libvirt describes it.

use api::launch::{Bus, Disk, DiskDevice, Launch, Layout, Media, Storage, Word};

use super::device::{drive_address, pci_address, usb_address, virtio_model};
use super::layout::{self, SATA_UNITS, disk_alias, unit_key};
use super::xml::Element;

/// All disks, in the order in which libvirt names those of one bus.
pub(super) fn disks(launch: &Launch, layout: &Layout) -> Vec<Element> {
    let (mut virtio, mut other) = (0, 0);
    let mut elements = Vec::new();
    for disk in &launch.disks {
        let count = match disk.bus {
            Bus::Virtio => &mut virtio,
            Bus::Sata | Bus::Scsi | Bus::Usb => &mut other,
        };
        elements.push(element(launch, layout, disk, &target(disk.bus, *count)));
        *count += 1;
    }
    elements
}

/// The disk of this name, for a domain that runs, of which libvirt keeps the names that it gave.
pub(super) fn one(launch: &Launch, layout: &Layout, name: &str, running: &str) -> Option<Element> {
    let disk = launch.disks.iter().find(|disk| disk.name == name)?;
    let taken = |target: &String| running.contains(&format!("<target dev='{target}'"));
    let free = (0..).map(|number| target(disk.bus, number)).find(|target| !taken(target))?;
    Some(element(launch, layout, disk, &free))
}

/// libvirt's name of a disk.
fn target(bus: Bus, number: usize) -> String {
    let prefix = match bus {
        Bus::Virtio => "vd",
        Bus::Sata | Bus::Scsi | Bus::Usb => "sd",
    };
    format!("{prefix}{}", letters(number))
}

/// `a`, `b`, … `z`, `aa`, `ab`, …
fn letters(mut number: usize) -> String {
    let mut letters = Vec::new();
    loop {
        letters.push(char::from(b"abcdefghijklmnopqrstuvwxyz"[number % 26]));
        number /= 26;
        if number == 0 {
            return letters.into_iter().rev().collect();
        }
        number -= 1;
    }
}

pub(super) fn element(launch: &Launch, layout: &Layout, disk: &Disk, target: &str) -> Element {
    let storage = match &disk.media {
        Media::Empty => None,
        Media::Storage(storage) => Some(storage.clone()),
        Media::Medium(name) => Some(Storage {
            path: super::in_folder(launch, &format!("{name}.iso")),
            block: false,
            format: api::launch::DiskFormat::Raw,
            backing: None,
        }),
    };
    let block = storage.as_ref().is_some_and(|storage| storage.block);
    let format = storage.as_ref().map_or("raw", |storage| storage.format.word());
    let mut driver = Element::new("driver")
        .with("name", "qemu")
        .with("type", format)
        .with("cache", disk.cache.word())
        .with("error_policy", disk.error_policy.word())
        .with_some("io", disk.io.map(Word::word))
        .with("discard", if disk.discard { "unmap" } else { "ignore" });
    if disk.bus == Bus::Virtio {
        driver = driver.with_some("iothread", disk.io_thread).with_some("queues", disk.queues);
    }
    let alias = disk_alias(&disk.name);
    let bus = disk.bus.word();
    let unit = layout.units.get(&unit_key(bus, &alias)).copied();
    let address = match (disk.bus, unit) {
        (Bus::Virtio, _) => layout.slots.get(&alias).map(|slot| pci_address(layout, *slot)),
        (Bus::Sata, Some(unit)) => Some(drive_address(unit / SATA_UNITS, unit % SATA_UNITS)),
        (Bus::Scsi, Some(unit)) => Some(drive_address(0, unit)),
        (Bus::Usb, Some(port)) => Some(usb_address(port)),
        (Bus::Sata | Bus::Scsi | Bus::Usb, None) => None,
    };
    let device = match disk.device {
        DiskDevice::Disk => "disk",
        DiskDevice::Cdrom => "cdrom",
        DiskDevice::Lun => "lun",
    };
    let model = (disk.bus == Bus::Virtio).then(|| virtio_model(launch));
    Element::new("disk")
        .with("type", if block { "block" } else { "file" })
        .with("device", device)
        .with_some("model", model)
        .child(driver)
        .child(storage.as_ref().map(source))
        .child(storage.as_ref().map(backing))
        .child(
            Element::new("target")
                .with("dev", target)
                .with("bus", bus)
                .with_some("tray", disk.tray.map(Word::word)),
        )
        .child(disk.block_sizes.map(|sizes| {
            Element::new("blockio")
                .with("logical_block_size", sizes.logical)
                .with("physical_block_size", sizes.physical)
        }))
        .child(disk.serial.as_ref().map(|serial| Element::new("serial").text(serial)))
        .child(disk.shareable.then(|| Element::new("shareable")))
        .child(disk.read_only.then(|| Element::new("readonly")))
        .child(disk.boot_order.map(|order| Element::new("boot").with("order", order)))
        .child(layout::user_alias(&alias))
        .child(address)
}

fn source(storage: &Storage) -> Element {
    Element::new("source").with(if storage.block { "dev" } else { "file" }, &storage.path)
}

/// The backing image of a disk. An empty element where it has none, so that libvirt does not probe the image.
fn backing(storage: &Storage) -> Element {
    match &storage.backing {
        None => Element::new("backingStore"),
        Some(below) => Element::new("backingStore")
            .with("type", if below.block { "block" } else { "file" })
            .child(Element::new("format").with("type", below.format.word()))
            .child(source(below))
            .child(backing(below)),
    }
}

#[cfg(test)]
mod tests {
    use super::letters;

    #[test]
    fn names_go_on_behind_z() {
        let names = [(0, "a"), (25, "z"), (26, "aa"), (51, "az"), (52, "ba"), (701, "zz"), (702, "aaa")];
        for (number, name) in names {
            assert_eq!(letters(number), name);
        }
    }
}
