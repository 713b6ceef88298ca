//! Objects with one wrong field, made from a valid one: tests give them to admission, in a process and at a real API server.
//!
//! Not here: the valid objects, and what an answer must be.

use serde_json::{Value, json};

/// Fields that may have any text, by path with `[]` for lists, each with all below it.
const FREE: [&str; 7] = [
    "spec.template.spec.domain.devices.watchdog.name",
    "spec.template.spec.domain.devices.disks[].serial",
    "spec.template.spec.domain.chassis",
    "spec.template.spec.domain.firmware.serial",
    "spec.template.spec.volumes[].cloudInitNoCloud",
    "spec.template.spec.domain.devices.interfaces[].ports[].name",
    "spec.domain.firmware.serial",
];

/// Kinds of mistakes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Wrong {
    /// A value of another type; the refusal names the field.
    Type,
    /// A name that no field has; the refusal names it.
    Name,
    /// A value of the right type that means nothing; the refusal names a field.
    Value,
}

/// An object with one wrong field.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// The mistake.
    pub wrong: Wrong,
    /// Path of the wrong field, such as `spec.a[0].b`.
    pub field: String,
    /// The whole object.
    pub object: Value,
}

impl Mutant {
    /// Whether the value is wrong for a field that may have any text.
    pub fn is_free(&self) -> bool {
        let path = plain(&self.field);
        self.wrong == Wrong::Value && FREE.iter().any(|free| path.starts_with(free))
    }
}

/// All mutants of a valid object; `leaves` are the paths of its fields without further fields.
///
/// # Panics
/// When a path is not one of the object.
pub fn mutants(object: &Value, leaves: &[String]) -> Vec<Mutant> {
    /// Their keys are the user's.
    const MAPS: [&str; 4] = ["/requests", "/limits", "/labels", "/annotations"];
    let mut all = Vec::new();
    for path in leaves.iter().filter(|path| path.starts_with("spec.")) {
        let at = pointer(path);
        let (parent, key) = at.rsplit_once('/').unwrap();
        let value = object.pointer(&at).unwrap();
        let with = |new: Value| {
            let mut object = object.clone();
            *object.pointer_mut(&at).unwrap() = new;
            object
        };
        let mut add =
            |wrong, field: &str, object| all.push(Mutant { wrong, field: field.to_owned(), object });
        let is_nested = value.is_object() || value.is_array();
        add(Wrong::Type, path, with(if is_nested { json!("a word") } else { json!([{"no": "value"}]) }));
        let mut misspelled = object.clone();
        let fields = misspelled.pointer_mut(parent).unwrap().as_object_mut();
        if let Some(fields) = fields.filter(|_| !MAPS.iter().any(|map| parent.ends_with(map))) {
            let value = fields.remove(key).unwrap();
            fields.insert(format!("{key}Misspelled"), value);
            add(Wrong::Name, &format!("{path}Misspelled"), misspelled);
        }
        match value {
            Value::String(_) => add(Wrong::Value, path, with(json!("no\u{7}sense/.."))),
            Value::Number(_) => add(Wrong::Value, path, with(json!(-7))),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => {}
        }
    }
    all
}

/// `a.b[0].c` as `/a/b/0/c`.
fn pointer(path: &str) -> String {
    let steps = path.split('.').flat_map(|step| {
        let mut parts = step.split('[').map(|part| part.trim_end_matches(']'));
        std::iter::once(parts.next().unwrap_or_default()).chain(parts)
    });
    steps.fold(String::new(), |pointer, step| format!("{pointer}/{step}"))
}

/// `a[0].b` as `a[].b`.
pub fn plain(path: &str) -> String {
    let mut plain = String::new();
    let mut inside = false;
    for c in path.chars() {
        inside = (inside || c == '[') && c != ']';
        if !inside || c == '[' {
            plain.push(c);
        }
    }
    plain
}
