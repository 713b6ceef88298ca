//! The JSON patch that brings a VMI's status from what was read to what was computed: pure.
//!
//! The operator writes the same object. So each key of the status that changes is tested to be as it was read; when it is
//! not, the API server refuses the patch and the status is computed again from the newer object.

use cluster::JsonPatch;
use serde_json::{Map, Value};

/// The patch of `status` from `before` to `after`; `None`: they are equal. `uid` is the object's: another one of the same
/// name is not touched.
pub(crate) fn status(uid: &str, before: &Value, after: &Value) -> Option<JsonPatch> {
    let empty = Map::new();
    let old = before.as_object().unwrap_or(&empty);
    let new = after.as_object().unwrap_or(&empty);
    let mut patch = JsonPatch::new().test("/metadata/uid", uid);
    if !before.is_object() {
        patch = patch.add("/status", Map::new());
    }
    let count = patch.operations().len();
    let keys = old.keys().chain(new.keys().filter(|key| !old.contains_key(*key)));
    for key in keys {
        let path = JsonPatch::pointer(["status", key]);
        patch = match (old.get(key), new.get(key)) {
            (before, after) if before == after => patch,
            (None, Some(value)) => patch.add(path, value),
            (Some(before), Some(value)) => patch.test(path.clone(), before).replace(path, value),
            (Some(before), None) => patch.test(path.clone(), before).remove(path),
            (None, None) => patch,
        };
    }
    (patch.operations().len() > count).then_some(patch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_keys_that_change_are_written_and_tested() {
        let before = json!({"phase": "Scheduled", "nodeName": "n", "reason": "x"});
        let after = json!({"phase": "Running", "nodeName": "n", "runtimeUser": 107});
        let patch = status("u", &before, &after).unwrap();
        assert_eq!(
            Value::Array(patch.operations().to_vec()),
            json!([
                {"op": "test", "path": "/metadata/uid", "value": "u"},
                {"op": "test", "path": "/status/phase", "value": "Scheduled"},
                {"op": "replace", "path": "/status/phase", "value": "Running"},
                {"op": "test", "path": "/status/reason", "value": "x"},
                {"op": "remove", "path": "/status/reason"},
                {"op": "add", "path": "/status/runtimeUser", "value": 107},
            ])
        );
        assert!(status("u", &after, &after).is_none());
    }

    #[test]
    fn an_object_without_status_gets_one() {
        let patch = status("u", &Value::Null, &json!({"a/b": 1})).unwrap();
        assert_eq!(patch.operations()[1], json!({"op": "add", "path": "/status", "value": {}}));
        assert_eq!(patch.operations()[2], json!({"op": "add", "path": "/status/a~1b", "value": 1}));
        assert!(status("u", &Value::Null, &json!({})).is_none());
    }
}
