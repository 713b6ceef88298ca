//! Changes of typed objects as changes of the JSON that was read: what they do not touch stays as it is written.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Changes an object by its type. An object that is not of the type stays as it is: its schema, or the validating webhook,
/// reports the defect.
pub(crate) fn fill<T: DeserializeOwned + Serialize>(object: &mut Value, change: impl FnOnce(&mut T)) {
    let Ok(mut typed) = T::deserialize(&*object) else { return };
    let Ok(before) = serde_json::to_value(&typed) else { return };
    change(&mut typed);
    if let Ok(after) = serde_json::to_value(&typed) {
        carry(&before, &after, object);
    }
}

/// Carries the changes between two values over to a third.
fn carry(before: &Value, after: &Value, object: &mut Value) {
    if before == after {
        return;
    }
    match (after, &mut *object) {
        (Value::Object(after), Value::Object(fields)) => {
            let none = Map::new();
            let before = before.as_object().unwrap_or(&none);
            for (name, value) in after {
                let old = before.get(name).unwrap_or(&Value::Null);
                if old != value {
                    carry(old, value, fields.entry(name).or_insert(Value::Null));
                }
            }
            for name in before.keys().filter(|name| !after.contains_key(*name)) {
                fields.remove(name);
            }
        }
        (Value::Array(after), Value::Array(list)) if after.len() == list.len() => {
            for (index, (value, element)) in after.iter().zip(list).enumerate() {
                carry(before.get(index).unwrap_or(&Value::Null), value, element);
            }
        }
        _ => *object = after.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Default, Serialize, Deserialize)]
    #[serde(default)]
    struct Typed {
        labels: BTreeMap<String, String>,
        list: Vec<BTreeMap<String, u32>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        gone: Option<u32>,
    }

    #[test]
    fn only_what_is_changed_is_carried_over() {
        let change = |typed: &mut Typed| {
            typed.labels.insert("new".into(), "1".into());
            if let Some(first) = typed.list.first_mut() {
                first.insert("n".into(), 2);
            }
            typed.gone = None;
        };
        for (sent, expected) in [
            (json!({}), json!({"labels": {"new": "1"}})),
            (
                json!({"labels": {"a": "b"}, "other": null}),
                json!({"labels": {"a": "b", "new": "1"}, "other": null}),
            ),
            (
                json!({"list": [{"n": 1, "m": 3}, {}]}),
                json!({"labels": {"new": "1"}, "list": [{"n": 2, "m": 3}, {}]}),
            ),
            (json!({"gone": 1, "list": []}), json!({"labels": {"new": "1"}, "list": []})),
            // Not of the type.
            (json!({"labels": 1}), json!({"labels": 1})),
        ] {
            let mut object = sent.clone();
            fill(&mut object, change);
            assert_eq!(object, expected, "{sent}");
        }
    }
}
