//! Golden frames of the launcher's protocol, a line each: those of a version that was released never change.

use api::launcher::{Call, Cause, Event, Hello, Message, PauseReason, RefusedKind, State, VERSIONS, frame};
use serde_json::Value;

const V1: &str = include_str!("../launcher/v1.jsonl");
const V2: &str = include_str!("../launcher/v2.jsonl");

/// A frame, read and written by this release.
fn again(line: &str) -> Value {
    let value: Value = serde_json::from_str(line).unwrap();
    if value.get("request").is_some() {
        return serde_json::to_value(Call::read(line.as_bytes()).unwrap()).unwrap();
    }
    match Hello::read(line.as_bytes()) {
        Some(hello) => serde_json::to_value(hello).unwrap(),
        None => serde_json::to_value(Message::read(line.as_bytes()).unwrap().unwrap()).unwrap(),
    }
}

#[test]
fn golden_frames_of_both_versions_are_read_and_written_as_they_are() {
    assert_eq!(VERSIONS, [1, 2], "a new version has golden frames of its own, and the oldest goes");
    for (version, frames) in [(1, V1), (2, V2)] {
        for line in frames.lines() {
            let value: Value = serde_json::from_str(line).unwrap();
            assert_eq!(again(line), value, "version {version}: {line}");
            let call = value.get("request").is_some();
            assert!(!call || value["version"] == version, "{line}");
        }
    }
}

#[test]
fn a_frame_is_its_length_and_its_json() {
    assert_eq!(frame(&Hello::new()).unwrap(), b"\0\0\0\x12{\"versions\":[1,2]}");
}

#[test]
fn additions_of_a_later_release_to_messages_are_ignored() {
    let read = |line: &str| Message::read(line.as_bytes()).unwrap();
    for line in [
        r#"{"event":{"melted":{"core":1}}}"#,
        r#"{"event":"sneezed"}"#,
        r#"{"event":{"detached":{}}}"#,
        r#"{"news":{"id":1}}"#,
    ] {
        assert_eq!(read(line), None, "{line}");
    }
    let line = r#"{"event":{"status":{"state":"migrating","reason":"postcopy","more":[1],"exit":
        {"uid":"a","cause":"migrated","code":0,"time":1,"to":"node02"}}}}"#;
    let Some(Message::Event(Event::Status(status))) = read(line) else { panic!() };
    assert_eq!((status.state, status.reason), (State::Running, Some(PauseReason::Other)));
    assert_eq!(status.exit.map(|exit| (exit.cause, exit.code)), Some((Cause::Lost, 0)));
    let line = r#"{"refused":{"id":1,"kind":"later","message":"no","retry":5}}"#;
    let Some(Message::Refused { kind: RefusedKind::Failed, .. }) = read(line) else { panic!() };
    // Requests are not guessed: a request that is not known is refused, with its number.
    let (id, error) = Call::read(br#"{"version":2,"id":9,"request":{"migrate":{}}}"#).unwrap_err();
    assert!(id == 9 && error.to_string().contains("unknown variant `migrate`"), "{error}");
}
