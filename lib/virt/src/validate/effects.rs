//! Every field of a guest that the programs use, set alone: the launch document changes, or the table names the test that
//! sees the effect elsewhere (a pod, an attachment, a file).

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use api::core::{ConfigMap, Secret};
use api::kubevirt::VirtualMachineInstanceSpec;
use api::launch::{Accelerator, BlockSizes, System};
use api::resource::ObjectMeta;
use serde_json::{Value, json};

use super::rules::everything;
use crate::fields::used;
use crate::resolve::{Guest, Host, Objects, resolve};

/// Fields whose effect is not in the launch document, and the test that sees it.
const ELSEWHERE: [(&str, &str); 27] = [
    ("domain.devices.interfaces[].dhcpOptions", "options_of_the_owner_are_sent"),
    ("domain.devices.interfaces[].masquerade", "a_guest_behind_masquerade_is_wired_once"),
    ("domain.devices.interfaces[].portRanges", "only_ports_of_the_list_are_forwarded"),
    ("domain.devices.interfaces[].ports[].name", "fields_of_the_pod_change_it"),
    ("domain.devices.interfaces[].ports[].port", "a_guest_behind_masquerade_is_wired_once"),
    ("domain.devices.interfaces[].ports[].protocol", "a_guest_behind_masquerade_is_wired_once"),
    // Required by the schema, and only a name.
    ("domain.devices.sound.name", "every_row_and_every_used_field_is_where_the_types_can_have_it"),
    ("domain.devices.watchdog.name", "every_row_and_every_used_field_is_where_the_types_can_have_it"),
    ("networks[].multus.default", "every_form_of_a_definition_is_attached_or_refused_with_a_reason"),
    ("networks[].multus.networkName", "every_form_of_a_definition_is_attached_or_refused_with_a_reason"),
    ("networks[].pod.vmIPv6NetworkCIDR", "networks_that_cannot_be_attached_are_refused_by_path"),
    ("networks[].pod.vmNetworkCIDR", "networks_that_cannot_be_attached_are_refused_by_path"),
    ("volumes[].containerDisk.image", "fields_of_the_pod_change_it"),
    ("volumes[].containerDisk.imagePullPolicy", "fields_of_the_pod_change_it"),
    ("volumes[].containerDisk.imagePullSecret", "fields_of_the_pod_change_it"),
    ("volumes[].containerDisk.path", "path_of_a_container_disk_chooses_a_file_of_the_image"),
    ("volumes[].dataVolume.hotpluggable", "fields_of_the_pod_change_it"),
    ("volumes[].dataVolume.name", "fields_of_the_pod_change_it"),
    ("volumes[].emptyDisk.capacity", "disks_of_a_run_are_made_once"),
    ("volumes[].ephemeral.persistentVolumeClaim.claimName", "fields_of_the_pod_change_it"),
    ("volumes[].ephemeral.persistentVolumeClaim.readOnly", "fields_of_the_pod_change_it"),
    ("volumes[].hostDisk.capacity", "files_of_the_machine_are_used_in_allowed_directories_only"),
    ("volumes[].hostDisk.path", "files_of_the_machine_are_used_in_allowed_directories_only"),
    ("volumes[].hostDisk.type", "files_of_the_machine_are_used_in_allowed_directories_only"),
    ("volumes[].persistentVolumeClaim.claimName", "fields_of_the_pod_change_it"),
    ("volumes[].persistentVolumeClaim.hotpluggable", "fields_of_the_pod_change_it"),
    (
        "domain.devices.interfaces[].bridge",
        "a_bridged_guests_configuration_stays_after_eth0_lost_its_addresses",
    ),
];

/// Puts `patch` into `place`: objects by key (null removes), lists by index.
fn merge(place: &mut Value, patch: &Value) {
    match (place, patch) {
        (Value::Object(place), Value::Object(patch)) => {
            for (key, value) in patch {
                if value.is_null() {
                    place.remove(key);
                } else {
                    merge(place.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
        }
        (Value::Array(place), Value::Array(patch)) => {
            for (index, value) in patch.iter().enumerate() {
                if index == place.len() {
                    place.push(Value::Null);
                }
                merge(&mut place[index], value);
            }
        }
        (place, Value::Object(patch)) => {
            *place = json!({});
            patch.iter().filter(|(_, value)| !value.is_null()).for_each(|(key, value)| {
                merge(place, &json!({key.as_str(): value}));
            });
        }
        (place, other) => *place = other.clone(),
    }
}

/// A patch that sets one field; in lists that of the last element that `spec` has, or of a first one.
fn patch(spec: &Value, path: &str, value: &Value) -> Value {
    let (step, rest) = path.split_once('.').map_or((path, None), |(step, rest)| (step, Some(rest)));
    let name = step.trim_end_matches("[]");
    let below = |spec: &Value| rest.map_or_else(|| value.clone(), |rest| patch(spec, rest, value));
    if !step.ends_with("[]") {
        return json!({name: below(&spec[name])});
    }
    let last = spec[name].as_array().map_or(0, |list| list.len().saturating_sub(1));
    let mut list = vec![json!({}); last];
    list.push(below(&spec[name][last]));
    json!({name: list})
}

/// The other fields that a field needs: the first row whose path is the field's, or above it.
fn need(path: &str) -> Value {
    let disk = |disk: Value| json!({"domain": {"devices": {"disks": [disk]}}});
    let volume = |volume: Value| json!({"volumes": [{}, volume]});
    let hyperv = |features: Value| json!({"domain": {"features": {"hyperv": features}}});
    let on = || json!({"enabled": true});
    let keys = |ways: Value, drive: &str| {
        json!({
            "accessCredentials": [{"sshPublicKey": {
                "source": {"secret": {"secretName": "keys"}}, "propagationMethod": ways}}],
            "volumes": [{}, {"name": "init", drive: {"userData": "#cloud-config\n"}}],
        })
    };
    let source = |source: Value| {
        let mut volume = json!({"emptyDisk": null});
        merge_keys(&mut volume, source);
        json!({"volumes": [volume]})
    };
    let rows = [
        ("accessCredentials[].sshPublicKey.source", keys(json!({"noCloud": {}}), "cloudInitNoCloud")),
        ("domain.devices.disks[].disk", disk(json!({"disk": {"bus": "virtio"}}))),
        ("domain.devices.disks[].dedicatedIOThread", disk(json!({"disk": {"bus": "virtio"}}))),
        (
            "domain.devices.interfaces[].ports[]",
            json!({"domain": {"devices": {"interfaces": [{"ports": [{"port": 80}]}]}}}),
        ),
        ("volumes[].configMap.optional", volume(json!({"name": "v", "configMap": {"name": "missing"}}))),
        ("volumes[].secret.optional", volume(json!({"name": "v", "secret": {"secretName": "missing"}}))),
        ("volumes[].containerDisk", source(json!({"containerDisk": {"image": "i"}}))),
        ("volumes[].dataVolume", source(json!({"dataVolume": {"name": "d"}}))),
        ("volumes[].ephemeral", source(json!({"ephemeral": {"persistentVolumeClaim": {"claimName": "c"}}}))),
        (
            "volumes[].persistentVolumeClaim.readOnly",
            json!({
            "domain": {"devices": {"disks": [{"disk": {"bus": "virtio"}}]}},
            "volumes": [{"emptyDisk": null, "persistentVolumeClaim": {"claimName": "c"}}]}),
        ),
        (
            "volumes[].cloudInitConfigDrive.secretRef",
            volume(json!({"name": "init", "cloudInitConfigDrive": {}})),
        ),
        (
            "volumes[].cloudInitConfigDrive.userData",
            volume(json!({"name": "init", "cloudInitConfigDrive": {"networkData": "n"}})),
        ),
        ("volumes[].cloudInitNoCloud.secretRef", volume(json!({"name": "init", "cloudInitNoCloud": {}}))),
        (
            "volumes[].cloudInitNoCloud.userData",
            volume(json!({"name": "init", "cloudInitNoCloud": {"networkData": "n"}})),
        ),
        ("domain.cpu.features[].policy", json!({"domain": {"cpu": {"features": [{"name": "aes"}]}}})),
        (
            "domain.devices.autoattachPodInterface",
            json!({"domain": {"devices": {"interfaces": null}}, "networks": null}),
        ),
        (
            "domain.devices.blockMultiQueue",
            json!({"domain": {"cpu": {"cores": 2}, "devices": {"disks": [{"disk": {"bus": "virtio"}}]}}}),
        ),
        ("domain.devices.networkInterfaceMultiqueue", json!({"domain": {"cpu": {"cores": 2}}})),
        (
            "domain.devices.disks[].blockSize.custom",
            disk(json!({"blockSize": {"custom": {"logical": 512, "physical": 4096}}})),
        ),
        ("domain.devices.disks[].cdrom", disk(json!({"disk": null, "cdrom": {}}))),
        ("domain.devices.disks[].lun", disk(json!({"disk": null, "lun": {}}))),
        ("domain.devices.disks[].io", disk(json!({"cache": "none"}))),
        (
            "domain.devices.disks[].tag",
            volume(json!({"name": "init", "cloudInitConfigDrive": {"userData": "#cloud-config\n"}})),
        ),
        (
            "domain.devices.interfaces[].tag",
            volume(json!({"name": "init", "cloudInitConfigDrive": {"userData": "#cloud-config\n"}})),
        ),
        (
            "domain.devices.inputs[]",
            json!({"domain": {"devices": {"inputs": [{"name": "i", "type": "tablet", "bus": "usb"}]}}}),
        ),
        ("domain.devices.sound", json!({"domain": {"devices": {"sound": {"name": "s"}}}})),
        ("domain.devices.tpm", json!({"domain": {"devices": {"tpm": {}}}})),
        (
            "domain.devices.watchdog",
            json!({"domain": {"devices": {"watchdog": {"name": "w", "i6300esb": {"action": "poweroff"}}}}}),
        ),
        ("domain.features.apic", json!({"domain": {"features": {"apic": {}}}})),
        ("domain.features.hyperv.evmcs", hyperv(json!({"vapic": on()}))),
        ("domain.features.hyperv.ipi", hyperv(json!({"vpindex": on()}))),
        ("domain.features.hyperv.synic.", hyperv(json!({"vpindex": on()}))),
        (
            "domain.features.hyperv.synictimer",
            hyperv(json!({"vpindex": on(), "synic": on(), "synictimer": on()})),
        ),
        ("domain.features.hyperv.tlbflush", hyperv(json!({"vpindex": on()}))),
        ("domain.features.hyperv.spinlocks.spinlocks", hyperv(json!({"spinlocks": on()}))),
        ("domain.features.hyperv.vendorid.vendorid", hyperv(json!({"vendorid": on()}))),
        (
            "domain.firmware.bootloader.efi",
            json!({"domain": {"features": {"smm": on()}, "firmware": {"bootloader": {"efi": {}}}}}),
        ),
        ("domain.ioThreadsPolicy", json!({})),
        (
            "domain.ioThreads.",
            json!({"domain": {
            "ioThreadsPolicy": "supplementalPool", "ioThreads": {"supplementalPoolThreadCount": 1}, "cpu": {"cores": 4}}}),
        ),
        ("domain.memory.hugepages", json!({})),
        (
            "domain.resources",
            json!({"domain": {"memory": null, "resources": {"requests": {"memory": "1Gi"}}}}),
        ),
        ("hostname", volume(json!({"name": "init", "cloudInitNoCloud": {"userData": "#cloud-config\n"}}))),
        (
            "volumes[].cloudInitConfigDrive.networkData",
            volume(json!({"name": "init", "cloudInitConfigDrive": {"userData": "u"}})),
        ),
        (
            "volumes[].cloudInitNoCloud.networkData",
            volume(json!({"name": "init", "cloudInitNoCloud": {"userData": "u"}})),
        ),
        ("volumes[].configMap", volume(json!({"name": "v", "configMap": {"name": "one"}}))),
        ("volumes[].secret", volume(json!({"name": "v", "secret": {"secretName": "one"}}))),
        (
            "volumes[].sysprep.configMap",
            volume(json!({"name": "v", "sysprep": {"configMap": {"name": "one"}}})),
        ),
        ("volumes[].sysprep.secret", volume(json!({"name": "v", "sysprep": {"secret": {"name": "one"}}}))),
        (
            "volumes[].downwardAPI",
            volume(json!({"name": "v", "downwardAPI": {
            "fields": [{"path": "p", "fieldRef": {"fieldPath": "metadata.name"}}]}})),
        ),
        (
            "volumes[].hostDisk",
            json!({"volumes": [{"emptyDisk": null, "hostDisk": {"path": "/d", "type": "Disk", "capacity": "1Gi"}}]}),
        ),
        (
            "volumes[].persistentVolumeClaim",
            json!({"volumes": [{"emptyDisk": null, "persistentVolumeClaim": {"claimName": "c"}}]}),
        ),
    ];
    let found = rows.into_iter().find(|(row, _)| path.starts_with(row));
    found.map_or_else(|| json!({}), |(_, need)| need)
}

/// Changes of fields that have a meaning only together with another: the whole change, instead of a value.
fn change(path: &str) -> Option<(Value, Value)> {
    let keys = |way: &str, drive: &str| {
        let base = json!({"volumes": [{}, {"name": "init", drive: {"userData": "#cloud-config\n"}}]});
        let keys = json!({"accessCredentials": [{"sshPublicKey": {
            "source": {"secret": {"secretName": "keys"}}, "propagationMethod": {way: {}}}}]});
        Some((base, keys))
    };
    let none = json!({});
    match path {
        "accessCredentials[].sshPublicKey.propagationMethod.configDrive" => {
            keys("configDrive", "cloudInitConfigDrive")
        }
        "accessCredentials[].sshPublicKey.propagationMethod.noCloud" => keys("noCloud", "cloudInitNoCloud"),
        "domain.devices.disks[].name" | "volumes[].name" => {
            let both = json!({"domain": {"devices": {"disks": [{"name": "b"}]}}, "volumes": [{"name": "b"}]});
            Some((none, both))
        }
        "domain.devices.interfaces[].name" | "networks[].name" => {
            let both =
                json!({"domain": {"devices": {"interfaces": [{"name": "b"}]}}, "networks": [{"name": "b"}]});
            Some((none, both))
        }
        "domain.devices.interfaces[].masquerade" => {
            let base = json!({"domain": {"devices": {"interfaces": [{"masquerade": null, "bridge": {}}]}}});
            Some((base, json!({"domain": {"devices": {"interfaces": [{"bridge": null, "masquerade": {}}]}}})))
        }
        "domain.devices.interfaces[].bridge" => {
            Some((none, json!({"domain": {"devices": {"interfaces": [{"masquerade": null, "bridge": {}}]}}})))
        }
        "networks[].multus.networkName" | "networks[].multus.default" => {
            let base = json!({
                "domain": {"devices": {"interfaces": [{}, {"name": "two", "bridge": {}}]}},
                "networks": [{}, {"name": "two", "multus": {"networkName": "x"}}],
            });
            let other = match path {
                "networks[].multus.networkName" => {
                    json!({"networks": [{}, {"multus": {"networkName": "y"}}]})
                }
                _ => json!({
                    "domain": {"devices": {"interfaces": [{"masquerade": null, "bridge": {}}]}},
                    "networks": [{"pod": null, "multus": {"networkName": "z", "default": true}}],
                }),
            };
            Some((base, other))
        }
        _ => None,
    }
}

/// Adds the fields of one object to another, null too.
fn merge_keys(place: &mut Value, other: Value) {
    let (Value::Object(place), Value::Object(other)) = (place, other) else { return };
    place.extend(other);
}

/// Values to try, where the type alone gives none that fits.
fn values(path: &str, kind: &str) -> Vec<Value> {
    let words = |words: &[&str]| words.iter().map(|word| json!(word)).collect();
    match path {
        "architecture" => words(&["amd64", "arm64"]),
        "domain.clock.timer.hpet.tickPolicy"
        | "domain.clock.timer.pit.tickPolicy"
        | "domain.clock.timer.rtc.tickPolicy" => words(&["catchup", "discard", "delay"]),
        "domain.clock.timer.rtc.track" => words(&["wall", "guest"]),
        "domain.clock.timezone" => words(&["Europe/Berlin"]),
        "domain.cpu.features[].name" => words(&["aes"]),
        "domain.cpu.features[].policy" => words(&["disable", "forbid"]),
        "domain.cpu.model" => words(&["Haswell"]),
        "domain.devices.disks[].cache" => words(&["writethrough", "writeback"]),
        "domain.devices.disks[].cdrom.bus"
        | "domain.devices.disks[].disk.bus"
        | "domain.devices.disks[].lun.bus" => words(&["scsi", "sata", "virtio"]),
        "domain.devices.disks[].cdrom.tray" => words(&["open"]),
        "domain.devices.disks[].errorPolicy" => words(&["ignore", "report"]),
        "domain.devices.disks[].io" => words(&["threads", "native"]),
        "domain.devices.inputs[].bus" => words(&["virtio"]),
        "domain.devices.inputs[].type" => words(&["tablet", "keyboard"]),
        "domain.devices.interfaces[].bridge"
        | "domain.devices.interfaces[].masquerade"
        | "domain.devices.rng" => {
            vec![json!({})]
        }
        "domain.devices.disks[].disk.pciAddress" => words(&["0000:00:06.0"]),
        "domain.devices.interfaces[].pciAddress" => words(&["0000:00:07.0"]),
        "domain.devices.interfaces[].dhcpOptions" => vec![json!({"bootFileName": "boot.efi"})],
        "domain.devices.interfaces[].portRanges" => {
            vec![json!([{"protocol": "TCP", "start": 80, "end": 90}])]
        }
        "domain.devices.interfaces[].macAddress" => words(&["02:00:00:00:00:07"]),
        "domain.devices.interfaces[].ports[].protocol" => words(&["UDP"]),
        "networks[].pod.vmNetworkCIDR" => words(&["10.7.0.0/24"]),
        "networks[].pod.vmIPv6NetworkCIDR" => words(&["fd10::/120"]),
        "volumes[].emptyDisk.capacity" | "volumes[].hostDisk.capacity" => words(&["2Gi"]),
        "volumes[].hostDisk.path" => words(&["/other"]),
        "volumes[].hostDisk.type" => words(&["DiskOrCreate"]),
        "volumes[].containerDisk.imagePullPolicy" => words(&["Never"]),
        "volumes[].containerDisk.path" => words(&["/disk/other.img"]),
        "domain.devices.interfaces[].model" => words(&["e1000e"]),
        "domain.devices.interfaces[].state" => words(&["down"]),
        "domain.devices.panicDevices[].model" => words(&["isa", "hyperv"]),
        "domain.devices.sound.model" => words(&["ac97"]),
        "domain.devices.video.type" => words(&["vga", "ramfb"]),
        "domain.devices.watchdog.i6300esb.action" => words(&["reset"]),
        "domain.firmware.uuid" => words(&["5d307ca9-b3ef-428c-8861-06e72d69f223"]),
        "domain.ioThreadsPolicy" => words(&["auto", "shared"]),
        "domain.machine.type" => words(&["pc-q35-7.2"]),
        "domain.memory.guest" => words(&["2Gi"]),
        "domain.memory.hugepages.pageSize" => words(&["2Mi"]),
        "domain.memory.maxGuest" => words(&["2Gi"]),
        "domain.rebootPolicy" => words(&["Terminate"]),
        "domain.resources.limits" => vec![json!({"memory": "2Gi", "cpu": "3"})],
        "domain.resources.requests" => vec![json!({"memory": "2Gi"})],
        "startStrategy" => words(&["Paused"]),
        "domain.devices.disks[].blockSize.custom.logical" => vec![json!(4096)],
        "domain.devices.disks[].blockSize.custom.physical" => vec![json!(8192)],
        "domain.features.hyperv.spinlocks.spinlocks" => vec![json!(8191)],
        "volumes[].configMap.name"
        | "volumes[].secret.secretName"
        | "volumes[].sysprep.configMap.name"
        | "volumes[].sysprep.secret.name" => words(&["other"]),
        "volumes[].configMap.volumeLabel"
        | "volumes[].secret.volumeLabel"
        | "volumes[].downwardAPI.volumeLabel" => words(&["label"]),
        "volumes[].downwardAPI.fields[].fieldRef.fieldPath" => words(&["metadata.namespace"]),
        "accessCredentials[].sshPublicKey.source" => vec![json!({"secret": {"secretName": "other"}})],
        _ if path.ends_with("Base64") => words(&["dGV4dA=="]),
        _ if path.ends_with("ecretRef.name") => words(&["one"]),
        _ => match kind {
            "boolean" => vec![json!(true), json!(false)],
            "integer" => vec![json!(2), json!(101)],
            _ => words(&["text"]),
        },
    }
}

/// The type of a field by the kind's schema.
fn kind_of(schema: &Value, path: &str) -> String {
    let place = path.split('.').fold(&schema["properties"]["spec"], |place, step| {
        let next = &place["properties"][step.trim_end_matches("[]")];
        if step.ends_with("[]") { &next["items"] } else { next }
    });
    place["type"].as_str().unwrap_or_default().to_owned()
}

/// The launch document as text with the warnings, or the errors.
fn launch(spec: &Value) -> Result<String, String> {
    let spec: VirtualMachineInstanceSpec =
        serde_json::from_value(spec.clone()).map_err(|error| error.to_string())?;
    let guest = Guest {
        metadata: ObjectMeta { name: "a".into(), namespace: Some("n".into()), ..ObjectMeta::default() },
        uid: "00000000-0000-0000-0000-000000000000".into(),
        smbios_uuid: "00000000-0000-0000-0000-000000000000".into(),
        smbios_serial: "serial".into(),
    };
    let ovmf = |name: &str| Some((format!("/ovmf/{name}"), "/ovmf/variables".to_owned()));
    let host = Host {
        accelerator: Accelerator::Kvm,
        emulator: "/usr/bin/qemu-system-x86_64".into(),
        machine: "pc-q35-9.0".into(),
        ovmf: ovmf("code"),
        ovmf_secure: ovmf("secure"),
        system: System::default(),
    };
    let mut made = everything(&spec);
    for backend in made.volumes.values_mut() {
        backend.block_sizes = Some(BlockSizes { logical: 512, physical: 4096 });
    }
    let text = |name: &str| {
        json!({"userdata": "of a secret", "networkdata": "of a secret", "key1": format!("ssh-ed25519 AAAA{name}"), "name": name,
            "autounattend.xml": name, "unattend.xml": name})
    };
    let mut objects = Objects { complete: true, ..Objects::default() };
    for name in ["one", "other", "keys"] {
        let metadata = json!({"name": name, "namespace": "n"});
        let secret: Secret =
            serde_json::from_value(json!({"metadata": metadata, "stringData": text(name)})).unwrap();
        let map: ConfigMap =
            serde_json::from_value(json!({"metadata": metadata, "data": text(name)})).unwrap();
        objects.secrets.insert(name.to_owned(), secret);
        objects.config_maps.insert(name.to_owned(), map);
    }
    let (launch, findings) = resolve(&spec, &guest, &host, &made, &objects, "spec");
    let text = launch.map(|launch| format!("{:?} {findings:?}", launch.write().unwrap()));
    text.ok_or_else(|| format!("{findings:?}"))
}

/// The text of all sources below a folder.
fn sources(folder: &Path) -> String {
    let mut all = String::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() && name != "target" && !name.to_string_lossy().starts_with('.') {
            all.push_str(&sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push_str(&fs::read_to_string(&path).unwrap_or_default());
        }
    }
    all
}

#[test]
fn every_field_in_use_changes_the_launch_document_or_has_its_own_test() {
    let base = json!({
        "domain": {
            "memory": {"guest": "1Gi"},
            "devices": {
                "disks": [{"name": "root", "disk": {}}],
                "interfaces": [{"name": "default", "masquerade": {}}],
            },
        },
        "networks": [{"name": "default", "pod": {}}],
        "volumes": [{"name": "root", "emptyDisk": {"capacity": "1Gi"}}],
    });
    let schema = api::kind::Kind::VirtualMachineInstance.schema();
    let elsewhere: BTreeSet<&str> = ELSEWHERE.iter().map(|(path, _)| *path).collect();
    let mut wrong = Vec::new();
    for path in used() {
        let mut before = base.clone();
        let whole = change(path);
        merge(&mut before, whole.as_ref().map_or(&need(path), |(base, _)| base));
        let patches: Vec<Value> = match whole {
            Some((_, change)) => vec![change],
            None => {
                let values = values(path, &kind_of(&schema, path)).into_iter();
                values.map(|value| patch(&before, path, &value)).collect()
            }
        };
        let plain = launch(&before);
        let tried: Vec<_> = patches
            .iter()
            .map(|patch| {
                let mut after = before.clone();
                merge(&mut after, patch);
                launch(&after)
            })
            .collect();
        // Accepted with another document, or (of fields with one good value) any other value is refused by the path.
        let above = path.rsplit_once('.').map_or(path, |(above, _)| above);
        let indexed = above.replace("[]", "[0]");
        let changes = tried.iter().any(|after| after.is_ok() && *after != plain);
        let refused = tried.iter().any(|after| after.as_ref().is_err_and(|text| text.contains(&indexed)));
        let seen = changes || (refused && tried.iter().any(|after| after.is_ok()));
        if seen == elsewhere.contains(path) || !tried.iter().any(Result::is_ok) {
            let before = plain.as_ref().err();
            let errors: Vec<_> = tried.iter().map(|after| after.as_ref().map(|_| "accepted")).collect();
            wrong.push(format!("{path}: {errors:?}, before: {before:?}"));
        }
    }
    let tests = sources(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").as_path());
    for (path, test) in ELSEWHERE {
        assert!(tests.contains(&format!("fn {test}(")), "{path}: there is no test {test}");
    }
    assert!(wrong.is_empty(), "{} of {}: {wrong:#?}", wrong.len(), used().count());
}
