//! The storage controllers are killed while they work: what they began is done in the end, once.

use std::time::Duration;

use e2e::peer::web::Web;
use serde_json::json;

use crate::storage::platform;
use crate::storage::send::upload_to;
use crate::storage::setup::{CLUSTER, DISK, IMMEDIATE, WAITING, assert_same};
use crate::storage::space::{Space, until};

/// Kinds of DataVolumes.
const KINDS: [&str; 9] =
    ["file", "device", "direct", "blank", "clone", "copy", "direct-copy", "restored", "upload"];

/// How often they are killed at random moments, at least.
fn kills() -> u64 {
    if std::env::var_os("FERROVIRT_SOAK").is_some() { 50 } else { 5 }
}

#[test]
fn transfers_are_done_once_although_their_controllers_are_killed() {
    let space = Space::new("killed");
    let web = Web::start(CLUSTER.place(), DISK.qcow2.parent().unwrap()).unwrap();
    let http = json!({"http": {"url": web.url("disk.qcow2")}});
    let far = Space::new("killed-far");
    let golden = json!({"pvc": {"namespace": "killed-far", "name": "golden"}});
    far.data_volume("golden", &http, IMMEDIATE, "Filesystem", &json!({}));
    far.phases("golden", "Succeeded");
    far.create(
        "VolumeSnapshot",
        json!({
            "metadata": {"name": "taken"},
            "spec": {"volumeSnapshotClassName": "hostpath-csi", "source": {"persistentVolumeClaimName": "golden"}},
        }),
    );
    let taken = json!({"snapshot": {"namespace": "killed-far", "name": "taken"}});
    let upload = json!({"upload": {}});
    let forced = json!({"cdi.kubevirt.io/storage.bind.immediate.requested": ""});
    let direct = json!({"cdi.kubevirt.io/storage.usePopulator": "false"});
    let mut state = 11_u64;
    let mut random = |most: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % most
    };
    // A round is one set of DataVolumes and five kills.
    for round in 0..kills() / 5 {
        let name = |kind: &str| format!("{kind}-{round}");
        space.data_volume(&name("file"), &http, IMMEDIATE, "Filesystem", &json!({}));
        space.data_volume(&name("device"), &http, WAITING, "Block", &forced);
        space.data_volume(&name("direct"), &http, IMMEDIATE, "Filesystem", &direct);
        space.data_volume(&name("blank"), &json!({"blank": {}}), IMMEDIATE, "Filesystem", &json!({}));
        space.data_volume(&name("clone"), &golden, IMMEDIATE, "Filesystem", &json!({}));
        space.data_volume(&name("copy"), &golden, IMMEDIATE, "Block", &json!({}));
        space.data_volume(&name("direct-copy"), &golden, IMMEDIATE, "Filesystem", &direct);
        space.data_volume(&name("restored"), &taken, IMMEDIATE, "Filesystem", &json!({}));
        space.data_volume(&name("upload"), &upload, IMMEDIATE, "Filesystem", &json!({}));
        space.create(
            "DataImportCron",
            json!({
                "metadata": {"name": name("cron")},
                "spec": {
                    "managedDataSource": name("cron"), "schedule": "0 3 * * *",
                    "template": {"spec": {
                        "source": http,
                        "storage": {"storageClassName": IMMEDIATE, "resources": {"requests": {"storage": "96Mi"}}},
                    }},
                },
            }),
        );
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(random(1500)));
            platform::restart();
        }
        space.phases(&name("upload"), "UploadReady");
        platform::restart();
        upload_to(&space, &name("upload"), "/v1beta1/upload", &std::fs::read(&DISK.qcow2).unwrap());
        platform::restart();
        for kind in KINDS {
            let name = name(kind);
            space.phases(&name, "Succeeded");
            if kind != "blank" {
                assert_same(&space.file(&name));
            }
            let volume = space.get("DataVolume", &name).unwrap();
            assert_eq!(volume["status"]["restartCount"].as_u64().unwrap_or(0), 0, "{name}: imported once");
        }
        let source = name("cron");
        let imported = until("the DataSource points at the cron's import", || {
            let source = space.get("DataSource", &source)?;
            Some(source["spec"]["source"]["pvc"]["name"].as_str()?.to_owned())
        });
        space.phases(&imported, "Succeeded");
        assert_same(&space.file(&imported));
    }
    for space in [&space, &far] {
        until("nothing that helped is left", || {
            let kinds = ["Pod", "PersistentVolumeClaim", "Service", "Secret", "VolumeSnapshot"];
            let left: Vec<String> = kinds.iter().flat_map(|kind| space.names(kind)).collect();
            let helps = |name: &String| {
                ["prime-", "tmp-", "importer-", "cdi-upload-", "poll-"]
                    .iter()
                    .any(|begin| name.starts_with(begin))
                    || name.ends_with("-source-pod")
            };
            (!left.iter().any(helps)).then_some(())
        });
        // A worker that is made again would do its work again.
        let mut made = platform::pods_made(&space.0);
        let all = made.len();
        made.sort();
        made.dedup();
        assert_eq!(made.len(), all, "{made:?}");
    }
    println!("{} kills: all succeeded, each worker was made once, nothing is left", kills() / 5 * 7);
}
