//! `virt-node validate`: what becomes of every field of a person's documents, before anything is done.
//!
//! ```text
//! text ─► documents ─► fields: unknown, of another type, not built, without meaning   (api::schema, fields.rs)
//!                  └─► rules of each kind                                             (rules.rs)
//!                  └─► the guest as a start would resolve it, on a machine that has everything (crate::resolve)
//! ```
//!
//! Pure. Not here: whether the machine can do it ([`crate::check`]).

mod fields;
mod report;
mod rules;

use std::collections::{BTreeMap, BTreeSet};

use api::core::{ConfigMap, Secret};
use api::kind::Kind;
use api::manifest::{self, Document};
use api::schema::{self, Problem};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::finding::{Finding, Findings, Verdict};
use crate::resolve::Objects;

pub use report::{Checked, Report};

/// Namespace where none is given.
pub(crate) const NAMESPACE: &str = "default";

/// What becomes of every field of these texts, each with the name it is told by.
pub fn validate(texts: &[(String, Vec<u8>)]) -> Report {
    let mut report = Report::default();
    let mut all = Vec::new();
    for (name, text) in texts {
        match manifest::documents(text) {
            Ok(documents) => {
                if documents.is_empty() {
                    report.unread.push((name.clone(), "no document".to_owned()));
                }
                all.extend(documents.into_iter().map(|document| (name.clone(), document)));
            }
            Err(error) => report.unread.push((name.clone(), error.to_string())),
        }
    }
    let objects = objects_by_namespace(all.iter().map(|(_, document)| document));
    let mut seen = BTreeMap::new();
    for (source, document) in all {
        let mut findings = check(&document, &objects);
        let namespace = document.namespace.clone().unwrap_or_else(|| NAMESPACE.to_owned());
        let key =
            (document.api_version.clone(), document.kind.clone(), namespace.clone(), document.name.clone());
        if let Some((other, number)) = seen.insert(key, (source.clone(), document.number)) {
            let text = format!("is there twice: document {number} of {other} is the same object");
            findings.push(Finding { path: "metadata.name".to_owned(), verdict: Verdict::Error, text });
        }
        let accepted = accepted(&document, &findings);
        report.objects.push(Checked {
            source,
            document: document.number,
            kind: document.kind,
            namespace,
            name: document.name,
            findings,
            accepted,
        });
    }
    report
}

/// Whether a VirtualMachineInstance is the run of a machine, which makes it.
pub(crate) fn is_of_machine(object: &Value) -> bool {
    let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    owners.into_iter().flatten().any(|owner| owner["kind"] == Kind::VirtualMachine.name())
}

/// Fields that no finding is about.
fn accepted(document: &Document, findings: &[Finding]) -> Vec<String> {
    let told: BTreeSet<&str> = findings.iter().map(|finding| finding.path.as_str()).collect();
    // A finding is about all that is below its field; the empty path is the whole object.
    let above = |path: &str| {
        let steps = path.match_indices(['.', '[']).map(|(place, _)| place);
        std::iter::once(0).chain(steps).chain([path.len()]).any(|end| told.contains(&path[..end]))
    };
    match document.known() {
        None => Vec::new(),
        Some(_) => schema::leaves(&document.value).into_iter().filter(|path| !above(path)).collect(),
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

fn check(document: &Document, objects: &BTreeMap<String, Objects>) -> Vec<Finding> {
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
                let text = format!("{:?} is none of {}", document.kind, kinds.join(", "));
                findings.add(Verdict::Ignored, "kind", text);
            }
        }
        return findings.into_vec();
    };
    if !field_findings(kind, document, &mut findings) {
        return findings.into_vec();
    }
    let none = Objects::default();
    let objects = document.namespace.as_deref().or(Some(NAMESPACE)).and_then(|name| objects.get(name));
    rules::check(kind, document, objects.unwrap_or(&none), &mut findings);
    findings.into_vec()
}

/// Findings about single fields; whether the object can be read.
fn field_findings(kind: Kind, document: &Document, findings: &mut Findings) -> bool {
    let mismatches = schema::mismatches(&document.value, &kind.schema());
    let mut readable = true;
    if mismatches.len() >= schema::MISMATCHES_MAX {
        findings.error("", format!("more than {} fields are wrong or unknown", schema::MISMATCHES_MAX - 1));
        readable = false;
    }
    for mismatch in mismatches {
        let path = mismatch.path;
        match mismatch.problem {
            Problem::Unknown(meant) => match fields::lot(kind, &path) {
                Some((verdict, text)) => findings.add(verdict, path, text),
                None => {
                    let meant = meant.map(|meant| format!("; {meant} may be meant")).unwrap_or_default();
                    findings.add(Verdict::Unknown, path, format!("no such field{meant}"));
                }
            },
            Problem::Type { wanted, found } => {
                readable = false;
                findings.error(path, format!("{found}, where {wanted} is wanted"));
            }
            Problem::Range => {
                readable = false;
                findings.error(path, "a number that is too large or too small");
            }
        }
    }
    readable
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
