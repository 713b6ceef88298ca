//! CustomResourceDefinitions of VolumeSnapshots and VolumeGroupSnapshots, with the names, columns and rules that every client knows. They are made
//! where the cluster has none; those of others are never changed, and none is deleted: the snapshots of all drivers are
//! objects of these kinds.

use std::time::Duration;

use cluster::{Client, Key, Resource};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

const DEFINITIONS: Resource = Resource::cluster("apiextensions.k8s.io", "v1", "customresourcedefinitions");
/// A group's name and versions; objects are stored in the last.
type Api = (&'static str, &'static [&'static str]);

const SINGLE: Api = ("snapshot.storage.k8s.io", &["v1"]);
/// The schema is that of v1beta2 in all versions, as v1's is upstream: fields that only v1beta1 has are not kept. Stock
/// snapshot-controller uses v1.
const GROUPED: Api = ("groupsnapshot.storage.k8s.io", &["v1", "v1beta1", "v1beta2"]);
/// Number of the review of the groups' API.
const GROUPS_APPROVED: &str = "1337";
/// Until a definition is tried again.
const RETRY: Duration = Duration::from_secs(2);

/// Makes the definitions that the cluster does not have; returns when it has all.
pub(super) async fn ensure(client: &Client) {
    for definition in all() {
        let name = definition["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        while let Err(error) = make(client, &name, &definition).await {
            tracing::warn!(name, error = error.chain(), "cannot make the CustomResourceDefinition; retrying");
            tokio::time::sleep(RETRY).await;
        }
    }
}

async fn make(client: &Client, name: &str, definition: &Value) -> cluster::Result<()> {
    if client.find::<IgnoredAny>(DEFINITIONS, &Key::cluster(name)).await?.is_some() {
        return Ok(());
    }
    match client.create::<IgnoredAny>(DEFINITIONS, "", definition).await {
        Ok(_) => tracing::info!(name, "CustomResourceDefinition made: the cluster had none"),
        Err(error) if error.is_already_exists() => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// All definitions.
fn all() -> [Value; 6] {
    [class(), content(), snapshot(), group_class(), group_content(), group()]
}

fn string() -> Value {
    json!({"type": "string"})
}

/// A field that keeps its value.
fn fixed(name: &str) -> Value {
    json!({"type": "string", "x-kubernetes-validations": [
        {"rule": "self == oldSelf", "message": format!("{name} is immutable")}]})
}

/// A field that stays, once it is set.
fn lasting(name: &str) -> Value {
    json!({
        "rule": format!("!has(oldSelf.{name}) || has(self.{name})"),
        "message": format!("{name} is required once set"),
    })
}

/// Exactly one of two fields.
fn one_of(a: &str, b: &str) -> Value {
    json!({
        "rule": format!("(has(self.{a}) && !has(self.{b})) || (!has(self.{a}) && has(self.{b}))"),
        "message": format!("exactly one of {a} and {b} must be set"),
    })
}

fn policy() -> Value {
    json!({"type": "string", "enum": ["Delete", "Retain"]})
}

fn error() -> Value {
    json!({"type": "object", "properties": {"message": string(), "time": time()}})
}

/// A definition: API, plural, singular, kind, short names, scope, columns, fields next to metadata, and which are required.
struct Kind<'a> {
    api: Api,
    names: [&'a str; 3],
    short: &'a [&'a str],
    scope: &'a str,
    approved: &'a str,
    columns: &'a [[&'a str; 3]],
    fields: Value,
    required: &'a [&'a str],
    status: bool,
}

fn definition(kind: &Kind<'_>) -> Value {
    let [plural, singular, name] = kind.names;
    let (group, versions) = kind.api;
    let mut properties = kind.fields.clone();
    for (field, schema) in
        [("apiVersion", string()), ("kind", string()), ("metadata", json!({"type": "object"}))]
    {
        properties[field] = schema;
    }
    let column = |[name, kind, path]: &[&str; 3]| json!({"name": name, "type": kind, "jsonPath": path});
    let age = ["Age", "date", ".metadata.creationTimestamp"];
    let columns: Vec<Value> = kind.columns.iter().chain([&age]).map(column).collect();
    let version = |version: &&str| {
        json!({
            "name": version, "served": true, "storage": Some(version) == versions.last(),
            "additionalPrinterColumns": columns,
            "subresources": if kind.status { json!({"status": {}}) } else { json!({}) },
            "schema": {"openAPIV3Schema": {
                "type": "object", "properties": properties, "required": kind.required,
            }},
        })
    };
    let versions: Vec<Value> = versions.iter().map(version).collect();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{plural}.{group}"),
            "annotations": {
                "api-approved.kubernetes.io":
                    format!("https://github.com/kubernetes-csi/external-snapshotter/pull/{}", kind.approved),
            },
            "labels": {"app.kubernetes.io/managed-by": "ferrovirt"},
        },
        "spec": {
            "group": group,
            "names": {
                "kind": name, "listKind": format!("{name}List"), "plural": plural, "singular": singular,
                "shortNames": kind.short,
            },
            "scope": kind.scope,
            "versions": versions,
        },
    })
}

fn class() -> Value {
    class_of(
        SINGLE,
        ["volumesnapshotclasses", "volumesnapshotclass", "VolumeSnapshotClass"],
        &["vsclass", "vsclasses"],
        "814",
    )
}

fn group_class() -> Value {
    class_of(
        GROUPED,
        ["volumegroupsnapshotclasses", "volumegroupsnapshotclass", "VolumeGroupSnapshotClass"],
        &["vgsclass", "vgsclasses"],
        GROUPS_APPROVED,
    )
}

fn class_of(api: Api, names: [&str; 3], short: &[&str], approved: &str) -> Value {
    definition(&Kind {
        api,
        names,
        short,
        scope: "Cluster",
        approved,
        columns: &[["Driver", "string", ".driver"], ["DeletionPolicy", "string", ".deletionPolicy"]],
        fields: json!({
            "deletionPolicy": policy(),
            "driver": string(),
            "parameters": {"type": "object", "additionalProperties": string()},
        }),
        required: &["deletionPolicy", "driver"],
        status: false,
    })
}

/// A reference of a content to its snapshot or group, `field` of its spec.
fn reference(field: &str) -> Value {
    let fields: Value = ["apiVersion", "fieldPath", "kind", "name", "namespace", "resourceVersion", "uid"]
        .into_iter()
        .map(|name| (name.to_owned(), string()))
        .collect::<serde_json::Map<_, _>>()
        .into();
    json!({
        "type": "object",
        "properties": fields,
        "x-kubernetes-map-type": "atomic",
        "x-kubernetes-validations": [{
            "rule": "has(self.name) && has(self.__namespace__)",
            "message": format!("both {field}.name and {field}.namespace must be set"),
        }],
    })
}

/// A name that may be absent, but not empty.
fn not_empty(name: &str) -> Value {
    json!({"type": "string", "x-kubernetes-validations": [{
        "rule": "size(self) > 0", "message": format!("{name} must not be the empty string when set"),
    }]})
}

fn time() -> Value {
    json!({"type": "string", "format": "date-time"})
}

fn content() -> Value {
    let bytes = json!({"type": "integer", "format": "int64"});
    let spec = json!({
        "type": "object",
        "required": ["deletionPolicy", "driver", "source", "volumeSnapshotRef"],
        "properties": {
            "deletionPolicy": policy(),
            "driver": string(),
            "source": {
                "type": "object",
                "properties": {"snapshotHandle": fixed("snapshotHandle"), "volumeHandle": fixed("volumeHandle")},
                "x-kubernetes-validations": [
                    lasting("volumeHandle"), lasting("snapshotHandle"), one_of("volumeHandle", "snapshotHandle"),
                ],
            },
            "sourceVolumeMode": fixed("sourceVolumeMode"),
            "volumeSnapshotClassName": string(),
            "volumeSnapshotRef": reference("spec.volumeSnapshotRef"),
        },
        "x-kubernetes-validations": [lasting("sourceVolumeMode")],
    });
    definition(&Kind {
        api: SINGLE,
        names: ["volumesnapshotcontents", "volumesnapshotcontent", "VolumeSnapshotContent"],
        short: &["vsc", "vscs"],
        scope: "Cluster",
        approved: "955",
        columns: &[
            ["ReadyToUse", "boolean", ".status.readyToUse"],
            ["RestoreSize", "integer", ".status.restoreSize"],
            ["DeletionPolicy", "string", ".spec.deletionPolicy"],
            ["Driver", "string", ".spec.driver"],
            ["VolumeSnapshotClass", "string", ".spec.volumeSnapshotClassName"],
            ["VolumeSnapshot", "string", ".spec.volumeSnapshotRef.name"],
            ["VolumeSnapshotNamespace", "string", ".spec.volumeSnapshotRef.namespace"],
        ],
        fields: json!({
            "spec": spec,
            "status": {"type": "object", "properties": {
                "creationTime": bytes,
                "error": error(),
                "readyToUse": {"type": "boolean"},
                "restoreSize": {"type": "integer", "format": "int64", "minimum": 0},
                "snapshotHandle": string(),
                "volumeGroupSnapshotHandle": string(),
            }},
        }),
        required: &["spec"],
        status: true,
    })
}

fn snapshot() -> Value {
    let source = json!({
        "type": "object",
        "properties": {
            "persistentVolumeClaimName": fixed("persistentVolumeClaimName"),
            "volumeSnapshotContentName": fixed("volumeSnapshotContentName"),
        },
        "x-kubernetes-validations": [
            lasting("persistentVolumeClaimName"),
            lasting("volumeSnapshotContentName"),
            one_of("volumeSnapshotContentName", "persistentVolumeClaimName"),
        ],
    });
    definition(&Kind {
        api: SINGLE,
        names: ["volumesnapshots", "volumesnapshot", "VolumeSnapshot"],
        short: &["vs"],
        scope: "Namespaced",
        approved: "814",
        columns: &[
            ["ReadyToUse", "boolean", ".status.readyToUse"],
            ["SourcePVC", "string", ".spec.source.persistentVolumeClaimName"],
            ["SourceSnapshotContent", "string", ".spec.source.volumeSnapshotContentName"],
            ["RestoreSize", "string", ".status.restoreSize"],
            ["SnapshotClass", "string", ".spec.volumeSnapshotClassName"],
            ["SnapshotContent", "string", ".status.boundVolumeSnapshotContentName"],
            ["CreationTime", "date", ".status.creationTime"],
        ],
        fields: json!({
            "spec": {"type": "object", "required": ["source"], "properties": {
                "source": source, "volumeSnapshotClassName": not_empty("volumeSnapshotClassName"),
            }},
            "status": {"type": "object", "properties": {
                "boundVolumeSnapshotContentName": string(),
                "creationTime": time(),
                "error": error(),
                "readyToUse": {"type": "boolean"},
                "restoreSize": {"type": "string", "pattern": api::quantity::PATTERN, "x-kubernetes-int-or-string": true},
                "volumeGroupSnapshotName": string(),
            }},
        }),
        required: &["spec"],
        status: true,
    })
}

fn group_content() -> Value {
    let bytes = json!({"type": "integer", "format": "int64"});
    let list = json!({"type": "array", "items": string()});
    let mut handles = list.clone();
    handles["x-kubernetes-validations"] = fixed("volumeHandles")["x-kubernetes-validations"].clone();
    let given = json!({
        "type": "object",
        "required": ["volumeGroupSnapshotHandle", "volumeSnapshotHandles"],
        "properties": {"volumeGroupSnapshotHandle": string(), "volumeSnapshotHandles": list},
        "x-kubernetes-validations": fixed("groupSnapshotHandles")["x-kubernetes-validations"],
    });
    let taken = json!({"type": "object", "properties": {
        "creationTime": bytes, "readyToUse": {"type": "boolean"}, "restoreSize": bytes,
        "snapshotHandle": string(), "volumeHandle": string(),
    }});
    definition(&Kind {
        api: GROUPED,
        names: ["volumegroupsnapshotcontents", "volumegroupsnapshotcontent", "VolumeGroupSnapshotContent"],
        short: &["vgsc", "vgscs"],
        scope: "Cluster",
        approved: GROUPS_APPROVED,
        columns: &[
            ["ReadyToUse", "boolean", ".status.readyToUse"],
            ["DeletionPolicy", "string", ".spec.deletionPolicy"],
            ["Driver", "string", ".spec.driver"],
            ["VolumeGroupSnapshotClass", "string", ".spec.volumeGroupSnapshotClassName"],
            ["VolumeGroupSnapshotNamespace", "string", ".spec.volumeGroupSnapshotRef.namespace"],
            ["VolumeGroupSnapshot", "string", ".spec.volumeGroupSnapshotRef.name"],
        ],
        fields: json!({
            "spec": {
                "type": "object",
                "required": ["deletionPolicy", "driver", "source", "volumeGroupSnapshotRef"],
                "properties": {
                    "deletionPolicy": policy(),
                    "driver": string(),
                    "source": {
                        "type": "object",
                        "properties": {"groupSnapshotHandles": given, "volumeHandles": handles},
                        "x-kubernetes-validations": [
                            lasting("volumeHandles"), lasting("groupSnapshotHandles"),
                            one_of("volumeHandles", "groupSnapshotHandles"),
                        ],
                    },
                    "volumeGroupSnapshotClassName": string(),
                    "volumeGroupSnapshotRef": reference("spec.volumeGroupSnapshotRef"),
                },
            },
            "status": {"type": "object", "properties": {
                "creationTime": time(),
                "error": error(),
                "readyToUse": {"type": "boolean"},
                "volumeGroupSnapshotHandle": string(),
                "volumeSnapshotInfoList": {"type": "array", "items": taken},
            }},
        }),
        required: &["spec"],
        status: true,
    })
}

fn group() -> Value {
    let requirement = json!({
        "type": "object",
        "required": ["key", "operator"],
        "properties": {
            "key": string(), "operator": string(), "values": {"type": "array", "items": string()},
        },
    });
    let source = json!({
        "type": "object",
        "properties": {
            "selector": {
                "type": "object",
                "properties": {
                    "matchExpressions": {"type": "array", "items": requirement},
                    "matchLabels": {"type": "object", "additionalProperties": string()},
                },
                "x-kubernetes-map-type": "atomic",
                "x-kubernetes-validations": fixed("selector")["x-kubernetes-validations"],
            },
            "volumeGroupSnapshotContentName": fixed("volumeGroupSnapshotContentName"),
        },
        "x-kubernetes-validations": [
            lasting("selector"), lasting("volumeGroupSnapshotContentName"),
            one_of("selector", "volumeGroupSnapshotContentName"),
        ],
    });
    definition(&Kind {
        api: GROUPED,
        names: ["volumegroupsnapshots", "volumegroupsnapshot", "VolumeGroupSnapshot"],
        short: &["vgs"],
        scope: "Namespaced",
        approved: GROUPS_APPROVED,
        columns: &[
            ["ReadyToUse", "boolean", ".status.readyToUse"],
            ["VolumeGroupSnapshotClass", "string", ".spec.volumeGroupSnapshotClassName"],
            ["VolumeGroupSnapshotContent", "string", ".status.boundVolumeGroupSnapshotContentName"],
            ["CreationTime", "date", ".status.creationTime"],
        ],
        fields: json!({
            "spec": {"type": "object", "required": ["source"], "properties": {
                "source": source, "volumeGroupSnapshotClassName": not_empty("volumeGroupSnapshotClassName"),
            }},
            "status": {"type": "object", "properties": {
                "boundVolumeGroupSnapshotContentName": string(),
                "creationTime": time(),
                "error": error(),
                "readyToUse": {"type": "boolean"},
            }},
        }),
        required: &["spec"],
        status: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_have_the_names_and_rules_that_clients_know() {
        let names = all().map(|one| one["metadata"]["name"].as_str().unwrap().to_owned());
        assert_eq!(
            names,
            [
                "volumesnapshotclasses.snapshot.storage.k8s.io",
                "volumesnapshotcontents.snapshot.storage.k8s.io",
                "volumesnapshots.snapshot.storage.k8s.io",
                "volumegroupsnapshotclasses.groupsnapshot.storage.k8s.io",
                "volumegroupsnapshotcontents.groupsnapshot.storage.k8s.io",
                "volumegroupsnapshots.groupsnapshot.storage.k8s.io",
            ]
        );
        for one in all() {
            let versions = one["spec"]["versions"].as_array().unwrap();
            let (stored, others) = versions.split_last().unwrap();
            assert_eq!(stored["storage"], true);
            assert!(others.iter().all(|one| one["served"] == true && one["storage"] == false));
            let approved = one["metadata"]["annotations"]["api-approved.kubernetes.io"].as_str().unwrap();
            assert!(approved.starts_with("https://"), "the API server asks for it in groups of *.k8s.io");
        }
        let group = group();
        let versions = group["spec"]["versions"].as_array().unwrap().iter().map(|one| &one["name"]);
        assert_eq!(versions.collect::<Vec<_>>(), ["v1", "v1beta1", "v1beta2"], "as upstream");
        let source = &snapshot()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
            ["source"];
        assert_eq!(source["x-kubernetes-validations"].as_array().unwrap().len(), 3);
    }
}
