//! The networks of a running launcher pod in its annotation: those of unplugged interfaces leave it, so that a dynamic networks
//! controller detaches the pod from what Multus attached. Pure.
//!
//! Networks that are plugged are not added: virt-agent attaches them.

use super::plan::{Observed, Step};
use crate::compute::launcher::{NETWORKS, networks_without};

/// The step that removes unplugged networks from the annotation.
pub(super) fn step(observed: &Observed<'_>) -> Option<Step> {
    let instance = observed.instance;
    if instance.is_final() || instance.metadata.deleting() {
        return None;
    }
    let pod = observed.launcher().filter(|pod| !pod.is_down() && !pod.metadata.deleting())?;
    let before = pod.metadata.annotation(NETWORKS)?;
    let after = networks_without(before, &instance.spec.unplugged)?;
    Some(Step::Networks {
        pod: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        before: before.to_owned(),
        after,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::{Scene, instance, pod};
    use super::*;

    /// Interfaces of the guest's spec, an exclamation mark before those that are absent, and the annotation's networks before and
    /// after.
    #[test]
    fn unplugged_networks_leave_the_annotation() {
        let lan = r#"{"interface":"pod0b5a1b9e9c3","name":"lan"}"#;
        let names = ["lan", "wan"].map(crate::compute::launcher::interface_name);
        let entry = |at: usize| json!({"name": "n", "namespace": "n", "interface": names[at]});
        let both = json!([entry(0), entry(1)]).to_string();
        for (what, phase, interfaces, before, after) in [
            ("both are plugged", "Running", &["lan", "wan"][..], both.clone(), None),
            ("one is unplugged", "Running", &["lan", "!wan"], both.clone(), Some(json!([entry(0)]))),
            ("both are unplugged", "Running", &["!lan", "!wan"], both.clone(), Some(json!([]))),
            ("it left before", "Running", &["!wan"], json!([entry(0)]).to_string(), None),
            ("another controller's", "Running", &["!lan"], format!("[{lan}]"), None),
            ("not a JSON list", "Running", &["!lan"], "lan@net1".to_owned(), None),
            ("the guest has ended", "Failed", &["!lan"], both.clone(), None),
        ] {
            let mut guest = instance(phase);
            let interface = |name: &&str| match name.strip_prefix('!') {
                Some(name) => json!({"name": name, "bridge": {}, "state": "absent"}),
                None => json!({"name": name, "bridge": {}}),
            };
            let all: Vec<Value> = interfaces.iter().map(interface).collect();
            guest["spec"]["domain"] = json!({"devices": {"interfaces": all}});
            let mut launcher = pod("Running", true);
            launcher["metadata"]["annotations"] = json!({NETWORKS: before});
            let step = Scene::new(guest, &[launcher]).with(|observed, _| step(observed));
            let found = step.map(|step| {
                let Step::Networks { pod, uid, before: read, after } = step else {
                    panic!("{what}: {step:?}")
                };
                assert_eq!((pod.as_str(), uid.as_str()), ("virt-launcher-vm-aaaaa", "p"), "{what}");
                assert_eq!(read, before, "{what}");
                serde_json::from_str::<Value>(&after).unwrap()
            });
            assert_eq!(found, after, "{what}");
        }
    }
}
