//! The importer writes into a volume of the driver, and what it wrote is cloned: a golden image's way.

use std::fs::{self, File};
use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

use e2e::peer::web::Web;
use serde_json::json;

use crate::hpp_csi::space::{Space, until};
use crate::hpp_csi::{CLUSTER, MIB, alone};

/// How long a clone may take, from asking for it until its claim is bound.
const CLONED: Duration = Duration::from_secs(1);

#[test]
fn an_imported_volume_is_cloned_in_no_time() {
    let _driver = alone();
    let space = Space::new("import");
    // A disk that is mostly data, and the image of it on a server.
    let images = CLUSTER.place().path("images");
    fs::create_dir_all(&images).unwrap();
    let [raw, qcow2] = ["disk.raw", "disk.qcow2"].map(|name| images.join(name));
    let mut disk = File::create(&raw).unwrap();
    let mut state = 5_u64;
    let data: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state.to_be_bytes()
    })
    .take(1 << 20)
    .flatten()
    .collect();
    for _ in 0..12 {
        disk.write_all(&data).unwrap();
    }
    disk.set_len(128 * MIB).unwrap();
    let convert = ["convert", "-q", "-f", "raw", "-O", "qcow2"];
    assert!(Command::new("qemu-img").args(convert).args([&raw, &qcow2]).status().unwrap().success());
    let web = Web::start(CLUSTER.place(), &images).unwrap();

    // As CDI makes them for a DataVolume: a claim, and a pod that fills it.
    space.claim("golden", 256, &json!({}));
    let set = |name: &str, value: &str| json!({"name": name, "value": value});
    let importer = json!({"spec": {
        "restartPolicy": "OnFailure",
        "securityContext": {"fsGroup": 107},
        "containers": [{
            "name": "importer",
            "image": "localhost/ferrovirt:importer",
            "imagePullPolicy": "IfNotPresent",
            "args": ["-v=1"],
            "env": [
                set("IMPORTER_SOURCE", "http"),
                set("IMPORTER_ENDPOINT", &web.url("disk.qcow2")),
                set("IMPORTER_CONTENTTYPE", "kubevirt"),
                set("IMPORTER_IMAGE_SIZE", &(256 * MIB).to_string()),
                set("FILESYSTEM_OVERHEAD", "0.06"),
                set("OWNER_UID", &space.uid("golden")),
                set("INSECURE_TLS", "false"),
                set("PREALLOCATION", "false"),
            ],
            "securityContext": {
                "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
                "allowPrivilegeEscalation": false, "runAsNonRoot": true, "runAsUser": 107,
            },
            "volumeMounts": [{"name": "cdi-data-vol", "mountPath": "/data"}],
        }],
        "volumes": [{"name": "cdi-data-vol", "persistentVolumeClaim": {"claimName": "golden"}}],
    }});
    space.create("Pod", "importer-golden", &importer);
    until("the import ends", || {
        (space.get("Pod", "importer-golden")?["status"]["phase"] == "Succeeded").then_some(())
    });
    same(&raw, &space.folder("golden").join("disk.img"));
    space.delete("Pod", "importer-golden");

    let source = json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "golden"}});
    let times: Vec<Duration> = (0..3)
        .map(|n| {
            let name = format!("clone-{n}");
            let begun = Instant::now();
            // As the scheduler marks a claim after it has placed its pod.
            let placed = json!({"volume.kubernetes.io/selected-node": "node1"});
            space.claim_with(&name, 256, &source, &placed);
            while space.get("PersistentVolumeClaim", &name).unwrap()["status"]["phase"] != "Bound" {
                assert!(begun.elapsed() < Duration::from_secs(60), "{name}: {:?}", space.events(&name));
                std::thread::sleep(Duration::from_millis(5));
            }
            let took = begun.elapsed();
            same(&raw, &space.folder(&name).join("disk.img"));
            took
        })
        .collect();
    println!("clones of the imported volume, from asking until bound: {times:.0?}");
    assert!(*times.iter().min().unwrap() < e2e::bar(CLONED), "{times:?}");
    let clone = space.folder("clone-0").join("disk.img");
    let extents = Command::new("filefrag").arg("-v").arg(clone).output().unwrap();
    assert!(String::from_utf8_lossy(&extents.stdout).contains("shared"), "no data was copied");
}

/// That a volume's disk starts with the bytes of the image's.
#[track_caller]
fn same(raw: &std::path::Path, disk: &std::path::Path) {
    let size = (128 * MIB).to_string();
    let compared = Command::new("cmp").args(["-n", &size]).args([raw, disk]).output().unwrap();
    assert!(compared.status.success(), "{}", String::from_utf8_lossy(&compared.stderr));
}
