//! Building blocks of resources: the macros that declare their types, metadata, and small types of fields.
//!
//! [`resource!`] declares types that have all of upstream's fields: fields outside of them are refused by the schema and
//! dropped when an object is read. [`partial!`] declares types with the fields that ferrovirt reads; they keep other
//! fields in `other` and write them again. Values of a closed set stay strings, as they may be newer than this program.
//!
//! A field may be followed by facts of its schema in brackets: keywords of OpenAPI, and
//! - `x-required`: the field is required.
//! - `x-default`: default value that the API server sets.
//! - `x-omit`: fields of the type, or of the items of a list, that this use of it does not have.
//!
//! Not here: the schema itself ([`crate::schema`]), and what a program does with a field.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::quantity::{self, QuantityError};

/// Fields without a declaration, as they were read.
pub type Other = serde_json::Map<String, Value>;

/// Declares types with all fields of a resource: camelCase, every field may be missing, missing fields are not written.
macro_rules! resource {
    ($(
        $(#[$about:meta])*
        pub struct $name:ident {
            $($(#[$field_about:meta])* pub $field:ident: $kind:ty $([$($fact:tt)+])?,)*
        }
    )*) => {$(
        #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        #[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
        #[serde(rename_all = "camelCase", default)]
        $(#[$about])*
        pub struct $name {
            $(
                $(#[$field_about])*
                #[serde(skip_serializing_if = "crate::resource::Absent::is_absent")]
                $(#[cfg_attr(feature = "crd", schemars(extend($($fact)+)))])?
                pub $field: $kind,
            )*
        }

        impl crate::resource::Absent for $name {}
    )*};
}
pub(crate) use resource;

/// Declares types with some fields of a resource, like [`resource!`]; other fields are kept in `other`.
macro_rules! partial {
    ($(
        $(#[$about:meta])*
        pub struct $name:ident {
            $($(#[$field_about:meta])* pub $field:ident: $kind:ty,)*
        }
    )*) => {$(
        #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        #[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
        #[serde(rename_all = "camelCase", default)]
        $(#[$about])*
        pub struct $name {
            $(
                $(#[$field_about])*
                #[serde(skip_serializing_if = "crate::resource::Absent::is_absent")]
                pub $field: $kind,
            )*
            /// Other fields, as they were read.
            #[serde(flatten)]
            #[cfg_attr(feature = "crd", schemars(skip))]
            pub other: crate::resource::Other,
        }

        impl crate::resource::Absent for $name {}
    )*};
}
pub(crate) use partial;

/// Whether a field has no value and is not written.
pub(crate) trait Absent {
    /// Structs are always written: some are required even when they are empty.
    fn is_absent(&self) -> bool {
        false
    }
}

impl<T> Absent for Option<T> {
    fn is_absent(&self) -> bool {
        self.is_none()
    }
}

impl<T> Absent for Vec<T> {
    fn is_absent(&self) -> bool {
        self.is_empty()
    }
}

impl<K, V> Absent for BTreeMap<K, V> {
    fn is_absent(&self) -> bool {
        self.is_empty()
    }
}

impl Absent for String {
    fn is_absent(&self) -> bool {
        self.is_empty()
    }
}

/// Numbers and booleans outside of an `Option` are required fields and always written.
macro_rules! always_written {
    ($($kind:ty),*) => {$(impl Absent for $kind {})*};
}
always_written!(bool, i32, i64, u32, f64, IntOrString, Quantity);

partial! {
    /// Metadata of an object or a template.
    #[cfg_attr(feature = "crd", schemars(extend("x-metadata" = true)))]
    pub struct ObjectMeta {
        /// Name, a DNS subdomain, unique among the objects of the kind in the namespace.
        pub name: String,
        /// Prefix of a name that the API server completes.
        pub generate_name: Option<String>,
        /// Namespace. Default: `default`.
        pub namespace: Option<String>,
        /// Labels, for selectors.
        pub labels: BTreeMap<String, String>,
        /// Annotations.
        pub annotations: BTreeMap<String, String>,
        /// UUID, assigned at creation.
        pub uid: Option<String>,
        /// Opaque version of the stored object.
        pub resource_version: Option<String>,
        /// Number of changes of the spec.
        pub generation: Option<u64>,
        /// Creation time (RFC 3339).
        pub creation_timestamp: Option<String>,
        /// Deletion time (RFC 3339); set while deletion waits for finalizers.
        pub deletion_timestamp: Option<String>,
        /// Seconds that deletion may take.
        pub deletion_grace_period_seconds: Option<u64>,
        /// Components that must finish before the object is removed.
        pub finalizers: Vec<String>,
        /// Objects with which this one is deleted.
        pub owner_references: Vec<Other>,
        /// Managers of fields (server-side apply).
        pub managed_fields: Vec<Other>,
    }
}

resource! {
    /// State of one aspect of an object.
    pub struct Condition {
        /// Aspect that the condition describes, such as `Ready`.
        #[serde(rename = "type")]
        pub kind: String ["x-required" = true],
        /// `True`, `False` or `Unknown`.
        pub status: String ["x-required" = true],
        /// Machine-readable reason, one CamelCase word.
        pub reason: Option<String>,
        /// Explanation for people.
        pub message: Option<String>,
        /// Time of the last check (RFC 3339); in conditions of kubevirt.io.
        pub last_probe_time: Option<String> ["format" = "date-time"],
        /// Time of the last check (RFC 3339); in conditions of cdi.kubevirt.io.
        pub last_heartbeat_time: Option<String> ["format" = "date-time"],
        /// Time of the last change of `status` (RFC 3339).
        pub last_transition_time: Option<String> ["format" = "date-time"],
    }

    /// Object in the same namespace.
    pub struct LocalReference {
        /// Name.
        pub name: String ["x-default" = ""],
    }

    /// Object without fields; its presence is the value.
    pub struct Empty {
    }
}

/// Kubernetes quantity: a number, or a string such as `512Mi`. Kept as written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Quantity(pub String);

impl Quantity {
    /// Whole bytes, rounded up.
    ///
    /// # Errors
    /// When the quantity is not an amount of bytes.
    pub fn bytes(&self) -> Result<u64, QuantityError> {
        quantity::bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Text(String),
            Number(serde_json::Number),
        }
        Ok(Self(match Written::deserialize(deserializer)? {
            Written::Text(text) => text,
            Written::Number(number) => number.to_string(),
        }))
    }
}

#[cfg(feature = "crd")]
impl schemars::JsonSchema for Quantity {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Quantity".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": quantity::PATTERN,
            "x-kubernetes-int-or-string": true,
        })
    }
}

/// Number or name, such as a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum IntOrString {
    /// Number.
    Int(i64),
    /// Name.
    String(String),
}

impl Default for IntOrString {
    fn default() -> Self {
        Self::Int(0)
    }
}

#[cfg(feature = "crd")]
impl schemars::JsonSchema for IntOrString {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "IntOrString".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": true,
        })
    }
}

/// String that may hold a secret; its value does not appear in debug output.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Confidential(pub String);

impl fmt::Debug for Confidential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({} bytes, not shown)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn partial_types_keep_other_fields_and_write_no_missing_ones() {
        let written =
            json!({"name": "a", "labels": {"x": "y"}, "selfLink": "/a", "new": {"deep": [1, 2.5, "x"]}});
        let meta: ObjectMeta = serde_json::from_value(written.clone()).unwrap();
        assert_eq!(meta.other.len(), 2);
        assert_eq!(serde_json::to_value(meta).unwrap(), written);
        assert_eq!(serde_json::to_value(ObjectMeta::default()).unwrap(), json!({}));
    }

    #[test]
    fn quantities_are_numbers_or_texts() {
        for (written, bytes) in [(json!(1024), 1024), (json!("1Ki"), 1024), (json!(1.5), 2)] {
            assert_eq!(serde_json::from_value::<Quantity>(written).unwrap().bytes(), Ok(bytes));
        }
        assert!(serde_json::from_value::<Quantity>(json!(true)).is_err());
    }

    #[test]
    fn secrets_are_not_shown() {
        assert_eq!(format!("{:?}", Confidential("hunter2".to_owned())), "(7 bytes, not shown)");
    }
}
