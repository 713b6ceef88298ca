//! Disks and network interfaces that come to a guest that runs, and go.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;

use api::launch::{Bus, Disk, Launch, Layout, Media, Slot};
use api::launcher::{Answer, Event, RefusedKind, Request, State};
use api::names::QEMU_ID;
use guest::CallError;
use rustix::process::Signal;

use crate::support::running::{HALTS, Launcher, TIMEOUT, eventually, kill};

/// A launcher with a guest that has a SCSI controller and free ports.
fn launched() -> (Launcher, Launch) {
    let launcher = Launcher::new();
    let mut document = launcher.document(HALTS);
    document.devices.scsi_controller = true;
    document.devices.hotplug = true;
    launcher.launch(&document);
    launcher.until_serial("K");
    (launcher, document)
}

/// One more disk.
fn disk(folder: &Path, document: &Launch, name: &str, bus: Bus) -> Box<Disk> {
    let path = folder.join(format!("{name}.img"));
    fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
    chown(&path, Some(QEMU_ID), Some(QEMU_ID)).unwrap();
    let mut disk = document.disks[0].clone();
    disk.name = name.to_owned();
    disk.bus = bus;
    disk.boot_order = None;
    let Media::Storage(storage) = &mut disk.media else { panic!("a disk") };
    storage.path = path.to_str().unwrap().to_owned();
    Box::new(disk)
}

fn layout(answer: Answer) -> Layout {
    let Answer::Layout(layout) = answer else { panic!("{answer:?}") };
    layout
}

fn has(launcher: &Launcher, disk: &str) -> bool {
    let process = launcher.qemu().unwrap();
    let file = launcher.folder().join(format!("{disk}.img"));
    fs::read_dir(format!("/proc/{process}/fd"))
        .unwrap()
        .any(|fd| fs::read_link(fd.unwrap().path()).is_ok_and(|to| to == file))
}

#[test]
fn disks_come_and_go() {
    let (launcher, document) = launched();
    let scsi = disk(launcher.folder(), &document, "more", Bus::Scsi);
    let first = layout(launcher.ask(Request::AttachDisk(scsi.clone())).unwrap());
    assert_eq!(first.units.get("scsi/disk-more"), Some(&0));
    assert!(has(&launcher, "more"));
    // Again, and after the worker was killed, nothing changes.
    kill(launcher.worker(), Signal::KILL);
    launcher.until(State::Running);
    assert_eq!(layout(launcher.ask(Request::AttachDisk(scsi)).unwrap()), first);
    let virtio = disk(launcher.folder(), &document, "fast", Bus::Virtio);
    let second = layout(launcher.ask(Request::AttachDisk(virtio)).unwrap());
    assert!(second.slots.contains_key("disk-fast") && has(&launcher, "fast"), "{second:?}");
    // The worker is another one by now.
    let mut watcher = launcher.client();
    watcher.call(Request::Watch).unwrap();
    // A SCSI disk goes without the guest's help.
    launcher.ask(Request::DetachDisk("more".to_owned())).unwrap();
    let gone = loop {
        if let Event::Detached { device } = watcher.event(TIMEOUT).unwrap().expect("an event") {
            break device;
        }
    };
    assert_eq!(gone, "disk-more");
    eventually("the file's release", || (!has(&launcher, "more")).then_some(()));
    launcher.ask(Request::DetachDisk("more".to_owned())).unwrap();
    let after = layout(
        launcher.ask(Request::AttachDisk(disk(launcher.folder(), &document, "fast", Bus::Virtio))).unwrap(),
    );
    assert!(!after.units.contains_key("scsi/disk-more"), "{after:?}");
    assert_eq!(after.slots, second.slots);
}

#[test]
fn disks_are_at_the_addresses_that_are_requested() {
    let launcher = Launcher::new();
    let mut document = launcher.document(HALTS);
    document.devices.hotplug = true;
    let at = |document: &Launch, name: &str, address: &str| {
        let mut one = disk(launcher.folder(), document, name, Bus::Virtio);
        one.pci_address = Some(address.parse().unwrap());
        one
    };
    for (name, address) in [("port", "0000:09:00.0"), ("board", "0000:00:1a.0")] {
        let one = at(&document, name, address);
        document.disks.push(*one);
    }
    launcher.launch(&document);
    launcher.until_serial("K");
    let answer = launcher.client().launch(&document).unwrap();
    let Answer::Launched { new: false, layout, .. } = answer else { panic!("{answer:?}") };
    assert_eq!((layout.slots["disk-port"], layout.slots["disk-board"]), (Slot::Port(9), Slot::Root(0x1a)));
    assert!(has(&launcher, "port") && has(&launcher, "board"));
    let late = at(&document, "late", "0000:00:06.0");
    let Err(CallError::Refused(kind, said)) = launcher.ask(Request::AttachDisk(late)) else {
        panic!("the root bus takes no device while the guest runs")
    };
    assert!(kind == RefusedKind::Invalid && said.contains("0000:00:06.0"), "{said}");
}

#[test]
fn refused_devices_leave_the_guest_running() {
    let (launcher, document) = launched();
    let refused = |disk: Box<Disk>| match launcher.ask(Request::AttachDisk(disk)) {
        Err(CallError::Refused(kind, said)) => (kind, said),
        other => panic!("{other:?}"),
    };
    let mut missing = disk(launcher.folder(), &document, "more", Bus::Scsi);
    let Media::Storage(storage) = &mut missing.media else { panic!("a disk") };
    storage.path = "/nonexistent".to_owned();
    let (kind, said) = refused(missing);
    assert!(kind == RefusedKind::Failed && said.contains("/nonexistent"), "{said}");
    let (kind, said) = refused(disk(launcher.folder(), &document, "stick", Bus::Usb));
    assert!(kind == RefusedKind::Invalid && said.contains("without a slot"), "{said}");
    let mut named = disk(launcher.folder(), &document, "more", Bus::Scsi);
    named.name = "../more".to_owned();
    assert_eq!(refused(named).0, RefusedKind::Invalid);
    assert_eq!(launcher.status().state, State::Running);
    let good = disk(launcher.folder(), &document, "more", Bus::Scsi);
    layout(launcher.ask(Request::AttachDisk(good)).unwrap());
    assert!(has(&launcher, "more"));
}

#[test]
fn a_disk_that_is_gone_is_closed_however_often_and_soon_it_is_asked_for() {
    let (launcher, document) = launched();
    let worker = launcher.worker();
    let rounds: u32 = if std::env::var_os("FERROVIRT_SOAK").is_some() { 100 } else { 12 };
    for round in 0..rounds {
        let name = format!("more{}", round % 2);
        let attach =
            || launcher.ask(Request::AttachDisk(disk(launcher.folder(), &document, &name, Bus::Scsi)));
        attach().unwrap();
        assert!(has(&launcher, &name), "{name} is not open");
        // QEMU takes a device apart after it agreed to: requests of that time must not disturb it.
        let mut requests = 0;
        loop {
            requests += 1;
            let left = layout(launcher.ask(Request::DetachDisk(name.clone())).unwrap());
            if !left.has(&format!("disk-{name}")) {
                break;
            }
        }
        assert!(!has(&launcher, &name), "{name} is still open after {requests} requests");
    }
    assert_eq!(launcher.worker(), worker, "{}", launcher.log());
    // The worker dies while a device goes.
    for round in 0..rounds.div_ceil(4) {
        let name = format!("other{round}");
        launcher.ask(Request::AttachDisk(disk(launcher.folder(), &document, &name, Bus::Scsi))).unwrap();
        launcher.ask(Request::DetachDisk(name.clone())).unwrap();
        kill(launcher.worker(), Signal::KILL);
        launcher.until(State::Running);
        eventually("the disk is gone", || {
            let answer = launcher.client().call(Request::DetachDisk(name.clone())).ok()?;
            (!layout(answer).has(&format!("disk-{name}"))).then_some(())
        });
        assert!(!has(&launcher, &name), "{name} is still open");
    }
}
