//! Where devices are: a device keeps its place over everything that comes and goes around it.

use std::collections::BTreeSet;

use api::launch::{Layout, Slot};
use virt_launcher::{self as launcher, DomainError};

use crate::support;

/// A guest with these disks (`bus:name`) and interfaces, on a network each.
fn guest(memory: &str, disks: &[&str], interfaces: &[&str]) -> String {
    let mut text = format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {{name: vm}}\nspec:\n  domain:\n    memory: {{guest: {memory}, maxGuest: {memory}}}\n    devices:\n      autoattachPodInterface: false\n"
    );
    let split =
        |disk: &&str| disk.split_once(':').map(|(bus, name)| (bus.to_owned(), name.to_owned())).unwrap();
    let list = |items: Vec<String>| items.join(", ");
    let devices =
        disks.iter().map(split).map(|(bus, name)| format!("{{name: {name}, disk: {{bus: {bus}}}}}"));
    text.push_str(&format!("      disks: [{}]\n", list(devices.collect())));
    let cards = interfaces.iter().map(|name| format!("{{name: {name}, bridge: {{}}}}"));
    text.push_str(&format!("      interfaces: [{}]\n", list(cards.collect())));
    let networks = interfaces.iter().map(|name| format!("{{name: {name}, multus: {{networkName: {name}}}}}"));
    text.push_str(&format!("  networks: [{}]\n", list(networks.collect())));
    let volumes = disks
        .iter()
        .map(split)
        .map(|(_, name)| format!("{{name: {name}, persistentVolumeClaim: {{claimName: {name}}}}}"));
    text.push_str(&format!("  volumes: [{}]\n", list(volumes.collect())));
    text
}

fn placed(text: &str, before: &Layout) -> Result<Layout, DomainError> {
    let launch = support::launch(&support::instance(text), before.clone());
    launcher::domain(&launch).map(|domain| domain.layout)
}

/// Places are used once and there.
fn is_sound(layout: &Layout) {
    let slots: BTreeSet<&Slot> = layout.slots.values().collect();
    assert_eq!(slots.len(), layout.slots.len(), "{layout:?}");
    for slot in slots {
        match slot {
            Slot::Port(port) => assert!((1..=layout.ports).contains(port), "{layout:?}"),
            Slot::Conventional(slot) => assert!((1..=31).contains(slot), "{layout:?}"),
            Slot::Root(slot) => assert!((6..=26).contains(slot), "{layout:?}"),
        }
    }
    let units: BTreeSet<(&str, u16)> =
        layout.units.iter().map(|(key, unit)| (key.split_once('/').unwrap().0, *unit)).collect();
    assert_eq!(units.len(), layout.units.len(), "{layout:?}");
}

#[test]
fn cards_come_first_then_room_for_four_then_the_rest() {
    let layout = placed(&guest("1Gi", &["virtio:root"], &["a", "b"]), &Layout::default()).unwrap();
    let place = |alias: &str| layout.slots[alias];
    assert_eq!((place("net-a"), place("net-b")), (Slot::Port(1), Slot::Port(2)));
    assert_eq!((place("scsi0"), place("virtio-serial0")), (Slot::Port(5), Slot::Port(6)));
    assert_eq!((place("disk-root"), place("balloon0")), (Slot::Port(7), Slot::Port(8)));
    assert_eq!(layout.ports, 9, "6 are used, 3 are free");
    is_sound(&layout);
    let large = placed(&guest("3Gi", &["virtio:root"], &["a"]), &Layout::default()).unwrap();
    assert_eq!(large.ports, 16);
}

#[test]
fn new_devices_take_free_places_and_others_keep_theirs() {
    let disks = ["virtio:root", "sata:one", "sata:two", "scsi:three", "usb:four"];
    let first = placed(&guest("1Gi", &disks, &["a"]), &Layout::default()).unwrap();
    is_sound(&first);
    // In another order, with others between them, and with some gone.
    let disks =
        ["virtio:new", "sata:two", "scsi:newer", "usb:four", "scsi:three", "virtio:root", "sata:newest"];
    let second = placed(&guest("1Gi", &disks, &["b", "a", "c"]), &first).unwrap();
    is_sound(&second);
    for (alias, slot) in &first.slots {
        assert_eq!(second.slots.get(alias), Some(slot), "{alias}");
    }
    for key in ["sata/disk-two", "scsi/disk-three", "usb/disk-four"] {
        assert_eq!(second.units[key], first.units[key], "{key}");
    }
    assert!(!second.units.contains_key("sata/disk-one"));
    assert_eq!(second.units["sata/disk-newest"], 0, "the place that became free");
    assert_eq!((second.slots["net-b"], second.slots["net-c"]), (Slot::Port(2), Slot::Port(3)));
    assert!(second.ports >= first.ports);
}

#[test]
fn requested_places_come_before_recorded_ones() {
    let disks = ["virtio:root", "virtio:more"];
    let plain = guest("1Gi", &disks, &["a"]);
    let first = placed(&plain, &Layout::default()).unwrap();
    let more = first.slots["disk-more"];
    let Slot::Port(port) = first.slots["disk-root"] else { panic!("{first:?}") };
    let at = |text: &str, name: &str, address: &str| {
        let (from, to) = (
            format!("name: {name}, disk: {{bus: virtio}}"),
            format!("name: {name}, disk: {{bus: virtio, pciAddress: '{address}'}}"),
        );
        assert!(text.contains(&from));
        text.replacen(&from, &to, 1)
    };
    // The place of another disk, which gets a new one.
    let moved = placed(&at(&plain, "more", &format!("0000:{port:02x}:00.0")), &first).unwrap();
    is_sound(&moved);
    assert_eq!(moved.slots["disk-more"], Slot::Port(port));
    assert_ne!(moved.slots["disk-root"], Slot::Port(port));
    assert_eq!(moved.slots["net-a"], first.slots["net-a"]);
    // A port that was not there, and the root bus.
    let far = placed(&at(&plain, "more", "0000:20:00.0"), &first).unwrap();
    assert_eq!((far.slots["disk-more"], far.ports), (Slot::Port(32), 32));
    let root = placed(&at(&plain, "more", "0000:00:1a.0"), &first).unwrap();
    assert_eq!((root.slots["disk-more"], root.ports), (Slot::Root(26), first.ports));
    is_sound(&root);
    // Once it is no longer requested, the place is kept as any other.
    assert_eq!(placed(&plain, &root).unwrap().slots["disk-more"], Slot::Root(26));
    assert_eq!(placed(&plain, &first).unwrap().slots["disk-more"], more);
}

#[test]
fn a_thousand_changes_keep_what_stays() {
    let mut state: u64 = 0x2545_f491_4f6c_dd1d;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let rounds = if std::env::var_os("FERROVIRT_SOAK").is_some() { 1000 } else { 60 };
    let names = ["virtio:a", "virtio:b", "virtio:c", "sata:d", "sata:e", "scsi:f", "usb:g", "virtio:h"];
    let cards = ["net0", "net1", "net2", "net3", "net4"];
    let mut before = Layout::default();
    for round in 0..rounds {
        let some = |all: &[&'static str], mask: u64| -> Vec<&'static str> {
            all.iter().enumerate().filter(|(bit, _)| mask >> bit & 1 == 1).map(|(_, name)| *name).collect()
        };
        let text = guest("1Gi", &some(&names, random()), &some(&cards, random()));
        let after = placed(&text, &before).unwrap();
        is_sound(&after);
        for (alias, slot) in &after.slots {
            assert!(before.slots.get(alias).is_none_or(|earlier| earlier == slot), "round {round}: {alias}");
        }
        for (key, unit) in &after.units {
            assert!(before.units.get(key).is_none_or(|earlier| earlier == unit), "round {round}: {key}");
        }
        before = after;
    }
}

#[test]
fn too_many_devices_are_reported_by_the_first_without_a_place() {
    let many: Vec<String> = (0..40).map(|number| format!("virtio:d{number:02}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let error = placed(&guest("1Gi", &many, &[]), &Layout::default()).unwrap_err();
    assert!(matches!(error, DomainError::Full { bus: "PCI", .. }), "{error}");
    let many: Vec<String> = (0..16).map(|number| format!("usb:d{number:02}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let error = placed(&guest("1Gi", &many, &[]), &Layout::default()).unwrap_err();
    assert_eq!(error, DomainError::Full { bus: "USB", device: "disk-d15".to_owned() });
}
