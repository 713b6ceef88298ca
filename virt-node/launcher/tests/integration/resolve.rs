//! Rules between fields, and defaults: tables of small changes to a guest, with the expected findings.

use api::kubevirt::VirtualMachineInstance;
use api::launch::{Bus, Cache, CpuModel, Firmware, Io, Launch, Layout, Media, Pinning};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use virt::finding::Verdict;

use crate::support;

/// A guest without faults.
fn guest() -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": "vm", "labels": {"app": "a", "b": "c\"d"}},
        "spec": {
            "domain": {
                "memory": {"guest": "1Gi"},
                "cpu": {},
                "devices": {
                    "disks": [{"name": "root", "disk": {"bus": "virtio"}}, {"name": "init", "cdrom": {}}],
                    "interfaces": [{"name": "default", "masquerade": {}}],
                },
            },
            "networks": [{"name": "default", "pod": {}}],
            "volumes": [
                {"name": "root", "persistentVolumeClaim": {"claimName": "a"}},
                {"name": "init", "cloudInitNoCloud": {"userData": "#!/bin/sh"}},
            ],
        },
    })
}

/// The guest with one field set, by its pointer below the spec; null takes it away, and maps on the way are made.
fn with(pointer: &str, value: Value) -> VirtualMachineInstance {
    let mut document = guest();
    let mut place = &mut document["spec"];
    let (above, last) = pointer.rsplit_once('/').unwrap();
    for step in above.split('/').skip(1) {
        place = match step.parse::<usize>() {
            Ok(index) => &mut place[index],
            Err(_) => &mut place[step],
        };
    }
    match (last.parse::<usize>(), value) {
        (Ok(index), value) => {
            let list = place.as_array_mut().unwrap();
            list.resize((index + 1).max(list.len()), Value::Null);
            list[index] = value;
        }
        (Err(_), Value::Null) => drop(place.as_object_mut().unwrap().remove(last)),
        (Err(_), value) => place[last] = value,
    }
    serde_json::from_value(document).unwrap()
}

fn launch(pointer: &str, value: Value) -> Launch {
    support::launch(&with(pointer, value), Layout::default())
}

#[test]
fn errors_are_reported_by_field() {
    let disks = "/domain/devices/disks";
    let cards = "/domain/devices/interfaces";
    let kernel = |container: Value| json!({"kernelBoot": {"container": container}});
    let key = |method: Value| {
        let source = json!({"secret": {"secretName": "a"}});
        json!([{"sshPublicKey": {"source": source, "propagationMethod": method}}])
    };
    for (pointer, value, wanted) in [
        ("/domain/memory/guest".to_owned(), json!(null), "domain.memory.guest"),
        ("/domain/memory/guest".into(), json!("1Gib"), "domain.memory.guest"),
        ("/domain/memory/guest".into(), json!(0), "domain.memory.guest"),
        ("/domain/memory/guest".into(), json!("100Ti"), "domain.memory.guest"),
        ("/domain/memory/maxGuest".into(), json!("1Mi"), "domain.memory.maxGuest"),
        ("/domain/memory/hugepages".into(), json!({"pageSize": "4Ki"}), "domain.memory.hugepages.pageSize"),
        ("/domain/memory/hugepages".into(), json!({}), "domain.memory.hugepages.pageSize"),
        ("/domain/resources".into(), json!({"limits": {"memory": "1Mi"}}), "domain.resources.limits.memory"),
        ("/domain/resources".into(), json!({"requests": {"cpu": "many"}}), "domain.resources.requests.cpu"),
        ("/domain/cpu/cores".into(), json!(0), "domain.cpu.cores"),
        ("/domain/cpu/cores".into(), json!(u32::MAX), "domain.cpu"),
        ("/domain/cpu/maxSockets".into(), json!(0), "domain.cpu.maxSockets"),
        ("/domain/cpu/maxSockets".into(), json!(1000), "domain.cpu.maxSockets"),
        (
            "/domain/cpu/features".into(),
            json!([{"name": "a", "policy": "b"}]),
            "domain.cpu.features[0].policy",
        ),
        ("/domain/machine".into(), json!({"type": "pc-i440fx-7.2"}), "domain.machine.type"),
        ("/domain/devices/gpus".into(), json!([{"name": "a"}]), "domain.devices.gpus[0].deviceName"),
        (
            "/domain/devices/gpus".into(),
            json!([{"name": "A", "deviceName": "example.com/card"}]),
            "domain.devices.gpus[0].name",
        ),
        // The pod has two.
        (
            "/domain/devices/hostDevices".into(),
            json!(["a", "b", "c"].map(|name| json!({"name": name, "deviceName": "example.com/card"}))),
            "domain.devices.hostDevices[2].deviceName",
        ),
        (
            "/domain/devices/gpus".into(),
            json!([{"name": "a", "deviceName": "example.com/stick"}]),
            "domain.devices.gpus[0].deviceName",
        ),
        ("/domain/firmware".into(), json!({"uuid": "x"}), "domain.firmware.uuid"),
        (
            "/domain/firmware".into(),
            json!({"bootloader": {"bios": {}, "efi": {}}}),
            "domain.firmware.bootloader",
        ),
        (
            "/domain/firmware".into(),
            json!({"bootloader": {"efi": {}}}),
            "domain.firmware.bootloader.efi.secureBoot",
        ),
        ("/domain/clock".into(), json!({"timezone": "Berlin\n"}), "domain.clock.timezone"),
        ("/domain/clock".into(), json!({"timezone": "A/B", "utc": {}}), "domain.clock"),
        (
            "/domain/clock".into(),
            json!({"timer": {"rtc": {"tickPolicy": "x"}}}),
            "domain.clock.timer.rtc.tickPolicy",
        ),
        (
            "/domain/clock".into(),
            json!({"timer": {"pit": {"track": "guest"}}}),
            "domain.clock.timer.pit.track",
        ),
        ("/domain/features".into(), json!({"hyperv": {"ipi": {}}}), "domain.features.hyperv.ipi"),
        ("/domain/rebootPolicy".into(), json!("Twice"), "domain.rebootPolicy"),
        ("/domain/ioThreadsPolicy".into(), json!("all"), "domain.ioThreadsPolicy"),
        (
            "/domain/ioThreadsPolicy".into(),
            json!("supplementalPool"),
            "domain.ioThreads.supplementalPoolThreadCount",
        ),
        ("/domain/devices/video".into(), json!({"type": "qxl"}), "domain.devices.video.type"),
        ("/domain/devices/watchdog".into(), json!({"name": "a"}), "domain.devices.watchdog"),
        (
            "/domain/devices/inputs".into(),
            json!([{"name": "a", "type": "mouse"}]),
            "domain.devices.inputs[0].type",
        ),
        (
            "/domain/firmware".into(),
            kernel(json!({"kernelPath": "/k"})),
            "domain.firmware.kernelBoot.container.image",
        ),
        (
            "/domain/firmware".into(),
            kernel(json!({"image": "a", "initrdPath": "/i"})),
            "domain.firmware.kernelBoot.container.kernelPath",
        ),
        (
            "/domain/firmware".into(),
            kernel(json!({"image": "a", "kernelPath": "/k", "initrdPath": "../i"})),
            "domain.firmware.kernelBoot.container.initrdPath",
        ),
        (
            "/domain/firmware".into(),
            json!({"kernelBoot": {"kernelArgs": "a"}}),
            "domain.firmware.kernelBoot.container",
        ),
        ("/accessCredentials".into(), json!([{}]), "accessCredentials[0]"),
        (
            "/accessCredentials".into(),
            json!([{"sshPublicKey": {"source": {}, "propagationMethod": {"noCloud": {}}}}]),
            "accessCredentials[0].sshPublicKey.source",
        ),
        (
            "/accessCredentials".into(),
            json!([{"sshPublicKey": {
                "source": {"secret": {"secretName": "a/b"}}, "propagationMethod": {"qemuGuestAgent": {"users": ["ann"]}},
            }}]),
            "accessCredentials[0].sshPublicKey.source.secret.secretName",
        ),
        ("/accessCredentials".into(), key(json!({})), "accessCredentials[0].sshPublicKey.propagationMethod"),
        (
            "/accessCredentials".into(),
            key(json!({"configDrive": {}})),
            "accessCredentials[0].sshPublicKey.propagationMethod",
        ),
        (
            "/accessCredentials".into(),
            key(json!({"qemuGuestAgent": {"users": []}})),
            "accessCredentials[0].sshPublicKey.propagationMethod",
        ),
        (
            "/volumes/2".into(),
            json!({"name": "t", "serviceAccount": {}}),
            "volumes[2].serviceAccount.serviceAccountName",
        ),
        ("/startStrategy".into(), json!("Later"), "startStrategy"),
        ("/architecture".into(), json!("arm64"), "architecture"),
        ("/hostname".into(), json!("a_b"), "hostname"),
        (format!("{disks}/0/name"), json!("a/b"), "domain.devices.disks[0].name"),
        (format!("{disks}/0/name"), json!("other"), "domain.devices.disks[0].name"),
        (format!("{disks}/1/name"), json!("root"), "domain.devices.disks[1].name"),
        (format!("{disks}/0/cdrom"), json!({}), "domain.devices.disks[0]"),
        (format!("{disks}/0/disk/bus"), json!("ide"), "domain.devices.disks[0].disk.bus"),
        (format!("{disks}/0/disk"), json!({"readonly": true}), "domain.devices.disks[0].disk.readonly"),
        (format!("{disks}/1/cdrom/bus"), json!("virtio"), "domain.devices.disks[1].cdrom.bus"),
        (format!("{disks}/1/cdrom/readonly"), json!(false), "domain.devices.disks[1].cdrom.readonly"),
        (format!("{disks}/1/cdrom/tray"), json!("ajar"), "domain.devices.disks[1].cdrom.tray"),
        (format!("{disks}/0/cache"), json!("unsafe"), "domain.devices.disks[0].cache"),
        (format!("{disks}/0/io"), json!("uring"), "domain.devices.disks[0].io"),
        (format!("{disks}/0/errorPolicy"), json!("panic"), "domain.devices.disks[0].errorPolicy"),
        (format!("{disks}/0/serial"), json!("a b"), "domain.devices.disks[0].serial"),
        (format!("{disks}/0/bootOrder"), json!(0), "domain.devices.disks[0].bootOrder"),
        (format!("{disks}/0/blockSize"), json!({}), "domain.devices.disks[0].blockSize"),
        (
            format!("{disks}/0/blockSize"),
            json!({"custom": {"logical": 4096, "physical": 512}}),
            "domain.devices.disks[0].blockSize.custom",
        ),
        (format!("{disks}/1/dedicatedIOThread"), json!(true), "domain.devices.disks[1].dedicatedIOThread"),
        (format!("{cards}/0/name"), json!("other"), "domain.devices.interfaces[0].name"),
        (format!("{cards}/0/bridge"), json!({}), "domain.devices.interfaces[0]"),
        (format!("{cards}/0/masquerade"), json!(null), "domain.devices.interfaces[0]"),
        (format!("{cards}/0/model"), json!("igb"), "domain.devices.interfaces[0].model"),
        (
            format!("{cards}/0/macAddress"),
            json!("03:00:00:00:00:01"),
            "domain.devices.interfaces[0].macAddress",
        ),
        (format!("{cards}/0/macAddress"), json!("02:00:00:00:00"), "domain.devices.interfaces[0].macAddress"),
        (format!("{cards}/0/ports"), json!([{"port": 0}]), "domain.devices.interfaces[0].ports[0].port"),
        (
            format!("{cards}/0/ports"),
            json!([{"port": 1, "protocol": "SCTP"}]),
            "domain.devices.interfaces[0].ports[0].protocol",
        ),
        (
            format!("{cards}/0/portRanges"),
            json!([{"protocol": "SCTP", "start": 80, "end": 90}]),
            "domain.devices.interfaces[0].portRanges[0].protocol",
        ),
        (
            format!("{cards}/0/portRanges"),
            json!([{"protocol": "TCP", "start": 0, "end": 90}]),
            "domain.devices.interfaces[0].portRanges[0].start",
        ),
        (
            format!("{cards}/0/portRanges"),
            json!([{"protocol": "TCP", "start": 80, "end": 70000}]),
            "domain.devices.interfaces[0].portRanges[0].end",
        ),
        (
            format!("{cards}/0/portRanges"),
            json!([{"protocol": "TCP", "start": 100, "end": 80}]),
            "domain.devices.interfaces[0].portRanges[0].start",
        ),
        (
            format!("{cards}/0/portRanges"),
            json!([{"protocol": "TCP", "start": 150, "end": 300}, {"protocol": "TCP", "start": 80, "end": 150}]),
            "domain.devices.interfaces[0].portRanges",
        ),
        (
            format!("{cards}/0"),
            json!({
                "name": "default", "masquerade": {}, "ports": [{"port": 1}],
                "portRanges": [{"protocol": "TCP", "start": 1, "end": 1}],
            }),
            "domain.devices.interfaces[0].name",
        ),
        (
            format!("{cards}/0"),
            json!({"name": "default", "bridge": {}, "portRanges": [{"protocol": "UDP", "start": 1, "end": 1}]}),
            "domain.devices.interfaces[0].name",
        ),
        (format!("{cards}/0/pciAddress"), json!("0000:80.10.1"), "domain.devices.interfaces[0].pciAddress"),
        (
            format!("{disks}/0/disk"),
            json!({"bus": "sata", "pciAddress": "0000:00:06.0"}),
            "domain.devices.disks[0].disk.pciAddress",
        ),
        (format!("{cards}/0/state"), json!("sideways"), "domain.devices.interfaces[0].state"),
        (
            format!("{cards}/0/dhcpOptions"),
            json!({"ntpServers": ["host"]}),
            "domain.devices.interfaces[0].dhcpOptions.ntpServers[0]",
        ),
        ("/networks/0".into(), json!({"name": "default"}), "networks[0]"),
        ("/networks/0".into(), json!({"name": "default", "multus": {}}), "networks[0].multus.networkName"),
        ("/networks/1".into(), json!({"name": "more", "pod": {}}), "networks[1].name"),
        ("/volumes/0/name".into(), json!("."), "volumes[0].name"),
        ("/volumes/0".into(), json!({"name": "root"}), "volumes[0]"),
        ("/volumes/0/emptyDisk".into(), json!({"capacity": "1Gi"}), "volumes[0]"),
        ("/volumes/0".into(), json!({"name": "root", "emptyDisk": {}}), "volumes[0].emptyDisk.capacity"),
        (
            "/volumes/0".into(),
            json!({"name": "root", "hostDisk": {"path": "/srv/../etc/shadow", "type": "Disk"}}),
            "volumes[0].hostDisk.path",
        ),
        (
            "/volumes/0".into(),
            json!({"name": "root", "containerDisk": {"image": "a", "path": "../../etc/shadow"}}),
            "volumes[0].containerDisk.path",
        ),
        ("/volumes/1/cloudInitNoCloud".into(), json!({}), "volumes[1].cloudInitNoCloud"),
        (
            "/volumes/1/cloudInitNoCloud/userDataBase64".into(),
            json!("YQ=="),
            "volumes[1].cloudInitNoCloud.userData",
        ),
        (
            "/volumes/1/cloudInitNoCloud".into(),
            json!({"userDataBase64": "%"}),
            "volumes[1].cloudInitNoCloud.userDataBase64",
        ),
        (
            "/volumes/1/cloudInitNoCloud".into(),
            json!({"secretRef": {"name": "nobody"}}),
            "volumes[1].cloudInitNoCloud.secretRef.name",
        ),
        (
            "/volumes/1/cloudInitNoCloud/userData".into(),
            json!("x".repeat(10 << 20)),
            "volumes[1].cloudInitNoCloud",
        ),
        (
            "/volumes/1".into(),
            json!({"name": "init", "configMap": {"name": "nobody"}}),
            "volumes[1].configMap.name",
        ),
        (
            "/volumes/1".into(),
            json!({"name": "init", "secret": {"secretName": "secret", "volumeLabel": "a/b"}}),
            "volumes[1].secret.volumeLabel",
        ),
        ("/volumes/1".into(), json!({"name": "init", "sysprep": {}}), "volumes[1].sysprep"),
        (
            "/volumes/1".into(),
            json!({"name": "init", "downwardAPI": {"fields": [{"path": "../x", "fieldRef": {"fieldPath": "metadata.name"}}]}}),
            "volumes[1].downwardAPI.fields[0].path",
        ),
        (
            "/volumes/1".into(),
            json!({"name": "init", "downwardAPI": {"fields": [{"path": "x", "fieldRef": {"fieldPath": "spec.nodeName"}}]}}),
            "volumes[1].downwardAPI.fields[0].fieldRef.fieldPath",
        ),
    ] {
        let (launch, findings) = support::resolved(&with(&pointer, value), Layout::default());
        assert!(launch.is_none(), "{pointer}");
        let wanted = format!("spec.{wanted}");
        let errors: Vec<_> = findings.iter().filter(|one| one.verdict == Verdict::Error).collect();
        assert!(errors.iter().any(|one| one.path == wanted), "{pointer}: {wanted} is not among {errors:#?}");
    }
}

#[test]
fn addresses_without_a_place_are_reported_and_others_assigned() {
    for (card, disk, wanted) in [
        ("0000:81:01.0", "0000:00:06.0", "spec.domain.devices.interfaces[0].pciAddress"),
        ("0000:00:07.0", "0000:00:05.0", "spec.domain.devices.disks[0].disk.pciAddress"),
        ("0000:00:07.0", "0000:00:07.0", "spec.domain.devices.disks[0].disk.pciAddress"),
    ] {
        let mut document = guest();
        let devices = &mut document["spec"]["domain"]["devices"];
        devices["interfaces"][0]["pciAddress"] = json!(card);
        devices["disks"][0]["disk"]["pciAddress"] = json!(disk);
        let instance = serde_json::from_value(document).unwrap();
        let (launch, findings) = support::resolved(&instance, Layout::default());
        let told: Vec<_> = findings.iter().map(|one| (one.path.as_str(), one.verdict)).collect();
        assert_eq!(told, [(wanted, Verdict::Unsupported)], "{card} {disk}");
        let launch = launch.unwrap();
        let cards = launch.interfaces.iter().filter_map(|one| one.pci_address);
        let placed = cards.chain(launch.disks.iter().filter_map(|one| one.pci_address)).count();
        assert_eq!(placed, 1, "{card} {disk}: the other device keeps its address");
    }
}

#[test]
fn all_errors_are_reported_at_once() {
    let mut document = guest();
    document["spec"]["domain"]["memory"] = json!({});
    document["spec"]["domain"]["devices"]["disks"][0]["cache"] = json!("x");
    document["spec"]["networks"] = json!([]);
    let (launch, findings) = support::resolved(&serde_json::from_value(document).unwrap(), Layout::default());
    assert!(launch.is_none());
    assert_eq!(findings.len(), 3, "{findings:#?}");
}

#[test]
fn memory_is_whole_mebibytes_and_grows_fourfold_from_one_gibibyte() {
    for (guest, wanted) in [
        ("1Gi", (1 << 30, 4_u64 << 30)),
        ("512Mi", (512 << 20, 512 << 20)),
        ("1000M", (954 << 20, 954 << 20)),
        ("1025Mi", (1025 << 20, (4 * 1025) << 20)),
    ] {
        let memory = launch("/domain/memory/guest", json!(guest)).memory;
        let (least, most) = (memory.guest, memory.max_guest);
        assert_eq!(least, wanted.0, "{guest}");
        assert!(most <= wanted.1 && wanted.1 - most < 2 << 20, "{guest}: {most}");
        assert_eq!((most - least) % (2 << 20), 0, "{guest}");
    }
}

#[test]
fn processors_come_from_the_topology_or_from_what_is_requested() {
    let cpu = launch("/domain/cpu", json!({"cores": 2, "threads": 2})).cpu;
    assert_eq!((cpu.sockets, cpu.max_sockets, cpu.cores, cpu.threads), (1, 4, 2, 2));
    let cpu = launch("/domain/resources", json!({"limits": {"cpu": "1500m"}})).cpu;
    assert_eq!((cpu.sockets, cpu.max_sockets, cpu.cores), (2, 8, 1));
    let cpu = launch("/domain/cpu", json!({"sockets": 200})).cpu;
    assert_eq!((cpu.sockets, cpu.max_sockets), (200, 512), "no more than there can be");
    for (isolated, pinning) in [(json!(null), Pinning::Vcpus), (json!(true), Pinning::All)] {
        let asked = json!({"sockets": 2, "maxSockets": 8, "dedicatedCpuPlacement": true, "isolateEmulatorThread": isolated});
        let cpu = launch("/domain/cpu", asked).cpu;
        assert_eq!((cpu.sockets, cpu.max_sockets, cpu.pinning), (2, 2, Some(pinning)));
    }
    let models = [("host-model", CpuModel::HostModel), ("host-passthrough", CpuModel::Maximum)];
    for (word, model) in models {
        assert_eq!(launch("/domain/cpu/model", json!(word)).cpu.model, model, "in software");
    }
}

#[test]
fn disks_are_sata_and_as_direct_as_their_storage() {
    let disk = |value: Value| launch("/domain/devices/disks/0", value).disks[0].clone();
    let root = disk(json!({"name": "root"}));
    assert_eq!((root.bus, root.cache, root.io, root.boot_order), (Bus::Sata, Cache::None, None, Some(1)));
    assert!(root.discard && !root.read_only);
    assert_eq!(disk(json!({"name": "root", "cache": "writeback"})).io, None);
    let launch = launch("/volumes/0/persistentVolumeClaim/claimName", json!("preallocated"));
    assert_eq!((launch.disks[0].io, launch.disks[0].discard), (Some(Io::Native), false));
    let media = &launch.disks[1];
    assert!(media.read_only && media.boot_order.is_none() && media.media == Media::Medium("init".to_owned()));
}

#[test]
fn a_read_only_claim_and_a_shared_file_of_the_host_change_their_disks() {
    let volume = |value: Value| launch("/volumes/0", value).disks[0].clone();
    let claim = |read_only| json!({"name": "root", "persistentVolumeClaim": {"claimName": "a", "readOnly": read_only}});
    let (open, closed) = (volume(claim(false)), volume(claim(true)));
    assert!(!open.read_only && open.discard, "{open:?}");
    assert!(closed.read_only && !closed.discard, "{closed:?}");
    let host =
        |shared| json!({"name": "root", "hostDisk": {"path": "/srv/a", "type": "Disk", "shared": shared}});
    assert!(!volume(host(false)).shareable);
    assert!(volume(host(true)).shareable);
    // The domain that libvirt gives to QEMU has both.
    let domain = |value| virt_launcher::domain(&launch("/volumes/0", value)).unwrap().xml;
    for (value, element) in [(claim(true), "<readonly/>"), (host(true), "<shareable/>")] {
        assert!(domain(value).contains(element), "{element}");
    }
    // The CD is read-only anyway.
    assert_eq!(
        domain(claim(false)).matches("<readonly/>").count() + 1,
        domain(claim(true)).matches("<readonly/>").count()
    );
}

#[test]
fn a_volume_without_a_disk_gets_one() {
    let disks = launch("/domain/devices/disks", json!([])).disks;
    let names: Vec<&str> = disks.iter().map(|disk| disk.name.as_str()).collect();
    assert_eq!(names, ["root", "init"]);
}

#[test]
fn boot_orders_that_are_given_are_all_there_are() {
    let launch = launch("/domain/devices/interfaces/0/bootOrder", json!(1));
    assert_eq!(launch.interfaces[0].boot_order, Some(1));
    assert!(launch.disks.iter().all(|disk| disk.boot_order.is_none()));
}

#[test]
fn variables_are_kept_where_they_are_asked_to_be() {
    for (persistent, folder) in [(true, "/var/lib/ferrovirt/guest"), (false, "/run/ferrovirt/guest")] {
        let efi = json!({"bootloader": {"efi": {"secureBoot": false, "persistent": persistent}}});
        let Firmware::Efi(efi) = launch("/domain/firmware", efi).firmware else { panic!() };
        assert_eq!(efi.variables, format!("{folder}/nvram.fd"));
    }
}

#[test]
fn a_guest_without_interfaces_has_one_on_the_pod_network_unless_disabled() {
    let mut document = guest();
    document["spec"]["networks"] = json!([]);
    document["spec"]["domain"]["devices"]["interfaces"] = json!([]);
    let count = |document: &Value| {
        let instance = serde_json::from_value(document.clone()).unwrap();
        support::launch(&instance, Layout::default()).interfaces.len()
    };
    assert_eq!(count(&document), 1);
    document["spec"]["domain"]["devices"]["autoattachPodInterface"] = json!(false);
    assert_eq!(count(&document), 0);
}

/// The files of the guest's medium.
fn files(volume: Value) -> (String, Vec<(String, String)>) {
    let launch = launch("/volumes/1", volume);
    let medium = &launch.media[0];
    let text = |content: &str| String::from_utf8(STANDARD.decode(content).unwrap()).unwrap();
    let files = medium.files.iter().map(|file| (file.path.clone(), text(&file.content.0)));
    (medium.label.clone(), files.collect())
}

#[test]
fn media_hold_what_guests_look_for() {
    let pairs = |list: &[(&str, &str)]| -> Vec<(String, String)> {
        list.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
    };
    let meta = "{\"instance-id\":\"vm.default\",\"local-hostname\":\"vm\"}";
    for (source, label, wanted) in [
        (
            json!({"cloudInitNoCloud": {"userData": "a"}}),
            "cidata",
            pairs(&[("meta-data", meta), ("user-data", "a")]),
        ),
        (
            json!({"cloudInitNoCloud": {"userDataBase64": "YQ==", "networkDataBase64": "Yg=="}}),
            "cidata",
            pairs(&[("meta-data", meta), ("network-config", "b"), ("user-data", "a")]),
        ),
        (
            json!({"cloudInitNoCloud": {"secretRef": {"name": "secret"}}}),
            "cidata",
            pairs(&[("meta-data", meta), ("network-config", "network"), ("user-data", "user")]),
        ),
        (
            json!({"secret": {"secretName": "secret"}}),
            "cfgdata",
            pairs(&[("networkdata", "network"), ("userdata", "user")]),
        ),
        (
            json!({"configMap": {"name": "map", "volumeLabel": "OEMDRV"}}),
            "OEMDRV",
            pairs(&[("autounattend.xml", "<unattend/>"), ("b", "\u{0}\u{1}")]),
        ),
        (json!({"configMap": {"name": "nobody", "optional": true}}), "cfgdata", pairs(&[])),
        (
            json!({"downwardAPI": {"fields": [
                {"path": "a/labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                {"path": "app", "fieldRef": {"fieldPath": "metadata.labels['app']"}},
                {"path": "where", "fieldRef": {"fieldPath": "metadata.namespace"}},
            ]}}),
            "cfgdata",
            pairs(&[("a/labels", "app=\"a\"\nb=\"c\\\"d\""), ("app", "a"), ("where", "default")]),
        ),
    ] {
        let mut volume = source.clone();
        volume["name"] = json!("init");
        assert_eq!(files(volume), (label.to_owned(), wanted), "{source}");
    }
    let (label, files) =
        files(json!({"name": "init", "cloudInitConfigDrive": {"userData": "a", "networkData": "{}"}}));
    assert_eq!(label, "config-2");
    let paths: Vec<&str> = files.iter().map(|(path, _)| path.as_str()).collect();
    let wanted =
        ["meta_data.json", "network_data.json", "user_data"].map(|name| format!("openstack/latest/{name}"));
    assert_eq!(paths, wanted);
    let meta: Value = serde_json::from_str(&files[0].1).unwrap();
    assert_eq!((&meta["instance_id"], &meta["hostname"]), (&json!("vm.default"), &json!("vm")));
}

#[test]
fn ssh_keys_are_on_the_cd_that_their_credential_names() {
    for (method, source, file, field) in [
        ("noCloud", "cloudInitNoCloud", "meta-data", "public-keys"),
        ("configDrive", "cloudInitConfigDrive", "openstack/latest/meta_data.json", "public_keys"),
    ] {
        for (of, wanted) in [(method, json!({"0": "network", "1": "user"})), ("qemuGuestAgent", Value::Null)]
        {
            let mut document = guest();
            let key = json!({"source": {"secret": {"secretName": "secret"}}, "propagationMethod": {of: {"users": ["ann"]}}});
            document["spec"]["accessCredentials"] = json!([{"sshPublicKey": key}]);
            document["spec"]["volumes"][1] = json!({"name": "init", source: {"userData": "a"}});
            let launch = support::launch(&serde_json::from_value(document).unwrap(), Layout::default());
            let meta = launch.media[0].files.iter().find(|one| one.path == file).unwrap();
            let meta: Value = serde_json::from_slice(&STANDARD.decode(&meta.content.0).unwrap()).unwrap();
            assert_eq!(meta[field], wanted, "{source} {of}");
        }
    }
}

#[test]
fn features_that_need_kvm_are_dropped_under_tcg_and_reported() {
    let instance = with("/domain/features", json!({"kvm": {"hidden": true}, "hyperv": {"relaxed": {}}}));
    let (launch, findings) = support::resolved(&instance, Layout::default());
    let features = launch.unwrap().features;
    assert!(!features.kvm_hidden && features.hyperv.is_none());
    let told: Vec<_> = findings.iter().map(|one| (one.path.as_str(), one.verdict)).collect();
    assert_eq!(
        told,
        [("spec.domain.features.kvm", Verdict::Ignored), ("spec.domain.features.hyperv", Verdict::Ignored)]
    );
}
