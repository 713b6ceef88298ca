//! Instance types and preferences, replica sets, pools.

use cluster::Resource;
use serde_json::{Value, json};

use super::{REVISIONS, claim, get, instance, patch};
use crate::platform::hyperconverged::alone;
use crate::platform::machines::machine;
use crate::platform::place::{DATA_SOURCES, INSTANCES, MACHINES, PLACE};

const TYPES: Resource =
    Resource::namespaced("instancetype.kubevirt.io", "v1beta1", "virtualmachineinstancetypes");
const PREFERENCES: Resource =
    Resource::namespaced("instancetype.kubevirt.io", "v1beta1", "virtualmachinepreferences");
const SHIPPED_PREFERENCES: Resource =
    Resource::cluster("instancetype.kubevirt.io", "v1beta1", "virtualmachineclusterpreferences");
const QUOTAS: Resource = Resource::namespaced("", "v1", "resourcequotas");
const REPLICA_SETS: Resource = Resource::namespaced("kubevirt.io", "v1", "virtualmachineinstancereplicasets");
const POOLS: Resource = Resource::namespaced("pool.kubevirt.io", "v1beta1", "virtualmachinepools");

/// A guest without disks: its BIOS finds nothing to boot and waits.
fn template() -> Value {
    json!({
        "metadata": {"labels": {"app": "set"}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "domain": {"memory": {"guest": "64Mi"}, "devices": {"interfaces": [{"name": "default", "masquerade": {}}]}},
            "networks": [{"name": "default", "pod": {}}],
        },
    })
}

fn flavor(kind: &str, name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

/// Creates an object by kubectl without storing it.
fn dry_run(namespace: &str, object: &Value) -> Result<String, String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), object.to_string()).unwrap();
    let file = file.path().to_str().unwrap();
    PLACE.kubectl(&["-n", namespace, "create", "--dry-run=server", "-f", file])
}

/// Leaves the size of a VM and the bus of its disk to its instance type and preference.
fn leave_open(vm: &mut Value) {
    let domain = vm["spec"]["template"]["spec"]["domain"].as_object_mut().unwrap();
    domain.remove("memory");
    domain["devices"]["disks"] = json!([{"name": "root", "disk": {}}]);
}

#[test]
fn instance_type_and_preference_decide_and_are_kept() {
    let namespace = "typed";
    PLACE.namespace(namespace);
    let small = json!({"cpu": {"guest": 1}, "memory": {"guest": "64Mi"}});
    PLACE.create(TYPES, namespace, &flavor("VirtualMachineInstancetype", "small", &small));
    let preference = json!({"devices": {"preferredRng": {}, "preferredDiskBus": "scsi"}, "cpu": {"preferredCPUTopology": "sockets"}});
    PLACE.create(PREFERENCES, namespace, &flavor("VirtualMachinePreference", "plain", &preference));
    let mut vm = machine("vm", "Always", &json!({"emptyDisk": {"capacity": "1Mi"}}));
    vm["spec"]["instancetype"] = json!({"name": "small", "kind": "VirtualMachineInstancetype"});
    vm["spec"]["preference"] = json!({"name": "plain", "kind": "VirtualMachinePreference"});
    // The instance type decides the size.
    vm["spec"]["template"]["spec"]["domain"]["memory"] = json!({"guest": "128Mi"});
    let conflict = dry_run(namespace, &vm).unwrap_err();
    assert!(conflict.contains("conflicts with selected instance type"), "{conflict}");
    leave_open(&mut vm);
    PLACE.create(MACHINES, namespace, &vm);
    PLACE.until_status(namespace, "vm", "Running");
    let run = instance(namespace, "vm");
    assert_eq!(run["spec"]["domain"]["memory"]["guest"], "64Mi");
    assert_eq!(run["spec"]["domain"]["devices"]["disks"][0]["disk"]["bus"], "scsi");
    assert_eq!(run["spec"]["domain"]["devices"]["rng"], json!({}));
    assert_eq!(run["metadata"]["annotations"]["kubevirt.io/instancetype-name"], "small");
    let vm = PLACE.find(MACHINES, namespace, "vm").unwrap();
    for kept in ["instancetypeRef", "preferenceRef"] {
        let name = vm["status"][kept]["controllerRevisionRef"]["name"].as_str().unwrap();
        assert!(PLACE.find(REVISIONS, namespace, name).is_some(), "{name}");
    }
    // The VM keeps its revision.
    PLACE.kubectl(&["-n", namespace, "delete", "vmf", "small"]).unwrap();
    let changed = json!({"cpu": {"guest": 2}, "memory": {"guest": "96Mi"}});
    PLACE.create(TYPES, namespace, &flavor("VirtualMachineInstancetype", "small", &changed));
    let expanded = get(namespace, "virtualmachines/vm/expand-spec").unwrap();
    assert_eq!(expanded["spec"]["template"]["spec"]["domain"]["memory"]["guest"], "64Mi");
    // A larger type is followed as far as the guest has room: two sockets.
    let large = json!({"cpu": {"guest": 2}, "memory": {"guest": "64Mi"}});
    PLACE.create(TYPES, namespace, &flavor("VirtualMachineInstancetype", "large", &large));
    patch(namespace, "vm", &json!({"spec": {"instancetype": {"name": "large"}}}));
    PLACE.until(namespace, "the guest has two sockets", || {
        (instance(namespace, "vm")["status"]["currentCPUTopology"]["sockets"] == 2).then_some(())
    });
    let replaced = vm["status"]["instancetypeRef"]["controllerRevisionRef"]["name"].as_str().unwrap();
    PLACE.until(namespace, "the revision of the type before is gone", || {
        PLACE.find(REVISIONS, namespace, replaced).is_none().then_some(())
    });
    PLACE.delete(MACHINES, namespace, "vm");
    PLACE.remove_namespace(namespace);
}

#[test]
fn instance_type_and_preference_are_inferred_from_a_volume() {
    let namespace = "inferred";
    PLACE.namespace(namespace);
    let size = json!({"cpu": {"guest": 1}, "memory": {"guest": "64Mi"}});
    PLACE.create(TYPES, namespace, &flavor("VirtualMachineInstancetype", "small", &size));
    let preference = json!({"devices": {"preferredDiskBus": "scsi"}});
    PLACE.create(PREFERENCES, namespace, &flavor("VirtualMachinePreference", "plain", &preference));
    let _root = claim(namespace, "root", false);
    let infer = json!({"inferFromVolume": "root"});
    let mut vm = machine("vm", "Always", &json!({"persistentVolumeClaim": {"claimName": "root"}}));
    (vm["spec"]["instancetype"], vm["spec"]["preference"]) = (infer.clone(), infer);
    leave_open(&mut vm);
    let refusal = dry_run(namespace, &vm).unwrap_err();
    assert!(refusal.contains("unable to find required"), "{refusal}");
    let mut tolerant = vm.clone();
    for reference in ["instancetype", "preference"] {
        tolerant["spec"][reference]["inferFromVolumeFailurePolicy"] = json!("Ignore");
    }
    tolerant["spec"]["template"]["spec"]["domain"]["memory"] = json!({"guest": "96Mi"});
    dry_run(namespace, &tolerant).unwrap();

    let label = "instancetype.kubevirt.io/default";
    let labels = json!({
        format!("{label}-instancetype"): "small",
        format!("{label}-instancetype-kind"): "VirtualMachineInstancetype",
        format!("{label}-preference"): "plain",
        format!("{label}-preference-kind"): "VirtualMachinePreference",
    });
    let change = json!({"metadata": {"labels": labels}}).to_string();
    PLACE.kubectl(&["-n", namespace, "patch", "pvc", "root", "--type=merge", "-p", &change]).unwrap();
    PLACE.create(MACHINES, namespace, &vm);
    PLACE.until_status(namespace, "vm", "Running");
    let run = instance(namespace, "vm");
    assert_eq!(run["spec"]["domain"]["memory"]["guest"], "64Mi");
    assert_eq!(run["spec"]["domain"]["devices"]["disks"][0]["disk"]["bus"], "scsi");
    let check = |name: &str| {
        let vm = PLACE.find(MACHINES, namespace, name).unwrap();
        let (of_type, of_preference) = (&vm["spec"]["instancetype"], &vm["spec"]["preference"]);
        assert_eq!((&of_type["name"], &of_preference["name"]), (&json!("small"), &json!("plain")));
        assert_eq!(of_type["kind"], "VirtualMachineInstancetype");
        assert!(of_type["inferFromVolume"].is_null() && of_preference["inferFromVolume"].is_null(), "{vm}");
    };
    check("vm");
    PLACE.delete(MACHINES, namespace, "vm");

    // From the DataSource that the VM's DataVolume is to be filled from.
    let source = json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataSource",
        "metadata": {"name": "golden", "labels": labels},
        "spec": {"source": {"pvc": {"namespace": namespace, "name": "root"}}},
    });
    PLACE.create(DATA_SOURCES, namespace, &source);
    let mut cloned = vm.clone();
    (cloned["metadata"]["name"], cloned["spec"]["runStrategy"]) = (json!("cloned"), json!("Halted"));
    cloned["spec"]["template"]["spec"]["volumes"] =
        json!([{"name": "root", "dataVolume": {"name": "cloned"}}]);
    cloned["spec"]["dataVolumeTemplates"] = json!([{
        "metadata": {"name": "cloned"},
        "spec": {
            "sourceRef": {"kind": "DataSource", "name": "golden"},
            "storage": {"storageClassName": "hostpath-csi", "accessModes": ["ReadWriteOnce"]},
        },
    }]);
    PLACE.create(MACHINES, namespace, &cloned);
    check("cloned");
    PLACE.delete(MACHINES, namespace, "cloned");
    PLACE.remove_namespace(namespace);
}

/// Instance types and preferences that the platform ships, as far as they are there.
fn shipped() -> usize {
    let kinds = "virtualmachineclusterinstancetypes,virtualmachineclusterpreferences";
    let vendor = "instancetype.kubevirt.io/vendor=kubevirt.io";
    PLACE.kubectl(&["get", kinds, "-l", vendor, "-o", "name"]).unwrap().lines().count()
}

/// In a namespace with a quota that refuses pods without limits.
#[test]
fn shipped_instance_type_and_preference_run_a_guest_and_can_be_switched_off() {
    // The setting is of HyperConverged.
    let _alone = alone();
    let namespace = "shipped";
    PLACE.namespace(namespace);
    PLACE.until(namespace, "all instance types and preferences are there", || {
        (shipped() == 65 + 54).then_some(())
    });
    let hard = json!({"limits.cpu": "2", "limits.memory": "4Gi"});
    PLACE.create(QUOTAS, namespace, &json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "limits"}, "spec": {"hard": hard},
    }));
    let mut vm = machine("vm", "Always", &json!({"emptyDisk": {"capacity": "1Mi"}}));
    vm["spec"]["instancetype"] = json!({"name": "u1.nano"});
    vm["spec"]["preference"] = json!({"name": "alpine"});
    leave_open(&mut vm);
    PLACE.create(MACHINES, namespace, &vm);
    PLACE.until_status(namespace, "vm", "Running");
    let run = instance(namespace, "vm");
    assert_eq!(run["spec"]["domain"]["memory"]["guest"], "512Mi");
    assert_eq!(run["spec"]["domain"]["devices"]["disks"][0]["disk"]["bus"], "virtio");
    assert_eq!(run["metadata"]["annotations"]["kubevirt.io/cluster-instancetype-name"], "u1.nano");
    assert_eq!(run["metadata"]["annotations"]["kubevirt.io/cluster-preference-name"], "alpine");
    let used = "jsonpath={.status.used.limits\\.cpu} {.status.hard.limits\\.cpu}";
    PLACE.until(namespace, "the quota counts the guest's vCPU and its helpers", || {
        let used = PLACE.kubectl(&["-n", namespace, "get", "resourcequota", "limits", "-o", used]).unwrap();
        (used.starts_with('1') && used.ends_with(" 2")).then_some(())
    });
    // Changes of other clients are undone.
    let change = json!({"spec": {"requirements": {"cpu": {"guest": 9}}}}).to_string();
    let of = |name: &str| PLACE.find(SHIPPED_PREFERENCES, "", name);
    PLACE.kubectl(&["patch", "vmcp", "cirros", "--type=merge", "-p", &change]).unwrap();
    PLACE.until(namespace, "the preference is restored", || {
        (of("cirros")?["spec"]["requirements"]["cpu"]["guest"] == 1).then_some(())
    });
    // The guest keeps its revisions when they are gone.
    let set = |value: &Value| {
        let (platform, object) =
            (e2e::platform::settings().namespace, "hyperconverged.hco.kubevirt.io/kubevirt-hyperconverged");
        let patch =
            json!({"spec": {"workloadSources": {"commonInstancetypesDeployment": value}}}).to_string();
        PLACE.kubectl(&["-n", &platform, "patch", object, "--type=merge", "-p", &patch]).unwrap();
    };
    set(&json!({"enabled": false}));
    PLACE.until(namespace, "none is there", || (shipped() == 0).then_some(()));
    let expanded = get(namespace, "virtualmachines/vm/expand-spec").unwrap();
    assert_eq!(expanded["spec"]["template"]["spec"]["domain"]["memory"]["guest"], "512Mi");
    set(&Value::Null);
    PLACE.until(namespace, "all are back", || (shipped() == 65 + 54).then_some(()));
    PLACE.delete(MACHINES, namespace, "vm");
    PLACE.remove_namespace(namespace);
}

#[test]
fn sets_and_pools_scale() {
    let namespace = "sets";
    PLACE.namespace(namespace);
    let selector = json!({"matchLabels": {"app": "set"}});
    let set = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceReplicaSet", "metadata": {"name": "rs"},
        "spec": {"replicas": 1, "selector": selector, "template": template()},
    });
    let pool = json!({
        "apiVersion": "pool.kubevirt.io/v1beta1", "kind": "VirtualMachinePool", "metadata": {"name": "pool"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "pool"}}, "virtualMachineTemplate": {
            "metadata": {"labels": {"app": "pool"}},
            "spec": {"runStrategy": "Always", "template": template()},
        }},
    });
    let unbacked = json!([{"name": "testdisk", "disk": {}}]);
    let disk = "domain.devices.disks[0]";
    for (set, template) in [(&set, "/spec/template"), (&pool, "/spec/virtualMachineTemplate/spec/template")] {
        let mut wrong = set.clone();
        wrong.pointer_mut(template).unwrap()["spec"]["domain"]["devices"]["disks"] = unbacked.clone();
        let path = template[1..].replace('/', ".");
        let expected = format!("{path}.spec.{disk}.name: there is no volume");
        let refusal = dry_run(namespace, &wrong).unwrap_err();
        assert!(refusal.contains(&expected), "{refusal}");
        let mut unmatched = set.clone();
        unmatched["spec"]["selector"] = json!({"matchLabels": {"app": "other"}});
        let refusal = dry_run(namespace, &unmatched).unwrap_err();
        assert!(refusal.contains("selector does not match labels."), "{refusal}");
    }
    PLACE.create(REPLICA_SETS, namespace, &set);
    PLACE.create(POOLS, namespace, &pool);
    let ready = |resource, name: &str, count: u64| {
        PLACE.until(namespace, &format!("{name} has {count} that are ready"), || {
            let set = PLACE.find(resource, namespace, name).unwrap();
            let (of, ready) = (set["status"]["replicas"].as_u64()?, set["status"]["readyReplicas"].as_u64()?);
            ((of, ready) == (count, count)).then_some(())
        });
    };
    ready(REPLICA_SETS, "rs", 1);
    ready(POOLS, "pool", 1);
    assert!(PLACE.find(MACHINES, namespace, "pool-0").is_some());
    PLACE.kubectl(&["-n", namespace, "scale", "vmirs/rs", "--replicas=2"]).unwrap();
    PLACE.kubectl(&["-n", namespace, "scale", "vmpool/pool", "--replicas=2"]).unwrap();
    ready(REPLICA_SETS, "rs", 2);
    ready(POOLS, "pool", 2);
    let of_pool = |spec: Value| {
        let patch = json!({"spec": spec}).to_string();
        PLACE.kubectl(&["-n", namespace, "patch", "vmpool", "pool", "--type=merge", "-p", &patch]).unwrap();
    };
    let label = json!({"leaves": "yes"});
    patch(namespace, "pool-0", &json!({"spec": {"template": {"metadata": {"labels": label}}}}));
    let policy = json!({"selectors": {"labelSelector": {"matchLabels": label}}});
    of_pool(json!({"replicas": 1, "scaleInStrategy": {"proactive": {"selectionPolicy": policy}}}));
    PLACE.until(namespace, "the VM that the pool's selectors select is gone", || {
        PLACE.find(MACHINES, namespace, "pool-0").is_none().then_some(())
    });
    assert!(PLACE.find(MACHINES, namespace, "pool-1").is_some());
    of_pool(json!({"scaleInStrategy": null}));
    for set in ["vmirs/rs", "vmpool/pool"] {
        PLACE.kubectl(&["-n", namespace, "scale", set, "--replicas=0"]).unwrap();
    }
    PLACE.until(namespace, "no guest is left", || {
        (PLACE.list(INSTANCES, namespace).is_empty() && PLACE.list(MACHINES, namespace).is_empty())
            .then_some(())
    });
    PLACE.remove_namespace(namespace);
}
