//! Generated schemas against upstream's fields.
//!
//! `fields/KIND.txt` lists the fields of a kind as an outline: name, `!` if required, type, facts separated by `;`. An
//! entry that ends with `= KIND PATH` has the children listed there. `*` stands for the values of a map. Formats of
//! numbers are not listed. The values are facts of upstream's definitions: KubeVirt 1.9, CDI 1.66.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use api::definition;
use api::quantity::PATTERN;
use serde_json::{Map, Value, json};

/// Fields that ours has and upstream's has not, each below one path: DataVolumes of a VM accept what DataVolumes accept.
const ADDED: [(&str, &str); 8] = [
    ("VirtualMachine", "spec.dataVolumeTemplates[].spec.serviceAccountName"),
    ("VirtualMachine", "spec.dataVolumeTemplates[].spec.source.http.checksum"),
    ("VirtualMachine", "spec.dataVolumeTemplates[].spec.source.http.insecureSkipVerify"),
    ("VirtualMachine", "spec.dataVolumeTemplates[].spec.source.vddk.certConfigMap"),
    ("VirtualMachinePool", "spec.virtualMachineTemplate.spec.dataVolumeTemplates[].spec.serviceAccountName"),
    (
        "VirtualMachinePool",
        "spec.virtualMachineTemplate.spec.dataVolumeTemplates[].spec.source.http.checksum",
    ),
    (
        "VirtualMachinePool",
        "spec.virtualMachineTemplate.spec.dataVolumeTemplates[].spec.source.http.insecureSkipVerify",
    ),
    (
        "VirtualMachinePool",
        "spec.virtualMachineTemplate.spec.dataVolumeTemplates[].spec.source.vddk.certConfigMap",
    ),
];

/// A field that ours has and upstream's has not, in every kind with sources of DataVolumes. Upstream had this source as an
/// annotation of claims only; as a field it is refused with a reason, and not as an unknown one.
const REFUSED: &str = ".source.glance: added";

#[derive(Clone, Default, Debug)]
struct Field {
    required: bool,
    kind: String,
    facts: Vec<String>,
    like: Option<(String, String)>,
    children: BTreeMap<String, Field>,
}

type Outlines = BTreeMap<String, Field>;

fn outline(text: &str) -> Field {
    let mut root = Field { kind: "object".to_owned(), ..Field::default() };
    let mut path: Vec<String> = Vec::new();
    for line in text.lines() {
        let depth = line.len() - line.trim_start().len();
        assert_eq!(depth % 2, 0, "{line}");
        path.truncate(depth / 2);
        let (line, like) = match line.trim_start().split_once(" = ") {
            Some((line, like)) => {
                let (kind, path) = like.split_once(' ').unwrap();
                (line, Some((kind.to_owned(), path.to_owned())))
            }
            None => (line.trim_start(), None),
        };
        let (name, rest) = line.split_once(' ').unwrap();
        let (kind, facts) = rest.split_once(' ').unwrap_or((rest, ""));
        let field = Field {
            required: name.ends_with('!'),
            kind: kind.to_owned(),
            facts: facts.split("; ").filter(|fact| !fact.is_empty()).map(str::to_owned).collect(),
            like,
            children: BTreeMap::new(),
        };
        let parent = path.iter().fold(&mut root, |field, step| field.children.get_mut(step).unwrap());
        let name = name.trim_end_matches('!').to_owned();
        parent.children.insert(name.clone(), field);
        path.push(name);
    }
    root
}

fn outlines() -> Outlines {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fields");
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let read = |path: std::path::PathBuf| {
        let kind = path.file_stem().unwrap().to_str().unwrap().to_owned();
        (kind, outline(&fs::read_to_string(path).unwrap()))
    };
    files.map(read).collect()
}

/// Children of a field, those of the field it refers to included.
fn children<'a>(field: &'a Field, all: &'a Outlines) -> &'a BTreeMap<String, Field> {
    match &field.like {
        None => &field.children,
        Some((kind, path)) => {
            let steps = path.split('.').map(|step| step.trim_end_matches("[]"));
            let other = steps.fold(&all[kind], |field, step| {
                children(field, all).get(step).unwrap_or_else(|| panic!("{kind} {path}: no {step}"))
            });
            children(other, all)
        }
    }
}

/// Type of a schema in the outline's words.
fn kind_of(schema: &Value) -> String {
    if schema["x-kubernetes-int-or-string"] == true {
        return if schema["pattern"] == PATTERN { "quantity" } else { "int-or-string" }.to_owned();
    }
    match (schema["type"].as_str(), schema["items"]["type"].as_str()) {
        (Some("array"), Some(items)) if items != "object" => format!("[{items}]"),
        (kind, _) => kind.unwrap_or("none").to_owned(),
    }
}

/// Facts of a schema in the outline's words, but for bounds, which ours may have where upstream's has none.
fn facts_of(schema: &Map<String, Value>) -> (Vec<String>, Vec<String>) {
    let (mut facts, mut bounds) = (Vec::new(), Vec::new());
    let words = |value: &Value, separator: &str| {
        let words: Vec<&str> = value.as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
        words.join(separator)
    };
    for (key, value) in schema {
        match key.as_str() {
            "enum" => facts.push(format!("enum {}", words(value, "|"))),
            "default" => facts.push(format!("default {value}")),
            "x-kubernetes-preserve-unknown-fields" => facts.push("preserve".to_owned()),
            "x-kubernetes-list-type" if value == "set" => facts.push("list set".to_owned()),
            "x-kubernetes-list-map-keys" => facts.push(format!("list map({})", words(value, ","))),
            "x-kubernetes-validations" => {
                let rules = value.as_array().unwrap().iter();
                facts.extend(rules.map(|rule| format!("CEL {}", rule["rule"].as_str().unwrap())));
            }
            "format" if value == "date-time" => facts.push("format date-time".to_owned()),
            "pattern" if value != PATTERN || schema.get("type").is_some() => {
                facts.push(format!("pattern {}", value.as_str().unwrap()))
            }
            "minimum" | "maximum" | "maxItems" | "minLength" | "maxLength" => {
                bounds.push(format!("{key} {value}"));
            }
            _ => {}
        }
    }
    (facts, bounds)
}

fn compare(path: &str, wanted: &Field, schema: &Value, all: &Outlines, found: &mut Vec<String>) {
    let kind = kind_of(schema);
    if kind != wanted.kind {
        found.push(format!("{path}: {kind} instead of {}", wanted.kind));
    }
    let (facts, bounds) = facts_of(schema.as_object().unwrap());
    for fact in wanted.facts.iter().filter(|fact| !facts.contains(fact) && !bounds.contains(fact)) {
        found.push(format!("{path}: lacks {fact}"));
    }
    for fact in facts.iter().filter(|fact| !wanted.facts.contains(fact)) {
        found.push(format!("{path}: has {fact}"));
    }
    let schema = if kind == "array" { &schema["items"] } else { schema };
    let steps = if kind == "array" { "[]" } else { "" };
    let wanted_children = children(wanted, all);
    if let Some(values) = wanted_children.get("*") {
        return compare(&format!("{path}.*"), values, &schema["additionalProperties"], all, found);
    }
    let empty = Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&empty);
    let required =
        |name: &str| schema["required"].as_array().into_iter().flatten().any(|required| required == name);
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}{steps}.{name}") };
    for (name, child) in wanted_children {
        let path = below(name);
        let Some(schema) = properties.get(name) else {
            found.push(format!("{path}: missing"));
            continue;
        };
        if required(name) != child.required {
            found.push(format!("{path}: required is {}", required(name)));
        }
        compare(&path, child, schema, all, found);
    }
    found.extend(
        properties
            .keys()
            .filter(|name| !wanted_children.contains_key(*name))
            .map(|name| below(name) + ": added"),
    );
}

#[test]
fn schemas_have_the_fields_types_and_facts_of_upstream() {
    let all = outlines();
    let mut schemas = Vec::new();
    for definition in definition::ALL {
        schemas.push((definition, definition.kind.to_owned(), definition.schema()));
        for other in definition.others {
            schemas.push((definition, format!("{}.{}", definition.kind, other.version), other.schema()));
        }
    }
    assert_eq!(all.len(), schemas.len());
    let mut differences = Vec::new();
    for (definition, outline, mut schema) in schemas {
        let properties = schema["properties"].as_object_mut().unwrap();
        for own in ["apiVersion", "kind"] {
            assert_eq!(properties.remove(own).unwrap()["type"], "string");
        }
        let mut found = Vec::new();
        compare("", &all[&outline], &schema, &all, &mut found);
        let added = |one: &String| {
            ADDED.iter().any(|(kind, path)| *kind == definition.kind && *one == format!("{path}: added"))
        };
        assert_eq!(
            found.iter().filter(|one| added(one)).count(),
            ADDED.iter().filter(|(kind, _)| *kind == definition.kind).count(),
            "{}: fields that are listed as added are not",
            definition.kind
        );
        let refused = |one: &String| one.ends_with(REFUSED);
        let with_sources = ["DataVolume", "VolumeImportSource"].contains(&definition.kind);
        assert!(!with_sources || found.iter().any(refused), "{outline} has not the source");
        found.retain(|one| !added(one) && !refused(one));
        differences.extend(found.into_iter().map(|one| format!("{outline} {one}")));
    }
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

/// Number of fields and number of fields without a description, below a schema.
fn described(path: &str, schema: &Value, without: &mut Vec<String>) -> usize {
    let mut count = 0;
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        count += 1 + described(&path, field, without);
        if !field["description"].as_str().is_some_and(|text| text.len() > 3 && text.ends_with('.')) {
            without.push(path);
        }
    }
    for inner in ["items", "additionalProperties"] {
        if schema[inner].is_object() {
            count += described(path, &schema[inner], without);
        }
    }
    count
}

#[test]
fn every_field_has_a_description() {
    let mut total = 0;
    for definition in definition::ALL {
        let mut schema = definition.schema();
        // Kubernetes describes it.
        schema["properties"].as_object_mut().unwrap().remove("metadata");
        let mut without = Vec::new();
        total += described(definition.kind, &schema, &mut without);
        assert!(schema["description"].is_string(), "{}", definition.kind);
        assert!(without.is_empty(), "{without:?}");
    }
    println!("{} kinds, {total} fields", definition::ALL.len());
    assert!(total > 3000);
}

#[test]
fn definitions_fit_into_one_request_to_the_api_server() {
    for definition in definition::ALL {
        let size = definition.manifest().to_string().len();
        println!("{}: {} KiB", definition.name(), size / 1024);
        assert!(size < 1 << 20, "{}: {size} bytes", definition.name());
    }
}

#[test]
fn definitions_carry_names_versions_columns_and_subresources() {
    let of =
        |kind: &str| definition::ALL.iter().find(|definition| definition.kind == kind).unwrap().manifest();
    let machine = of("VirtualMachine");
    assert_eq!(machine["metadata"]["name"], "virtualmachines.kubevirt.io");
    assert_eq!(machine["spec"]["names"]["shortNames"], json!(["vm", "vms"]));
    assert_eq!(machine["spec"]["names"]["categories"], json!(["all"]));
    let versions = machine["spec"]["versions"].as_array().unwrap();
    let names: Vec<_> =
        versions.iter().map(|version| (version["name"].as_str(), &version["storage"])).collect();
    assert_eq!(names, [(Some("v1"), &json!(true)), (Some("v1alpha3"), &json!(false))]);
    assert_eq!(versions[0]["subresources"], json!({"status": {}}));
    assert_eq!(versions[0]["schema"], versions[1]["schema"]);
    let columns = versions[0]["additionalPrinterColumns"].as_array().unwrap();
    let columns: Vec<_> = columns.iter().map(|column| column["name"].as_str().unwrap()).collect();
    assert_eq!(columns, ["Age", "Status", "Ready"]);
    let instance = of("VirtualMachineInstance");
    assert!(instance["spec"]["versions"][0]["subresources"].is_null(), "status is written with the object");
    let set = of("VirtualMachineInstanceReplicaSet");
    assert_eq!(set["spec"]["versions"][0]["subresources"]["scale"]["specReplicasPath"], ".spec.replicas");
    let preset = of("VirtualMachineInstancePreset");
    assert_eq!(preset["spec"]["versions"][0]["name"], "v1alpha3", "the stored version");
    assert_eq!(of("CDI")["spec"]["scope"], "Cluster");
    assert_eq!(of("NetworkAttachmentDefinition")["spec"]["names"]["shortNames"], json!(["net-attach-def"]));
}

/// The API server reads bounds as floating-point numbers: 2^63 - 1 is rounded up there, and refuses every value.
#[test]
fn bounds_of_definitions_are_exact_as_floating_point_numbers() {
    fn largest(value: &serde_json::Value, path: &str, found: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(fields) => {
                let bound = ["maximum", "minimum"].into_iter().filter_map(|name| fields.get(name)?.as_i64());
                if bound.into_iter().any(|bound| bound.unsigned_abs() > 1 << 53) {
                    found.push(path.to_owned());
                }
                fields.iter().for_each(|(name, value)| largest(value, &format!("{path}.{name}"), found));
            }
            serde_json::Value::Array(values) => values.iter().for_each(|value| largest(value, path, found)),
            serde_json::Value::Null
            | serde_json::Value::Bool(_)
            | serde_json::Value::Number(_)
            | serde_json::Value::String(_) => {}
        }
    }
    let mut found = Vec::new();
    for definition in api::definition::ALL {
        largest(&definition.schema(), &definition.name(), &mut found);
    }
    assert!(found.is_empty(), "bounds beyond 2^53: {found:#?}");
}
