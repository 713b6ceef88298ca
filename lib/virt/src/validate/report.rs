//! The report of a validation, for people and for programs.

use serde_json::json;

use crate::finding::{Finding, Verdict};

/// One object and its findings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdicts {
    /// The text it is in.
    pub source: String,
    /// Its number there, from 1.
    pub document: usize,
    /// Its kind.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The findings, by field.
    pub findings: Vec<Finding>,
    /// Fields that are taken as they are.
    pub accepted: Vec<String>,
}

/// All objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Texts that are no documents, and why.
    pub unread: Vec<(String, String)>,
    /// Objects in the order of the texts.
    pub objects: Vec<Verdicts>,
}

impl Report {
    /// Whether the guests can be run.
    pub fn is_valid(&self) -> bool {
        self.unread.is_empty() && self.count(Verdict::Error) + self.count(Verdict::Unknown) == 0
    }

    fn count(&self, verdict: Verdict) -> usize {
        let findings = self.objects.iter().flat_map(|object| &object.findings);
        findings.filter(|finding| finding.verdict == verdict).count()
    }

    /// For people: a line for each object and finding; accepted fields too if `all`.
    pub fn text(&self, all: bool) -> String {
        let mut text = String::new();
        for (source, problem) in &self.unread {
            text.push_str(&format!("{source}: {problem}\n"));
        }
        for object in &self.objects {
            let Verdicts { source, document, kind, namespace, name, findings, accepted } = object;
            text.push_str(&format!("{source}, document {document}: {kind} {namespace}/{name}\n"));
            for Finding { path, verdict, text: what } in findings {
                text.push_str(&format!("  {:<11} {path}: {what}\n", verdict.word()));
            }
            if all {
                accepted.iter().for_each(|path| text.push_str(&format!("  {:<11} {path}\n", "accepted")));
            }
        }
        let accepted: usize = self.objects.iter().map(|object| object.accepted.len()).sum();
        text.push_str(&format!(
            "objects: {}; fields: {accepted} accepted, {} ignored, {} unsupported, {} unknown; errors: {}\n",
            self.objects.len(),
            self.count(Verdict::Ignored),
            self.count(Verdict::Unsupported),
            self.count(Verdict::Unknown),
            self.count(Verdict::Error) + self.unread.len(),
        ));
        text
    }

    /// For programs: `{valid, unread: [{source, problem}], objects: [{source, document, kind, namespace, name, findings:
    /// [{path, verdict, text}], accepted: [path]}]}`, `accepted` if `all`.
    pub fn json(&self, all: bool) -> String {
        let finding =
            |one: &Finding| json!({"path": one.path, "verdict": one.verdict.word(), "text": one.text});
        let object = |one: &Verdicts| {
            let mut value = json!({
                "source": one.source,
                "document": one.document,
                "kind": one.kind,
                "namespace": one.namespace,
                "name": one.name,
                "findings": one.findings.iter().map(finding).collect::<Vec<_>>(),
            });
            if all {
                value["accepted"] = json!(one.accepted);
            }
            value
        };
        let unread = |(source, problem): &(String, String)| json!({"source": source, "problem": problem});
        let report = json!({
            "valid": self.is_valid(),
            "unread": self.unread.iter().map(unread).collect::<Vec<_>>(),
            "objects": self.objects.iter().map(object).collect::<Vec<_>>(),
        });
        format!("{report:#}\n")
    }
}
