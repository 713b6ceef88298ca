//! ReferenceGrants (gateway.networking.k8s.io): owners of a namespace let claims of another one be cloned from its claims
//! and snapshots. Pure, but for [`granted`], which reads them.

use cluster::{Client, Scope};
use serde_json::Value;

use super::authorize::Origin;
use crate::storage::names;
use crate::storage::resources::REFERENCE_GRANTS;

/// Whether one of these ReferenceGrants of the source's namespace lets objects of `target_namespace` refer to the source.
pub fn allows(grants: &[Value], origin: &Origin, target_namespace: &str) -> bool {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let refers = |from: &Value| {
        let kind = (from["group"].as_str().unwrap_or_default(), from["kind"].as_str().unwrap_or_default());
        let ours = kind == ("", "PersistentVolumeClaim") || kind == (names::GROUP, "DataVolume");
        ours && from["namespace"] == *target_namespace
    };
    let referred = |to: &Value| {
        let (group, kind) = match origin.snapshot {
            true => ("snapshot.storage.k8s.io", "VolumeSnapshot"),
            false => ("", "PersistentVolumeClaim"),
        };
        let named = to["name"].as_str().filter(|name| !name.is_empty());
        to["group"].as_str().unwrap_or_default() == group
            && to["kind"] == *kind
            && named.is_none_or(|name| name == origin.name)
    };
    grants.iter().any(|grant| {
        list(&grant["spec"]["from"]).iter().any(refers) && list(&grant["spec"]["to"]).iter().any(referred)
    })
}

/// Whether the source's namespace grants the clone. Clusters without the kind grant none.
///
/// # Errors
/// Those of the API server.
pub async fn granted(client: &Client, origin: &Origin, target_namespace: &str) -> cluster::Result<bool> {
    let scope = Scope::all().namespace(&origin.namespace);
    match client.list::<Value>(REFERENCE_GRANTS, &scope).await {
        Ok(grants) => Ok(allows(&grants, origin, target_namespace)),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_grant_names_both_sides() {
        let claim = Origin { namespace: "golden".into(), name: "disk".into(), snapshot: false };
        let snapshot = Origin { snapshot: true, ..claim.clone() };
        let grant = |from: Value, to: Value| [json!({"spec": {"from": [from], "to": [to]}})];
        let from = |kind: &str, group: &str| json!({"group": group, "kind": kind, "namespace": "mine"});
        let claims = from("PersistentVolumeClaim", "");
        let any = json!({"group": "", "kind": "PersistentVolumeClaim"});
        for (from, to, origin, expected) in [
            (&claims, any.clone(), &claim, true),
            (&from("DataVolume", "cdi.kubevirt.io"), any.clone(), &claim, true),
            (&from("HTTPRoute", "gateway.networking.k8s.io"), any.clone(), &claim, false),
            (&claims, json!({"group": "", "kind": "PersistentVolumeClaim", "name": "disk"}), &claim, true),
            (&claims, json!({"group": "", "kind": "PersistentVolumeClaim", "name": "other"}), &claim, false),
            (&claims, any, &snapshot, false),
            (&claims, json!({"group": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot"}), &snapshot, true),
            (&claims, json!({"group": "", "kind": "Secret"}), &claim, false),
        ] {
            assert_eq!(allows(&grant(from.clone(), to.clone()), origin, "mine"), expected, "{from} {to}");
        }
        let any = json!({"group": "", "kind": "PersistentVolumeClaim"});
        assert!(!allows(&grant(claims, any), &claim, "theirs"));
        assert!(!allows(&[], &claim, "mine"));
    }
}
