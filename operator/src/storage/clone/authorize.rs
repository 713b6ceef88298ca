//! The right to clone from another namespace: the access reviews to ask for, in order. Pure; the caller asks the API server
//! as the requesting user, at creation of the DataVolume only.
//!
//! A VM's DataVolumes are made by the operator, which may clone everything: the VM controller asks first, as the VM's
//! ServiceAccount ([`service_account`]).

use cluster::Key;
use cluster::access::User;
use serde_json::{Value, json};

use crate::storage::names;
use crate::storage::seen::Source;

/// The source of a clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Namespace of the source.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Whether it is a VolumeSnapshot; else a claim.
    pub snapshot: bool,
}

impl Origin {
    /// Namespace and name.
    pub fn key(&self) -> Key {
        Key::new(&self.namespace, &self.name)
    }

    /// The source that it is.
    pub fn source(&self) -> Source {
        let (namespace, name) = (self.namespace.clone(), self.name.clone());
        match self.snapshot {
            true => Source::Snapshot { namespace, name },
            false => Source::Claim { namespace, name },
        }
    }

    /// The origin of a source that is a claim or a snapshot; an empty namespace is the target's.
    pub fn of(source: &Source, target_namespace: &str) -> Option<Self> {
        let (namespace, name, snapshot) = match source {
            Source::Claim { namespace, name } => (namespace, name, false),
            Source::Snapshot { namespace, name } => (namespace, name, true),
            Source::Remote(_)
            | Source::Registry(_)
            | Source::Blank
            | Source::Upload
            | Source::Reference { .. }
            | Source::Unsupported(_)
            | Source::Missing => return None,
        };
        let namespace = if namespace.is_empty() { target_namespace } else { namespace };
        Some(Self { namespace: namespace.to_owned(), name: name.clone(), snapshot })
    }
}

/// `resourceAttributes` of one SubjectAccessReview. The verb is always `create`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// API group.
    pub group: &'static str,
    /// Resource.
    pub resource: &'static str,
    /// Subresource; empty for none.
    pub subresource: &'static str,
    /// Namespace of the source.
    pub namespace: String,
    /// Name of the source; empty for any.
    pub name: String,
}

impl Access {
    /// The attributes as they are sent.
    pub fn attributes(&self) -> Value {
        let mut attributes = json!({
            "verb": "create", "group": self.group, "version": "*", "resource": self.resource, "namespace": self.namespace,
        });
        for (field, value) in [("subresource", self.subresource), ("name", self.name.as_str())] {
            if !value.is_empty() {
                attributes[field] = json!(value);
            }
        }
        attributes
    }
}

/// The requirements of a clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing: source and target are in one namespace.
    Nothing,
    /// One of these; of each, all.
    AnyOf(Vec<Vec<Access>>),
}

/// The rights that the user of a DataVolume in `target_namespace` needs.
pub fn needs(origin: &Origin, target_namespace: &str) -> Needs {
    if origin.namespace == target_namespace {
        return Needs::Nothing;
    }
    let access = |group, resource, subresource, name: &str| Access {
        group,
        resource,
        subresource,
        namespace: origin.namespace.clone(),
        name: name.to_owned(),
    };
    let clone = vec![access(names::GROUP, "datavolumes", "source", &origin.name)];
    // A user that may run pods may read claims. For snapshots upstream also asks for `pvcs`, which no API serves: only
    // wildcard roles pass.
    let mut read = vec![access("", "pods", "", "")];
    if origin.snapshot {
        read.push(access("", "pvcs", "", ""));
    }
    Needs::AnyOf(vec![clone, read])
}

/// Decides by asking; `ask` is one SubjectAccessReview. Later questions are only asked when they matter.
pub async fn decide<E, F>(needs: &Needs, mut ask: impl FnMut(Access) -> F) -> Result<bool, E>
where
    F: Future<Output = Result<bool, E>>,
{
    let Needs::AnyOf(ways) = needs else { return Ok(true) };
    for way in ways {
        let mut granted = true;
        for access in way {
            if !ask(access.clone()).await? {
                granted = false;
                break;
            }
        }
        if granted {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The field that a denial names.
pub const FIELD: &str = "spec.source.PVC.namespace";

/// The text of a denial.
pub fn denial(user: &str, namespace: &str) -> String {
    format!("User {user} has insufficient permissions in clone source namespace {namespace}")
}

/// The ServiceAccount of that name in a namespace, as the API server knows its pods; empty for `default`.
pub fn service_account(namespace: &str, name: &str) -> User {
    let name = if name.is_empty() { "default" } else { name };
    User {
        username: format!("system:serviceaccount:{namespace}:{name}"),
        groups: vec![
            "system:serviceaccounts".to_owned(),
            format!("system:serviceaccounts:{namespace}"),
            "system:authenticated".to_owned(),
        ],
        ..User::default()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::ready;

    use super::*;

    fn origin(snapshot: bool) -> Origin {
        Origin { namespace: "golden".into(), name: "disk".into(), snapshot }
    }

    /// Asks for a user with these permissions; returns the answer and the questions.
    fn decide_for(needs: &Needs, granted: &[&str]) -> (bool, Vec<String>) {
        let mut questions = Vec::new();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let answer = runtime.block_on(decide(needs, |access| {
            let question = format!("{}/{}", access.resource, access.subresource);
            let yes = granted.contains(&question.as_str());
            questions.push(question);
            ready(Ok::<_, Infallible>(yes))
        }));
        (answer.unwrap(), questions)
    }

    #[test]
    fn the_matrix_of_permissions() {
        for (snapshot, granted, allowed, questions) in [
            (false, &["datavolumes/source"][..], true, 1),
            (false, &["pods/"], true, 2),
            (false, &[], false, 2),
            (false, &["pvcs/"], false, 2),
            (true, &["datavolumes/source"], true, 1),
            (true, &["pods/"], false, 3),
            (true, &["pods/", "pvcs/"], true, 3),
            (true, &["pvcs/"], false, 2),
        ] {
            let (answer, asked) = decide_for(&needs(&origin(snapshot), "mine"), granted);
            assert_eq!(
                (answer, asked.len()),
                (allowed, questions),
                "snapshot={snapshot} {granted:?} {asked:?}"
            );
        }
        assert_eq!(decide_for(&needs(&origin(false), "golden"), &[]), (true, vec![]));
    }

    #[test]
    fn questions_name_the_source() {
        let Needs::AnyOf(ways) = needs(&origin(false), "mine") else { unreachable!() };
        assert_eq!(
            ways[0][0].attributes(),
            json!({
                "verb": "create", "group": "cdi.kubevirt.io", "version": "*", "resource": "datavolumes",
                "subresource": "source", "namespace": "golden", "name": "disk",
            })
        );
        assert_eq!(
            ways[1][0].attributes(),
            json!({
                "verb": "create", "group": "", "version": "*", "resource": "pods", "namespace": "golden",
            })
        );
    }

    #[test]
    fn origins_default_to_the_targets_namespace() {
        let claim = Source::Claim { namespace: String::new(), name: "a".into() };
        assert_eq!(Origin::of(&claim, "mine").unwrap().namespace, "mine");
        for origin in [origin(false), origin(true)] {
            assert_eq!(Origin::of(&origin.source(), "mine"), Some(origin));
        }
        assert_eq!(Origin::of(&Source::Blank, "mine"), None);
        assert_eq!(service_account("n", "").username, "system:serviceaccount:n:default");
    }
}
