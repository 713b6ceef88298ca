//! Labels of instances that decide which node, agent or migration an instance belongs to: only the platform sets them.

use std::collections::BTreeMap;

use serde_json::Value;

use super::answer::{Cause, NOT_SUPPORTED};

const RESERVED: [&str; 6] = [
    "kubevirt.io/created-by",
    "kubevirt.io/migrationJobUID",
    "kubevirt.io/nodeName",
    "kubevirt.io/migrationTargetNodeName",
    api::nodes::SCHEDULABLE,
    "kubevirt.io/install-strategy",
];

/// The reserved labels of an object's metadata.
fn reserved(metadata: &Value) -> BTreeMap<&'static str, &Value> {
    RESERVED.iter().filter_map(|name| Some((*name, metadata["labels"].get(*name)?))).collect()
}

fn cause(at: &str, verb: &str) -> Cause {
    Cause {
        reason: NOT_SUPPORTED,
        field: format!("{at}.labels"),
        message: format!(
            "{verb} of the following reserved kubevirt.io/ labels on a VMI object is prohibited"
        ),
    }
}

/// Refuses metadata of a new instance, or of a template, at a path, with reserved labels.
pub(super) fn created(metadata: &Value, at: &str) -> Option<Cause> {
    (!reserved(metadata).is_empty()).then(|| cause(at, "creation"))
}

/// Refuses a change of an instance's reserved labels.
pub(super) fn changed(old: &Value, new: &Value) -> Option<Cause> {
    (reserved(old) != reserved(new)).then(|| cause("metadata", "modification"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reserved_labels_are_refused_and_others_allowed() {
        let with = |labels: Value| json!({"labels": labels});
        for (labels, refused) in [
            (json!(null), false),
            (json!({"app": "a", "kubevirt.io/size": "small"}), false),
            (json!({"kubevirt.io/nodeName": "n"}), true),
            (json!({"kubevirt.io/created-by": "u"}), true),
        ] {
            assert_eq!(created(&with(labels.clone()), "metadata").is_some(), refused, "{labels}");
        }
        let (none, one, other) = (
            with(json!({"app": "a"})),
            with(json!({"kubevirt.io/nodeName": "n"})),
            with(json!({"app": "b", "kubevirt.io/nodeName": "m"})),
        );
        for (old, new, refused) in [
            (&none, &none, false),
            (&none, &one, true),
            (&one, &none, true),
            (&one, &other, true),
            (&one, &with(json!({"app": "b", "kubevirt.io/nodeName": "n"})), false),
        ] {
            assert_eq!(changed(old, new).is_some(), refused, "{old} {new}");
        }
        assert_eq!(
            changed(&none, &one).unwrap().message,
            "modification of the following reserved kubevirt.io/ labels on a VMI object is prohibited"
        );
    }
}
