//! How much there is, as the scheduler sees it.

use std::process::Command;

use e2e::storage::NAMESPACE;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use crate::hpp_csi::space::{Space, Volume, api, until};
use crate::hpp_csi::{CLASS, CLUSTER, alone, together};

/// The bytes that the driver reports as available.
fn available() -> u64 {
    let pods = CLUSTER.run(api("Pod", NAMESPACE).list(&Default::default())).unwrap();
    let address = pods.items[0].data["status"]["podIP"].as_str().unwrap().to_owned();
    let page = Command::new("curl")
        .args(["--silent", "--insecure", "--max-time", "10", &format!("https://{address}:8443/metrics")])
        .output()
        .unwrap();
    let page = String::from_utf8(page.stdout).unwrap();
    let metric = r#"kubevirt_hpp_pool_available_bytes{pool="legacy"} "#;
    page.lines().find_map(|line| line.strip_prefix(metric)).unwrap().parse().unwrap()
}

/// A quantity in bytes.
fn bytes(quantity: &Value) -> u64 {
    let text = quantity.as_str().unwrap();
    ::api::quantity::bytes(text).unwrap()
}

#[test]
fn the_scheduler_knows_how_much_there_is() {
    let _driver = alone();
    let space = Space::new("capacity");
    space.claim("data", 1000, &json!({}));
    space.pod("user", "true", &[Volume::Files("data")]);
    space.running("user");
    let told = || -> Option<DynamicObject> {
        let all = CLUSTER.run(api("CSIStorageCapacity", NAMESPACE).list(&Default::default())).unwrap();
        all.items.into_iter().find(|one| one.data["storageClassName"] == CLASS)
    };
    // Reported in Ki; the growth of the pool's own files is measured once a minute.
    until("the capacity is right", || {
        let (told, available) = (told()?, available());
        let off = bytes(&told.data["capacity"]).abs_diff(available);
        (off <= 2048).then(|| {
            assert_eq!(told.data["nodeTopology"]["matchLabels"]["topology.hostpath.csi/node"], "node1")
        })
    });

    space.claim("huge", 1 << 20, &json!({}));
    space.pod("greedy", "true", &[Volume::Files("huge")]);
    until("the pod is scheduled nowhere", || {
        space.events("greedy").iter().any(|said| said.contains("enough free storage")).then_some(())
    });
    let claim = space.get("PersistentVolumeClaim", "huge").unwrap();
    assert!(claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"].is_null(), "nobody tried");
    assert_eq!(space.get("Pod", "greedy").unwrap()["status"]["phase"], "Pending");
}

#[test]
fn an_event_of_the_node_reports_that_sizes_are_not_enforced() {
    let _driver = together();
    // The kernel has no quota for the pool's XFS.
    let is_found = |event: &DynamicObject| {
        let about = &event.data["involvedObject"];
        event.data["reason"] == "StoragePoolNotEnforced"
            && about["kind"] == "Node"
            && about["name"] == "node1"
    };
    until("the event", || {
        let all = CLUSTER.run(api("Event", "default").list(&Default::default())).unwrap();
        all.items.iter().any(is_found).then_some(())
    });
}
