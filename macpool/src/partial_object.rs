//! An object of the API server as JSON without its large parts that have no part in a decision: they are skipped while it
//! is read. Of ten thousand objects that is most of the work and of the memory.
//!
//! Not here: objects that are written back ([`crate::store`]), which stay whole.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};
use serde_json::{Map, Number, Value};

/// Fields that are passed over, wherever they are.
const UNREAD: &[&str] = &[
    "managedFields",
    "containers",
    "initContainers",
    "volumes",
    "tolerations",
    "conditions",
    "containerStatuses",
    "initContainerStatuses",
];

/// The rest of an object.
#[derive(Clone, Debug)]
pub(crate) struct PartialObject(pub(crate) Value);

impl<'de> Deserialize<'de> for PartialObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Rest.deserialize(deserializer).map(Self)
    }
}

/// Reads a value without what is passed over.
#[derive(Clone, Copy)]
struct Rest;

impl<'de> DeserializeSeed<'de> for Rest {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Rest {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of JSON")
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E: de::Error>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut read = Vec::new();
        while let Some(value) = list.next_element_seed(self)? {
            read.push(value);
        }
        Ok(Value::Array(read))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut read = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if UNREAD.contains(&key.as_str()) {
                let _passed_over: IgnoredAny = map.next_value()?;
            } else {
                read.insert(key, map.next_value_seed(self)?);
            }
        }
        Ok(Value::Object(read))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn skipped_fields_are_missing_and_all_others_are_kept() {
        let object = json!({
            "metadata": {"name": "a", "managedFields": [{"fieldsV1": {}}], "generation": 1, "annotations": {"x": "é\n\"\u{1}"}},
            "spec": {"containers": [{"name": "c"}], "volumes": [], "template": {"spec": {"volumes": [1], "networks": [{}]}}},
            "status": {"phase": "Running", "conditions": [{}], "numbers": [-1, 1.5, u64::MAX, null, true, []]},
        });
        let expected = json!({
            "metadata": {"name": "a", "generation": 1, "annotations": {"x": "é\n\"\u{1}"}},
            "spec": {"template": {"spec": {"networks": [{}]}}},
            "status": {"phase": "Running", "numbers": [-1, 1.5, u64::MAX, null, true, []]},
        });
        let read: PartialObject = serde_json::from_str(&object.to_string()).unwrap();
        assert_eq!(read.0, expected);
        for torn in ["", "{", "[1,", r#"{"a":}"#] {
            assert!(serde_json::from_str::<PartialObject>(torn).is_err(), "{torn}");
        }
    }
}
