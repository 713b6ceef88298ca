//! The versions of the launcher's protocol, and how both sides agree on one.
//!
//! | version | release | what it has |
//! |---|---|---|
//! | 1 | before version agreement: a launcher refuses a [`Hello`] with number 0 | all requests but those of 2 |
//! | 2 | this one | [`Hello`], `facts`, `insert`, `eject`, `describe`, `dump`, `freeze`, `thaw`, `stats` |
//!
//! The last two versions are spoken. A launcher of either goes on under a daemon or agent of the other: guests outlive both.

use serde::{Deserialize, Serialize};

use super::{FrameError, Message};

/// The versions that this program speaks, the oldest first.
pub const VERSIONS: [u32; 2] = [1, 2];
/// Most versions in a [`Hello`].
const VERSIONS_MAX: usize = 64;

/// The first frame of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hello {
    /// The versions that the client speaks, in any order.
    pub versions: Vec<u32>,
}

impl Hello {
    /// This program's.
    pub fn new() -> Self {
        Self { versions: VERSIONS.to_vec() }
    }

    /// Reads a frame that may be one; `None`: it is something else, such as a call of a client that sends no `Hello`.
    pub fn read(json: &[u8]) -> Option<Self> {
        let hello: Self = serde_json::from_slice(json).ok()?;
        (hello.versions.len() <= VERSIONS_MAX).then_some(hello)
    }
}

impl Default for Hello {
    fn default() -> Self {
        Self::new()
    }
}

/// The latest version that both sides speak.
///
/// # Errors
/// [`FrameError::NoCommonVersion`].
pub fn agree(theirs: &[u32]) -> Result<u32, FrameError> {
    let common = VERSIONS.into_iter().rev().find(|version| theirs.contains(version));
    common.ok_or_else(|| FrameError::NoCommonVersion(theirs.iter().copied().take(VERSIONS_MAX).collect()))
}

/// The version by a launcher's answer to a [`Hello`]; `None`: the message is not the answer to a [`Hello`].
pub fn agreed(message: &Message) -> Option<Result<u32, FrameError>> {
    match message {
        Message::Hello { versions } => Some(agree(versions)),
        // Of a release that knows no Hello: it found no call in it.
        Message::Refused { id: 0, .. } => Some(agree(&[1])),
        Message::Answer { .. } | Message::Refused { .. } | Message::Event(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::RefusedKind;
    use super::*;

    #[test]
    fn the_latest_common_version_is_agreed_on() {
        for (theirs, wanted) in
            [(&[1][..], Some(1)), (&[1, 2], Some(2)), (&[3, 2], Some(2)), (&[3, 4], None), (&[], None)]
        {
            assert_eq!(agree(theirs).ok(), wanted, "{theirs:?}");
        }
        let error = agree(&[3, 4]).unwrap_err().to_string();
        assert!(error.contains("[3, 4]") && error.contains("[1, 2]") && error.contains("upgrade"), "{error}");
    }

    #[test]
    fn a_launcher_that_refuses_a_hello_speaks_version_1() {
        let refused = |id| Message::Refused { id, kind: RefusedKind::Invalid, message: "no message".into() };
        assert_eq!(agreed(&refused(0)), Some(Ok(1)));
        assert_eq!(agreed(&refused(1)), None);
        assert_eq!(agreed(&Message::Hello { versions: vec![2, 3] }), Some(Ok(2)));
    }

    #[test]
    fn a_call_is_no_hello() {
        assert_eq!(Hello::read(b"{\"version\": 1, \"id\": 1, \"request\": \"status\"}"), None);
        assert_eq!(Hello::read(b"{\"versions\": [1, 7], \"more\": 1}").unwrap().versions, [1, 7]);
        let many = format!("{{\"versions\": {:?}}}", vec![1; 100]);
        assert_eq!(Hello::read(many.as_bytes()), None);
    }
}
