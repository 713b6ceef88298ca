//! The storage controllers are killed while they work: what they began is done in the end, once.

use std::time::Duration;

use e2e::peer::web::Web;
use serde_json::json;

use crate::platform;
use crate::setup::{CLUSTER, DISK, IMMEDIATE, WAITING, assert_same};
use crate::space::{Space, until};

/// How often they are killed.
fn kills() -> u64 {
    if std::env::var_os("FERROVIRT_SOAK").is_some() { 50 } else { 5 }
}

#[test]
fn transfers_are_done_once_although_their_controllers_are_killed() {
    let space = Space::new("killed");
    let web = Web::start(CLUSTER.place(), DISK.qcow2.parent().unwrap()).unwrap();
    let http = json!({"http": {"url": web.url("disk.qcow2")}});
    let golden = json!({"pvc": {"namespace": "killed", "name": "golden"}});
    space.data_volume("golden", &http, IMMEDIATE, "Filesystem", &json!({}));
    space.phases("golden", "Succeeded");
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
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(random(1500)));
            platform::restart();
        }
        for kind in ["file", "device", "direct", "blank", "clone", "copy"] {
            let name = name(kind);
            space.phases(&name, "Succeeded");
            if kind != "blank" {
                assert_same(&space.file(&name));
            }
            let volume = space.get("DataVolume", &name).unwrap();
            assert_eq!(volume["status"]["restartCount"].as_u64().unwrap_or(0), 0, "{name}: imported once");
        }
    }
    until("nothing that helped is left", || {
        let pods = space.names("Pod");
        let claims = space.names("PersistentVolumeClaim");
        let services = space.names("Service");
        let helps = |name: &String| {
            ["prime-", "tmp-", "importer-", "cdi-upload-"].iter().any(|begin| name.starts_with(begin))
                || name.ends_with("-source-pod")
        };
        (!pods.iter().chain(&claims).chain(&services).any(helps)).then_some(())
    });
}
