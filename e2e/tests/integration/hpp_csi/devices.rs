//! Block devices in pods.

use std::fs;
use std::os::unix::fs::MetadataExt;

use e2e::storage::DRIVER;
use serde_json::json;

use crate::hpp_csi::space::{Space, Volume, attached, block_file, until};
use crate::hpp_csi::{MIB, together};

#[test]
fn a_pod_has_a_block_device_and_nothing_of_it_stays() {
    let _driver = together();
    let space = Space::new("block");
    space.claim("disk", 64, &json!({"volumeMode": "Block"}));
    let script = "printf written | dd of=/dev/disk bs=4096 seek=2 conv=sync,notrunc 2>/dev/null; sync";
    space.pod("user", script, &[Volume::Device("disk")]);
    space.running("user");
    let file = block_file(&space, "disk");
    until("the device is written", || {
        let bytes = fs::read(&file).ok()?;
        assert_eq!(bytes.len(), 64 << 20);
        bytes[8192..].starts_with(b"written").then_some(())
    });
    space.delete("Pod", "user");
    // Read again by another pod: its own loop device, the same bytes.
    space.pod(
        "reader",
        "dd if=/dev/disk bs=4096 skip=2 count=1 2>/dev/null | grep -q written",
        &[Volume::Device("disk")],
    );
    space.running("reader");
    space.delete("Pod", "reader");
    space.delete("PersistentVolumeClaim", "disk");
    until("the file is gone", || (!file.exists()).then_some(()));
    until("no device is left", || (!attached(&file)).then_some(()));
}

#[test]
fn a_device_gets_all_its_blocks_by_its_class_of_attributes() {
    let _driver = together();
    let space = Space::new("attributes");
    let class = json!({"driverName": DRIVER, "parameters": {"allocation": "thick"}});
    space.create("VolumeAttributesClass", "thick", &class);
    let thick = json!({"volumeMode": "Block", "volumeAttributesClassName": "thick"});
    space.claim("born", 64, &thick);
    space.claim("becomes", 64, &json!({"volumeMode": "Block"}));
    space.pod("user", "true", &[Volume::Device("born"), Volume::Device("becomes")]);
    space.running("user");
    let allocated = |claim: &str| fs::metadata(block_file(&space, claim)).unwrap().blocks() * 512;
    assert!(allocated("born") >= 64 * MIB && allocated("becomes") < 64 * MIB);
    let patch = json!({"spec": {"volumeAttributesClassName": "thick"}});
    space.patch("PersistentVolumeClaim", "becomes", &patch);
    until("the claim is modified", || {
        let claim = space.get("PersistentVolumeClaim", "becomes")?;
        (claim["status"]["currentVolumeAttributesClassName"] == "thick").then_some(())
    });
    assert!(allocated("becomes") >= 64 * MIB, "while its pod runs");
    space.delete("Pod", "user");
}
