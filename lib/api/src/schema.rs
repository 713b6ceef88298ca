//! Schemas of resources, and differences between a document and a schema.
//!
//! A schema is generated from the types, their comments and their facts ([`crate::resource`]). It is a structural OpenAPI
//! 3.0 schema as Kubernetes requires it: no references, a type for every field. [`of`] also describes metadata and is
//! meant for [`mismatches`]; [`structural`] is the form for a CustomResourceDefinition, where Kubernetes supplies
//! metadata itself.
//!
//! Not here: rules between fields, and the definitions around the schemas ([`crate::definition`]).

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

/// Most mismatches that are reported.
pub const MISMATCHES_MAX: usize = 1000;

/// Use of a schema.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Comparison with documents.
    Document,
    /// CustomResourceDefinition.
    Definition,
}

/// Schema of a resource with its metadata.
pub fn of<T: JsonSchema>() -> Value {
    generate::<T>(Form::Document)
}

/// Schema of a resource for a CustomResourceDefinition.
pub fn structural<T: JsonSchema>() -> Value {
    let mut schema = generate::<T>(Form::Definition);
    // Kubernetes describes the metadata of objects itself, and refuses a definition that does.
    schema["properties"]["metadata"] = json!({"type": "object"});
    schema
}

fn generate<T: JsonSchema>(form: Form) -> Value {
    let settings = SchemaSettings::openapi3().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    finish(&mut schema, form);
    schema
}

/// Turns the generator's output into a structural schema.
fn finish(schema: &mut Value, form: Form) {
    let Some(object) = schema.as_object_mut() else { return };
    // The generator derives defaults, nullability and required fields from serde's attributes; they are facts here.
    for keyword in ["nullable", "default", "title", "required"] {
        object.remove(keyword);
    }
    if let Some(inner) = object.get("anyOf").and_then(|any| any.get(0)).and_then(Value::as_object)
        && inner.contains_key("x-kubernetes-int-or-string")
    {
        // An optional quantity: "quantity or null" becomes the quantity.
        let inner = inner.clone();
        object.extend(inner);
    }
    if let Some(Value::String(text)) = object.get_mut("description") {
        *text = text.replace('\n', " ");
    }
    bounds(object, form);
    if object.remove("x-metadata").is_some() && form == Form::Definition {
        object.remove("properties");
        object.remove("additionalProperties");
    }
    if let Some(names) = object.remove("x-omit") {
        let fields = match object.get_mut("items").and_then(Value::as_object_mut) {
            Some(items) => properties(items),
            None => properties(object),
        };
        if let Some(fields) = fields {
            fields
                .retain(|name, _| !names.as_array().is_some_and(|names| names.iter().any(|one| one == name)));
        }
    }
    let mut required = Vec::new();
    for (name, field) in properties(object).into_iter().flatten() {
        if field.as_object_mut().and_then(|field| field.remove("x-required")).is_some() {
            required.push(name.clone());
        }
        finish(field, form);
    }
    if !required.is_empty() {
        object.insert("required".to_owned(), json!(required));
    }
    if let Some(default) = object.remove("x-default") {
        object.insert("default".to_owned(), default);
    }
    for inner in ["items", "additionalProperties"] {
        if let Some(inner) = object.get_mut(inner) {
            finish(inner, form);
        }
    }
    if object.get("type").and_then(Value::as_str) == Some("object") {
        close(object, form);
    }
}

fn properties(object: &mut Map<String, Value>) -> Option<&mut Map<String, Value>> {
    object.get_mut("properties").and_then(Value::as_object_mut)
}

/// Writes the range of an integer with keywords that Kubernetes knows; its formats are those of signed integers. The API
/// server reads a maximum as a floating-point number, rounds 2^63 - 1 up and compares with a negative number then, so a
/// definition has none for 64 bits: the format is the bound.
fn bounds(object: &mut Map<String, Value>, form: Form) {
    let (format, maximum) = match object.get("format").and_then(Value::as_str) {
        Some("uint16") => ("int32", u64::from(u16::MAX)),
        Some("uint32") => ("int64", u64::from(u32::MAX)),
        Some("uint64") => ("int64", i64::MAX.unsigned_abs()),
        _ => return,
    };
    object.insert("format".to_owned(), json!(format));
    if maximum <= u64::from(u32::MAX) || form == Form::Document {
        object.entry("maximum").or_insert_with(|| json!(maximum));
    }
}

/// An object without fields admits none when documents are compared; Kubernetes prunes unknown fields anyway.
fn close(object: &mut Map<String, Value>, form: Form) {
    match object.get("additionalProperties") {
        Some(Value::Bool(_)) => drop(object.remove("additionalProperties")),
        Some(_) => {}
        None if form == Form::Document => drop(object.entry("properties").or_insert_with(|| json!({}))),
        None => {}
    }
}

/// Difference between a document and its schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Field, such as `spec.template.spec.domain.devices.disks[0].name`.
    pub path: String,
    /// Kind of difference.
    pub problem: Problem,
}

/// Kind of difference between a field and the schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The field does not exist; the name of a similar one.
    Unknown(Option<String>),
    /// The type differs.
    Type {
        /// Type in the schema.
        wanted: String,
        /// Type in the document.
        found: &'static str,
    },
    /// The number is outside of the range.
    Range,
}

/// Differences between `value` and `schema`, in the order of the document.
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

/// Whether the object may have any fields.
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
        || bound("maximum").is_some_and(|most| number > most);
    outside.then_some(Problem::Range)
}

/// A field with a similar name: equal but for case, or one letter changed, added or missing, or two letters swapped.
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

    /// Rules of Kubernetes for structural schemas, as far as these could break them.
    fn assert_structural(schema: &Value, path: &str) {
        let object = schema.as_object().unwrap_or_else(|| panic!("{path}: {schema}"));
        for keyword in ["$ref", "$schema", "nullable", "definitions", "oneOf", "allOf"] {
            assert!(!object.contains_key(keyword), "{path} has {keyword}");
        }
        let own = object.keys().filter(|key| key.starts_with("x-") && !key.starts_with("x-kubernetes-"));
        assert_eq!(own.count(), 0, "{path}: {schema}");
        let kind = object.get("type").map(|kind| kind.as_str().unwrap_or_else(|| panic!("{path}: {kind}")));
        let open = object.contains_key("x-kubernetes-int-or-string");
        assert!(kind.is_some() || open, "{path} has no type: {schema}");
        assert!(
            !(object.contains_key("properties") && object.contains_key("additionalProperties")),
            "{path}"
        );
        for (name, schema) in object.get("properties").and_then(Value::as_object).into_iter().flatten() {
            assert_structural(schema, &format!("{path}.{name}"));
        }
        for key in ["items", "additionalProperties"] {
            if let Some(inner) = object.get(key).filter(|inner| inner.is_object()) {
                assert_structural(inner, &format!("{path}.{key}"));
            }
        }
    }

    #[test]
    fn schemas_are_structural_and_leave_metadata_to_kubernetes() {
        for definition in crate::definition::ALL {
            let schema = definition.schema();
            assert_structural(&schema, definition.kind);
            let metadata = &schema["properties"]["metadata"];
            if definition.kind == "HyperConverged" {
                assert_eq!(metadata["properties"]["name"]["pattern"], crate::hyperconverged::NAME);
                definition.others.iter().for_each(|other| assert_structural(&other.schema(), other.version));
            } else {
                assert_eq!(*metadata, json!({"type": "object"}), "{}", definition.kind);
            }
        }
    }

    #[test]
    fn metadata_of_templates_is_open_in_a_definition_and_typed_for_documents() {
        let path = "/properties/spec/properties/template/properties/metadata";
        let definition = structural::<crate::kubevirt::VirtualMachine>();
        let metadata = definition.pointer(path).unwrap();
        assert_eq!(metadata["x-kubernetes-preserve-unknown-fields"], true);
        assert!(metadata["properties"].is_null());
        let document = of::<crate::kubevirt::VirtualMachine>();
        assert_eq!(document.pointer(path).unwrap()["properties"]["name"]["type"], "string");
    }

    #[test]
    fn omitted_fields_exist_only_where_upstream_has_them() {
        let schema = structural::<crate::kubevirt::VirtualMachineInstance>();
        let timer = |name: &str| {
            let timers = "/properties/spec/properties/domain/properties/clock/properties/timer/properties";
            let fields = schema.pointer(&format!("{timers}/{name}/properties")).unwrap();
            fields.as_object().unwrap().keys().cloned().collect::<Vec<_>>()
        };
        assert_eq!(timer("rtc"), ["present", "tickPolicy", "track"]);
        assert_eq!(timer("hpet"), ["present", "tickPolicy"]);
        assert_eq!(timer("kvm"), ["present"]);
    }

    #[test]
    fn differences_are_reported_by_path() {
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
    fn values_are_read_and_written_without_change() {
        use crate::kubevirt::VirtualMachine;
        let value = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "a"},
            "spec": {"runStrategy": "Always", "template": {"metadata": {}, "spec": {
                "domain": {"memory": {"guest": "1Gi"}, "devices": {"disks": [{"name": "a", "cdrom": {}}], "gpus": [{"name": "g"}]}},
                "volumes": [{"name": "a", "containerDisk": {"image": "x"}}],
                "terminationGracePeriodSeconds": 5,
            }}},
            "status": {"printableStatus": "Stopped", "ready": false, "volumeSnapshotStatuses": [{"name": "a", "enabled": false}]},
        });
        let found = mismatches(&value, &Kind::VirtualMachine.schema());
        assert_eq!(found, []);
        let machine: VirtualMachine = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(serde_json::to_value(machine).unwrap(), value, "written as it was read");
    }

    #[test]
    fn the_number_of_differences_is_bounded() {
        let list: Vec<Value> = (0..5000).map(Value::from).collect();
        let value = json!({"spec": {"accessModes": list}});
        assert_eq!(mismatches(&value, &Kind::PersistentVolumeClaim.schema()).len(), MISMATCHES_MAX);
    }
}
