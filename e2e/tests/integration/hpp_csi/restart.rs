//! The driver is restarted while pods run.

use std::fs;
use std::time::Duration;

use e2e::storage::{NAMESPACE, registered};
use serde_json::json;

use crate::hpp_csi::space::{Space, Volume, attached, block_file, until};
use crate::hpp_csi::{CLUSTER, alone};

#[test]
fn pods_go_on_while_the_driver_is_restarted() {
    let _driver = alone();
    let space = Space::new("restart");
    space.claim("files", 100, &json!({}));
    space.claim("disk", 64, &json!({"volumeMode": "Block"}));
    let script = "echo begin >/files/log; (while sleep 0.1; do echo line >>/files/log; \
                  dd if=/dev/urandom of=/dev/disk bs=4096 count=1 conv=notrunc 2>/dev/null; done) &";
    space.pod("user", script, &[Volume::Files("files"), Volume::Device("disk")]);
    space.running("user");
    let log = space.folder("files").join("log");
    let disk = block_file(&space, "disk");
    let lines = || fs::read_to_string(&log).unwrap().lines().count();
    let delete = ["-n", NAMESPACE, "delete", "pod", "-l", "k8s-app=hostpath-provisioner", "--wait"];
    assert!(CLUSTER.kubectl().args(delete).output().unwrap().status.success());
    let before = lines();
    std::thread::sleep(Duration::from_secs(1));
    assert!(lines() > before, "the pod writes without the driver");
    let rollout = ["-n", NAMESPACE, "rollout", "status", "daemonset", "--timeout=120s"];
    assert!(CLUSTER.kubectl().args(rollout).output().unwrap().status.success());
    registered(&CLUSTER).unwrap();
    let before = lines();
    std::thread::sleep(Duration::from_secs(1));
    assert!(lines() > before);
    space.exec("user", "dd if=/dev/disk of=/dev/null bs=1M count=1 2>/dev/null");

    // New volumes are made, old ones unpublished and deleted.
    space.claim("later", 100, &json!({}));
    space.pod("second", "echo later >/later/file", &[Volume::Files("later")]);
    space.running("second");
    space.delete("Pod", "user");
    space.delete("Pod", "second");
    for claim in ["files", "disk", "later"] {
        space.delete("PersistentVolumeClaim", claim);
    }
    until("nothing of them is left", || (!log.exists() && !disk.exists() && !attached(&disk)).then_some(()));
}
