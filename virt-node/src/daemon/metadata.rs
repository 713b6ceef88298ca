//! Metadata of objects that the daemon makes: identity, owner and time.

use api::resource::{ObjectMeta, Other};
use serde_json::json;

use super::object::Stored;
use super::state;
use crate::error::{Error, Kind};
use virt::time;

/// The owner of an object, as objects name it.
pub(super) fn owner(of: &impl Stored) -> Other {
    let reference = json!({
        "apiVersion": of.key().kind.api_version(),
        "kind": of.key().kind.name(),
        "name": of.metadata().name,
        "uid": of.uid(),
        "controller": true,
    });
    reference.as_object().cloned().unwrap_or_default()
}

/// Whether `uid` owns an object.
pub(super) fn is_owned(metadata: &ObjectMeta, uid: &str) -> bool {
    metadata.owner_references.iter().any(|owner| owner.get("uid").and_then(|uid| uid.as_str()) == Some(uid))
}

/// Metadata of a new object.
pub(super) fn made(metadata: &ObjectMeta, namespace: &str) -> Result<ObjectMeta, Error> {
    let uid = state::uuid().map_err(|error| Error::with(Kind::System, "no UUID", error))?;
    Ok(ObjectMeta {
        name: metadata.name.clone(),
        namespace: Some(namespace.to_owned()),
        labels: metadata.labels.clone(),
        annotations: metadata.annotations.clone(),
        uid: Some(uid),
        generation: Some(1),
        creation_timestamp: Some(time::text(time::now())),
        other: metadata.other.clone(),
        ..ObjectMeta::default()
    })
}
