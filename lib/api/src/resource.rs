//! What resources of every group are made of: how they are read and written, their metadata, and small types of fields.
//!
//! A resource keeps what it does not know: every struct that [`resource!`] makes has a field `other` with the fields it
//! has no name for, and writes them again. Words of a closed set stay texts here, as they may be newer than this program;
//! what they mean is decided, and complained about by path, where they are used.
//!
//! Not here: what a program makes of a field.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::quantity::{self, QuantityError};

/// Fields that are not known, as they were written.
pub type Other = serde_json::Map<String, Value>;

/// Makes structs of a resource: camelCase, every field may be missing, what is missing is not written, what is not known
/// is kept in `other`.
macro_rules! resource {
    ($(
        $(#[$about:meta])*
        pub struct $name:ident {
            $($(#[$field_about:meta])* pub $field:ident: $kind:ty,)*
        }
    )*) => {$(
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        #[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
        #[cfg_attr(feature = "crd", schemars(extend("x-kubernetes-preserve-unknown-fields" = true)))]
        #[serde(rename_all = "camelCase", default)]
        pub struct $name {
            $(
                $(#[$field_about])*
                #[serde(skip_serializing_if = "crate::resource::Absent::is_absent")]
                pub $field: $kind,
            )*
            /// What is not known, as it was written.
            #[serde(flatten)]
            #[cfg_attr(feature = "crd", schemars(skip))]
            pub other: crate::resource::Other,
        }

        impl crate::resource::Absent for $name {}
    )*};
}
pub(crate) use resource;

/// Whether a field was not given, and so is not written.
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

resource! {
    /// Metadata of an object or a template.
    pub struct ObjectMeta {
        /// Name, unique among the objects of its kind in the namespace: a DNS subdomain.
        pub name: String,
        /// Start of a name whose end the API server makes up.
        pub generate_name: Option<String>,
        /// Namespace. Default: `default`.
        pub namespace: Option<String>,
        /// Labels, for selectors.
        pub labels: BTreeMap<String, String>,
        /// Annotations, for programs and people.
        pub annotations: BTreeMap<String, String>,
        /// UUID given at creation; another object of the same name has another one.
        pub uid: Option<String>,
        /// Version of the stored object, opaque.
        pub resource_version: Option<String>,
        /// Counts changes of the spec.
        pub generation: Option<u64>,
        /// RFC 3339.
        pub creation_timestamp: Option<String>,
        /// RFC 3339; set while deletion waits for finalizers.
        pub deletion_timestamp: Option<String>,
        /// Seconds that deletion may take.
        pub deletion_grace_period_seconds: Option<u64>,
        /// Who must agree before the object goes away.
        pub finalizers: Vec<String>,
        /// Objects that this one goes away with.
        pub owner_references: Vec<Other>,
        /// Who manages which field (server-side apply).
        pub managed_fields: Vec<Other>,
    }

    /// The name of an object in the same namespace.
    pub struct LocalReference {
        /// Its name.
        pub name: String,
    }

    /// One fact about an object's state.
    pub struct Condition {
        /// What it is about.
        #[serde(rename = "type")]
        pub kind: String,
        /// `True`, `False` or `Unknown`.
        pub status: String,
        /// One CamelCase word for programs.
        pub reason: Option<String>,
        /// A sentence for people.
        pub message: Option<String>,
        /// RFC 3339.
        pub last_probe_time: Option<String>,
        /// RFC 3339.
        pub last_transition_time: Option<String>,
    }
}

/// An amount as Kubernetes writes it: a number, or a text like `512Mi`. Kept as written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Quantity(pub String);

impl Quantity {
    /// Whole bytes, rounded up.
    ///
    /// # Errors
    /// When it is no amount of bytes.
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
            "x-kubernetes-int-or-string": true,
        })
    }
}

/// A text that may hold a secret: it is not shown where values are printed for debugging.
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
    fn what_is_not_known_is_kept_and_what_is_missing_stays_missing() {
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
