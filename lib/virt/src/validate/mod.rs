//! The treatment of every field of a user's documents, before any change.
//!
//! ```text
//! text ─ Documents::parse ─► Documents ─ validate ─► Checked { documents, report }
//!                                 ├─► fields: unknown, of another type, not built, without meaning  (api::schema, crate::fields)
//!                                 ├─► rules of each kind                                            (rules.rs)
//!                                 └─► the guest as a start would resolve it, on a machine that has everything (crate::resolve)
//! ```
//!
//! Not here: whether the machine or the cluster can do it.

#[cfg(test)]
mod effects;
mod report;
mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use api::core::{ConfigMap, Secret};
use api::kind::Kind;
use api::manifest::{self, Document};
use api::schema::{self, Problem};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fields::{self, Place};
use crate::finding::{Finding, Findings, Verdict};
use crate::resolve::Objects;

pub use report::{Report, Verdicts};

/// Namespace where none is given.
pub const NAMESPACE: &str = "default";

/// A document and the text it is from.
#[derive(Clone, Debug, PartialEq)]
pub struct Sourced {
    /// The name of the text: a file.
    pub source: String,
    /// The document.
    pub document: Document,
}

/// A document as one program gives it to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceDocument {
    /// The name of the text.
    pub source: String,
    /// The document's number in the text, from 1.
    pub number: usize,
    /// The object.
    pub value: Value,
}

impl From<&Sourced> for SourceDocument {
    fn from(one: &Sourced) -> Self {
        Self { source: one.source.clone(), number: one.document.number, value: one.document.value.clone() }
    }
}

/// Documents that were parsed, once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Documents {
    /// Those that were read.
    pub read: Vec<Sourced>,
    /// Texts that are no documents, and why.
    pub unread: Vec<(String, String)>,
}

impl Documents {
    /// Parses texts, each with the name it is reported by.
    pub fn parse<'a>(texts: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Self {
        let mut documents = Self::default();
        for (source, text) in texts {
            match manifest::documents(text) {
                Ok(found) => {
                    if found.is_empty() {
                        documents.unread.push((source.to_owned(), "the file holds no object".to_owned()));
                    }
                    let sourced = |document| Sourced { source: source.to_owned(), document };
                    documents.read.extend(found.into_iter().map(sourced));
                }
                Err(error) => documents.unread.push((source.to_owned(), error.to_string())),
            }
        }
        documents
    }

    /// Documents that another program parsed.
    pub fn of(given: impl IntoIterator<Item = SourceDocument>) -> Self {
        let mut documents = Self::default();
        for SourceDocument { source, number, value } in given {
            match Document::of(number, value) {
                Ok(document) => documents.read.push(Sourced { source, document }),
                Err(error) => documents.unread.push((source, error.to_string())),
            }
        }
        documents
    }

    /// The treatment of every field of them.
    pub fn validate(self, place: Place) -> Checked {
        let mut report = Report { unread: self.unread, objects: Vec::new() };
        let objects = objects_by_namespace(self.read.iter().map(|one| &one.document));
        let mut seen = BTreeMap::new();
        for Sourced { source, document } in &self.read {
            let mut findings = check(document, &objects, place);
            let namespace = document.namespace.as_deref().unwrap_or(NAMESPACE);
            let key = (&document.api_version, &document.kind, namespace, &document.name);
            if let Some((other, number)) = seen.insert(key, (source, document.number)) {
                let text = format!("is given twice: document {number} of {other} is the same object");
                findings.push(Finding { path: "metadata.name".to_owned(), verdict: Verdict::Error, text });
            }
            report.objects.push(Verdicts {
                source: source.clone(),
                document: document.number,
                kind: document.kind.clone(),
                namespace: namespace.to_owned(),
                name: document.name.clone(),
                accepted: accepted(document, &findings),
                findings,
            });
        }
        Checked { documents: self.read, report }
    }
}

/// Documents, and their findings.
#[derive(Clone, Debug, PartialEq)]
pub struct Checked {
    /// The documents, in the order of the report's objects.
    pub documents: Vec<Sourced>,
    /// The findings.
    pub report: Report,
}

/// Findings about one object, as admission needs them: of its fields and rules, Secrets and ConfigMaps not looked at.
pub fn object(kind: Kind, value: &Value, place: Place) -> Vec<Finding> {
    match Document::of(1, value.clone()) {
        Ok(document) if document.known() == Some(kind) => check(&document, &BTreeMap::new(), place),
        Ok(document) => {
            let text = format!("{} {} is not {}", document.api_version, document.kind, kind.name());
            vec![Finding { path: "kind".to_owned(), verdict: Verdict::Error, text }]
        }
        Err(error) => {
            vec![Finding { path: String::new(), verdict: Verdict::Error, text: error.to_string() }]
        }
    }
}

/// Whether a VirtualMachineInstance is the run of a machine, which makes it.
pub fn is_of_machine(object: &Value) -> bool {
    let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    owners.into_iter().flatten().any(|owner| owner["kind"] == Kind::VirtualMachine.name())
}

/// Fields that no finding is about; a finding is about all that is below its field.
fn accepted(document: &Document, findings: &[Finding]) -> Vec<String> {
    let told: BTreeSet<String> = findings.iter().map(|finding| finding.path.clone()).collect();
    match document.known() {
        None => Vec::new(),
        Some(_) => schema::leaves(&document.value).into_iter().filter(|path| !is_told(&told, path)).collect(),
    }
}

/// Secrets and ConfigMaps that can be read, by namespace.
fn objects_by_namespace<'a>(documents: impl Iterator<Item = &'a Document>) -> BTreeMap<String, Objects> {
    let mut all: BTreeMap<String, Objects> = BTreeMap::new();
    for document in documents {
        let objects =
            all.entry(document.namespace.clone().unwrap_or_else(|| NAMESPACE.to_owned())).or_default();
        match document.known() {
            Some(Kind::Secret) => {
                if let Ok(secret) = document.read::<Secret>() {
                    objects.secrets.insert(document.name.clone(), secret);
                }
            }
            Some(Kind::ConfigMap) => {
                if let Ok(map) = document.read::<ConfigMap>() {
                    objects.config_maps.insert(document.name.clone(), map);
                }
            }
            Some(
                Kind::VirtualMachine
                | Kind::VirtualMachineInstance
                | Kind::DataVolume
                | Kind::NetworkAttachmentDefinition
                | Kind::PersistentVolumeClaim,
            )
            | None => {}
        }
    }
    all
}

fn check(document: &Document, objects: &BTreeMap<String, Objects>, place: Place) -> Vec<Finding> {
    let mut findings = Findings::default();
    let Some(kind) = document.known() else {
        let kinds: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        let near = Kind::ALL.iter().find(|kind| kind.name() == document.kind);
        match near {
            Some(kind) => {
                let text = format!("{:?} is not {}", document.api_version, kind.api_version());
                findings.error("apiVersion", text);
            }
            None => {
                let text = format!("{:?} is not one of {}", document.kind, kinds.join(", "));
                findings.add(Verdict::Ignored, "kind", text);
            }
        }
        return findings.into_vec();
    };
    if !field_findings(kind, document, place, &mut findings) {
        return findings.into_vec();
    }
    let none = Objects::default();
    let objects = document.namespace.as_deref().or(Some(NAMESPACE)).and_then(|name| objects.get(name));
    rules::check(kind, document, objects.unwrap_or(&none), place, &mut findings);
    findings.into_vec()
}

/// Makes the schema of a kind now, so that the first check of such an object takes no longer than others.
pub fn prepare(kind: Kind) {
    schema_of(kind);
}

/// The schema of a kind, made once: making it takes longer than all of a document's checks.
fn schema_of(kind: Kind) -> &'static Value {
    static SCHEMAS: [OnceLock<Value>; Kind::ALL.len()] = [const { OnceLock::new() }; Kind::ALL.len()];
    static NONE: Value = Value::Null;
    let place = Kind::ALL.iter().position(|one| *one == kind);
    let schema = place.and_then(|place| SCHEMAS.get(place));
    schema.map_or(&NONE, |schema| {
        schema.get_or_init(|| {
            let mut schema = kind.schema();
            drop_descriptions(&mut schema);
            schema
        })
    })
}

/// Removes descriptions, most of a schema's size; a property of that name has an object as its value and stays.
fn drop_descriptions(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.retain(|name, value| name != "description" || !value.is_string());
            fields.values_mut().for_each(drop_descriptions);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_descriptions),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Findings about single fields; whether the object can be read.
fn field_findings(kind: Kind, document: &Document, place: Place, findings: &mut Findings) -> bool {
    let mismatches = schema::mismatches(&document.value, schema_of(kind));
    let mut readable = true;
    if mismatches.len() >= schema::MISMATCHES_MAX {
        findings.error(
            "",
            format!(
                "more than {} fields are invalid or unknown; the others are not reported",
                schema::MISMATCHES_MAX - 1
            ),
        );
        readable = false;
    }
    let mut told = BTreeSet::new();
    for mismatch in mismatches {
        let path = mismatch.path;
        match mismatch.problem {
            Problem::Unknown(meant) => match fields::lot(kind, place, &path, false) {
                Some(lot) => {
                    if told.insert(lot.path.clone()) {
                        findings.add(lot.verdict, lot.path, lot.text);
                    }
                    told.insert(path);
                }
                None => {
                    let meant = meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
                    told.insert(path.clone());
                    findings.add(Verdict::Unknown, path, format!("no such field{meant}"));
                }
            },
            Problem::Type { wanted, found } => {
                readable = false;
                findings.error(path, format!("{found} instead of {wanted}"));
            }
            Problem::Range => {
                readable = false;
                findings.error(path, "a number that is too large or too small");
            }
        }
    }
    for path in schema::leaves(&document.value) {
        if is_told(&told, &path) {
            continue;
        }
        if let Some(lot) = fields::lot(kind, place, &path, true)
            && told.insert(lot.path.clone())
        {
            findings.add(lot.verdict, lot.path, lot.text);
        }
    }
    readable
}

/// Whether one of these fields is a path's, or above it.
fn is_told(told: &BTreeSet<String>, path: &str) -> bool {
    let steps = path.match_indices(['.', '[']).map(|(place, _)| place);
    std::iter::once(0).chain(steps).chain([path.len()]).any(|end| told.contains(&path[..end]))
}

/// The object of a document; a finding where it has another form.
fn read<T: DeserializeOwned>(document: &Document, findings: &mut Findings) -> Option<T> {
    match document.read() {
        Ok(object) => Some(object),
        Err(error) => {
            findings.error("", error.to_string());
            None
        }
    }
}
