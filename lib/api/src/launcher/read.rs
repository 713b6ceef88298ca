//! Reading messages of a launcher of another release: fields, events and words that this release does not know are ignored, or
//! taken for the nearest that it knows.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::{Cause, FrameError, Message, PauseReason, RefusedKind, State};
use crate::launch::Word;

impl Message {
    /// Reads a message; `None`: one that this release does not know, and that is ignored.
    ///
    /// # Errors
    /// It is not of the form of a message.
    pub fn read(json: &[u8]) -> Result<Option<Self>, FrameError> {
        let malformed = |error: serde_json::Error| FrameError::Malformed(error.to_string());
        let kinds: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(json).map_err(malformed)?;
        match kinds.keys().next().map(String::as_str) {
            // An event that cannot be read is of a later release; the next status has the state.
            Some("event") if kinds.len() == 1 => Ok(serde_json::from_slice(json).ok()),
            Some("answer" | "refused" | "hello") if kinds.len() == 1 => {
                serde_json::from_slice(json).map(Some).map_err(malformed)
            }
            Some(_) | None => Ok(None),
        }
    }
}

/// A word, or what stands for all that are not known.
fn word<'de, D: Deserializer<'de>, T: Word>(from: D, other: T) -> Result<T, D::Error> {
    Ok(T::from_word(&String::deserialize(from)?).unwrap_or(other))
}

/// There is a guest, since there are words for its absence.
pub(super) fn state<'de, D: Deserializer<'de>>(from: D) -> Result<State, D::Error> {
    word(from, State::Running)
}

pub(super) fn reason<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PauseReason>, D::Error> {
    let reason = Option::<String>::deserialize(from)?;
    Ok(reason.map(|reason| PauseReason::from_word(&reason).unwrap_or(PauseReason::Other)))
}

/// The code next to it decides whether it counts as a failure.
pub(super) fn cause<'de, D: Deserializer<'de>>(from: D) -> Result<Cause, D::Error> {
    word(from, Cause::Lost)
}

pub(super) fn refused<'de, D: Deserializer<'de>>(from: D) -> Result<RefusedKind, D::Error> {
    word(from, RefusedKind::Failed)
}
