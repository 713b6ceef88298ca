//! Findings of a guest's specification as an error.

use virt::finding::{Finding, Verdict};

use crate::error::{Error, Kind};

/// The error for a guest's findings, by fields.
pub(super) fn invalid(findings: &[Finding]) -> Error {
    let errors = findings.iter().filter(|finding| finding.verdict == Verdict::Error);
    let errors: Vec<String> = errors.map(|finding| format!("{}: {}", finding.path, finding.text)).collect();
    Error::new(Kind::Content, errors.join("; "))
}
