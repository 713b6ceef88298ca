//! Launch documents: what is written is read, and nothing else is.

use api::launch::{DOCUMENT_MAX, Launch, LaunchError, PciAddress, Pinning, UsbAddress, VERSION};
use serde_json::{Value, json};

/// Its network interface.
fn interface() -> Value {
    json!({
        "name": "default", "tap": "tap0", "mac": "02:00:00:00:00:01", "mtu": 1500, "model": "virtio",
        "queues": null, "bootOrder": 2, "acpiIndex": 1, "linkUp": true, "pciAddress": "0000:00:07.0",
        "dhcp": {
            "link": "k6t-eth0", "v6": null, "resolvers": ["192.0.2.53"], "search": [], "hostName": "vm",
            "v4": {
                "address": "10.0.2.2", "prefix": 24, "server": "10.0.2.1", "gateway": "10.0.2.1", "routes": [],
            },
            "options": {
                "bootFile": "boot.efi", "tftpServer": null, "ntpServers": ["192.0.2.1"], "private": {"224": "a"},
            },
        },
    })
}

/// A document with something of everything.
fn full() -> Value {
    json!({
        "version": 1,
        "name": "vm",
        "namespace": "default",
        "uid": "6b4f2c1e-0000-4000-8000-00000000000a",
        "folder": "/run/ferrovirt/vm",
        "emulator": "/usr/bin/qemu-system-x86_64",
        "accelerator": "tcg",
        "machine": "pc-q35-7.2",
        "smbios": {
            "uuid": "6b4f2c1e-0000-4000-8000-00000000000b",
            "serial": "s1",
            "system": {"manufacturer": "a", "product": "b", "version": null, "sku": null, "family": null},
            "chassis": {"manufacturer": "a", "version": null, "serial": null, "asset": "b", "sku": null},
        },
        "firmware": {"efi": {
            "code": "/ovmf/code", "template": "/ovmf/vars", "variables": "/state/nvram.fd", "secureBoot": true,
        }},
        "cpu": {
            "sockets": 1, "maxSockets": 4, "cores": 2, "threads": 1, "model": {"named": "Haswell"},
            "features": [{"name": "avx", "policy": "disable"}],
        },
        "memory": {"guest": 1 << 30, "maxGuest": 4_u64 << 30, "hugePage": null},
        "clock": {"offset": [3600, [{"name": "rtc", "present": true, "tickPolicy": "catchup", "track": "guest"}]]},
        "features": {
            "acpi": true, "apic": true, "apicEoi": null, "smm": true, "kvmHidden": false, "pvspinlock": null,
            "hyperv": {"switches": [["relaxed", true]], "spinlocks": 8191, "vendorId": "x", "directTimers": false},
        },
        "ioThreads": 1,
        "disks": [
            {
                "name": "root", "device": "disk", "bus": "virtio",
                "media": {"storage": {
                    "path": "/v/overlay.qcow2", "block": false, "format": "qcow2",
                    "backing": {"path": "/v/root.img", "block": false, "format": "raw"},
                }},
                "readOnly": false, "shareable": false, "cache": "none", "io": "native", "discard": true,
                "errorPolicy": "stop", "serial": "abc", "bootOrder": 1, "ioThread": 1, "queues": 2,
                "blockSizes": {"logical": 512, "physical": 4096}, "tray": null, "pciAddress": "0000:00:06.0",
            },
            {
                "name": "init", "device": "cdrom", "bus": "sata", "media": {"medium": "init"},
                "readOnly": true, "shareable": false, "cache": "writethrough", "io": null, "discard": false,
                "errorPolicy": "report", "serial": null, "bootOrder": null, "ioThread": null, "queues": null,
                "blockSizes": null, "tray": "closed",
            },
        ],
        "media": [{"name": "init", "label": "cidata", "files": [{"path": "meta-data", "content": "e30="}]}],
        "interfaces": [interface()],
        "hostDevices": [{"name": "gpu-one", "address": "0000:65:00.0"}],
        "mediatedDevices": [{
            "name": "gpu-two", "uuid": "6b4f2c1e-0000-4000-8000-00000000000c", "display": true, "ramfb": true,
        }],
        "usbDevices": [{"name": "usb-host-stick", "address": {"bus": 1, "device": 4}}],
        "devices": {
            "video": "bochs", "serial": {"log": "/run/ferrovirt/vm/serial0.log"},
            "inputs": [{"name": "tablet", "bus": "usb"}], "guestAgent": true,
            "balloon": {"statisticsPeriod": 10}, "rng": true, "sound": "ich9", "watchdog": "reset",
            "tpm": {"model": "tpm-crb", "persistent": true}, "panic": ["isa"],
            "scsiController": true, "hotplug": true, "transitional": false, "usbChannels": 4,
        },
        "layout": {"ports": 8, "slots": {"net-default": {"port": 1}}, "units": {"sata/disk-init": 0}},
        "graceSeconds": 30,
        "paused": false,
        "onReboot": "restart",
    })
}

fn read(value: &Value) -> Result<Launch, LaunchError> {
    Launch::read(value.to_string().as_bytes())
}

#[test]
fn a_document_survives_a_round_trip() {
    let launch = read(&full()).unwrap();
    assert_eq!(launch.version, VERSION);
    let written = launch.write().unwrap();
    assert_eq!(Launch::read(&written).unwrap(), launch);
    assert_eq!(serde_json::from_slice::<Value>(&written).unwrap(), full());
}

#[test]
fn fields_of_a_later_release_are_absent_from_documents_without_them() {
    let mut document = full();
    // Launchers of the releases before them refuse the fields.
    document["devices"].as_object_mut().unwrap().remove("usbChannels");
    for field in ["mediatedDevices", "usbDevices"] {
        document.as_object_mut().unwrap().remove(field);
    }
    document["smbios"].as_object_mut().unwrap().remove("system");
    document["disks"][0].as_object_mut().unwrap().remove("pciAddress");
    document["interfaces"][0].as_object_mut().unwrap().remove("pciAddress");
    document["interfaces"][0]["dhcp"].as_object_mut().unwrap().remove("options");
    let launch = read(&document).unwrap();
    assert_eq!((launch.devices.usb_channels, launch.mediated_devices.len()), (None, 0));
    assert!(launch.smbios.system.is_empty());
    assert_eq!(launch.usb_devices, []);
    assert_eq!(serde_json::from_slice::<Value>(&launch.write().unwrap()).unwrap(), document);
}

#[test]
fn the_version_comes_first() {
    for (version, wanted) in [(json!(0), 0), (json!(2), 2), (json!(u64::MAX), u64::MAX)] {
        // Nothing else of a document of another version is looked at.
        let document = json!({"version": version, "anything": [1]});
        assert_eq!(read(&document), Err(LaunchError::Version(wanted)));
    }
    for broken in ["", "{}", "[]", "{\"version\": \"1\"}", "{\"version\": -1}", "{\"version\": 1}", "\u{0}"] {
        assert!(matches!(Launch::read(broken.as_bytes()), Err(LaunchError::Malformed(_))), "{broken}");
    }
    assert_eq!(Launch::read(&vec![b' '; DOCUMENT_MAX + 1]), Err(LaunchError::TooLong(DOCUMENT_MAX + 1)));
}

#[test]
fn fields_that_are_not_known_are_refused_everywhere() {
    let mut refused = 0;
    for pointer in [
        "",
        "/smbios",
        "/smbios/system",
        "/smbios/chassis",
        "/firmware/efi",
        "/cpu",
        "/cpu/features/0",
        "/memory",
        "/features",
        "/features/hyperv",
        "/disks/0",
        "/disks/0/media/storage",
        "/disks/0/blockSizes",
        "/media/0",
        "/media/0/files/0",
        "/interfaces/0",
        "/interfaces/0/dhcp",
        "/interfaces/0/dhcp/v4",
        "/interfaces/0/dhcp/options",
        "/hostDevices/0",
        "/mediatedDevices/0",
        "/usbDevices/0",
        "/usbDevices/0/address",
        "/devices",
        "/devices/tpm",
        "/devices/balloon",
        "/devices/serial",
        "/devices/inputs/0",
        "/layout",
    ] {
        let mut document = full();
        document.pointer_mut(pointer).unwrap()["newer"] = json!(1);
        assert!(matches!(read(&document), Err(LaunchError::Malformed(_))), "{pointer}");
        refused += 1;
    }
    assert_eq!(refused, 29);
}

#[test]
fn values_that_cannot_be_are_refused_by_their_field() {
    let long = "x".repeat(300);
    for (pointer, value, wanted) in [
        ("/name", json!(""), "name"),
        ("/name", json!("../x"), "name"),
        ("/name", json!("a_b"), "name"),
        ("/namespace", json!("A"), "namespace"),
        ("/uid", json!("6b4f2c1e"), "uid"),
        ("/folder", json!("run"), "folder"),
        ("/folder", json!("/run/../etc"), "folder"),
        ("/folder", json!(format!("/{}", "x".repeat(90))), "folder"),
        ("/emulator", json!("/a\n"), "emulator"),
        ("/machine", json!(""), "machine"),
        ("/smbios/uuid", json!("x"), "smbios.uuid"),
        ("/smbios/serial", json!("\u{1}"), "smbios.serial"),
        ("/smbios/system/product", json!(""), "smbios.system.product"),
        ("/smbios/chassis/asset", json!(long), "smbios.chassis.asset"),
        ("/firmware/efi/variables", json!("nvram.fd"), "firmware.variables"),
        ("/cpu/sockets", json!(0), "cpu"),
        ("/cpu/cores", json!(u32::MAX), "cpu"),
        ("/cpu/maxSockets", json!(0), "cpu.maxSockets"),
        ("/cpu/model", json!({"named": ""}), "cpu.model"),
        ("/memory/guest", json!(1000), "memory.guest"),
        ("/memory/maxGuest", json!(1 << 20), "memory.maxGuest"),
        ("/memory/maxGuest", json!(u64::MAX), "memory.maxGuest"),
        ("/memory/hugePage", json!(3), "memory.hugePage"),
        ("/features/hyperv/vendorId", json!("thirteen char"), "features.hyperv.vendorId"),
        ("/disks/0/name", json!("a/b"), "disks[0].name"),
        ("/disks/1/name", json!("root"), "disks"),
        ("/disks/0/media/storage/path", json!("v/x"), "disks[0].media.path"),
        ("/disks/0/media/storage/backing/path", json!("/v/../x"), "disks[0].media.path"),
        ("/disks/0/media", json!("empty"), "disks[0].media"),
        ("/disks/0/device", json!("cdrom"), "disks[0].device"),
        ("/disks/0/device", json!("lun"), "disks[0].device"),
        ("/disks/0/ioThread", json!(2), "disks[0].ioThread"),
        ("/disks/1/ioThread", json!(1), "disks[1].ioThread"),
        ("/disks/0/queues", json!(0), "disks[0].queues"),
        ("/disks/0/blockSizes/logical", json!(1000), "disks[0].blockSizes"),
        ("/disks/0/blockSizes/physical", json!(256), "disks[0].blockSizes"),
        ("/disks/0/pciAddress", json!("0000:00:05.0"), "disks[0].pciAddress"),
        ("/disks/0/pciAddress", json!("0000:00:07.0"), "pciAddress"),
        ("/disks/0/bus", json!("scsi"), "disks[0].pciAddress"),
        ("/disks/0/bootOrder", json!(0), "bootOrder"),
        ("/disks/0/bootOrder", json!(2), "bootOrder"),
        ("/disks/1/media/medium", json!("other"), "disks[1].media"),
        ("/disks/1/readOnly", json!(false), "disks[1].device"),
        ("/disks/1/device", json!("disk"), "disks[1].device"),
        ("/media/0/label", json!("x".repeat(40)), "media[0].label"),
        ("/media/0/files/0/path", json!("../x"), "media[0].files"),
        ("/media/0/files/0/path", json!("a//../b"), "media[0].files"),
        ("/interfaces/0/tap", json!("a/b"), "interfaces[0].tap"),
        ("/interfaces/0/tap", json!("abcdefghijklmnop"), "interfaces[0].tap"),
        ("/interfaces/0/mac", json!("01:00:00:00:00:01"), "interfaces[0].mac"),
        ("/interfaces/0/mac", json!("02:00:00:00:01"), "interfaces[0].mac"),
        ("/interfaces/0/mac", json!("02-00-00-00-00-01"), "interfaces[0].mac"),
        ("/interfaces/0/mtu", json!(67), "interfaces[0].mtu"),
        ("/interfaces/0/queues", json!(257), "interfaces[0].queues"),
        ("/interfaces/0/pciAddress", json!("0000:21:00.0"), "interfaces[0].pciAddress"),
        ("/interfaces/0/dhcp/options/bootFile", json!(long), "interfaces[0].dhcp.options"),
        ("/interfaces/0/dhcp/options/private", json!({"223": "a"}), "interfaces[0].dhcp.options"),
        ("/hostDevices/0/name", json!("Gpu"), "hostDevices"),
        ("/mediatedDevices/0/name", json!("gpu-one"), "hostDevices"),
        ("/mediatedDevices/0/uuid", json!("../6b4f2c1e"), "mediatedDevices"),
        ("/mediatedDevices/0/display", json!(false), "mediatedDevices"),
        ("/devices/video", json!(null), "mediatedDevices"),
        ("/usbDevices/0/name", json!("gpu-two"), "hostDevices"),
        ("/usbDevices/0/address/bus", json!(0), "usbDevices"),
        ("/usbDevices/0/address/device", json!(0), "usbDevices"),
        ("/devices/usbChannels", json!(0), "devices.usbChannels"),
        ("/devices/usbChannels", json!(5), "devices.usbChannels"),
        ("/layout/ports", json!(33), "layout.ports"),
        ("/layout/slots/net-default", json!({"port": 9}), "layout.slots"),
        ("/layout/slots/net-default", json!({"conventional": 0}), "layout.slots"),
        ("/layout/slots/net-default", json!({"root": 5}), "layout.slots"),
    ] {
        let mut document = full();
        *document.pointer_mut(pointer).unwrap() = value.clone();
        match read(&document) {
            Err(LaunchError::Value { path, .. }) => assert_eq!(path, wanted, "{pointer} {value}"),
            other => panic!("{pointer} {value}: {other:?}"),
        }
    }
}

#[test]
fn pinned_guests_have_no_room_for_more_sockets() {
    let mut document = full();
    document["cpu"]["pinning"] = json!("all");
    let refused = read(&document);
    assert!(matches!(&refused, Err(LaunchError::Value { path, .. }) if path == "cpu.pinning"), "{refused:?}");
    document["cpu"]["maxSockets"] = json!(1);
    let launch = read(&document).unwrap();
    assert_eq!(launch.cpu.pinning, Some(Pinning::All));
    assert_eq!(serde_json::from_slice::<Value>(&launch.write().unwrap()).unwrap(), document);
}

#[test]
fn unreadable_documents_are_not_written() {
    let mut launch = read(&full()).unwrap();
    launch.folder = "relative".to_owned();
    assert!(matches!(launch.write(), Err(LaunchError::Value { path, .. }) if path == "folder"));
}

#[test]
fn secrets_on_media_are_not_shown() {
    let mut document = full();
    document["media"][0]["files"][0]["content"] = json!("aHVudGVyMg==");
    assert!(!format!("{:?}", read(&document).unwrap()).contains("aHVudGVyMg"));
}

#[test]
fn an_address_on_pci_has_one_form() {
    for text in ["0000:65:00.0", "ffff:ff:1f.7"] {
        assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), text);
    }
    for text in [
        "",
        "65:00.0",
        "0000:65:00",
        "0000:65:00.8",
        "0000:65:20.0",
        "0000:65:0.0",
        "+000:65:00.0",
        "../0:65:00.0",
    ] {
        assert!(text.parse::<PciAddress>().is_err(), "{text}");
    }
    let mut document = full();
    document["hostDevices"][0]["address"] = json!("65:00.0");
    assert!(matches!(read(&document), Err(LaunchError::Malformed(_))));
}

#[test]
fn an_address_on_usb_has_a_node() {
    let address = UsbAddress::parse("1:14").unwrap();
    assert_eq!((address.to_string(), address.node()), ("1:14".into(), "/dev/bus/usb/001/014".into()));
    for text in ["", "1", "1:", ":4", "1:4:5", "1:256", "../1:4"] {
        assert_eq!(UsbAddress::parse(text), None, "{text}");
    }
}
