//! Many DataVolumes at once, imported by the platform as it is installed: all are done, and the operator stays small.
//! And the metrics of storage that it exports.
//!
//! How many writes each takes is counted where nothing else of the operator runs, in the tests of storage.

use std::fs::File;
use std::time::Instant;

use cluster::Resource;
use e2e::peer::web::Web;
use e2e::processes::Memory;
use serde_json::json;

use crate::platform::hyperconverged::metric;
use crate::platform::machines::machine;
use crate::platform::place::{CLAIMS, DATA_VOLUMES, MACHINES, PLACE, PODS};
use crate::platform::transfers::data_volume;

/// Where the platform is.
const PLATFORM: &str = "kubevirt-hyperconverged";
/// Namespace of the DataVolumes.
const SPACE: &str = "imports";
/// Most memory of the operator that counts, in KiB.
const MEMORY_MAX: u64 = 64 << 10;

#[test]
fn many_data_volumes_at_once_are_imported_by_a_small_operator() {
    let count = if std::env::var_os("FERROVIRT_SOAK").is_some() { 200 } else { 12 };
    PLACE.namespace(SPACE);
    let folder = tempfile::tempdir_in(PLACE.cluster.place().path("")).unwrap();
    File::create(folder.path().join("disk.img")).unwrap().set_len(64 << 20).unwrap();
    let web = Web::start(PLACE.cluster.place(), folder.path()).unwrap();
    let operator = PLACE.until(PLATFORM, "the operator's pod", || {
        let of = |pod: &serde_json::Value| {
            pod["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("ferrovirt-operator-"))
                && pod["status"]["phase"] == "Running"
        };
        PLACE.list(PODS, PLATFORM).into_iter().find(of)
    });
    let operator = operator["metadata"]["uid"].as_str().unwrap().to_owned();
    let memory = || Memory::of_pod(&operator).unwrap().counted().unwrap();
    let before = memory();
    let begun = Instant::now();
    let names: Vec<String> = (0..count).map(|number| format!("many{number:03}")).collect();
    for name in &names {
        let source = json!({"http": {"url": web.url("disk.img")}});
        let volume = data_volume(name, &source, "96Mi");
        PLACE.create(DATA_VOLUMES, SPACE, &volume);
    }
    let mut most = before;
    for name in &names {
        PLACE.until(SPACE, &format!("{name} is imported"), || {
            most = most.max(memory());
            let volume = PLACE.find(DATA_VOLUMES, SPACE, name)?;
            (volume["status"]["phase"] == "Succeeded").then_some(())
        });
    }
    println!(
        "{count} DataVolumes at once: {:.1?}; operator {before} KiB before, at most {most} KiB while they are imported",
        begun.elapsed(),
    );
    assert!(most <= MEMORY_MAX, "{most} KiB");
    PLACE.remove_namespace(SPACE);
}

#[test]
fn storage_is_measured_under_upstreams_names() {
    const NAMESPACE: &str = "storage-metrics";
    PLACE.namespace(NAMESPACE);
    let crons = Resource::namespaced("cdi.kubevirt.io", "v1beta1", "dataimportcrons");
    let cron = json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataImportCron", "metadata": {"name": "nightly"},
        "spec": {
            "managedDataSource": "image", "schedule": "0 3 * * *",
            "template": {"spec": {
                "source": {"registry": {"url": "docker://registry.invalid/disks/image:1"}},
                "storage": {"storageClassName": "hostpath-csi", "resources": {"requests": {"storage": "96Mi"}}},
            }},
        },
    });
    PLACE.create(crons, NAMESPACE, &cron);
    // Claims of Ceph RBD, without and with the map option that disks of Windows need.
    let classes = Resource::cluster("storage.k8s.io", "v1", "storageclasses");
    let kinds = [("rbd-plain", json!({})), ("rbd-bouncing", json!({"mapOptions": "krbd:rxbounce"}))];
    for (name, parameters) in &kinds {
        let class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
            "provisioner": "rbd.csi.ceph.com", "volumeBindingMode": "WaitForFirstConsumer",
            "parameters": parameters,
        });
        PLACE.create(classes, "", &class);
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "volumeMode": "Block", "storageClassName": name,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        PLACE.create(CLAIMS, NAMESPACE, &claim);
        let disk = json!({"persistentVolumeClaim": {"claimName": name}});
        PLACE.create(MACHINES, NAMESPACE, &machine(name, "Halted", &disk));
    }
    let class =
        r#"{storageclass="hostpath-csi",provisioner="kubevirt.io.hostpath-provisioner",complete="true""#;
    let bounces = "kubevirt_ssp_vm_rbd_block_volume_without_rxbounce";
    for (name, labels, value) in [
        ("kubevirt_cdi_cr_ready", "", 1),
        ("kubevirt_cdi_storageprofile_info", class, 1),
        ("kubevirt_cdi_dataimportcron_outdated", r#"{ns="storage-metrics",cron_name="nightly""#, 1),
        (bounces, r#"{name="rbd-plain",namespace="storage-metrics"}"#, 1),
        (bounces, r#"{name="rbd-bouncing",namespace="storage-metrics"}"#, 0),
    ] {
        let wanted = format!("{name}{labels} is {value}");
        PLACE.until(NAMESPACE, &wanted, || (metric(name, labels)? == value).then_some(()));
    }
    PLACE.until(NAMESPACE, "pending DataVolumes are counted", || {
        metric("kubevirt_cdi_datavolume_pending", "")
    });
    for (name, _) in &kinds {
        PLACE.delete(classes, "", name);
    }
    PLACE.remove_namespace(NAMESPACE);
}
