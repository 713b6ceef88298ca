//! CustomResourceDefinitions of VolumeSnapshots, with the names, columns and rules that every client knows. They are made
//! where the cluster has none; those of others are never changed, and none is deleted: the snapshots of all drivers are
//! objects of these kinds.

use std::time::Duration;

use cluster::{Client, Key, Resource};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

const DEFINITIONS: Resource = Resource::cluster("apiextensions.k8s.io", "v1", "customresourcedefinitions");
const GROUP: &str = "snapshot.storage.k8s.io";
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
fn all() -> [Value; 3] {
    [class(), content(), snapshot()]
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
    json!({"type": "object", "properties": {"message": string(), "time": {"type": "string", "format": "date-time"}}})
}

/// A definition: plural, singular, kind, short names, scope, columns, fields next to metadata, and which are required.
struct Kind<'a> {
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
    let mut properties = kind.fields.clone();
    for (field, schema) in
        [("apiVersion", string()), ("kind", string()), ("metadata", json!({"type": "object"}))]
    {
        properties[field] = schema;
    }
    let column = |[name, kind, path]: &[&str; 3]| json!({"name": name, "type": kind, "jsonPath": path});
    let age = ["Age", "date", ".metadata.creationTimestamp"];
    let columns: Vec<Value> = kind.columns.iter().chain([&age]).map(column).collect();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{plural}.{GROUP}"),
            "annotations": {
                "api-approved.kubernetes.io":
                    format!("https://github.com/kubernetes-csi/external-snapshotter/pull/{}", kind.approved),
            },
            "labels": {"app.kubernetes.io/managed-by": "ferrovirt"},
        },
        "spec": {
            "group": GROUP,
            "names": {
                "kind": name, "listKind": format!("{name}List"), "plural": plural, "singular": singular,
                "shortNames": kind.short,
            },
            "scope": kind.scope,
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "additionalPrinterColumns": columns,
                "subresources": if kind.status { json!({"status": {}}) } else { json!({}) },
                "schema": {"openAPIV3Schema": {
                    "type": "object", "properties": properties, "required": kind.required,
                }},
            }],
        },
    })
}

fn class() -> Value {
    definition(&Kind {
        names: ["volumesnapshotclasses", "volumesnapshotclass", "VolumeSnapshotClass"],
        short: &["vsclass", "vsclasses"],
        scope: "Cluster",
        approved: "814",
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

fn content() -> Value {
    let bytes = json!({"type": "integer", "format": "int64"});
    let reference: Value = ["apiVersion", "fieldPath", "kind", "name", "namespace", "resourceVersion", "uid"]
        .into_iter()
        .map(|name| (name.to_owned(), string()))
        .collect::<serde_json::Map<_, _>>()
        .into();
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
            "volumeSnapshotRef": {
                "type": "object",
                "properties": reference,
                "x-kubernetes-map-type": "atomic",
                "x-kubernetes-validations": [{
                    "rule": "has(self.name) && has(self.__namespace__)",
                    "message": "both spec.volumeSnapshotRef.name and spec.volumeSnapshotRef.namespace must be set",
                }],
            },
        },
        "x-kubernetes-validations": [lasting("sourceVolumeMode")],
    });
    definition(&Kind {
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
    let class = json!({"type": "string", "x-kubernetes-validations": [{
        "rule": "size(self) > 0", "message": "volumeSnapshotClassName must not be the empty string when set",
    }]});
    definition(&Kind {
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
                "source": source, "volumeSnapshotClassName": class,
            }},
            "status": {"type": "object", "properties": {
                "boundVolumeSnapshotContentName": string(),
                "creationTime": {"type": "string", "format": "date-time"},
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_have_the_names_and_rules_that_clients_know() {
        let names = all().map(|one| one["metadata"]["name"].as_str().unwrap().to_owned());
        assert_eq!(
            names,
            ["volumesnapshotclasses", "volumesnapshotcontents", "volumesnapshots"]
                .map(|one| format!("{one}.{GROUP}"))
        );
        for one in all() {
            let version = &one["spec"]["versions"][0];
            assert_eq!((&version["name"], &version["storage"]), (&json!("v1"), &json!(true)));
            let approved = one["metadata"]["annotations"]["api-approved.kubernetes.io"].as_str().unwrap();
            assert!(approved.starts_with("https://"), "the API server asks for it in groups of *.k8s.io");
        }
        let source = &snapshot()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
            ["source"];
        assert_eq!(source["x-kubernetes-validations"].as_array().unwrap().len(), 3);
    }
}
