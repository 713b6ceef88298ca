//! Instance types and preferences as tables: conflicts, blanks, topologies, requirements, inference, revisions.

use serde_json::{Value, json};

use super::*;

fn flavor(instancetype: Value, preference: Value) -> Flavor {
    Flavor {
        instancetype: (!instancetype.is_null()).then(|| serde_json::from_value(instancetype).unwrap()),
        preference: (!preference.is_null()).then(|| serde_json::from_value(preference).unwrap()),
    }
}

fn small() -> Value {
    json!({"cpu": {"guest": 4}, "memory": {"guest": "4Gi"}})
}

fn applied(flavor: &Flavor, spec: Value) -> Result<Value, Conflicts> {
    let mut spec: VirtualMachineInstanceSpec = serde_json::from_value(spec).unwrap();
    let mut metadata = ObjectMeta::default();
    apply(flavor, &mut metadata, &mut spec)?;
    let mut all = serde_json::to_value(&spec).unwrap();
    all["annotations"] = json!(metadata.annotations);
    Ok(all)
}

#[test]
fn fields_that_both_set_conflict_by_path() {
    let full = json!({
        "cpu": {"guest": 2, "model": "Haswell", "dedicatedCPUPlacement": true, "isolateEmulatorThread": true,
            "numa": {}, "realtime": {}, "maxSockets": 4},
        "memory": {"guest": "2Gi", "hugepages": {"pageSize": "2Mi"}, "maxGuest": "4Gi"},
        "ioThreadsPolicy": "auto", "ioThreads": {"supplementalPoolThreadCount": 2}, "launchSecurity": {"sev": {}},
        "gpus": [{"name": "g"}], "hostDevices": [{"name": "h"}], "nodeSelector": {"a": "b"}, "schedulerName": "s",
    });
    let bare = json!({"cpu": {"guest": 2}, "memory": {"guest": "2Gi"}});
    for (path, value, with_bare) in [
        ("domain.cpu.cores", json!(2), true),
        ("domain.cpu.sockets", json!(2), true),
        ("domain.cpu.threads", json!(1), true),
        ("domain.cpu.model", json!("host-model"), false),
        ("domain.cpu.maxSockets", json!(8), false),
        ("domain.cpu.dedicatedCpuPlacement", json!(true), false),
        ("domain.cpu.isolateEmulatorThread", json!(true), false),
        ("domain.cpu.numa", json!({}), false),
        ("domain.cpu.realtime", json!({}), false),
        ("domain.memory.guest", json!("1Gi"), true),
        ("domain.memory.hugepages", json!({"pageSize": "1Gi"}), false),
        ("domain.memory.maxGuest", json!("8Gi"), false),
        ("domain.resources.requests.cpu", json!("1"), true),
        ("domain.resources.limits.cpu", json!("1"), true),
        ("domain.resources.requests.memory", json!("1Gi"), true),
        ("domain.resources.limits.memory", json!("1Gi"), true),
        ("domain.ioThreadsPolicy", json!("shared"), false),
        ("domain.ioThreads", json!({}), false),
        ("domain.launchSecurity", json!({"tdx": {}}), false),
        ("domain.devices.gpus", json!([{"name": "x"}]), false),
        ("domain.devices.hostDevices", json!([{"name": "x"}]), false),
        ("nodeSelector", json!({"c": "d"}), false),
        ("schedulerName", json!("other"), false),
    ] {
        let mut spec = json!({"domain": {"devices": {}}});
        let mut at = &mut spec;
        for step in path.split('.') {
            at = &mut at[step];
        }
        *at = value;
        let conflict = vec![format!("spec.{path}")];
        assert_eq!(
            applied(&flavor(full.clone(), Value::Null), spec.clone()),
            Err(conflict.clone()),
            "{path}"
        );
        let result = applied(&flavor(bare.clone(), Value::Null), spec);
        assert_eq!(
            result.err(),
            with_bare.then_some(conflict),
            "{path} with an instance type that leaves it open"
        );
    }
}

#[test]
fn instance_type_sets_size_annotations_and_placement() {
    let size = json!({
        "annotations": {"a": "b"},
        "cpu": {"guest": 4, "model": "Haswell", "dedicatedCPUPlacement": true, "maxSockets": 8},
        "memory": {"guest": "4Gi", "overcommitPercent": 50, "hugepages": {"pageSize": "2Mi"}, "maxGuest": "8Gi"},
        "ioThreadsPolicy": "auto", "gpus": [{"name": "g", "deviceName": "d"}], "nodeSelector": {"x": "y"},
    });
    let all = applied(&flavor(size, Value::Null), json!({"domain": {"devices": {}}})).unwrap();
    let cpu = json!({"sockets": 4, "cores": 1, "threads": 1, "model": "Haswell", "dedicatedCpuPlacement": true, "maxSockets": 8});
    assert_eq!(all["domain"]["cpu"], cpu);
    let memory = json!({"guest": "4Gi", "hugepages": {"pageSize": "2Mi"}, "maxGuest": "8Gi"});
    assert_eq!(all["domain"]["memory"], memory);
    assert_eq!(all["domain"]["resources"]["requests"]["memory"], "2147483648", "half is overcommitted");
    assert_eq!(all["domain"]["ioThreadsPolicy"], "auto");
    assert_eq!(all["domain"]["devices"]["gpus"][0]["deviceName"], "d");
    assert_eq!((&all["nodeSelector"]["x"], &all["annotations"]["a"]), (&json!("y"), &json!("b")));
}

#[test]
fn topology_follows_the_preference() {
    let options = |across: &str, ratio: u32| json!({"preferredCPUTopology": "spread", "spreadOptions": {"across": across, "ratio": ratio}});
    for (count, cpu, expected) in [
        (4, Value::Null, (4, 1, 1)),
        (1, json!({"preferredCPUTopology": "cores"}), (1, 1, 1)),
        (4, json!({"preferredCPUTopology": "sockets"}), (4, 1, 1)),
        (4, json!({"preferredCPUTopology": "any"}), (4, 1, 1)),
        (4, json!({"preferredCPUTopology": "cores"}), (1, 4, 1)),
        (4, json!({"preferredCPUTopology": "preferCores"}), (1, 4, 1)),
        (4, json!({"preferredCPUTopology": "threads"}), (1, 1, 4)),
        (8, json!({"preferredCPUTopology": "spread"}), (4, 2, 1)),
        (8, options("SocketsCores", 4), (2, 4, 1)),
        (8, options("CoresThreads", 2), (1, 4, 2)),
        (16, options("SocketsCoresThreads", 4), (2, 4, 2)),
    ] {
        let size = json!({"cpu": {"guest": count}, "memory": {"guest": "1Gi"}});
        let wanted = if cpu.is_null() { Value::Null } else { json!({"cpu": cpu}) };
        let all = applied(&flavor(size, wanted), json!({"domain": {"devices": {}}})).unwrap();
        let has = |field: &str| all["domain"]["cpu"][field].as_u64().unwrap();
        assert_eq!((has("sockets"), has("cores"), has("threads")), expected, "{count} {cpu}");
    }
}

#[test]
fn preference_fills_only_what_is_open() {
    let preference = json!({
        "annotations": {"os": "windows", "mine": "theirs"},
        "preferredSubdomain": "sub", "preferredTerminationGracePeriodSeconds": 60, "preferredArchitecture": "amd64",
        "clock": {"preferredClockOffset": {"utc": {}}, "preferredTimer": {"hpet": {"present": false}}},
        "cpu": {"preferredCPUFeatures": [{"name": "vmx"}, {"name": "svm", "policy": "force"}]},
        "devices": {
            "preferredDiskBus": "virtio", "preferredCdromBus": "scsi", "preferredLunBus": "scsi",
            "preferredDiskDedicatedIoThread": true, "preferredDiskCache": "none", "preferredDiskIO": "native",
            "preferredInterfaceModel": "e1000e", "preferredInterfaceMasquerade": {}, "preferredRng": {},
            "preferredTPM": {"persistent": true}, "preferredInputBus": "virtio", "preferredInputType": "tablet",
            "preferredAutoattachGraphicsDevice": false, "preferredNetworkInterfaceMultiQueue": true,
        },
        "features": {"preferredSmm": {}, "preferredHyperv": {"relaxed": {}, "vapic": {}}},
        "firmware": {"preferredEfi": {"secureBoot": true, "persistent": true}},
        "machine": {"preferredMachineType": "pc-q35-9.0"},
    });
    let spec = json!({
        "subdomain": "own",
        "networks": [{"name": "default", "pod": {}}, {"name": "lan", "multus": {"networkName": "lan"}}],
        "domain": {
            "cpu": {"features": [{"name": "svm", "policy": "disable"}]},
            "features": {"hyperv": {"vapic": {"enabled": false}}},
            "devices": {
                "disks": [{"name": "a"}, {"name": "b", "disk": {"bus": "sata"}}, {"name": "c", "cdrom": {}}, {"name": "d", "lun": {}}],
                "interfaces": [{"name": "default"}, {"name": "lan", "model": "virtio", "bridge": {}}],
                "inputs": [{"name": "tablet", "type": ""}],
            },
        },
    });
    let all = applied(&flavor(Value::Null, preference.clone()), spec).unwrap();
    let devices = &all["domain"]["devices"];
    let first = json!({"name": "a", "disk": {"bus": "virtio"}, "cache": "none", "io": "native", "dedicatedIOThread": true});
    assert_eq!(devices["disks"][0], first);
    assert_eq!(devices["disks"][1]["disk"]["bus"], "sata");
    assert_eq!(devices["disks"][1].get("dedicatedIOThread"), None, "only virtio disks have I/O threads");
    assert_eq!(devices["disks"][2]["cdrom"]["bus"], "scsi");
    assert_eq!(devices["interfaces"][0], json!({"name": "default", "model": "e1000e", "masquerade": {}}));
    assert_eq!(devices["interfaces"][1], json!({"name": "lan", "model": "virtio", "bridge": {}}));
    assert_eq!(devices["inputs"][0], json!({"name": "tablet", "type": "tablet", "bus": "virtio"}));
    assert_eq!(devices["tpm"], json!({"persistent": true}));
    assert_eq!(devices["autoattachGraphicsDevice"], false);
    assert_eq!(devices["rng"], json!({}));
    assert_eq!(all["subdomain"], "own");
    assert_eq!((&all["terminationGracePeriodSeconds"], &all["architecture"]), (&json!(60), &json!("amd64")));
    let features = json!([{"name": "svm", "policy": "disable"}, {"name": "vmx"}]);
    assert_eq!(all["domain"]["cpu"]["features"], features);
    let hyperv = json!({"relaxed": {}, "vapic": {"enabled": false}});
    assert_eq!(all["domain"]["features"], json!({"smm": {}, "hyperv": hyperv}));
    let efi = json!({"efi": {"secureBoot": true, "persistent": true}});
    assert_eq!(all["domain"]["firmware"]["bootloader"], efi);
    assert_eq!(all["domain"]["machine"]["type"], "pc-q35-9.0");
    assert_eq!(all["domain"]["clock"], json!({"utc": {}, "timer": {"hpet": {"present": false}}}));
    let bios = json!({"domain": {"devices": {}, "firmware": {"bootloader": {"bios": {}}}}});
    let all = applied(&flavor(Value::Null, preference), bios).unwrap();
    assert_eq!(all["domain"]["firmware"]["bootloader"], json!({"bios": {}}), "a chosen bootloader stays");
}

#[test]
fn requirements_name_what_is_missing() {
    let requires =
        json!({"requirements": {"cpu": {"guest": 2}, "memory": {"guest": "2Gi"}, "architecture": "amd64"}});
    let size = |cpu: u32, memory: &str| json!({"cpu": {"guest": cpu}, "memory": {"guest": memory}});
    let own = |cpu: Value, memory: &str| json!({"domain": {"cpu": cpu, "memory": {"guest": memory}, "devices": {}}});
    let bare = json!({"domain": {"devices": {}}});
    let text = |field: &str, text: &str| Some((field.to_owned(), text.to_owned()));
    for (size, spec, expected) in [
        (size(2, "2Gi"), bare.clone(), None),
        (
            size(1, "2Gi"),
            bare.clone(),
            text(
                "instancetype",
                "insufficient CPU resources of 1 vCPU provided by instance type, preference requires 2 vCPU",
            ),
        ),
        (
            size(2, "1Gi"),
            bare.clone(),
            text(
                "instancetype",
                "insufficient Memory resources of 1Gi provided by instance type, preference requires 2Gi",
            ),
        ),
        (Value::Null, own(json!({"cores": 2}), "2Gi"), None),
        (
            Value::Null,
            own(json!({"cores": 1}), "2Gi"),
            text(
                "template.spec.domain.cpu",
                "insufficient CPU resources of 1 vCPU provided by VirtualMachine, preference requires 2 vCPU",
            ),
        ),
        (
            Value::Null,
            own(json!({"sockets": 2}), "1Gi"),
            text(
                "template.spec.domain.memory",
                "insufficient Memory resources of 1Gi provided by VirtualMachine, preference requires 2Gi",
            ),
        ),
        (
            size(2, "2Gi"),
            json!({"architecture": "arm64", "domain": {"devices": {}}}),
            text(
                "template.spec.architecture",
                "preference requires architecture amd64 but arm64 is being requested by the VirtualMachine",
            ),
        ),
    ] {
        let flavor = flavor(size, requires.clone());
        let spec: VirtualMachineInstanceSpec = serde_json::from_value(spec).unwrap();
        assert_eq!(unmet(&flavor, &spec), expected);
    }
    let spread = json!({"cpu": {"preferredCPUTopology": "spread", "spreadOptions": {"ratio": 3}}});
    let spec: VirtualMachineInstanceSpec = serde_json::from_value(bare).unwrap();
    assert!(unmet(&flavor(small(), spread), &spec).unwrap().1.contains("not divisible by 3"));
}

/// Follows lookups in a table of objects.
fn inferred(
    machine: Value,
    which: Which,
    objects: &[(Place, &str, Value)],
) -> Result<(String, String), InferenceError> {
    let machine: VirtualMachine = serde_json::from_value(machine).unwrap();
    let volume = which.of(&machine).unwrap().infer_from_volume.clone().unwrap();
    let mut step = begin(&machine, "n", which, &volume)?;
    for _ in 0..LOOKUPS_MAX {
        let lookup = match step {
            Inference::Named { name, kind } => return Ok((name, kind)),
            Inference::Look(lookup) => lookup,
        };
        let path = format!("{}/{}", lookup.namespace, lookup.name);
        let object = objects.iter().find(|(place, at, _)| *place == lookup.place && *at == path);
        step = next(which, &lookup, object.map(|(_, _, object)| object))?;
    }
    panic!("the lookups do not end")
}

#[test]
fn names_are_inferred_from_the_volume_or_its_source() {
    let labels = |kind: Option<&str>| {
        let mut labels = json!({"instancetype.kubevirt.io/default-instancetype": "u1.small"});
        if let Some(kind) = kind {
            labels["instancetype.kubevirt.io/default-instancetype-kind"] = json!(kind);
        }
        json!({"metadata": {"labels": labels}})
    };
    let machine = |volume: Value, templates: Value| {
        json!({"spec": {"instancetype": {"inferFromVolume": "root"}, "dataVolumeTemplates": templates,
            "template": {"spec": {"domain": {"devices": {}}, "volumes": [volume]}}}})
    };
    let claim = || json!({"name": "root", "persistentVolumeClaim": {"claimName": "c"}});
    let volume = || json!({"name": "root", "dataVolume": {"name": "d"}});
    let template = |spec: Value| json!([{"metadata": {"name": "d"}, "spec": spec}]);
    let cluster = ("u1.small".to_owned(), "VirtualMachineClusterInstancetype".to_owned());
    let which = Which::Instancetype;
    let none = json!([]);
    let from = |spec: Value| machine(volume(), template(spec));
    let bare = || json!({"metadata": {}});
    for (name, machine, objects) in [
        ("claim", machine(claim(), none.clone()), vec![(Place::Claim, "n/c", labels(None))]),
        ("DataVolume", machine(volume(), none.clone()), vec![(Place::DataVolume, "n/d", labels(None))]),
        (
            "claim of a DataVolume that is gone",
            machine(volume(), none.clone()),
            vec![(Place::Claim, "n/d", labels(None))],
        ),
        (
            "source of a DataVolume",
            machine(volume(), none.clone()),
            vec![
                (
                    Place::DataVolume,
                    "n/d",
                    json!({"spec": {"source": {"pvc": {"namespace": "g", "name": "c"}}}}),
                ),
                (Place::Claim, "g/c", labels(None)),
            ],
        ),
        (
            "DataSource of a template",
            from(json!({"sourceRef": {"kind": "DataSource", "namespace": "g", "name": "s"}, "storage": {}})),
            vec![(Place::DataSource, "g/s", labels(None))],
        ),
        (
            "claim of a DataSource",
            from(json!({"sourceRef": {"kind": "DataSource", "name": "s"}, "storage": {}})),
            vec![
                (
                    Place::DataSource,
                    "n/s",
                    json!({"metadata": {}, "spec": {"source": {"pvc": {"namespace": "g", "name": "c"}}}}),
                ),
                (Place::Claim, "g/c", labels(None)),
            ],
        ),
        (
            "snapshot",
            from(json!({"source": {"snapshot": {"namespace": "g", "name": "s"}}, "storage": {}})),
            vec![(Place::Snapshot, "g/s", labels(None))],
        ),
    ] {
        assert_eq!(inferred(machine, which, &objects), Ok(cluster.clone()), "{name}");
    }
    let kind = "VirtualMachineInstancetype";
    let own = inferred(machine(claim(), none.clone()), which, &[(Place::Claim, "n/c", labels(Some(kind)))]);
    assert_eq!(own.unwrap().1, kind);
    for (name, machine, objects, tolerated) in [
        ("no labels", machine(claim(), none.clone()), vec![(Place::Claim, "n/c", bare())], true),
        ("unsupported source", from(json!({"source": {"http": {"url": "u"}}, "storage": {}})), vec![], true),
        (
            "unsupported volume",
            machine(json!({"name": "root", "containerDisk": {"image": "i"}}), none.clone()),
            vec![],
            true,
        ),
        ("no such volume", machine(json!({"name": "other"}), none.clone()), vec![], false),
        ("no such claim", machine(claim(), none.clone()), vec![], false),
    ] {
        let error = inferred(machine, which, &objects).unwrap_err();
        assert_eq!(error.tolerable, tolerated, "{name}: {}", error.text);
    }
}

#[test]
fn revision_names_the_object_and_is_read_back() {
    let machine = json!({"metadata": {"name": "vm", "namespace": "n", "uid": "m-uid"}});
    let object = json!({
        "apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": "VirtualMachineClusterInstancetype",
        "metadata": {"name": "u1.small", "uid": "t-uid", "generation": 3, "managedFields": [{}]}, "spec": small(),
    });
    let made = revision(&machine, &object);
    assert_eq!(made.name, "vm-u1.small-v1beta1-t-uid-3");
    assert_eq!(made.object["metadata"]["labels"]["instancetype.kubevirt.io/object-uid"], "t-uid");
    assert_eq!(made.object["metadata"]["labels"]["instancetype.kubevirt.io/object-generation"], "3");
    assert_eq!(made.object["data"]["metadata"].get("managedFields"), None);
    let mut flavor = Flavor::default();
    read(&mut flavor, Which::Instancetype, &made.object).unwrap();
    assert_eq!(flavor.instancetype.as_ref().unwrap().cpu.guest, 4);
    assert!(read(&mut flavor, Which::Preference, &made.object).is_err(), "an instance type is no preference");
}

#[test]
fn expanded_machine_has_no_references() {
    let mut machine: VirtualMachine = serde_json::from_value(json!({"spec": {
        "instancetype": {"name": "u1.small"}, "preference": {"name": "fedora"},
        "dataVolumeTemplates": [{"metadata": {"name": "d"}, "spec": {"storage": {}}}],
        "template": {"spec": {"domain": {"devices": {}}}},
    }}))
    .unwrap();
    complete(&mut machine);
    assert_eq!(
        machine.spec.instancetype.as_ref().unwrap().kind.as_deref(),
        Some("VirtualMachineClusterInstancetype")
    );
    let flavor = flavor(small(), json!({"volumes": {"preferredStorageClassName": "fast"}}));
    let mut conflicting = machine.clone();
    conflicting.spec.template.spec.domain.memory = serde_json::from_value(json!({"guest": "1Gi"})).unwrap();
    assert_eq!(
        expand(&mut conflicting, &flavor),
        Err(vec!["spec.template.spec.domain.memory.guest".to_owned()])
    );
    expand(&mut machine, &flavor).unwrap();
    let spec = serde_json::to_value(&machine.spec).unwrap();
    assert_eq!((spec.get("instancetype"), spec.get("preference")), (None, None));
    assert_eq!(spec["dataVolumeTemplates"][0]["spec"]["storage"]["storageClassName"], "fast");
    assert_eq!(spec["template"]["spec"]["domain"]["memory"]["guest"], "4Gi");
}

#[test]
fn references_are_checked_as_they_are_written() {
    let which = Which::Instancetype;
    for (reference, field) in [
        (json!({"name": "a"}), None),
        (json!({"name": "a", "kind": "VirtualMachineInstancetype"}), None),
        (json!({"name": "a", "kind": "virtualmachineclusterinstancetypes"}), None),
        (json!({"inferFromVolume": "v", "inferFromVolumeFailurePolicy": "Ignore"}), None),
        (json!({}), Some("instancetype")),
        (json!({"name": "a", "inferFromVolume": "v"}), Some("instancetype.inferFromVolume")),
        (
            json!({"inferFromVolume": "v", "inferFromVolumeFailurePolicy": "x"}),
            Some("instancetype.inferFromVolumeFailurePolicy"),
        ),
        (json!({"name": "a", "kind": "VirtualMachinePreference"}), Some("instancetype.kind")),
    ] {
        let parsed: FlavorReference = serde_json::from_value(reference.clone()).unwrap();
        assert_eq!(
            malformed(which, &parsed).map(|(field, _)| field),
            field.map(str::to_owned),
            "{reference}"
        );
    }
    assert_eq!(
        annotation(which, "VirtualMachineClusterInstancetype"),
        "kubevirt.io/cluster-instancetype-name"
    );
    assert_eq!(annotation(Which::Preference, "VirtualMachinePreference"), "kubevirt.io/preference-name");
}
