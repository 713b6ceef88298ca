//! The shipped manifests: what a node, a scheduler, SELinux, CDI and Prometheus look at in them. Not here: that they work
//! (`e2e`).

use api::manifest;
use serde_json::{Value, json};

/// The objects of all manifests.
fn objects() -> Vec<Value> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests");
    let files = |folder: &std::path::Path| -> Vec<_> {
        let all = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        all.filter(|path| path.extension().is_some_and(|ending| ending == "yaml")).collect()
    };
    let all = [files(&folder), files(&folder.join("optional"))].concat();
    let read = |path: &std::path::PathBuf| manifest::documents(&std::fs::read(path).unwrap()).unwrap();
    all.iter().flat_map(read).map(|document| document.value).collect()
}

/// The one object of a kind.
fn of(kind: &str) -> Value {
    let mut found: Vec<Value> = objects().into_iter().filter(|one| one["kind"] == kind).collect();
    assert_eq!(found.len(), 1, "{kind}");
    found.remove(0)
}

const DRIVER: &str = "kubevirt.io.hostpath-provisioner";

#[test]
fn the_driver_runs_on_every_node_with_its_sidecars() {
    let set = of("DaemonSet");
    let pod = &set["spec"]["template"]["spec"];
    assert_eq!(pod["tolerations"], json!([{"operator": "Exists"}]), "whatever a node is tainted with");
    assert_eq!(pod["priorityClassName"], "system-node-critical");
    let containers = pod["containers"].as_array().unwrap();
    let names: Vec<&str> = containers.iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["hostpath-provisioner", "csi-provisioner", "csi-snapshotter", "csi-resizer"]);
    for one in containers {
        let name = &one["name"];
        // With SELinux, a confined container cannot connect to a privileged one's socket.
        assert_eq!(one["securityContext"]["privileged"], true, "{name}");
        assert!(one["resources"]["limits"]["memory"].is_string(), "{name}");
        assert!(one["resources"]["requests"]["memory"].is_string(), "{name}");
        // A limit of CPU would stall mounts.
        assert!(one["resources"]["limits"]["cpu"].is_null(), "{name}");
    }
}

#[test]
fn the_shipped_class_enforces_sizes_where_its_pool_can() {
    let class = of("StorageClass");
    assert_eq!((&class["provisioner"], &class["allowVolumeExpansion"]), (&json!(DRIVER), &json!(true)));
    assert_eq!(class["metadata"]["annotations"]["cdi.kubevirt.io/clone-strategy"], "csi-clone");
    let set = of("DaemonSet");
    let driver = &set["spec"]["template"]["spec"]["containers"][0];
    let pools = driver["env"].as_array().unwrap().iter().find(|one| one["name"] == "PV_DIR").unwrap();
    let pools: Value = serde_json::from_str(pools["value"].as_str().unwrap()).unwrap();
    let pool =
        pools.as_array().unwrap().iter().find(|pool| pool["name"] == class["parameters"]["storagePool"]);
    // Not given: by quota where the filesystem has it.
    let enforced = &pool.unwrap_or_else(|| panic!("{pools}"))["enforce"];
    assert!(enforced.is_null() || enforced == "quota" || enforced == "loop", "{enforced}");
}

#[test]
fn snapshots_of_one_and_of_many_volumes_have_their_classes() {
    for kind in ["VolumeSnapshotClass", "VolumeGroupSnapshotClass"] {
        let class = of(kind);
        assert_eq!(
            (&class["driver"], &class["deletionPolicy"]),
            (&json!(DRIVER), &json!("Delete")),
            "{kind}"
        );
    }
}

#[test]
fn alerts_are_about_the_drivers_metrics() {
    let rule = of("PrometheusRule");
    let rules = rule["spec"]["groups"][0]["rules"].as_array().unwrap();
    let names: Vec<&str> = rules.iter().map(|one| one["alert"].as_str().unwrap()).collect();
    for name in ["HPPPoolNotReady", "HPPPoolNearlyFull", "HPPPoolReadOnly", "HPPVolumeFragmented"] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    for one in rules {
        assert!(one["expr"].as_str().unwrap().starts_with("kubevirt_hpp_"), "{one}");
        assert!(one["annotations"]["summary"].is_string() && one["labels"]["severity"].is_string(), "{one}");
    }
}
