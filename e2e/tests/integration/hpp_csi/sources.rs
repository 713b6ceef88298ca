//! Claims that another component fills.

use std::time::Duration;

use serde_json::json;

use crate::hpp_csi::space::{Space, Volume, in_pool, until};
use crate::hpp_csi::together;

#[test]
fn a_claim_from_a_foreign_kind_is_left_alone() {
    let _driver = together();
    let space = Space::new("foreign");
    let source = json!({"apiGroup": "example.com", "kind": "Picture", "name": "p"});
    space.claim("data", 100, &json!({"dataSourceRef": source}));
    space.pod("user", "true", &[Volume::Files("data")]);
    until("the scheduler has chosen a node", || {
        let claim = space.get("PersistentVolumeClaim", "data")?;
        claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"].as_str().map(drop)
    });
    // A driver that made a volume of it would have done so by now: others are bound within a second.
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(space.get("PersistentVolumeClaim", "data").unwrap()["status"]["phase"], "Pending");
    assert!(!in_pool(&format!("pvc-{}", space.uid("data"))).exists());
    assert!(!space.events("data").iter().any(|said| said.starts_with("ProvisioningFailed")));
}
