//! Node pull: the kubelet pulls the container image, and a server in that image's container offers its disk to the importer
//! in the same pod. The protocol between the two, and the labels that result.
//!
//! ```text
//!  server: listens ─► ready file (name of the disk) ─────► waits for the done file ─► removes both, exits
//!  importer:              waits ─► GET /NAME, GET /info ─► termination message ─► done file, exits 0
//! ```
//!
//! The importer makes the done file only when it exits with 0: after any other end the kubelet starts it again, and it
//! needs the server then. Source: upstream `tools/cdi-containerimage-server`, `cmd/cdi-importer`, `pkg/importer/util.go`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Port of the server, on loopback.
pub const SERVER_PORT: u16 = 8100;
/// Folder of the container image that holds its disk.
pub const IMAGE_DIR: &str = "/disk";
/// Written by the server when it is ready: the name of the disk.
pub const READY_FILE: &str = "/shared/ready";
/// Made by the importer when it no longer needs the server.
pub const DONE_FILE: &str = "/shared/done";
/// Path that always is the disk, whatever its name.
pub const DISK_PATH: &str = "/disk.img";
/// Path of the [`ServerInfo`].
pub const INFO_PATH: &str = "/info";
/// Longest time the importer waits for the ready file.
pub const READY_SECONDS: u64 = 60;

/// A variable of an image's environment with this in its name is a label.
const LABEL_MARK: &str = "KUBEVIRT_IO_";
/// Labels taken from one image at most.
const LABELS_MAX: usize = 64;
/// Longest name or value of a label.
const LABEL_PART_MAX: usize = 63;
/// Longest prefix of a label.
const LABEL_PREFIX_MAX: usize = 253;

/// The server's information in addition to the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerInfo {
    /// The container's environment, `NAME=value` each.
    pub env: Vec<String>,
}

impl ServerInfo {
    /// As the server sends it.
    pub fn to_json(&self) -> String {
        // A list of strings always can be written.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// As the importer reads it; `None` when it is something else.
    pub fn from_json(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

/// The labels that an image's environment asks for: `INSTANCETYPE_KUBEVIRT_IO_DEFAULT_INSTANCETYPE=u1.small` is
/// `instancetype.kubevirt.io/default-instancetype: u1.small`. Of several variables for one label the last counts. What
/// Kubernetes would not take as a label is left out, as one such label would fail the whole update; at most 64 are
/// taken.
pub fn labels<'a>(environment: impl IntoIterator<Item = &'a str>) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    for variable in environment {
        let Some((name, value)) = variable.split_once('=') else { continue };
        let Some(key) = label(name) else { continue };
        if !is_label_key(&key) || !is_label_part(value, true) {
            continue;
        }
        if labels.len() < LABELS_MAX || labels.contains_key(&key) {
            labels.insert(key, value.to_owned());
        }
    }
    labels
}

/// The label that a variable stands for.
fn label(variable: &str) -> Option<String> {
    let (before, after) = variable.split_once(LABEL_MARK)?;
    let before = before.strip_suffix('_').unwrap_or(before);
    let prefix = if before.is_empty() { String::new() } else { format!("{}.", before.replace('_', ".")) };
    Some(format!("{prefix}kubevirt.io/{}", after.replace('_', "-")).to_ascii_lowercase())
}

fn is_label_key(key: &str) -> bool {
    let Some((prefix, name)) = key.split_once('/') else { return false };
    let subdomain = |part: &str| {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        !part.is_empty() && part.bytes().all(inner) && !part.starts_with('-') && !part.ends_with('-')
    };
    prefix.len() <= LABEL_PREFIX_MAX && prefix.split('.').all(subdomain) && is_label_part(name, false)
}

/// The rules of Kubernetes for a label's value, and without `may_be_empty` for its name.
fn is_label_part(part: &str, may_be_empty: bool) -> bool {
    let bytes = part.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return may_be_empty };
    bytes.len() <= LABEL_PART_MAX
        && first.is_ascii_alphanumeric()
        && last.is_ascii_alphanumeric()
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_become_labels() {
        let long = "x".repeat(64);
        for (variable, expected) in [
            (
                "INSTANCETYPE_KUBEVIRT_IO_DEFAULT_INSTANCETYPE=u1.small",
                Some(("instancetype.kubevirt.io/default-instancetype", "u1.small")),
            ),
            (
                "INSTANCETYPE_KUBEVIRT_IO_DEFAULT_PREFERENCE=fedora",
                Some(("instancetype.kubevirt.io/default-preference", "fedora")),
            ),
            ("A_B_KUBEVIRT_IO_C=", Some(("a.b.kubevirt.io/c", ""))),
            ("KUBEVIRT_IO_C=v", Some(("kubevirt.io/c", "v"))),
            ("A_KUBEVIRT_IO_B=c=d", None),
            ("A_KUBEVIRT_IO_B", None),
            ("A_KUBEVIRT_IO_=v", None),
            ("A_KUBEVIRT_IO_B=with space", None),
            ("A_KUBEVIRT_IO_B=-v", None),
            (&format!("A_KUBEVIRT_IO_B={long}"), None),
            (&format!("A_KUBEVIRT_IO_{long}=v"), None),
            ("A__B_KUBEVIRT_IO_C=v", None),
            ("É_KUBEVIRT_IO_C=v", None),
            ("PATH=/bin", None),
            ("", None),
        ] {
            let expected: BTreeMap<String, String> =
                expected.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
            assert_eq!(labels([variable]), expected, "{variable}");
        }
    }

    #[test]
    fn the_last_counts_and_there_is_an_end() {
        assert_eq!(labels(["A_KUBEVIRT_IO_B=1", "A_KUBEVIRT_IO_B=2"])["a.kubevirt.io/b"], "2");
        let many: Vec<String> = (0..1000).map(|i| format!("A_KUBEVIRT_IO_B{i}=v")).collect();
        assert_eq!(labels(many.iter().map(String::as_str)).len(), LABELS_MAX);
    }

    #[test]
    fn info_reads_back_and_is_upstreams() {
        let info = ServerInfo { env: vec!["A=\"é\"".into(), "B=".into()] };
        assert_eq!(info.to_json(), r#"{"env":["A=\"é\"","B="]}"#);
        assert_eq!(ServerInfo::from_json(info.to_json().as_bytes()), Some(info));
        assert_eq!(ServerInfo::from_json(b"{}"), Some(ServerInfo::default()));
        for other in ["", "[1]", "<html>", r#"{"env":[1]}"#] {
            assert_eq!(ServerInfo::from_json(other.as_bytes()), None, "{other}");
        }
    }
}
