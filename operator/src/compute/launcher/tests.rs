//! Launcher pods of typical instances, compared whole with `golden/`. `FERROVIRT_WRITE_GOLDEN=1` rewrites the files: read
//! the difference before committing it.

use std::path::Path;

use serde_json::{Value, json};

use super::{AutoLimits, Facts, Purpose, SKIP_HOOKS, Settings, Unsupported, definitions, pod};
use api::kubevirt::VirtualMachineInstance;

/// Claims that are block devices.
fn is_block(claim: &str) -> bool {
    claim.starts_with("block")
}

const FACTS: Facts<'_> = Facts { is_block: &is_block, networks: &[], state: None, limits: AutoLimits::NONE };

fn settings() -> Settings {
    Settings { image: "localhost/ferrovirt:virt-launcher".into(), emulation: true, ..Settings::default() }
}

fn instance(spec: &Value) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {
            "name": "vm", "namespace": "shop", "uid": "5c0f8a2e-52a1-4c36-9d39-0d8c3c1cb7d6",
            "labels": {"app": "db", "kubevirt.io/nodeName": "old"},
            "annotations": {"team": "a", "kubevirt.io/vm-generation": "1"},
        },
        "spec": spec,
    })
}

fn memory(size: &str) -> Value {
    json!({"memory": {"guest": size}})
}

/// Name, spec, settings, purpose.
fn shapes() -> Vec<(&'static str, Value, Settings, Purpose)> {
    let guest = |name, spec| (name, spec, settings(), Purpose::Guest);
    let mounted = Settings { image_volumes: true, ..settings() };
    let kvm = Settings { emulation: false, pull_policy: Some("Always".into()), ..settings() };
    let two_disks = json!({
        "domain": memory("1Gi"),
        "volumes": [
            {"name": "root", "dataVolume": {"name": "root-disk"}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "block-data", "readOnly": true}},
            {"name": "private", "persistentVolumeClaim": {"claimName": "clash"}},
            {"name": "scratch", "ephemeral": {"persistentVolumeClaim": {"claimName": "base"}}},
            {"name": "empty", "emptyDisk": {"capacity": "1Gi"}},
        ],
    });
    vec![
        guest("smallest", json!({"domain": memory("128Mi")})),
        ("kvm", json!({"domain": memory("2Gi"), "architecture": "amd64"}), kvm, Purpose::Guest),
        guest("claims", two_disks.clone()),
        ("provisioner", two_disks, settings(), Purpose::Provision),
        guest(
            "container-disks",
            json!({
                "domain": memory("256Mi"),
                "volumes": [
                    {"name": "os", "containerDisk": {"image": "registry/fedora:40", "imagePullSecret": "login"}},
                    {"name": "tools", "containerDisk": {"image": "registry/tools:1", "imagePullPolicy": "Never"}},
                ],
            }),
        ),
        (
            "image-volumes",
            json!({
                "domain": {"memory": {"guest": "256Mi"}, "firmware": {"kernelBoot": {"container": {
                    "image": "registry/kernel:1", "kernelPath": "/boot/vmlinuz"}}}},
                "volumes": [
                    {"name": "os", "containerDisk": {"image": "registry/fedora:40", "imagePullSecret": "login"}},
                    {"name": "private", "containerDisk": {"image": "registry/tools:1", "imagePullPolicy": "Never"}},
                ],
            }),
            mounted,
            Purpose::Guest,
        ),
        guest(
            "files",
            json!({
                "domain": memory("256Mi"),
                "volumes": [
                    {"name": "ci", "cloudInitNoCloud": {
                        "secretRef": {"name": "user"}, "networkDataSecretRef": {"name": "net"}}},
                    {"name": "inline", "cloudInitConfigDrive": {"userData": "#cloud-config\n"}},
                    {"name": "keys", "secret": {"secretName": "keys.example", "optional": true}},
                    {"name": "conf", "configMap": {"name": "conf"}},
                    {"name": "setup", "sysprep": {"configMap": {"name": "unattend"}}},
                    {"name": "labels", "downwardAPI": {"fields": []}},
                ],
                "accessCredentials": [{"sshPublicKey": {"source": {"secret": {"secretName": "ssh"}},
                    "propagationMethod": {"noCloud": {}}}}],
            }),
        ),
        guest(
            "account-and-kernel",
            json!({
                "domain": {"memory": {"guest": "256Mi"}, "devices": {"logSerialConsole": false},
                    "firmware": {"kernelBoot": {"kernelArgs": "console=ttyS0", "container": {
                        "image": "registry/kernel:1", "imagePullSecret": "login", "imagePullPolicy": "Always",
                        "kernelPath": "/boot/vmlinuz", "initrdPath": "/boot/initrd"}}}},
                "volumes": [{"name": "token", "serviceAccount": {"serviceAccountName": "reader"}}],
            }),
        ),
        guest(
            "networks",
            json!({
                "domain": {"memory": {"guest": "256Mi"}, "devices": {"interfaces": [
                    {"name": "default", "masquerade": {}, "ports": [{"name": "http", "port": 80}, {"port": 53, "protocol": "UDP"}]},
                    {"name": "lan", "bridge": {}, "macAddress": "02:00:00:00:00:07"},
                ]}},
                "networks": [{"name": "default", "pod": {}}, {"name": "lan", "multus": {"networkName": "infra/lan"}}],
            }),
        ),
        guest(
            "default-network",
            json!({
                "domain": {"memory": {"guest": "256Mi"}, "devices": {"interfaces": [{"name": "n", "bridge": {}}]}},
                "networks": [{"name": "n", "multus": {"networkName": "lan", "default": true}}],
            }),
        ),
        guest(
            "placement",
            json!({
                "domain": memory("256Mi"), "hostname": "db.internal", "subdomain": "svc", "terminationGracePeriodSeconds": 180,
                "nodeSelector": {"disk": "ssd"}, "priorityClassName": "high", "schedulerName": "other",
                "affinity": {"nodeAffinity": {}}, "tolerations": [{"operator": "Exists"}],
                "topologySpreadConstraints": [
                    {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
                "dnsPolicy": "None", "dnsConfig": {"nameservers": ["10.0.0.10"]},
            }),
        ),
        guest(
            "probes",
            json!({
                "domain": memory("256Mi"),
                "livenessProbe": {"guestAgentPing": {}, "periodSeconds": 5},
                "readinessProbe": {"exec": {"command": ["cat", "/ready"]}, "timeoutSeconds": 7},
            }),
        ),
        guest(
            "guaranteed",
            json!({"domain": {"resources": {
                "requests": {"memory": "1Gi", "cpu": "2"}, "limits": {"memory": "1Gi", "cpu": "2"}}}}),
        ),
        guest(
            "dedicated",
            json!({"domain": {
                "cpu": {"cores": 2, "threads": 2, "dedicatedCpuPlacement": true, "isolateEmulatorThread": true},
                "memory": {"guest": "1Gi"}}}),
        ),
        guest(
            "hugepages",
            json!({"domain": {"memory": {"guest": "1Gi", "hugepages": {"pageSize": "2Mi"}},
                "devices": {"autoattachGraphicsDevice": false, "tpm": {}}}}),
        ),
    ]
}

#[test]
fn pods_are_as_written_down() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/compute/launcher/golden");
    let write = std::env::var_os("FERROVIRT_WRITE_GOLDEN").is_some();
    for (name, spec, settings, purpose) in shapes() {
        let made = pod(&instance(&spec), &settings, purpose, &FACTS).unwrap();
        let text = format!("{}\n", serde_json::to_string_pretty(&made).unwrap());
        let file = folder.join(format!("{name}.json"));
        if write {
            std::fs::write(&file, &text).unwrap();
        }
        let golden = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(golden == text, "{name}: not as in {}:\n{text}", file.display());
    }
}

#[test]
fn annotations_of_instances_reach_the_pod_unless_they_are_about_the_object() {
    let mut one = instance(&json!({"domain": memory("1Gi")}));
    one["metadata"]["annotations"] = json!({
        "kubevirt.io/keep-launcher-alive-after-failure": "true",
        "kubernetes.io/note": "n",
        "kubevirt.io/domain": "another",
        "kubectl.kubernetes.io/last-applied-configuration": "{}",
        "kubevirt.io/latest-observed-api-version": "v1",
        "kubevirt.io/storage-observed-api-version": "v1",
        "kubevirt.io/ephemeral-provisioning": "true",
    });
    let made = pod(&one, &settings(), Purpose::Guest, &FACTS).unwrap();
    let annotations = &made["metadata"]["annotations"];
    for (name, value) in [
        ("kubevirt.io/keep-launcher-alive-after-failure", json!("true")),
        ("kubernetes.io/note", json!("n")),
        ("kubevirt.io/domain", json!("vm")),
        ("kubectl.kubernetes.io/last-applied-configuration", Value::Null),
        ("kubevirt.io/latest-observed-api-version", Value::Null),
        ("kubevirt.io/storage-observed-api-version", Value::Null),
        ("kubevirt.io/ephemeral-provisioning", Value::Null),
    ] {
        assert_eq!(annotations[name], value, "{name}");
    }
}

#[test]
fn pods_go_to_nodes_with_the_model_the_features_and_the_machine_type() {
    let features = json!([
        {"name": "vmx"}, {"name": "aes", "policy": "require"}, {"name": "x2apic", "policy": "optional"},
        {"name": "avx", "policy": "disable"}, {"name": "pku", "policy": "forbid"}, {"name": "sse", "policy": "force"},
    ]);
    for (domain, wanted) in [
        (json!({}), vec![]),
        (json!({"cpu": {"model": "host-model"}}), vec![]),
        (json!({"cpu": {"model": "host-passthrough"}}), vec![]),
        (json!({"cpu": {"model": "Penryn"}}), vec!["cpu-model.node.kubevirt.io/Penryn"]),
        (
            json!({"cpu": {"features": features}}),
            vec!["cpu-feature.node.kubevirt.io/aes", "cpu-feature.node.kubevirt.io/vmx"],
        ),
        (json!({"machine": {"type": "pc-q35-9.0"}}), vec!["machine-type.node.kubevirt.io/pc-q35-9.0"]),
        (json!({"machine": {"type": ""}}), vec![]),
    ] {
        let mut spec = json!({"domain": memory("1Gi")});
        spec["domain"].as_object_mut().unwrap().extend(domain.as_object().unwrap().clone());
        let made = pod(&instance(&spec), &settings(), Purpose::Guest, &FACTS).unwrap();
        let selector = made["spec"]["nodeSelector"].as_object().unwrap();
        let found: Vec<&str> =
            selector.keys().map(String::as_str).filter(|name| name.contains(".node.kubevirt.io/")).collect();
        assert_eq!(found, wanted, "{domain}");
    }
}

#[test]
fn settings_of_the_platform_reach_the_pod() {
    let spec = json!({"domain": {"memory": {"guest": "1Gi"}, "cpu": {"model": "Penryn"}}});
    let made = |settings: &Settings| pod(&instance(&spec), settings, Purpose::Guest, &FACTS);
    let memory = |pod: &Value| -> u64 {
        let request = &pod["spec"]["containers"][0]["resources"]["requests"]["memory"];
        request.as_str().unwrap().parse().unwrap()
    };
    let plain = made(&settings()).unwrap();
    assert_eq!(plain["spec"].get("runtimeClassName"), None);
    let other = Settings { runtime_class: Some("kata".into()), overhead_percent: 150, ..settings() };
    let changed = made(&other).unwrap();
    assert_eq!(changed["spec"]["runtimeClassName"], "kata");
    let overhead = memory(&plain) - (1 << 30);
    assert_eq!(memory(&changed), (1 << 30) + overhead * 3 / 2);
    let login = Settings { pull_secrets: ["login".to_owned()].into(), ..settings() };
    assert_eq!(made(&login).unwrap()["spec"]["imagePullSecrets"], json!([{"name": "login"}]));
    let disk = json!({"domain": {"memory": {"guest": "1Gi"}}, "volumes": [
        {"name": "os", "containerDisk": {"image": "registry/os:1", "imagePullSecret": "disk"}}]});
    for (settings, wanted) in
        [(settings(), json!([{"name": "disk"}])), (login, json!([{"name": "disk"}, {"name": "login"}]))]
    {
        let made = pod(&instance(&disk), &settings, Purpose::Guest, &FACTS).unwrap();
        assert_eq!(made["spec"]["imagePullSecrets"], wanted);
    }
    let old = Settings { obsolete_models: ["Penryn".to_owned()].into(), ..settings() };
    assert_eq!(made(&old).unwrap(), plain, "emulation has models of its own");
    let error = made(&Settings { emulation: false, ..old }).unwrap_err().to_string();
    assert!(error.starts_with("spec.domain.cpu.model: Penryn is in obsoleteCPUModels"), "{error}");
}

#[test]
fn pods_go_to_the_nodes_of_the_platforms_placement() {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
    let on = |key: &str| json!({"key": key, "operator": "Exists"});
    let terms = |terms: Value| json!({"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}});
    let term =
        |keys: &[&str]| json!({"matchExpressions": keys.iter().map(|key| on(key)).collect::<Vec<_>>()});
    let node = json!([{"key": "metadata.name", "operator": "In", "values": ["n"]}]);
    let prefer = |key: &str| json!([{"weight": 1, "preference": {"matchExpressions": [on(key)]}}]);
    let ours = terms(json!([term(&["a"]), term(&["b"])]));
    for (platform, own, wanted) in [
        (json!({}), json!({}), json!({})),
        (json!({"affinity": ours}), json!({}), json!({"affinity": ours})),
        (
            json!({"affinity": ours}),
            json!({"affinity": {"podAffinity": {REQUIRED: []}}}),
            json!({"affinity": {"podAffinity": {REQUIRED: []}, "nodeAffinity": ours["nodeAffinity"]}}),
        ),
        (
            json!({"affinity": ours}),
            json!({"affinity": terms(json!([term(&["c"]), {}, {"matchFields": node}]))}),
            json!({"affinity": terms(json!([
                term(&["a", "c"]),
                {"matchExpressions": [on("a")], "matchFields": node},
                term(&["b", "c"]),
                {"matchExpressions": [on("b")], "matchFields": node},
            ]))}),
        ),
        (
            json!({"affinity": ours}),
            json!({"affinity": terms(json!([{}]))}),
            json!({"affinity": terms(json!([{}]))}),
        ),
        (
            json!({"affinity": {"nodeAffinity": {PREFERRED: prefer("a")}}}),
            json!({"affinity": {"nodeAffinity": {PREFERRED: prefer("b")}}}),
            json!({"affinity": {"nodeAffinity": {PREFERRED: [prefer("b")[0], prefer("a")[0]]}}}),
        ),
        (
            json!({"tolerations": [on("a")]}),
            json!({"tolerations": [on("b")]}),
            json!({"tolerations": [on("b"), on("a")]}),
        ),
        (json!({"tolerations": [{"operator": "Exists"}]}), json!({}), json!({})),
        // Rules about pods are of the platform's own pods.
        (json!({"affinity": {"podAntiAffinity": {PREFERRED: []}}}), json!({}), json!({})),
    ] {
        let placement = serde_json::from_value(platform.clone()).unwrap();
        let mut spec = json!({"domain": memory("1Gi")});
        spec.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        let settings = Settings { placement, ..settings() };
        for purpose in [Purpose::Guest, Purpose::Provision] {
            let made = pod(&instance(&spec), &settings, purpose, &FACTS).unwrap();
            for field in ["affinity", "tolerations"] {
                assert_eq!(made["spec"][field], wanted[field], "{platform} {own}");
            }
        }
    }
}

#[test]
fn labels_that_the_platform_selects_nodes_by_reach_the_pod() {
    let label = |value: &str| [("zone".to_owned(), value.to_owned())];
    let with = |general: &str, placed: &str| {
        let mut settings = settings();
        settings.node_selectors.extend(label(general).into_iter().filter(|(_, value)| !value.is_empty()));
        let placed = label(placed).into_iter().filter(|(_, value)| !value.is_empty());
        settings.placement.node_selector.extend(placed);
        settings
    };
    for (general, placed, own, wanted) in [
        ("", "", None, Ok(None)),
        ("a", "", None, Ok(Some("a"))),
        ("a", "", Some("b"), Ok(Some("b"))),
        ("", "a", None, Ok(Some("a"))),
        ("b", "a", None, Ok(Some("a"))),
        ("", "a", Some("a"), Ok(Some("a"))),
        (
            "",
            "a",
            Some("b"),
            Err("spec.nodeSelector: zone is \"b\", and spec.workloads.nodePlacement of the KubeVirt \
            object places guests on nodes with \"a\": no node has both"),
        ),
    ] {
        let mut spec = json!({"domain": memory("1Gi")});
        if let Some(own) = own {
            spec["nodeSelector"] = json!({"zone": own});
        }
        let made = pod(&instance(&spec), &with(general, placed), Purpose::Guest, &FACTS);
        let found = made.map(|made| made["spec"]["nodeSelector"]["zone"].as_str().map(str::to_owned));
        let wanted = wanted.map(|wanted| wanted.map(str::to_owned)).map_err(str::to_owned);
        assert_eq!(found.map_err(|error| error.to_string()), wanted, "{general} {placed} {own:?}");
    }
}

#[test]
fn backup_hooks_are_left_out_by_instance_or_platform() {
    const HOOK: &str = "pre.hook.backup.velero.io/command";
    let off = Settings { skip_backup_hooks: true, ..settings() };
    for (annotation, settings, hooks) in
        [("false", settings(), true), ("true", settings(), false), ("false", off, false)]
    {
        let mut one = instance(&json!({"domain": memory("1Gi")}));
        one["metadata"]["annotations"] = json!({SKIP_HOOKS: annotation});
        let made = pod(&one, &settings, Purpose::Guest, &FACTS).unwrap();
        assert_eq!(made["metadata"]["annotations"].get(HOOK).is_some(), hooks, "{annotation}");
    }
}

/// The rules of restricted Pod Security and a read-only root file system, for every container.
#[test]
fn pods_are_restricted() {
    for (name, spec, settings, purpose) in shapes() {
        let made = pod(&instance(&spec), &settings, purpose, &FACTS).unwrap();
        let spec = &made["spec"];
        assert_eq!(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault", "{name}");
        assert_eq!(spec["automountServiceAccountToken"], false, "{name}");
        for volume in spec["volumes"].as_array().unwrap() {
            assert!(volume.get("hostPath").is_none(), "{name}: {volume}");
        }
        let list = |field: &str| spec[field].as_array().cloned().unwrap_or_default();
        for container in list("containers").iter().chain(&list("initContainers")) {
            let context = &container["securityContext"];
            assert_eq!(context["allowPrivilegeEscalation"], false, "{name}");
            assert_eq!(context["capabilities"], json!({"drop": ["ALL"]}), "{name}");
            assert_eq!(
                (&context["runAsUser"], &context["runAsNonRoot"]),
                (&json!(107), &json!(true)),
                "{name}"
            );
            assert_eq!(context["readOnlyRootFilesystem"], true, "{name}");
        }
    }
}

#[test]
fn volume_names_are_unique_and_every_mount_has_a_volume() {
    for (name, spec, settings, purpose) in shapes() {
        let made = pod(&instance(&spec), &settings, purpose, &FACTS).unwrap();
        let volumes: Vec<&str> = made["spec"]["volumes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["name"].as_str().unwrap())
            .collect();
        let mut unique = volumes.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), volumes.len(), "{name}: {volumes:?}");
        for container in made["spec"]["containers"].as_array().unwrap() {
            for field in ["volumeMounts", "volumeDevices"] {
                for used in container[field].as_array().into_iter().flatten() {
                    assert!(volumes.contains(&used["name"].as_str().unwrap()), "{name}: {used}");
                }
            }
        }
    }
}

#[test]
fn guaranteed_guest_gives_a_guaranteed_pod() {
    let amounts = json!({"memory": "1Gi", "cpu": "500m"});
    for (case, domain) in [
        (
            "dedicated CPUs",
            json!({"cpu": {"cores": 1, "dedicatedCpuPlacement": true}, "memory": {"guest": "1Gi"}}),
        ),
        ("requests that equal limits", json!({"resources": {"requests": amounts, "limits": amounts}})),
        ("limits only", json!({"resources": {"limits": amounts}})),
    ] {
        let spec = json!({"domain": domain, "volumes": [{"name": "os", "containerDisk": {"image": "a"}}]});
        let made = pod(&instance(&spec), &settings(), Purpose::Guest, &FACTS).unwrap();
        let list = |field: &str| made["spec"][field].as_array().cloned().unwrap();
        for container in list("containers").iter().chain(&list("initContainers")) {
            let resources = &container["resources"];
            assert_eq!(resources["requests"], resources["limits"], "{case}: {}", container["name"]);
            for name in ["memory", "cpu"] {
                assert!(resources["limits"][name].is_string(), "{case}: {name} of {}", container["name"]);
            }
        }
    }
}

#[test]
fn resources_of_networks_are_asked_for_as_often_as_networks_need_them() {
    let names =
        ["bridge.network.kubevirt.io/br1", "x/vf", "bridge.network.kubevirt.io/br1"].map(str::to_owned);
    let spec = json!({
        "domain": memory("1Gi"),
        "networks": [
            {"name": "a", "multus": {"networkName": "blue"}},
            {"name": "p", "pod": {}},
            {"name": "b", "multus": {"networkName": "infra/red"}},
        ],
    });
    let object: VirtualMachineInstance = serde_json::from_value(instance(&spec)).unwrap();
    let of = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
    assert_eq!(definitions(&object.spec, "ns"), [of("ns", "blue"), of("infra", "red")]);
    let facts = Facts { networks: &names, ..FACTS };
    for (purpose, wanted) in [(Purpose::Guest, json!("2")), (Purpose::Provision, Value::Null)] {
        let made = pod(&instance(&spec), &settings(), purpose, &facts).unwrap();
        for list in ["requests", "limits"] {
            let resources = &made["spec"]["containers"][0]["resources"][list];
            assert_eq!(resources["bridge.network.kubevirt.io/br1"], wanted, "{purpose:?}");
        }
    }
}

#[test]
fn limits_of_the_namespace_are_those_of_instances_without_their_own() {
    let none = AutoLimits::NONE;
    let both = AutoLimits { memory_percent: Some(150), cpu: true };
    let guest = |more: Value| {
        let mut domain = json!({"memory": {"guest": "1Gi"}, "cpu": {"sockets": 2, "cores": 2}});
        domain.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        domain
    };
    let of = |domain: &Value, limits| {
        let facts = Facts { limits, ..FACTS };
        let made = pod(&instance(&json!({"domain": domain})), &settings(), Purpose::Guest, &facts).unwrap();
        made["spec"]["containers"][0]["resources"].clone()
    };
    let number = |resources: &Value, list: &str| {
        resources[list]["memory"].as_str().and_then(|text| text.parse::<u64>().ok())
    };
    for (domain, memory, cpu) in [
        // Each vCPU, and half as much memory again as is requested.
        (guest(json!({})), true, json!("4")),
        (guest(json!({"resources": {"limits": {"memory": "2Gi"}}})), false, json!("4")),
        (guest(json!({"resources": {"limits": {"cpu": "500m"}}})), true, json!("500m")),
        // A limit is never below the request.
        (guest(json!({"resources": {"requests": {"cpu": "4500m"}}})), true, json!("5")),
        (guest(json!({"memory": {"guest": "1Gi", "hugepages": {"pageSize": "2Mi"}}})), true, json!("4")),
    ] {
        let (before, after) = (of(&domain, none), of(&domain, both));
        assert_eq!(before["requests"], after["requests"], "{domain}");
        assert_eq!(after["limits"]["cpu"], cpu, "{domain}");
        let request = number(&before, "requests").unwrap();
        let wanted = if memory { Some(request * 3 / 2) } else { number(&before, "limits") };
        assert_eq!(number(&after, "limits"), wanted, "{domain}");
        assert!(!memory || number(&before, "limits").is_none(), "{domain}");
    }
    // Pinned vCPUs have limits already.
    let pinned = guest(json!({"cpu": {"cores": 2, "dedicatedCpuPlacement": true}}));
    assert_eq!(of(&pinned, none), of(&pinned, both));
    let overcommitting = Settings { memory_overcommit: 200, ..settings() };
    let made = pod(&instance(&json!({"domain": pinned})), &overcommitting, Purpose::Guest, &FACTS).unwrap();
    let resources = &made["spec"]["containers"][0]["resources"];
    assert_eq!(*resources, of(&pinned, none), "memory that is the limit is not overcommitted");
}

#[test]
fn consoles_are_logged_by_the_setting_of_the_guest_or_the_platform() {
    let quiet = Settings { console_log: false, ..settings() };
    for (devices, settings, logged) in [
        (json!({}), settings(), true),
        (json!({}), quiet.clone(), false),
        (json!({"logSerialConsole": true}), quiet, true),
        (json!({"logSerialConsole": false}), settings(), false),
        (json!({"autoattachSerialConsole": false, "logSerialConsole": true}), settings(), false),
    ] {
        let spec = json!({"domain": {"memory": {"guest": "1Gi"}, "devices": devices}});
        let made = pod(&instance(&spec), &settings, Purpose::Guest, &FACTS).unwrap();
        let init = made["spec"]["initContainers"].as_array().cloned().unwrap_or_default();
        let found = init.iter().find(|one| one["name"] == "guest-console-log");
        assert_eq!(found.is_some(), logged, "{spec}");
        assert!(found.is_none_or(|one| one["restartPolicy"] == "Always"));
    }
}

#[test]
fn fields_that_are_not_followed_are_refused_by_path() {
    let volume = |source: &str, value: Value| json!({"domain": memory("1Gi"), "volumes": [{"name": "v", source: value}]});
    for (spec, path) in [
        (volume("hostDisk", json!({"path": "/", "type": "Disk"})), "spec.volumes[0].hostDisk: "),
        (json!({"domain": {}}), "spec.domain.memory.guest: "),
        (json!({"domain": memory("lots")}), "spec.domain.memory.guest: "),
    ] {
        let error = pod(&instance(&spec), &settings(), Purpose::Guest, &FACTS).unwrap_err();
        assert!(matches!(error, Unsupported::Field { .. }));
        assert!(error.to_string().starts_with(path), "{error}");
    }
}

/// Fields that have no effect in the guest's launch document: they change its pod.
#[test]
fn fields_of_the_pod_change_it() {
    let volume = |volume: Value| {
        json!([{"name": "v"}]).as_array().map(|list| {
            let mut one = list[0].clone();
            one.as_object_mut().unwrap().extend(volume.as_object().unwrap().clone());
            json!([one])
        })
    };
    let claim =
        |name: &str, more: &str| volume(json!({"persistentVolumeClaim": {"claimName": name, more: true}}));
    let disk = |name: &str, more: &str| volume(json!({"dataVolume": {"name": name, more: true}}));
    let image = |image: Value| volume(json!({"containerDisk": image}));
    let overlay = |name: &str, more: &str| {
        volume(json!({"ephemeral": {"persistentVolumeClaim": {"claimName": name, more: true}}}))
    };
    let ports = |port: Value| {
        let mut domain = memory("1Gi");
        domain["devices"] = json!({"interfaces": [{"name": "default", "masquerade": {}, "ports": [port]}]});
        Some(domain)
    };
    let port = || ports(json!({"port": 80}));
    let field = |name: &'static str, value: Value| (name, None, Some(value));
    let term = json!({"matchExpressions": [{"key": "zone", "operator": "Exists"}]});
    let changes = [
        ("volumes", image(json!({"image": "a"})), image(json!({"image": "b"}))),
        ("volumes", image(json!({"image": "a"})), image(json!({"image": "a", "imagePullPolicy": "Never"}))),
        ("volumes", image(json!({"image": "a"})), image(json!({"image": "a", "imagePullSecret": "s"}))),
        ("volumes", claim("a", "x"), claim("b", "x")),
        ("volumes", claim("a", "x"), claim("a", "hotpluggable")),
        ("volumes", disk("a", "x"), disk("b", "x")),
        ("volumes", disk("a", "x"), disk("a", "hotpluggable")),
        ("volumes", overlay("a", "x"), overlay("b", "x")),
        ("volumes", overlay("a", "x"), overlay("a", "readOnly")),
        ("domain", port(), ports(json!({"port": 81}))),
        ("domain", port(), ports(json!({"port": 80, "name": "http"}))),
        ("domain", port(), ports(json!({"port": 80, "protocol": "UDP"}))),
        ("volumes", None, volume(json!({"serviceAccount": {"serviceAccountName": "a"}}))),
        field(
            "affinity",
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [term]}}}),
        ),
        field("dnsConfig", json!({"nameservers": ["10.0.0.1"]})),
        field("dnsPolicy", json!("Default")),
        field("livenessProbe", json!({"guestAgentPing": {}})),
        field("readinessProbe", json!({"guestAgentPing": {}})),
        field("nodeSelector", json!({"a": "b"})),
        field("priorityClassName", json!("high")),
        field("schedulerName", json!("other")),
        field("subdomain", json!("sub")),
        field("tolerations", json!([{"key": "a", "operator": "Exists"}])),
        field(
            "topologySpreadConstraints",
            json!([{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"}]),
        ),
    ];
    for (name, before, after) in changes {
        let of = |value: &Option<Value>| {
            let mut spec = json!({"domain": memory("1Gi")});
            if let Some(value) = value {
                spec[name] = value.clone();
            }
            pod(&instance(&spec), &settings(), Purpose::Guest, &FACTS).unwrap()
        };
        assert_ne!(of(&before), of(&after), "{name}: {before:?} and {after:?} are one");
    }
}

#[test]
fn a_pod_asks_for_the_devices_of_the_host_that_are_permitted() {
    let mut domain = memory("1Gi");
    domain["devices"] = json!({
        "gpus": [{"name": "a", "deviceName": "nvidia.com/T4"}],
        "hostDevices": [{"name": "b", "deviceName": "nvidia.com/T4"}],
    });
    let object = instance(&json!({"domain": domain}));
    let card = json!({"pciVendorSelector": "10DE:1EB8", "resourceName": "nvidia.com/T4"});
    let permits = |list: Option<Value>| Settings {
        host_devices: list.map(|list| serde_json::from_value(list).unwrap()),
        ..settings()
    };
    let listed = permits(Some(json!({"pciHostDevices": [card]})));
    for (settings, purpose, wanted) in [
        (&listed, Purpose::Guest, json!("2")),
        (&listed, Purpose::Provision, Value::Null),
        // Without a list every device plugin's.
        (&permits(None), Purpose::Guest, json!("2")),
    ] {
        let made = pod(&object, settings, purpose, &FACTS).unwrap();
        for list in ["requests", "limits"] {
            assert_eq!(
                made["spec"]["containers"][0]["resources"][list]["nvidia.com/T4"], wanted,
                "{purpose:?}"
            );
        }
    }
    let empty = permits(Some(json!({})));
    let refused = pod(&object, &empty, Purpose::Guest, &FACTS).unwrap_err().to_string();
    assert_eq!(
        refused,
        "spec.domain.devices.gpus[0].deviceName: GPU nvidia.com/T4 is not permitted in permittedHostDevices \
         configuration"
    );
}
