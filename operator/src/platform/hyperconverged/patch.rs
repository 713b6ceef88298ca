//! JSON patches of the child objects in annotations of `HyperConverged`. Pure.

use json_patch::{Patch, PatchOperation};
use serde_json::Value;
use thiserror::Error;

/// Annotation with a patch of the KubeVirt object.
pub const KUBEVIRT: &str = "kubevirt.kubevirt.io/jsonpatch";
/// Annotation with a patch of the CDI object.
pub const CDI: &str = "containerizeddataimporter.kubevirt.io/jsonpatch";
/// Annotation with a patch of the NetworkAddonsConfig object.
pub const NETWORK: &str = "networkaddonsconfigs.kubevirt.io/jsonpatch";
/// Annotation with a patch of the SSP object.
pub const SSP: &str = "ssp.kubevirt.io/jsonpatch";
/// All of them.
pub const ANNOTATIONS: [&str; 4] = [KUBEVIRT, CDI, NETWORK, SSP];

/// Why a patch cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PatchError {
    /// The text is no JSON patch.
    #[error("is not a JSON patch (RFC 6902): {0}")]
    Syntax(String),
    /// An operation leaves the spec.
    #[error("operation {0} is not below /spec/: only the spec can be patched")]
    Outside(usize),
    /// The patch does not fit the object.
    #[error("does not fit the object: {0}")]
    Apply(String),
}

/// Reads a patch; all its operations are below `/spec/`.
///
/// # Errors
/// [`PatchError::Syntax`], [`PatchError::Outside`].
pub fn parse(text: &str) -> Result<Patch, PatchError> {
    let patch: Patch = serde_json::from_str(text).map_err(|error| PatchError::Syntax(error.to_string()))?;
    let inside = |path: &str| path.starts_with("/spec/");
    let stays = |operation: &PatchOperation| {
        let from = match operation {
            PatchOperation::Move(one) => Some(one.from.as_str()),
            PatchOperation::Copy(one) => Some(one.from.as_str()),
            PatchOperation::Add(_)
            | PatchOperation::Remove(_)
            | PatchOperation::Replace(_)
            | PatchOperation::Test(_) => None,
        };
        inside(operation.path().as_str()) && from.is_none_or(inside)
    };
    match patch.0.iter().position(|operation| !stays(operation)) {
        Some(index) => Err(PatchError::Outside(index)),
        None => Ok(patch),
    }
}

/// Applies a patch to an object, which stays as it is after an error.
///
/// # Errors
/// Those of [`parse`], and [`PatchError::Apply`].
pub fn apply(object: &mut Value, text: &str) -> Result<(), PatchError> {
    let patch = parse(text)?;
    json_patch::patch(object, &patch).map_err(|error| PatchError::Apply(error.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn patches_change_the_spec_only() {
        let before = json!({"metadata": {"name": "a"}, "spec": {"a": {"b": 1}}});
        for (text, expected) in [
            (r#"[{"op": "add", "path": "/spec/c", "value": 2}]"#, Ok(json!({"a": {"b": 1}, "c": 2}))),
            (r#"[{"op": "move", "from": "/spec/a/b", "path": "/spec/c"}]"#, Ok(json!({"a": {}, "c": 1}))),
            (r#"[{"op": "add", "path": "/metadata/name", "value": "b"}]"#, Err(PatchError::Outside(0))),
            (r#"[{"op": "copy", "from": "/metadata/name", "path": "/spec/c"}]"#, Err(PatchError::Outside(0))),
        ] {
            let mut object = before.clone();
            let result = apply(&mut object, text).map(|()| object["spec"].clone());
            assert_eq!(result, expected, "{text}");
        }
    }

    #[test]
    fn invalid_patches_are_refused_and_change_nothing() {
        let before = json!({"spec": {"a": 1}});
        for text in [
            "",
            "{}",
            r#"[{"op": "add"}]"#,
            r#"[{"op": "remove", "path": "/spec/missing"}]"#,
            r#"[{"op": "replace", "path": "/spec/a", "value": 2}, {"op": "test", "path": "/spec/a", "value": 3}]"#,
        ] {
            let mut object = before.clone();
            assert!(apply(&mut object, text).is_err(), "{text}");
            assert_eq!(object, before, "{text}");
        }
    }
}
