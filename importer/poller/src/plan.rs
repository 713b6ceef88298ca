//! The annotations of a DataImportCron after a poll. Pure.

use api::poll::{DESIRED, LAST_POLLED};
use serde_json::{Map, Value, json};

/// Whether a poll found another image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The digest is another one than the DataImportCron had.
    NewDigest,
    /// The digest is the same; the time of the poll is new.
    TimeOnly,
}

/// Whether a text is a digest by which CDI's controller can name an import.
pub(crate) fn is_digest(text: &str) -> bool {
    let hex = text.strip_prefix("sha256:").unwrap_or_default();
    hex.len() == 64 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Sets digest and time of a poll in a DataImportCron as it was read; everything else stays. `None`: it is no object.
///
/// Upstream leaves an older digest in the annotation when the image is that of the current import again, and then imports an
/// image that the registry no longer has by this name. Here the annotation is always the registry's answer.
pub(crate) fn polled(cron: &mut Value, digest: &str, now: &str) -> Option<Change> {
    let annotations = child(child(cron.as_object_mut()?, "metadata")?, "annotations")?;
    annotations.insert(LAST_POLLED.to_owned(), json!(now));
    let before = annotations.insert(DESIRED.to_owned(), json!(digest));
    let same = before.is_some_and(|before| before == digest);
    Some(if same { Change::TimeOnly } else { Change::NewDigest })
}

fn child<'a>(object: &'a mut Map<String, Value>, name: &str) -> Option<&'a mut Map<String, Value>> {
    object.entry(name).or_insert_with(|| json!({})).as_object_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-02T03:04:05Z";

    #[test]
    fn only_the_two_annotations_change() {
        let (old, new) = (format!("sha256:{}", "0".repeat(64)), format!("sha256:{}", "1".repeat(64)));
        for (annotations, expected) in [
            (json!(null), Change::NewDigest),
            (json!({"a": "b"}), Change::NewDigest),
            (json!({"a": "b", DESIRED: old}), Change::NewDigest),
            (json!({"a": "b", DESIRED: new, LAST_POLLED: "2026-01-01T00:00:00Z"}), Change::TimeOnly),
        ] {
            let mut before = json!({
                "metadata": {"name": "c", "resourceVersion": "7", "annotations": annotations},
                "spec": {"unknown": [1, {"deep": true}]},
                // The image is that of the current import again.
                "status": {"currentImports": [{"DataVolumeName": "d", "Digest": new}]},
            });
            if annotations.is_null() {
                before["metadata"].as_object_mut().unwrap().remove("annotations");
            }
            let mut after = before.clone();
            assert_eq!(polled(&mut after, &new, NOW), Some(expected), "{annotations}");
            assert_eq!(after["metadata"]["annotations"][DESIRED], new);
            assert_eq!(after["metadata"]["annotations"][LAST_POLLED], NOW);
            before["metadata"]["annotations"][DESIRED] = json!(new);
            before["metadata"]["annotations"][LAST_POLLED] = json!(NOW);
            assert_eq!(after, before);
        }
    }

    #[test]
    fn answers_that_are_no_object_are_rejected() {
        for answer in [
            json!(null),
            json!([]),
            json!({"metadata": "m"}),
            json!({"metadata": {"annotations": "a"}}),
            json!({"metadata": {"annotations": null}}),
        ] {
            assert_eq!(polled(&mut answer.clone(), "sha256:", NOW), None, "{answer}");
        }
    }

    #[test]
    fn digests_are_sha256() {
        assert!(is_digest(&format!("sha256:{}", "0a".repeat(32))));
        for text in ["", "sha256:", "sha256:0a", "latest"] {
            assert!(!is_digest(text), "{text}");
        }
        assert!(!is_digest(&format!("sha512:{}", "0a".repeat(64))));
        assert!(!is_digest(&format!("sha256:{}", "0A".repeat(32))));
        assert!(!is_digest(&format!("sha256:{}\n", "0a".repeat(32))));
    }
}
