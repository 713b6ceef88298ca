//! Decisions from a request and the objects that it names, with the sidecar's codes and texts. Pure.

use serde_json::Value;
use tonic::Status;

/// Label of a VolumeSnapshotContent: the node that has its snapshot.
const MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";

/// A snapshot of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    /// Its name to the driver.
    pub(super) handle: String,
    /// The node that has it; `None`: it is not known.
    pub(super) node: Option<String>,
}

/// Checks that fields are set; each comes with the text for when it is not.
pub(super) fn required(fields: &[(&str, &str)]) -> Result<(), Status> {
    match fields.iter().find(|(value, _)| value.is_empty()) {
        Some((_, text)) => Err(Status::invalid_argument(*text)),
        None => Ok(()),
    }
}

fn text(object: &Value, path: &str) -> Option<String> {
    object.pointer(path).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
}

/// The name of the content of a VolumeSnapshot.
pub(super) fn content_of(name: &str, snapshot: &Value) -> Result<String, Status> {
    if snapshot.pointer("/status/readyToUse") != Some(&Value::Bool(true)) {
        return Err(Status::unavailable(format!("the VolumeSnapshot is not yet ready, name: {name}")));
    }
    text(snapshot, "/status/boundVolumeSnapshotContentName").ok_or_else(|| {
        Status::unavailable(format!(
            "boundVolumeSnapshotContentName is not set in VolumeSnapshot status, name: {name}"
        ))
    })
}

/// The snapshot of a VolumeSnapshotContent.
pub(super) fn snapshot_of(name: &str, content: &Value, driver: &str) -> Result<Snapshot, Status> {
    if text(content, "/spec/driver").as_deref() != Some(driver) {
        let text = format!("VolumeSnapshot does not belong to the CSI driver {driver}");
        return Err(Status::invalid_argument(text));
    }
    if content.pointer("/status/readyToUse") != Some(&Value::Bool(true)) {
        let text = format!("the VolumeSnapshotContent is not yet ready, name: {name}");
        return Err(Status::unavailable(text));
    }
    let handle = text(content, "/status/snapshotHandle").ok_or_else(|| {
        Status::unavailable(format!(
            "snapshotHandle is not set in VolumeSnapshotContent status, name: {name}"
        ))
    })?;
    let labels = content.pointer("/metadata/labels");
    let node = labels.and_then(|all| all.get(MANAGED_BY)).and_then(Value::as_str).map(str::to_owned);
    Ok(Snapshot { handle, node })
}

/// The node that a request goes to; `None`: this one.
pub(super) fn forward_to<'a>(
    snapshot: &'a Snapshot,
    here: &str,
    forwarded: bool,
) -> Result<Option<&'a str>, Status> {
    match snapshot.node.as_deref() {
        Some(node) if node != here && forwarded => {
            Err(Status::unavailable(format!("the snapshot is on node {node}, not on {here}")))
        }
        node => Ok(node.filter(|node| *node != here)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tonic::Code;

    use super::*;

    #[test]
    fn a_field_that_is_missing_is_named() {
        required(&[("token", "a"), ("name", "b")]).unwrap();
        let refused = required(&[("token", "a"), ("", "snapshotName cannot be empty")]).unwrap_err();
        assert_eq!(
            (refused.code(), refused.message()),
            (Code::InvalidArgument, "snapshotName cannot be empty")
        );
    }

    #[test]
    fn a_snapshot_is_found_by_its_content() {
        let ready = json!({"status": {"readyToUse": true, "boundVolumeSnapshotContentName": "c"}});
        assert_eq!(content_of("s", &ready).unwrap(), "c");
        for snapshot in
            [json!({}), json!({"status": {"readyToUse": false}}), json!({"status": {"readyToUse": true}})]
        {
            assert_eq!(content_of("s", &snapshot).unwrap_err().code(), Code::Unavailable, "{snapshot}");
        }
        let content = |driver: &str, ready: bool, handle: &str| {
            json!({
                "metadata": {"labels": {MANAGED_BY: "node1"}},
                "spec": {"driver": driver},
                "status": {"readyToUse": ready, "snapshotHandle": handle},
            })
        };
        let found = snapshot_of("c", &content("d", true, "h"), "d").unwrap();
        assert_eq!(found, Snapshot { handle: "h".to_owned(), node: Some("node1".to_owned()) });
        for (content, code) in [
            (content("other", true, "h"), Code::InvalidArgument),
            (content("d", false, "h"), Code::Unavailable),
            (content("d", true, ""), Code::Unavailable),
        ] {
            assert_eq!(snapshot_of("c", &content, "d").unwrap_err().code(), code, "{content}");
        }
    }

    #[test]
    fn a_request_is_forwarded_once() {
        let on = |node: Option<&str>| Snapshot { handle: "h".to_owned(), node: node.map(str::to_owned) };
        for (node, forwarded, expected) in [
            (None, false, Some(None)),
            (Some("a"), false, Some(None)),
            (Some("a"), true, Some(None)),
            (Some("b"), false, Some(Some("b"))),
            (Some("b"), true, None),
        ] {
            let snapshot = on(node);
            assert_eq!(forward_to(&snapshot, "a", forwarded).ok(), expected, "{node:?} {forwarded}");
        }
    }
}
