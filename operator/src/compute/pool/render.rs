//! The objects that a VirtualMachinePool makes: VMs by number, and revisions of its template. Pure.

use serde_json::{Map, Value, json};

use super::plan::REVISION;

fn owner(pool: &Value) -> Value {
    json!([{
        "apiVersion": "pool.kubevirt.io/v1beta1", "kind": "VirtualMachinePool",
        "name": pool["metadata"]["name"], "uid": pool["metadata"]["uid"],
        "controller": true, "blockOwnerDeletion": true,
    }])
}

/// The VM of a number, with the template of this revision.
pub(super) fn machine(pool: &Value, index: u64, revision: &str) -> Value {
    let template = &pool["spec"]["virtualMachineTemplate"];
    let of = |field: &str| -> Map<String, Value> {
        template["metadata"].get(field).and_then(Value::as_object).cloned().unwrap_or_default()
    };
    let mut labels = of("labels");
    labels.insert(REVISION.to_owned(), json!(revision));
    let name = format!("{}-{index}", pool["metadata"]["name"].as_str().unwrap_or_default());
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {
            "name": name,
            "namespace": pool["metadata"]["namespace"],
            "labels": labels,
            "annotations": of("annotations"),
            "ownerReferences": owner(pool),
        },
        "spec": spec(pool, index, revision),
    })
}

/// The spec of the VM of a number: names of its DataVolumes, and where the pool asks for it of ConfigMaps and Secrets,
/// end with the number.
pub(super) fn spec(pool: &Value, index: u64, revision: &str) -> Value {
    let mut spec = pool["spec"]["virtualMachineTemplate"]["spec"].clone();
    let generation = &pool["spec"]["nameGeneration"];
    let numbered = |name: &str| format!("{name}-{index}");
    let mut own = Vec::new();
    for template in spec["dataVolumeTemplates"].as_array_mut().into_iter().flatten() {
        if let Some(name) = template["metadata"]["name"].as_str().map(str::to_owned) {
            template["metadata"]["name"] = json!(numbered(&name));
            own.push(name);
        }
    }
    let config_maps = generation["appendIndexToConfigMapRefs"] == true;
    let secrets = generation["appendIndexToSecretRefs"] == true;
    for volume in spec["template"]["spec"]["volumes"].as_array_mut().into_iter().flatten() {
        for (path, all) in [
            ("/dataVolume/name", false),
            ("/persistentVolumeClaim/claimName", false),
            ("/configMap/name", config_maps),
            ("/secret/secretName", secrets),
        ] {
            let of_storage = path.contains("dataVolume") || path.contains("Claim");
            let Some(value) = volume.pointer_mut(path) else { continue };
            let Some(name) = value.as_str() else { continue };
            if all || (of_storage && own.iter().any(|one| one == name)) {
                *value = json!(numbered(name));
            }
        }
    }
    if !spec["template"]["metadata"].is_object() {
        spec["template"]["metadata"] = json!({});
    }
    spec["template"]["metadata"]["labels"][REVISION] = json!(revision);
    spec
}

/// The patch that takes an owner from an object; `None`: the object has no such owner.
pub(super) fn without_owner(object: &Value, uid: &str) -> Option<Value> {
    let owners = object["metadata"]["ownerReferences"].as_array()?;
    let left: Vec<&Value> = owners.iter().filter(|owner| owner["uid"] != uid).collect();
    (left.len() < owners.len()).then(|| {
        json!({"metadata": {
            "resourceVersion": object["metadata"]["resourceVersion"], "ownerReferences": left,
        }})
    })
}

/// The revision that keeps the template of a generation.
pub(super) fn revision(pool: &Value, name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": name,
            "namespace": pool["metadata"]["namespace"],
            // By it, revisions of pools are listed among those of VMs.
            "labels": {REVISION: name},
            "ownerReferences": owner(pool),
        },
        "data": {"virtualMachineTemplate": pool["spec"]["virtualMachineTemplate"], "nameGeneration": pool["spec"]["nameGeneration"]},
        "revision": pool["metadata"]["generation"].as_u64().unwrap_or(0),
    })
}

/// Whether a revision holds the pool's template.
pub(super) fn is_same(pool: &Value, revision: &Value) -> bool {
    let data = &revision["data"];
    data["virtualMachineTemplate"] == pool["spec"]["virtualMachineTemplate"]
        && data["nameGeneration"] == pool["spec"]["nameGeneration"]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_owner_is_taken_away() {
        let owned = |owners: Value| json!({"metadata": {"name": "d", "resourceVersion": "7", "ownerReferences": owners}});
        let patch = without_owner(&owned(json!([{"uid": "vm"}, {"uid": "other"}])), "vm");
        assert_eq!(
            patch,
            Some(json!({"metadata": {"resourceVersion": "7", "ownerReferences": [{"uid": "other"}]}}))
        );
        assert_eq!(without_owner(&owned(json!([{"uid": "other"}])), "vm"), None);
        assert_eq!(without_owner(&owned(Value::Null), "vm"), None);
    }

    #[test]
    fn names_of_a_machine_end_with_its_number_where_they_must_differ() {
        let pool = json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "generation": 3},
            "spec": {
                "nameGeneration": {"appendIndexToConfigMapRefs": true},
                "virtualMachineTemplate": {
                    "metadata": {"labels": {"a": "b"}},
                    "spec": {
                        "dataVolumeTemplates": [{"metadata": {"name": "root"}, "spec": {}}],
                        "template": {"spec": {"volumes": [
                            {"name": "root", "dataVolume": {"name": "root"}},
                            {"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}},
                            {"name": "config", "configMap": {"name": "config"}},
                            {"name": "secret", "secret": {"secretName": "secret"}},
                        ]}},
                    },
                },
            },
        });
        let machine = machine(&pool, 4, "p-3");
        assert_eq!(machine["metadata"]["name"], "p-4");
        assert_eq!(machine["metadata"]["labels"], json!({"a": "b", REVISION: "p-3"}));
        assert_eq!(machine["metadata"]["ownerReferences"][0]["kind"], "VirtualMachinePool");
        assert_eq!(machine["spec"]["dataVolumeTemplates"][0]["metadata"]["name"], "root-4");
        let volumes = &machine["spec"]["template"]["spec"]["volumes"];
        assert_eq!(volumes[0]["dataVolume"]["name"], "root-4");
        assert_eq!(volumes[1]["persistentVolumeClaim"]["claimName"], "shared");
        assert_eq!(volumes[2]["configMap"]["name"], "config-4");
        assert_eq!(volumes[3]["secret"]["secretName"], "secret");
        assert_eq!(machine["spec"]["template"]["metadata"]["labels"][REVISION], "p-3");
        let kept = revision(&pool, "p-3");
        assert_eq!(kept["metadata"]["labels"], json!({REVISION: "p-3"}));
        assert!(is_same(&pool, &kept));
        let mut other = pool;
        other["spec"]["virtualMachineTemplate"]["metadata"]["labels"]["a"] = json!("c");
        assert!(!is_same(&other, &kept));
    }
}
