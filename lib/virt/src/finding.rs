//! Findings: remarks about a field, by its path.
//!
//! Not here: their origin ([`crate::validate`], [`crate::resolve`]), their presentation.

use api::launch::Word;
use serde::{Deserialize, Serialize};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Verdict {
    /// The guest cannot be run like this.
    Error,
    /// No field of this name is known; it is kept and has no effect.
    Unknown,
    /// The field has a meaning that is not supported yet; it is kept and has no effect.
    Unsupported,
    /// The field has no meaning here; it is kept.
    Ignored,
}

impl Verdict {
    /// One word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Unknown => "unknown",
            Self::Unsupported => "unsupported",
            Self::Ignored => "ignored",
        }
    }
}

/// A remark about a field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The field, such as `spec.template.spec.domain.cpu.cores`.
    pub path: String,
    /// How bad it is.
    pub verdict: Verdict,
    /// The defect, and the remedy.
    pub text: String,
}

/// Findings while they are collected.
#[derive(Debug, Default)]
pub struct Findings(Vec<Finding>);

impl Findings {
    /// Adds one.
    pub fn add(&mut self, verdict: Verdict, path: impl Into<String>, text: impl Into<String>) {
        self.0.push(Finding { path: path.into(), verdict, text: text.into() });
    }

    /// Adds an error.
    pub fn error(&mut self, path: impl Into<String>, text: impl Into<String>) {
        self.add(Verdict::Error, path, text);
    }

    /// Whether one of them is an error.
    pub fn failed(&self) -> bool {
        self.0.iter().any(|finding| finding.verdict == Verdict::Error)
    }

    /// The word of a field, where it is given and one of its set; an error where it is not.
    pub fn word<T: Word>(&mut self, path: &str, text: Option<&str>) -> Option<T> {
        let text = text?;
        let word = T::from_word(text);
        if word.is_none() {
            self.error(path, format!("{text:?} is not one of {}", T::WORDS.join(", ")));
        }
        word
    }

    /// All of them, in their order.
    pub fn into_vec(self) -> Vec<Finding> {
        self.0
    }
}

impl Extend<Finding> for Findings {
    fn extend<I: IntoIterator<Item = Finding>>(&mut self, findings: I) {
        self.0.extend(findings);
    }
}
