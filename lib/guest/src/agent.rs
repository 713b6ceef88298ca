//! Answers of the agent in a guest (QGA). Parsing is pure and bounded: the guest may send anything.
//!
//! Not here: the request ([`crate::Client`]), answers that only one program reads.

use api::kubevirt::GuestOsInfo;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Longest text that is kept, in characters.
const TEXT_MAX: usize = 256;

/// The command that [`os`] reads the answer of.
pub const OS_INFO: &str = "{\"execute\": \"guest-get-osinfo\"}";

/// The value that an answer returns; `None`: it is an error, or not of this type.
pub fn returned<T: DeserializeOwned>(text: &str) -> Option<T> {
    #[derive(Deserialize)]
    struct Answer<T> {
        r#return: T,
    }
    serde_json::from_str::<Answer<T>>(text).ok().map(|answer| answer.r#return)
}

/// A text without control characters, of at most 256 characters.
pub fn short(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(TEXT_MAX).collect()
}

/// `guest-get-osinfo` (QGA schema, `GuestOSInfo`).
pub fn os(text: &str) -> Option<GuestOsInfo> {
    #[derive(Deserialize)]
    #[serde(rename_all = "kebab-case")]
    struct OsInfo {
        name: Option<String>,
        id: Option<String>,
        pretty_name: Option<String>,
        version: Option<String>,
        version_id: Option<String>,
        machine: Option<String>,
        kernel_release: Option<String>,
        kernel_version: Option<String>,
    }
    let found: OsInfo = returned(text)?;
    let word = |word: Option<String>| word.as_deref().map(short);
    Some(GuestOsInfo {
        name: word(found.name),
        id: word(found.id),
        pretty_name: word(found.pretty_name),
        version: word(found.version),
        version_id: word(found.version_id),
        machine: word(found.machine),
        kernel_release: word(found.kernel_release),
        kernel_version: word(found.kernel_version),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_an_agent_are_bounded() {
        let long = "x".repeat(1 << 20);
        let text = format!(
            "{{\"return\": {{\"id\": \"debian\\u0007\", \"version-id\": \"12\", \"more\": 1, \"name\": \"{long}\"}}}}"
        );
        let info = os(&text).unwrap();
        assert_eq!((info.id.as_deref(), info.version_id.as_deref()), (Some("debian"), Some("12")));
        assert_eq!((info.name.map(|name| name.len()), info.machine), (Some(TEXT_MAX), None));
        for wrong in ["", "{}", "{\"return\": 1}", "{\"return\": {\"id\": 1}}"] {
            assert_eq!(os(wrong), None, "{wrong}");
        }
    }
}
