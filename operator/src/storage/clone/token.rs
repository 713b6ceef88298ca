//! Tokens of clones from another namespace: their content, and whether they fit a clone. Pure.
//!
//! The webhook signs a token of five minutes when the user may clone; the controller exchanges it for one that outlives
//! the clone and stands on the claim. Claims without a fitting token are not filled from other namespaces.

use api::upload::token::{Claims, Grant, Operation, Resource};

use super::authorize::Origin;

/// Parameter: namespace of the target.
const TARGET_NAMESPACE: &str = "targetNamespace";
/// Parameter: name of the target.
const TARGET_NAME: &str = "targetName";
/// Parameter of extended tokens: id of the DataVolume.
const UID: &str = "uid";

/// The target of a clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Id of the DataVolume, for extended tokens.
    pub uid: Option<&'a str>,
}

fn resource(origin: &Origin) -> Resource {
    let (group, resource) = match origin.snapshot {
        true => ("snapshot.storage.k8s.io", "volumesnapshots"),
        false => ("", "persistentvolumeclaims"),
    };
    Resource { group: group.to_owned(), version: "v1".to_owned(), resource: resource.to_owned() }
}

/// The content of a token for this clone.
pub fn grant(origin: &Origin, target: Target<'_>) -> Grant {
    let mut params = vec![(TARGET_NAMESPACE, target.namespace), (TARGET_NAME, target.name)];
    params.extend(target.uid.map(|uid| (UID, uid)));
    Grant {
        operation: Operation::Clone,
        name: origin.name.clone(),
        namespace: origin.namespace.clone(),
        resource: resource(origin),
        params: params.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
    }
}

/// Whether a token grants exactly this clone.
pub fn fits(claims: &Claims, origin: &Origin, target: Target<'_>) -> bool {
    claims.grant == grant(origin, target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_fits_only_its_own_clone() {
        let origin = Origin { namespace: "golden".into(), name: "disk".into(), snapshot: false };
        let target = Target { namespace: "mine", name: "copy", uid: None };
        let claims = Claims { grant: grant(&origin, target), ..Claims::default() };
        assert!(fits(&claims, &origin, target));
        assert!(!fits(&claims, &Origin { name: "other".into(), ..origin.clone() }, target));
        assert!(!fits(&claims, &Origin { namespace: "far".into(), ..origin.clone() }, target));
        assert!(!fits(&claims, &Origin { snapshot: true, ..origin.clone() }, target));
        assert!(!fits(&claims, &origin, Target { namespace: "theirs", ..target }));
        assert!(!fits(&claims, &origin, Target { name: "more", ..target }));
        assert!(!fits(&claims, &origin, Target { uid: Some("u"), ..target }));
        let upload = Claims { grant: Grant { operation: Operation::Upload, ..claims.grant }, ..claims };
        assert!(!fits(&upload, &origin, target));
    }
}
