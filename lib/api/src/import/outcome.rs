//! The result of an import: the termination message, one line of JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::names::TERMINATION_LOG_MAX;

/// The termination message of a process that ended with exit code 0. (Other exit codes carry plain text.)
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Outcome {
    /// The import needs a scratch volume: delete the pod and start one with scratch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scratch_space_required: Option<bool>,
    /// All blocks of the target are allocated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preallocation_applied: Option<bool>,
    /// The upload's deadline passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_passed: Option<bool>,
    /// The peer of a VDDK import.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vddk_info: Option<VddkInfo>,
    /// Labels for the PVC, from the image's environment.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// A text that changes when the source does, where only that was asked for. Ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// A sentence for people and for controllers that match on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Version and host of a VDDK connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct VddkInfo {
    /// Version of the library.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Host it connected to.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host: String,
}

impl Outcome {
    /// An outcome with only a `message`.
    pub fn message(message: impl Into<String>) -> Self {
        Self { message: Some(message.into()), ..Self::default() }
    }

    /// The one line of the termination message, at most [`TERMINATION_LOG_MAX`] bytes: first labels (from the last
    /// on) are left out, then the message is cut. What a controller acts on (the booleans) always stays.
    pub fn to_line(&self) -> String {
        let mut fitting = self.clone();
        loop {
            let line = serde_json::to_string(&fitting).unwrap_or_default();
            if line.len() <= TERMINATION_LOG_MAX {
                return line;
            }
            if fitting.labels.pop_last().is_some() {
                continue;
            }
            match fitting.message.take() {
                Some(message) => fitting.message = shorter(&message, line.len() - TERMINATION_LOG_MAX),
                None => fitting.vddk_info = None,
            }
        }
    }

    /// Reads a termination message; `None` when it is not one of ours (for example the plain text of a failure).
    pub fn from_line(line: &str) -> Option<Self> {
        serde_json::from_str(line.trim()).ok()
    }
}

/// `message` without at least `excess` bytes of its end, with a sign that it was cut.
fn shorter(message: &str, excess: usize) -> Option<String> {
    let keep = message.len().checked_sub(excess + "…".len())?;
    let end = (0..=keep).rev().find(|&i| message.is_char_boundary(i))?;
    Some(format!("{}…", &message[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Outcome {
        Outcome {
            scratch_space_required: Some(true),
            preallocation_applied: Some(false),
            deadline_passed: Some(true),
            vddk_info: Some(VddkInfo { version: "7.0".into(), host: "esx".into() }),
            labels: [("a".to_owned(), "b".to_owned())].into(),
            version: None,
            message: Some("Import Complete".into()),
        }
    }

    #[test]
    fn keys_are_upstreams() {
        assert_eq!(
            full().to_line(),
            r#"{"scratchSpaceRequired":true,"preallocationApplied":false,"deadlinePassed":true,"vddkInfo":{"Version":"7.0","Host":"esx"},"labels":{"a":"b"},"message":"Import Complete"}"#
        );
        assert_eq!(Outcome::message("Import Complete").to_line(), r#"{"message":"Import Complete"}"#);
    }

    #[test]
    fn lines_read_back() {
        for outcome in [full(), Outcome::default(), Outcome::message("a \"quoted\"\nline")] {
            assert_eq!(Outcome::from_line(&outcome.to_line()), Some(outcome.clone()));
            assert!(!outcome.to_line().contains('\n'));
        }
        assert_eq!(Outcome::from_line("Unable to process data: x"), None);
        assert_eq!(Outcome::from_line(r#"{"message":"m","unknown":1}"#), Some(Outcome::message("m")));
    }

    #[test]
    fn a_line_always_fits() {
        for filler in ["x", "é", "\"", "\n", "\u{1}", "𝄞"] {
            for n in [1000, 4000, 4090, 5000, 20_000] {
                let mut outcome = full();
                outcome.message = Some(filler.repeat(n));
                let line = outcome.to_line();
                assert!(line.len() <= TERMINATION_LOG_MAX, "{} bytes", line.len());
                let back = Outcome::from_line(&line).unwrap();
                assert_eq!(back.scratch_space_required, Some(true));
            }
        }
        let mut outcome = full();
        outcome.labels = (0..1000).map(|i| (format!("label-{i:04}"), "value".to_owned())).collect();
        let back = Outcome::from_line(&outcome.to_line()).unwrap();
        assert_eq!(back.message.as_deref(), Some("Import Complete"));
        assert!(back.labels.contains_key("label-0000") && !back.labels.contains_key("label-0999"));
    }
}
