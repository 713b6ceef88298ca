//! The contract of a poll: what the operator asks about the source of a DataImportCron, and the answer. The operator does
//! not fetch URLs of tenants: a process without rights in the cluster does, on a port that takes the operator's
//! certificate only.
//!
//! Not here: HTTP, which addresses are refused.

use serde::{Deserialize, Serialize};

/// Annotation of a DataImportCron: digest of the image that should be imported, written by the component that polls the source.
pub const DESIRED: &str = "cdi.kubevirt.io/storage.import.sourceDesiredDigest";
/// Annotation of a DataImportCron: when the source was last polled, RFC 3339.
pub const LAST_POLLED: &str = "cdi.kubevirt.io/storage.import.lastCronTime";

/// Port of the process that polls.
pub const PORT: u16 = 8444;
/// Service of that port.
pub const SERVICE: &str = "cdi-cron-poller";
/// Path of a poll: POST with a [`Request`], answered by an [`Answer`].
pub const PATH: &str = "/v1/poll";
/// Common name in the operator's certificate.
pub const CLIENT: &str = "poller.cdi.kubevirt.io";
/// Longest request, in bytes.
pub const MOST_REQUEST: usize = 64 << 10;

/// A poll.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Request {
    /// `http://…`, `https://…` or `docker://…`.
    pub url: String,
    /// Request headers, "Key: value"; for http and https.
    pub headers: Vec<String>,
    /// The server's certificate is not verified; a registry is also reached without TLS.
    pub insecure: bool,
    /// Proxy for http; empty for none.
    pub http_proxy: String,
    /// Proxy for https; empty for none.
    pub https_proxy: String,
    /// Hosts that are reached without a proxy.
    pub no_proxy: String,
    /// Networks of Services, which are refused.
    pub services: Vec<String>,
    /// Networks that are not refused, although they are link-local, loopback or of Services.
    pub allowed: Vec<String>,
}

/// The answer to a poll.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// A text that changes when the source does: the digest of an image's manifest, else the entity
    /// tag or time of the file ([`mark`]).
    Version(String),
    /// The address is refused.
    Refused(String),
    /// The source cannot be polled now.
    Failed(String),
}

/// The version of a file by its server's headers: the entity tag, else time and length. `None` without both.
pub fn mark(tag: Option<&str>, modified: Option<&str>, length: Option<u64>) -> Option<String> {
    let given = |text: Option<&str>| text.map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned);
    if let Some(tag) = given(tag) {
        return Some(format!("etag {tag}"));
    }
    let length = length.map_or_else(|| "-".to_owned(), |length| length.to_string());
    given(modified).map(|modified| format!("modified {modified} length {length}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entity_tags_go_before_times() {
        assert_eq!(mark(Some("\"a\""), Some("then"), Some(1)).as_deref(), Some("etag \"a\""));
        assert_eq!(mark(Some(" "), Some("then"), Some(1)).as_deref(), Some("modified then length 1"));
        assert_eq!(mark(None, Some("then"), None).as_deref(), Some("modified then length -"));
        assert_eq!(mark(None, None, Some(1)), None);
    }

    #[test]
    fn answers_are_read_back() {
        for answer in
            [Answer::Version("sha256:1".into()), Answer::Refused("x".into()), Answer::Failed("y".into())]
        {
            let text = serde_json::to_string(&answer).unwrap();
            assert_eq!(serde_json::from_str::<Answer>(&text).unwrap(), answer);
        }
    }
}
