//! Documents: what a person writes for a guest, YAML or JSON, one or more in a text, as JSON values with their places.
//!
//! Everything is bounded before it is built up: the text, its depth, its nodes, what aliases repeat. Keys with null are
//! left out, as the API server does; `List`s are their items.
//!
//! Not here: what a document means, and whether its fields exist ([`crate::schema`]).

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use serde_saphyr::options::{AliasLimits, DuplicateKeyPolicy};
use serde_saphyr::{Budget, Options};
use thiserror::Error;

use crate::kind::Kind;

/// Longest text in bytes: room for ten objects at the limit of etcd.
pub const TEXT_MAX: usize = 16 << 20;
/// Most documents of a text, the items of lists counted.
pub const DOCUMENTS_MAX: usize = 1000;
/// Deepest nesting.
const DEPTH_MAX: usize = 64;
/// Most nodes (scalars, lists, maps) of a text.
const NODES_MAX: usize = 500_000;
/// The earlier name of `kubevirt.io/v1`; API servers still serve it.
const EARLIER: &str = "kubevirt.io/v1alpha3";
/// Most nodes that aliases repeat.
const REPEATED_MAX: usize = 50_000;

/// Why a text has no documents.
#[derive(Debug, Error)]
pub enum ManifestError {
    /// Longer than [`TEXT_MAX`].
    #[error("{0} bytes; {TEXT_MAX} bytes is the limit: split the file")]
    TooLong(usize),
    /// More than [`DOCUMENTS_MAX`].
    #[error("more than {DOCUMENTS_MAX} documents: split the file")]
    TooMany,
    /// Not YAML, or more than is taken of it. The sentence never quotes the text.
    #[error("invalid YAML: {0}")]
    Yaml(String),
    /// A document that is no object of Kubernetes.
    #[error("document {number}: {problem}")]
    NoObject {
        /// Its number, from 1.
        number: usize,
        /// The defect.
        problem: &'static str,
    },
}

/// One object as it was written.
#[derive(Clone, PartialEq)]
pub struct Document {
    /// Its number in the text, from 1.
    pub number: usize,
    /// `apiVersion`.
    pub api_version: String,
    /// `kind`.
    pub kind: String,
    /// `metadata.name`, empty where there is none.
    pub name: String,
    /// `metadata.namespace`, where it is given.
    pub namespace: Option<String>,
    /// The whole of it, without nulls.
    pub value: Value,
}

impl Document {
    /// Which kind it is; `None`: one that is not known.
    pub fn known(&self) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == self.kind && kind.api_version() == self.api_version)
    }

    /// The object.
    ///
    /// # Errors
    /// When a field has another type; [`crate::schema::mismatches`] names them all.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        T::deserialize(&self.value)
    }

    /// The document with this number of an object that was parsed elsewhere.
    ///
    /// # Errors
    /// When it is no object of Kubernetes.
    pub fn of(number: usize, value: Value) -> Result<Self, ManifestError> {
        let broken = |problem| ManifestError::NoObject { number, problem };
        let object = value.as_object().ok_or_else(|| broken("not a map"))?;
        let text = |object: &Map<String, Value>, key: &str| {
            object.get(key).and_then(Value::as_str).map(str::to_owned)
        };
        let api_version = text(object, "apiVersion").ok_or_else(|| broken("apiVersion is missing"))?;
        let kind = text(object, "kind").ok_or_else(|| broken("kind is missing"))?;
        let metadata = object.get("metadata").and_then(Value::as_object);
        let name = metadata.and_then(|metadata| text(metadata, "name")).unwrap_or_default();
        let namespace = metadata.and_then(|metadata| text(metadata, "namespace"));
        let (mut api_version, mut value) = (api_version, value);
        // The same API by its earlier name.
        if api_version == EARLIER
            && [Kind::VirtualMachine, Kind::VirtualMachineInstance].iter().any(|one| one.name() == kind)
        {
            Kind::VirtualMachine.api_version().clone_into(&mut api_version);
            value["apiVersion"] = Value::String(api_version.clone());
        }
        Ok(Self { number, api_version, kind, name, namespace, value })
    }
}

// Secrets are documents too: what is in them is not shown.
impl std::fmt::Debug for Document {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} (document {})", self.kind, self.name, self.number)
    }
}

/// The documents of a text, in their order; empty ones are skipped.
///
/// # Errors
/// See [`ManifestError`].
pub fn documents(text: &[u8]) -> Result<Vec<Document>, ManifestError> {
    if text.len() > TEXT_MAX {
        return Err(ManifestError::TooLong(text.len()));
    }
    let values: Vec<Value> = serde_saphyr::from_slice_multiple_with_options(text, options())
        .map_err(|error| ManifestError::Yaml(error.without_snippet().to_string()))?;
    let mut documents = Vec::new();
    for (index, value) in values.into_iter().enumerate() {
        let number = index + 1;
        let Some(value) = without_nulls(value) else { continue };
        for value in items(number, value)? {
            if documents.len() == DOCUMENTS_MAX {
                return Err(ManifestError::TooMany);
            }
            documents.push(Document::of(number, value)?);
        }
    }
    Ok(documents)
}

fn options() -> Options {
    let mut budget = Budget::default();
    budget.max_depth = DEPTH_MAX;
    budget.flow_nesting_limit = DEPTH_MAX;
    budget.max_documents = DOCUMENTS_MAX;
    budget.max_nodes = NODES_MAX;
    budget.max_events = 3 * NODES_MAX;
    budget.max_total_scalar_bytes = TEXT_MAX;
    budget.max_recorded_anchor_events = NODES_MAX;
    budget.max_recorded_anchor_bytes = TEXT_MAX;
    let mut aliases = AliasLimits::default();
    aliases.max_total_replayed_events = REPEATED_MAX;
    let mut options = Options::default();
    options.budget = Some(budget);
    options.alias_limits = aliases;
    options.duplicate_keys = DuplicateKeyPolicy::Error;
    options.with_snippet = false;
    // As kubectl reads them: `mode: 0400` is 256.
    options.legacy_octal_numbers = true;
    options
}

/// A `List` as its items, everything else as itself.
fn items(number: usize, mut value: Value) -> Result<Vec<Value>, ManifestError> {
    if value.get("kind").and_then(Value::as_str) != Some("List") {
        return Ok(vec![value]);
    }
    match value.get_mut("items").map(Value::take) {
        None => Ok(Vec::new()),
        Some(Value::Array(items)) => Ok(items),
        Some(_) => {
            Err(ManifestError::NoObject { number, problem: "the field items of a List is not a list" })
        }
    }
}

/// The value without keys that have none; the depth is bounded by the parser.
fn without_nulls(value: Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::Object(map) => Some(Value::Object(
            map.into_iter().filter_map(|(key, value)| Some((key, without_nulls(value)?))).collect(),
        )),
        Value::Array(list) => Some(Value::Array(
            // A null in a list keeps its place: messages have the others' indexes.
            list.into_iter().map(|value| without_nulls(value).unwrap_or(Value::Null)).collect(),
        )),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => Some(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ConfigMap;
    use serde_json::json;

    fn read(text: &str) -> Vec<Document> {
        documents(text.as_bytes()).unwrap()
    }

    #[test]
    fn documents_are_objects_with_a_kind_and_a_name() {
        let text = "# a comment\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: b}\ndata: {x: '1', y: }\n---\n---\n{\"apiVersion\": \"kubevirt.io/v1\", \"kind\": \"VirtualMachine\", \"metadata\": {\"name\": \"vm\"}}\n";
        let found = read(text);
        let kinds: Vec<_> = found.iter().map(|one| (one.known(), one.name.as_str())).collect();
        assert_eq!(kinds, [(Some(Kind::ConfigMap), "a"), (Some(Kind::VirtualMachine), "vm")]);
        assert_eq!(found[0].namespace.as_deref(), Some("b"));
        assert_eq!(found[0].value["data"], json!({"x": "1"}));
        let map: ConfigMap = found[0].read().unwrap();
        assert_eq!(map.data["x"], "1");
    }

    #[test]
    fn numbers_with_a_leading_zero_are_octal() {
        let text = "{kind: A, apiVersion: v1, a: [0400, 0o400, 0, 256, -010, 0.5, '0400', 0x10, 010-a]}";
        assert_eq!(read(text)[0].value["a"], json!([256, 256, 0, 256, -8, 0.5, "0400", 16, "010-a"]));
    }

    #[test]
    fn lists_are_their_items() {
        let text = "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Secret, metadata: {name: a}}\n- {apiVersion: apps/v1, kind: Deployment}\n";
        let found = read(text);
        let kinds: Vec<_> = found.iter().map(|one| (one.number, one.known(), one.kind.as_str())).collect();
        assert_eq!(kinds, [(1, Some(Kind::Secret), "Secret"), (1, None, "Deployment")]);
    }

    #[test]
    fn documents_without_an_object_are_reported() {
        for (text, problem) in [
            ("a", "not a map"),
            ("[1]", "not a map"),
            ("kind: A", "apiVersion is missing"),
            ("apiVersion: v1", "kind is missing"),
            ("{kind: [a], apiVersion: v1}", "kind is missing"),
            ("{kind: List, apiVersion: v1, items: a}", "not a list"),
            ("a: [", "YAML"),
            ("a: 1\na: 2", "YAML"),
            ("a: *b", "YAML"),
            ("\u{0}", "YAML"),
        ] {
            let error = documents(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(problem), "{text}: {error}");
        }
        assert!(documents(b"\xff\xfe\xfa").is_err());
        assert_eq!(read("").len(), 0);
    }

    #[test]
    fn bombs_are_refused_early() {
        let mut laughs = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for level in 1..12 {
            let before = vec![format!("*a{}", level - 1); 10].join(",");
            laughs.push_str(&format!("a{level}: &a{level} [{before}]\n"));
        }
        let deep = format!("a: {}{}", "[".repeat(5000), "]".repeat(5000));
        let deep_blocks: String = (0..5000).map(|level| format!("{}a:\n", " ".repeat(level))).collect();
        let wide = format!("a: [{}]", "1,".repeat(NODES_MAX + 1));
        let many = "---\n{kind: A, apiVersion: v1}\n".repeat(DOCUMENTS_MAX + 1);
        let merges = format!("b: &b {{x: 1}}\nc:\n{}", "- {<<: *b}\n".repeat(100_000));
        for (name, text) in [
            ("laughs", laughs),
            ("deep", deep),
            ("deep blocks", deep_blocks),
            ("wide", wide),
            ("many", many),
            ("merges", merges),
            ("long", "#".repeat(TEXT_MAX + 1)),
        ] {
            let begun = std::time::Instant::now();
            assert!(documents(text.as_bytes()).is_err(), "{name}");
            assert!(begun.elapsed().as_secs() < 10, "{name} took {:?}", begun.elapsed());
        }
    }

    #[test]
    fn errors_do_not_quote_secrets() {
        let text =
            "apiVersion: v1\nkind: Secret\nstringData:\n  password: hunter2\n  password: hunter2\n bad\n";
        let error = documents(text.as_bytes()).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        let secret = &read("{apiVersion: v1, kind: Secret, stringData: {a: hunter2}}")[0];
        assert!(!format!("{secret:?}").contains("hunter2"));
    }
}
