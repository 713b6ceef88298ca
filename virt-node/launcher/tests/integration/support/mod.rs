//! A machine that has everything and a guest's volumes that are as their claims are called, so that a document in a test
//! becomes a launch document.

#![allow(dead_code, unused_imports, reason = "each package uses its part")]

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use api::core::{ConfigMap, Secret};
use api::kubevirt::{VirtualMachineInstance, Volume};
use api::launch::{
    Accelerator, BlockSizes, DiskFormat, Launch, Layout, PciAddress, Storage, System, UsbAddress, Word,
};
use api::manifest;
use api::resource::Confidential;
use virt::finding::Finding;
use virt::resolve::{Backend, Guest, Host, HostAddress, Made, Objects, Tap, resolve};

pub(crate) mod code;
pub(crate) mod program;
pub(crate) mod running;
pub(crate) mod waiting;

/// The path of a file or directory next to the launcher's tests. virt-node's tests compile this module, too.
pub(crate) fn beside(name: &str) -> PathBuf {
    let package = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let launcher = if package.ends_with("launcher") { package } else { package.join("launcher") };
    launcher.join("tests/integration").join(name)
}

/// The instance of a text with one document.
pub(crate) fn instance(text: &str) -> VirtualMachineInstance {
    let documents = manifest::documents(text.as_bytes()).unwrap();
    assert_eq!(documents.len(), 1);
    documents[0].read().unwrap()
}

/// The instance of a file of `domain`.
pub(crate) fn golden(name: &str) -> VirtualMachineInstance {
    instance(&fs::read_to_string(beside("domain").join(format!("{name}.yaml"))).unwrap())
}

/// The machine: TCG, or the accelerator in the annotation `test/accelerator`.
fn host(instance: &VirtualMachineInstance) -> Host {
    let word = instance.metadata.annotations.get("test/accelerator").map_or("tcg", String::as_str);
    let ovmf = |suffix: &str| {
        Some((
            format!("/usr/share/OVMF/OVMF_CODE_4M{suffix}.fd"),
            format!("/usr/share/OVMF/OVMF_VARS_4M{suffix}.fd"),
        ))
    };
    Host {
        accelerator: Accelerator::from_word(word).unwrap(),
        emulator: "/usr/bin/qemu-system-x86_64".to_owned(),
        machine: "pc-q35-7.2".to_owned(),
        ovmf: ovmf(""),
        ovmf_secure: ovmf(".ms"),
        system: System::default(),
    }
}

/// A volume: a raw file; a block device where the claim is called `block`, all of its blocks there where it is called
/// `preallocated`; an overlay where it is an image.
fn backend(volume: &Volume) -> Option<Backend> {
    let claim = volume.persistent_volume_claim.as_ref().map(|claim| claim.claim_name.as_str());
    let file = |name: &str, format, backing| Storage {
        path: format!("/volumes/{}{name}", volume.name),
        block: false,
        format,
        backing,
    };
    let image = volume.container_disk.is_some() || volume.ephemeral.is_some();
    let made_elsewhere = claim.is_some()
        || volume.data_volume.is_some()
        || volume.empty_disk.is_some()
        || volume.host_disk.is_some();
    let storage = match claim {
        Some("block") => Storage {
            path: format!("/dev/{}", volume.name),
            block: true,
            format: DiskFormat::Raw,
            backing: None,
        },
        _ if image => file(
            "/overlay.qcow2",
            DiskFormat::Qcow2,
            Some(Box::new(file("/disk.img", DiskFormat::Raw, None))),
        ),
        _ if volume.empty_disk.is_some() => file("/disk.qcow2", DiskFormat::Qcow2, None),
        _ if made_elsewhere => file("/disk.img", DiskFormat::Raw, None),
        _ => return None,
    };
    Some(Backend {
        block_sizes: storage.block.then_some(BlockSizes { logical: 4096, physical: 4096 }),
        storage,
        direct: true,
        preallocated: claim == Some("preallocated"),
    })
}

fn objects() -> Objects {
    let text = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
    let secret = Secret {
        data: BTreeMap::from([("userdata".to_owned(), Confidential("dXNlcg==".to_owned()))]),
        string_data: BTreeMap::from([("networkdata".to_owned(), Confidential("network".to_owned()))]),
        ..Secret::default()
    };
    let map = ConfigMap {
        data: text("autounattend.xml", "<unattend/>"),
        binary_data: text("b", "AAE="),
        ..ConfigMap::default()
    };
    Objects {
        secrets: BTreeMap::from([("secret".to_owned(), secret)]),
        config_maps: BTreeMap::from([("map".to_owned(), map)]),
        complete: true,
        ..Objects::default()
    }
}

/// Resolves an instance with its devices placed by `layout`.
pub(crate) fn resolved(instance: &VirtualMachineInstance, layout: Layout) -> (Option<Launch>, Vec<Finding>) {
    let mut metadata = instance.metadata.clone();
    metadata.namespace = Some("default".to_owned());
    metadata.annotations.clear();
    let guest = Guest {
        metadata,
        uid: "00000000-0000-4000-8000-00000000000a".to_owned(),
        smbios_uuid: "00000000-0000-4000-8000-00000000000b".to_owned(),
        smbios_serial: "00000000-0000-4000-8000-00000000000c".to_owned(),
    };
    let spec = &instance.spec;
    let volumes = spec.volumes.iter().filter_map(|one| Some((one.name.clone(), backend(one)?))).collect();
    let names = spec.domain.devices.interfaces.iter().map(|one| one.name.clone());
    let names = names.chain(["default".to_owned()]);
    let taps = names.enumerate().map(|(index, name)| {
        let mac = format!("02:00:00:00:00:{index:02x}");
        (name, Tap { link: format!("tap{index}"), mac, mtu: 1400, many_queues: true, dhcp: None })
    });
    let pci = |bus| HostAddress::Pci(PciAddress { domain: 0, bus, slot: 0, function: 1 });
    let mediated = |last| HostAddress::Mediated(format!("00000000-0000-4000-8000-0000000000{last}"));
    let usb = |devices: &[u8]| {
        HostAddress::Usb(devices.iter().map(|&device| UsbAddress { bus: 1, device }).collect())
    };
    let host_devices = BTreeMap::from([
        ("example.com/card".to_owned(), vec![pci(0x65), pci(0xb3)]),
        ("example.com/share".to_owned(), vec![mediated("d1"), mediated("d2"), mediated("d3")]),
        ("example.com/stick".to_owned(), vec![usb(&[4])]),
        ("example.com/desk".to_owned(), vec![usb(&[5, 7])]),
    ]);
    let made = Made {
        folder: "/run/ferrovirt/guest".to_owned(),
        state: "/var/lib/ferrovirt/guest".to_owned(),
        volumes,
        taps: taps.collect(),
        host_devices,
        own_cpus: true,
        layout,
    };
    resolve(spec, &guest, &host(instance), &made, &objects(), "spec")
}

/// The launch document of an instance without faults.
pub(crate) fn launch(instance: &VirtualMachineInstance, layout: Layout) -> Launch {
    let (launch, findings) = resolved(instance, layout);
    launch.unwrap_or_else(|| panic!("{findings:#?}"))
}
