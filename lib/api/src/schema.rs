//! Schemas of resources, and where a document differs from one.
//!
//! A schema is made from the types and their comments: an OpenAPI 3.0 schema as a CustomResourceDefinition holds it
//! (Kubernetes: structural schemas), in which unknown fields are kept.
//!
//! Not here: rules between fields.

use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value};

/// Most mismatches that are told; whoever has so many learns nothing from more.
pub const MISMATCHES_MAX: usize = 1000;

/// The structural schema of a resource.
pub fn of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::openapi3().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    RecursiveTransform(structural).transform(&mut schema);
    schema.to_value()
}

/// What a structural schema of ours must not have, and `T` where schemars writes "`T` or null": nulls are left out before.
fn structural(schema: &mut Schema) {
    for keyword in ["nullable", "default", "title", "required"] {
        schema.remove(keyword);
    }
    let Some(object) = schema.as_object_mut() else { return };
    if let Some(inner) = object.get("anyOf").and_then(|any| any.get(0)).and_then(Value::as_object)
        && inner.contains_key("x-kubernetes-int-or-string")
    {
        let inner = inner.clone();
        object.extend(inner);
    }
    if object.get("type").and_then(Value::as_str) == Some("object") {
        match object.get("additionalProperties") {
            Some(Value::Bool(true)) => drop(object.remove("additionalProperties")),
            Some(_) => {}
            None => drop(object.entry("properties").or_insert_with(|| Value::Object(Map::new()))),
        }
    }
}

/// Where a document differs from its schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The field: `spec.template.spec.domain.devices.disks[0].name`.
    pub path: String,
    /// How it differs.
    pub problem: Problem,
}

/// How a field differs from the schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// There is no such field; the one that may be meant.
    Unknown(Option<String>),
    /// It has another type.
    Type {
        /// What the schema says.
        wanted: String,
        /// What the document has.
        found: &'static str,
    },
    /// A number outside of the schema's range.
    Range,
}

/// All places where `value` differs from `schema`, in the order of the document.
pub fn mismatches(value: &Value, schema: &Value) -> Vec<Mismatch> {
    let mut found = Vec::new();
    walk(value, schema, &mut String::new(), &mut found);
    found
}

fn walk(value: &Value, schema: &Value, path: &mut String, found: &mut Vec<Mismatch>) {
    let Some(schema) = schema.as_object() else { return };
    if found.len() >= MISMATCHES_MAX {
        return;
    }
    if let Some(problem) = type_problem(value, schema) {
        found.push(Mismatch { path: path.clone(), problem });
        return;
    }
    let length = path.len();
    match value {
        Value::Object(map) => {
            let properties = schema.get("properties").and_then(Value::as_object);
            let any = schema.get("additionalProperties").filter(|any| any.is_object());
            for (key, value) in map {
                push_key(path, key);
                match (properties.and_then(|properties| properties.get(key)), any) {
                    (Some(schema), _) | (None, Some(schema)) => walk(value, schema, path, found),
                    (None, None) if is_open(schema) => {}
                    (None, None) => {
                        let meant = properties.and_then(|properties| similar(key, properties));
                        found.push(Mismatch { path: path.clone(), problem: Problem::Unknown(meant) });
                    }
                }
                path.truncate(length);
            }
        }
        Value::Array(list) => {
            let Some(items) = schema.get("items") else { return };
            for (index, value) in list.iter().enumerate() {
                path.push_str(&format!("[{index}]"));
                walk(value, items, path, found);
                path.truncate(length);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The paths of all fields that hold a value, an empty list or an empty map.
pub fn leaves(value: &Value) -> Vec<String> {
    fn collect(value: &Value, path: &mut String, found: &mut Vec<String>) {
        let length = path.len();
        match value {
            Value::Object(map) if !map.is_empty() => {
                for (key, value) in map {
                    push_key(path, key);
                    collect(value, path, found);
                    path.truncate(length);
                }
            }
            Value::Array(list) if !list.is_empty() => {
                for (index, value) in list.iter().enumerate() {
                    path.push_str(&format!("[{index}]"));
                    collect(value, path, found);
                    path.truncate(length);
                }
            }
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_)
            | Value::Object(_) => found.push(path.clone()),
        }
    }
    let mut found = Vec::new();
    collect(value, &mut String::new(), &mut found);
    found
}

/// Whether anything may be in it.
fn is_open(schema: &Map<String, Value>) -> bool {
    !schema.contains_key("properties") && !schema.contains_key("additionalProperties")
}

/// A key as a step of a path; one with dots or brackets in it is quoted.
fn push_key(path: &mut String, key: &str) {
    if key.is_empty() || key.contains(['.', '[', ']', '"']) || key.contains(char::is_control) {
        path.push_str(&format!("[{key:?}]"));
    } else {
        if !path.is_empty() {
            path.push('.');
        }
        path.push_str(key);
    }
}

fn type_problem(value: &Value, schema: &Map<String, Value>) -> Option<Problem> {
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    if schema.contains_key("x-kubernetes-int-or-string") {
        // Fractions are read as well: people write `memory: 1.5Gi` and `cpu: 0.5`.
        let fits = matches!(value, Value::Number(_) | Value::String(_));
        return (!fits).then(|| Problem::Type { wanted: "integer or string".to_owned(), found });
    }
    let wanted = schema.get("type").and_then(Value::as_str)?;
    if wanted != found {
        return Some(Problem::Type { wanted: wanted.to_owned(), found });
    }
    let number = value.as_number()?;
    let bound = |key: &str| schema.get(key).and_then(Value::as_f64);
    let number = number.as_f64()?;
    let outside = bound("minimum").is_some_and(|least| number < least)
        || bound("maximum").is_some_and(|most| number > most)
        || (schema.get("format").and_then(Value::as_str) == Some("uint32") && number > f64::from(u32::MAX));
    outside.then_some(Problem::Range)
}

/// The field that may be meant: the same without case, or with one letter changed, added, left out, or two swapped.
fn similar(key: &str, properties: &Map<String, Value>) -> Option<String> {
    let letters = |text: &str| text.chars().take(64).map(|c| c.to_ascii_lowercase()).collect::<Vec<_>>();
    let wanted = letters(key);
    let near = |other: &[char]| {
        let same = |a: &[char], b: &[char]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
        let front = same(&wanted, other);
        let (a, b) = (&wanted[front..], &other[front..]);
        let swapped = a.len() == b.len() && a.len() >= 2 && a[0] == b[1] && a[1] == b[0] && a[2..] == b[2..];
        let tail = |list: &[char], skip: usize| list.get(skip..).unwrap_or_default().to_vec();
        swapped || tail(a, 1) == tail(b, 1) || tail(a, 1) == b || a == tail(b, 1)
    };
    properties.keys().find(|other| near(&letters(other))).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::Kind;
    use serde_json::json;

    /// What Kubernetes asks of a structural schema, as far as ours could break it.
    fn is_structural(schema: &Value, path: &str) {
        let object = schema.as_object().unwrap_or_else(|| panic!("{path}: {schema}"));
        for keyword in ["$ref", "$schema", "nullable", "definitions", "oneOf", "allOf"] {
            assert!(!object.contains_key(keyword), "{path} has {keyword}");
        }
        let kind = object.get("type").map(|kind| kind.as_str().unwrap_or_else(|| panic!("{path}: {kind}")));
        let open = object.contains_key("x-kubernetes-int-or-string");
        assert!(kind.is_some() || open, "{path} has no type: {schema}");
        assert!(
            !(object.contains_key("properties") && object.contains_key("additionalProperties")),
            "{path}"
        );
        if let Some(properties) = object.get("properties") {
            assert_eq!(object["x-kubernetes-preserve-unknown-fields"], json!(true), "{path}");
            for (name, schema) in properties.as_object().unwrap() {
                is_structural(schema, &format!("{path}.{name}"));
            }
        }
        for key in ["items", "additionalProperties"] {
            if let Some(inner) = object.get(key).filter(|inner| inner.is_object()) {
                is_structural(inner, &format!("{path}.{key}"));
            }
        }
    }

    #[test]
    fn schemas_are_structural_and_described() {
        for kind in Kind::ALL {
            let mut schema = kind.schema();
            // Kubernetes' own types of metadata are not part of a definition's schema.
            assert!(schema["properties"]["metadata"].take().is_object());
            schema["properties"].as_object_mut().unwrap().remove("metadata");
            is_structural(&schema, kind.name());
            assert!(schema["description"].as_str().is_some_and(|text| text.len() > 3), "{}", kind.name());
        }
    }

    #[test]
    fn differences_are_told_by_path() {
        let schema = Kind::VirtualMachine.schema();
        let value = json!({
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachine",
            "metadata": {"name": "a", "labels": {"a.b/c": 1}, "ownerReferences": [{"any": 1}]},
            "spec": {
                "runstrategy": "Always",
                "running": "yes",
                "template": {"spec": {
                    "domain": {
                        "cpu": {"cores": -1, "sockets": 5_000_000_000_u64, "threads": 1.5, "moddel": "x", "zzz": 1},
                        "memory": {"guest": true, "maxGuest": 1024},
                        "resources": {"requests": {"memory": "1Gi", "cpu": 0.5}},
                        "devices": {"disks": [{"name": "a"}, {"nmae": "b", "disk": []}], "interfaces": {}, "rng": {"rate": 1}},
                    },
                    "volumes": [null],
                }},
            },
        });
        let found: Vec<String> = mismatches(&value, &schema)
            .into_iter()
            .map(|one| format!("{} {:?}", one.path, one.problem))
            .collect();
        let vm = "spec.template.spec";
        let kind = |path: &str, wanted: &str, found: &str| {
            format!("{path} Type {{ wanted: {wanted:?}, found: {found:?} }}")
        };
        let mut wanted = vec![
            kind("metadata.labels[\"a.b/c\"]", "string", "integer"),
            kind("spec.running", "boolean", "string"),
            "spec.runstrategy Unknown(Some(\"runStrategy\"))".to_owned(),
            format!("{vm}.domain.cpu.cores Range"),
            format!("{vm}.domain.cpu.moddel Unknown(Some(\"model\"))"),
            format!("{vm}.domain.cpu.sockets Range"),
            kind(&format!("{vm}.domain.cpu.threads"), "integer", "number"),
            format!("{vm}.domain.cpu.zzz Unknown(None)"),
            kind(&format!("{vm}.domain.devices.disks[1].disk"), "object", "array"),
            format!("{vm}.domain.devices.disks[1].nmae Unknown(Some(\"name\"))"),
            kind(&format!("{vm}.domain.devices.interfaces"), "array", "object"),
            format!("{vm}.domain.devices.rng.rate Unknown(None)"),
            kind(&format!("{vm}.domain.memory.guest"), "integer or string", "boolean"),
            kind(&format!("{vm}.volumes[0]"), "object", "null"),
        ];
        let mut found = found;
        found.sort();
        wanted.sort();
        assert_eq!(found, wanted);
    }

    #[test]
    fn what_fits_its_schema_can_be_read() {
        use crate::kubevirt::VirtualMachine;
        let value = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "a"},
            "spec": {"runStrategy": "Always", "template": {"metadata": {}, "spec": {
                "domain": {"memory": {"guest": "1Gi"}, "devices": {"disks": [{"name": "a", "cdrom": {}}], "gpus": [{"name": "g"}]}},
                "volumes": [{"name": "a", "containerDisk": {"image": "x"}}],
                "terminationGracePeriodSeconds": 5,
            }}},
            "status": {"printableStatus": "Stopped", "ready": false, "volumeSnapshotStatuses": [1]},
        });
        let found = mismatches(&value, &Kind::VirtualMachine.schema());
        let paths: Vec<_> = found.iter().map(|one| one.path.as_str()).collect();
        assert_eq!(paths, ["spec.template.spec.domain.devices.gpus", "status.volumeSnapshotStatuses"]);
        let machine: VirtualMachine = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(serde_json::to_value(machine).unwrap(), value, "written as it was read");
    }

    #[test]
    fn many_differences_are_not_all_told() {
        let list: Vec<Value> = (0..5000).map(Value::from).collect();
        let value = json!({"spec": {"accessModes": list}});
        assert_eq!(mismatches(&value, &Kind::PersistentVolumeClaim.schema()).len(), MISMATCHES_MAX);
    }
}
