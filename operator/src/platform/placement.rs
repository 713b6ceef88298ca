//! Placement of the control plane's pods, as `KubeVirt` (the operator) and `CDI` (the upload proxy) ask for it. Pure.
//!
//! It is applied to the Deployment with a field manager of its own: what the installation placed stays where the object
//! asks for nothing. Not here: node agents, which run on every node, and pods of guests and of transfers.

use cluster::{Apply, Key};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::plan::Side;

/// The field manager.
pub(super) const MANAGER: Apply<'static> = Apply { manager: "ferrovirt-placement", force: true };

/// Fields of a pod that place it.
const FIELDS: [&str; 3] = ["affinity", "nodeSelector", "tolerations"];

/// The Deployment that a side places.
pub(super) fn placed(side: Side) -> &'static str {
    match side {
        Side::Compute => crate::install::OPERATOR_DEPLOYMENT,
        Side::Storage => "cdi-uploadproxy",
    }
}

/// The fields that an object asks for; those that are empty ask for nothing.
pub(super) fn asked(of: Option<&impl Serialize>) -> Map<String, Value> {
    let of = serde_json::to_value(of).unwrap_or_default();
    let given = |value: &Value| match value {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    };
    FIELDS
        .iter()
        .map(|field| ((*field).to_owned(), of[field].clone()))
        .filter(|(_, value)| given(value))
        .collect()
}

/// The Deployment's fields that are applied; without a placement those that were applied before go.
pub(super) fn applied(key: &Key, placement: &Map<String, Value>) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": key.name(), "namespace": key.namespace()},
        "spec": {"template": {"spec": placement}},
    })
}

/// Whether a Deployment has fields that were applied.
pub(super) fn is_placed(deployment: &Value) -> bool {
    let managers = deployment["metadata"]["managedFields"].as_array();
    managers.into_iter().flatten().any(|one| one["manager"] == MANAGER.manager)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placement_is_what_the_object_gives() {
        let given = json!({"nodeSelector": {"a": "b"}, "tolerations": [], "affinity": {}, "replicas": 2});
        let placement = asked(Some(&given));
        assert_eq!(Value::Object(placement.clone()), json!({"nodeSelector": {"a": "b"}}));
        let deployment = applied(&Key::new("ns", placed(Side::Storage)), &placement);
        assert_eq!(deployment["metadata"], json!({"name": "cdi-uploadproxy", "namespace": "ns"}));
        assert_eq!(deployment["spec"], json!({"template": {"spec": {"nodeSelector": {"a": "b"}}}}));
        assert!(asked(None::<&Value>).is_empty());
        let everywhere = asked(Some(&json!({"tolerations": [{"operator": "Exists"}]})));
        assert_eq!(everywhere["tolerations"][0]["operator"], "Exists");
    }

    #[test]
    fn earlier_placements_are_found() {
        let with = |manager: &str| json!({"metadata": {"managedFields": [{"manager": manager}]}});
        assert!(is_placed(&with("ferrovirt-placement")) && !is_placed(&with("kubectl")));
        assert!(!is_placed(&Value::Null));
    }
}
