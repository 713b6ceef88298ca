//! Queries of the guest's agent: the guest's operating system.
//!
//! Not here: whether there is an agent ([`super::status`]).

use api::kubevirt::GuestOsInfo;
use api::launcher::{Answer, Request};
use serde::Deserialize;

use super::run::Run;

/// How long an agent may take, in seconds.
const PATIENCE: u32 = 60;
/// Most characters of a word of it that are kept.
const WORD_MAX: usize = 256;

/// QEMU's answer to `guest-get-osinfo` (QGA schema, `GuestOSInfo`).
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

/// The operating system of a run's guest; `None`: its agent does not report one.
pub(super) fn what_it_is(run: &Run) -> Option<GuestOsInfo> {
    let command = "{\"execute\": \"guest-get-osinfo\"}".to_owned();
    let answer = run.client().ok()?.call(Request::Agent { command, timeout_seconds: PATIENCE });
    let Ok(Answer::Agent(text)) = answer else { return None };
    read(&text)
}

fn read(text: &str) -> Option<GuestOsInfo> {
    #[derive(Deserialize)]
    struct Answered {
        r#return: OsInfo,
    }
    let Answered { r#return: told } = serde_json::from_str(text).ok()?;
    // The guest controls these strings: bound their length.
    let word = |word: Option<String>| word.map(|word| word.chars().take(WORD_MAX).collect());
    Some(GuestOsInfo {
        name: word(told.name),
        id: word(told.id),
        pretty_name: word(told.pretty_name),
        version: word(told.version),
        version_id: word(told.version_id),
        machine: word(told.machine),
        kernel_release: word(told.kernel_release),
        kernel_version: word(told.kernel_version),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_an_agent_are_bounded() {
        let long = "x".repeat(1 << 20);
        let text = format!(
            "{{\"return\": {{\"id\": \"debian\", \"version-id\": \"12\", \"more\": 1, \"name\": \"{long}\"}}}}"
        );
        let info = read(&text).unwrap();
        assert_eq!((info.id.as_deref(), info.version_id.as_deref()), (Some("debian"), Some("12")));
        assert_eq!((info.name.map(|name| name.len()), info.machine), (Some(WORD_MAX), None));
        for wrong in ["", "{}", "{\"return\": 1}", "{\"return\": {\"id\": 1}}"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
