//! Conversion of HyperConverged between v1beta1 and v1, on written and on generated objects.
//!
//! Generated objects are made from the schemas: every field, each present or not. FERROVIRT_SOAK=1: 10 000 of them.

use api::definition;
use api::hyperconverged::{API_VERSION, API_VERSION_BETA, convert, v1, v1beta1};
use serde_json::{Map, Value, json};

/// Deterministic numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn schema(beta: bool) -> Value {
    let definition = definition::ALL.iter().find(|one| one.kind == "HyperConverged").unwrap();
    if beta { definition.others[0].schema() } else { definition.schema() }
}

/// A value of a schema. Fields with a default always exist, as the API server fills them in.
fn value(schema: &Value, random: &mut Random, depth: u64) -> Value {
    if let Some(choices) = schema["enum"].as_array() {
        return choices[usize::try_from(random.below(choices.len() as u64)).unwrap()].clone();
    }
    if schema["x-kubernetes-int-or-string"] == true {
        return json!("1Gi");
    }
    match schema["type"].as_str().unwrap() {
        "boolean" => json!(random.below(2) == 0),
        "integer" | "number" => json!(random.below(90) + 10),
        "string" => json!(format!("text-{}", random.below(1000))),
        "array" => {
            // Lists of text and of objects with names are sets; entries differ.
            let count = random.below(3) + 1;
            let mut list: Vec<Value> = Vec::new();
            for _ in 0..count {
                let one = value(&schema["items"], random, depth + 1);
                if !list.contains(&one) {
                    list.push(one);
                }
            }
            json!(list)
        }
        "object" => {
            let mut object = Map::new();
            for (name, field) in schema["properties"].as_object().into_iter().flatten() {
                let required =
                    schema["required"].as_array().is_some_and(|all| all.iter().any(|one| one == name));
                if required || !field["default"].is_null() || random.below(4 + depth) == 0 {
                    object.insert(name.clone(), value(field, random, depth + 1));
                }
            }
            if schema["additionalProperties"].is_object() {
                let name = format!("key-{}", random.below(100));
                object.insert(name, value(&schema["additionalProperties"], random, depth + 1));
            }
            Value::Object(object)
        }
        other => panic!("{other}"),
    }
}

fn object(schema: &Value, beta: bool, random: &mut Random) -> Value {
    let mut spec = value(&schema["properties"]["spec"], random, 0);
    if !beta {
        // Names of gates are unique, ignoring case.
        let names = [
            "template",
            "DOWNWARDMETRICS",
            "objectGraph",
            "unheardOf",
            "nonRoot",
            "alignCPUs",
            "incrementalBackup",
        ];
        let mut gates = Vec::new();
        for name in names {
            match random.below(6) {
                0 => gates.push(json!({"name": name})),
                1 => gates.push(json!({"name": name, "state": "Enabled"})),
                2 => gates.push(json!({"name": name, "state": "Disabled"})),
                _ => {}
            }
        }
        spec["featureGates"] = json!(gates);
    }
    let version = if beta { API_VERSION_BETA } else { API_VERSION };
    let mut object = json!({"apiVersion": version, "kind": "HyperConverged",
        "metadata": {"name": "kubevirt-hyperconverged", "uid": "1"}, "spec": spec});
    match random.below(3) {
        0 => object["metadata"]["annotations"] = json!({"a": "b"}),
        1 => object["status"] = json!({"observedGeneration": 3}),
        _ => {}
    }
    object
}

/// The object without empty objects and lists, and with deprecated names replaced: what conversions may change.
fn plain(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut object = Map::new();
            for (name, field) in fields {
                let field = plain(field);
                if field.as_object().is_some_and(Map::is_empty) || field.as_array().is_some_and(Vec::is_empty)
                {
                    continue;
                }
                if name == "mediatedDevicesTypes" {
                    object.entry("mediatedDeviceTypes").or_insert(field);
                } else {
                    object.insert(name.clone(), field);
                }
            }
            Value::Object(object)
        }
        Value::Array(list) => json!(list.iter().map(plain).collect::<Vec<_>>()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

#[test]
fn generated_objects_survive_the_conversion_there_and_back() {
    let count = if std::env::var_os("FERROVIRT_SOAK").is_some() { 10_000 } else { 300 };
    let mut random = Random(28);
    let (schemas, specs) = ([schema(false), schema(true)], [spec_of(false), spec_of(true)]);
    for index in 0..count {
        let beta = index % 2 == 0;
        let (here, there) =
            if beta { (API_VERSION_BETA, API_VERSION) } else { (API_VERSION, API_VERSION_BETA) };
        let object = object(&schemas[usize::from(beta)], beta, &mut random);
        let other = convert(&object, there).unwrap();
        assert_eq!(other["apiVersion"], there);
        assert_eq!(other["status"], object["status"], "{index}");
        let back = convert(&other, here).unwrap();
        let (wanted, got) = (plain(&object), plain(&back));
        assert_eq!(got, wanted, "{index}, by way of {other:#}");
        // A value without a field in the other version would be pruned: none is.
        let differences = api::schema::mismatches(&other["spec"], &specs[usize::from(!beta)]);
        let unknown =
            differences.iter().filter(|one| matches!(one.problem, api::schema::Problem::Unknown(_)));
        assert_eq!(unknown.count(), 0, "{differences:?}");
    }
}

fn spec_of(beta: bool) -> Value {
    let schema = if beta {
        api::schema::of::<v1beta1::HyperConverged>()
    } else {
        api::schema::of::<v1::HyperConverged>()
    };
    schema["properties"]["spec"].clone()
}

#[test]
fn typed_objects_keep_every_field() {
    let mut random = Random(7);
    let schemas = [schema(false), schema(true)];
    for _ in 0..50 {
        let written = object(&schemas[1], true, &mut random);
        let read: v1beta1::HyperConverged = serde_json::from_value(written.clone()).unwrap();
        assert_eq!(plain(&serde_json::to_value(read).unwrap()), plain(&written));
        let written = object(&schemas[0], false, &mut random);
        let read: v1::HyperConverged = serde_json::from_value(written.clone()).unwrap();
        assert_eq!(plain(&serde_json::to_value(read).unwrap()), plain(&written));
    }
}

#[test]
fn settings_and_gates_move_to_their_place() {
    let beta = json!({"apiVersion": API_VERSION_BETA, "kind": "HyperConverged", "metadata": {"name": "x"}, "spec": {
        "infra": {"nodePlacement": {"nodeSelector": {"a": "b"}}},
        "obsoleteCPUs": {"cpuModels": ["486"], "minCPUModel": "Penryn"},
        "featureGates": {"downwardMetrics": true, "objectGraph": false, "declarativeHotplugVolumes": false, "nonRoot": true},
        "vddkInitImage": "x",
    }});
    let v1 = convert(&beta, API_VERSION).unwrap();
    assert_eq!(v1["spec"]["deployment"]["nodePlacements"]["infra"]["nodeSelector"]["a"], "b");
    assert_eq!(v1["spec"]["virtualization"]["obsoleteCPUModels"], json!(["486"]));
    assert_eq!(
        v1["spec"]["featureGates"],
        json!([
            {"name": "declarativeHotplugVolumes", "state": "Disabled"},
            {"name": "downwardMetrics", "state": "Enabled"},
            {"name": "nonRoot", "state": "Enabled"},
        ])
    );
    let mut edited = v1.clone();
    edited["spec"]["featureGates"] = json!([{"name": "unheardOf"}, {"name": "ObjectGraph"}]);
    let back = convert(&edited, API_VERSION_BETA).unwrap();
    assert_eq!(back["spec"]["featureGates"]["objectGraph"], true);
    assert_eq!(back["spec"]["featureGates"]["downwardMetrics"], false);
    assert!(back["spec"]["featureGates"]["nonRoot"].is_null());
    assert_eq!(back["spec"]["vddkInitImage"], "x", "kept while the object was v1");
    // An edit of v1beta1 wins over what was kept of v1.
    let mut edited = back.clone();
    edited["spec"]["featureGates"]["objectGraph"] = json!(false);
    let v1 = convert(&edited, API_VERSION).unwrap();
    assert_eq!(
        v1["spec"]["featureGates"],
        json!([{"name": "unheardOf"}, {"name": "ObjectGraph", "state": "Disabled"}])
    );
}

#[test]
fn damaged_objects_and_unknown_versions_are_refused() {
    let object = json!({"apiVersion": API_VERSION, "metadata": {}});
    assert_eq!(
        convert(&object, API_VERSION_BETA).unwrap(),
        json!({"apiVersion": API_VERSION_BETA, "metadata": {}})
    );
    assert!(convert(&object, "hco.kubevirt.io/v2").is_err());
    assert!(convert(&json!({"apiVersion": API_VERSION}), API_VERSION_BETA).is_err());
    let annotated = json!({"apiVersion": API_VERSION, "metadata": {"annotations": {"ferrovirt.io/other-version": "{"}}, "spec": {}});
    let converted = convert(&annotated, API_VERSION_BETA).unwrap();
    assert!(converted["metadata"]["annotations"].is_null(), "an unreadable annotation is dropped");
}
