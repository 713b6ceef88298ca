//! Which collection of the API server is meant: group, version, plural, subresource; and which of its objects.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::error::{Error, Kind, Result};
use crate::key::Key;

/// Characters allowed unescaped in a path segment or query value.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b':');

/// A collection of objects of one kind. Meant to be a constant:
/// `const PODS: Resource = Resource::namespaced("", "v1", "pods");`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Resource {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Version, such as `v1`.
    pub version: &'static str,
    /// Plural name in paths, such as `pods`.
    pub plural: &'static str,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
    /// Subresource, such as `status`; empty for the object itself.
    pub subresource: &'static str,
}

impl Resource {
    /// A namespaced resource.
    pub const fn namespaced(group: &'static str, version: &'static str, plural: &'static str) -> Self {
        Self { group, version, plural, namespaced: true, subresource: "" }
    }

    /// A cluster-scoped resource.
    pub const fn cluster(group: &'static str, version: &'static str, plural: &'static str) -> Self {
        Self { group, version, plural, namespaced: false, subresource: "" }
    }

    /// The subresource of that name: `VMS.sub("status")`.
    #[must_use]
    pub const fn sub(mut self, subresource: &'static str) -> Self {
        self.subresource = subresource;
        self
    }

    /// `apiVersion` of its objects: `v1`, `kubevirt.io/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    fn root(&self) -> String {
        if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        }
    }

    /// The path of the collection, in one namespace or (empty) in all.
    ///
    /// # Errors
    /// [`Kind::Input`] for a namespace that is no path segment.
    pub fn collection(&self, namespace: &str) -> Result<String> {
        let (root, plural) = (self.root(), self.plural);
        if self.namespaced && !namespace.is_empty() {
            Ok(format!("{root}/namespaces/{}/{plural}", segment(namespace)?))
        } else {
            Ok(format!("{root}/{plural}"))
        }
    }

    /// The path of one object, or of its subresource.
    ///
    /// # Errors
    /// [`Kind::Input`] for names that are no path segments, and for a namespaced object without namespace.
    pub fn object(&self, key: &Key) -> Result<String> {
        if self.namespaced && key.namespace().is_empty() {
            return Err(Error::new(Kind::Input, format!("{} {key}: the namespace is missing", self.plural)));
        }
        let mut path = format!("{}/{}", self.collection(key.namespace())?, segment(key.name())?);
        if !self.subresource.is_empty() {
            path.push('/');
            path.push_str(self.subresource);
        }
        Ok(path)
    }
}

/// A name as a path segment. The API server refuses what is refused here; a path must never mean another object.
fn segment(name: &str) -> Result<String> {
    if matches!(name, "" | "." | "..") || name.contains(['/', '%']) || name.len() > 1024 {
        return Err(Error::new(Kind::Input, format!("{name:?} is not the name of an object")));
    }
    Ok(escaped(name))
}

pub(crate) fn escaped(text: &str) -> String {
    utf8_percent_encode(text, PLAIN).to_string()
}

/// Which objects of a resource: of one namespace, with these labels, with these fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    namespace: String,
    labels: String,
    fields: String,
}

impl Scope {
    /// All objects of all namespaces.
    pub fn all() -> Self {
        Self::default()
    }

    /// Those of one namespace.
    #[must_use]
    pub fn namespace(mut self, namespace: &str) -> Self {
        namespace.clone_into(&mut self.namespace);
        self
    }

    /// Those that a label selector matches: `app=web,tier in (a,b)`.
    #[must_use]
    pub fn labels(mut self, selector: &str) -> Self {
        selector.clone_into(&mut self.labels);
        self
    }

    /// Those that a field selector matches: `spec.nodeName=n1`.
    #[must_use]
    pub fn fields(mut self, selector: &str) -> Self {
        selector.clone_into(&mut self.fields);
        self
    }

    /// One object only, by name.
    #[must_use]
    pub fn name(self, name: &str) -> Self {
        self.fields(&format!("metadata.name={name}"))
    }

    /// Path and query of the selected objects; further query parameters can be appended, each with its `&`.
    pub(crate) fn path(&self, resource: &Resource) -> Result<String> {
        let mut path = resource.collection(&self.namespace)?;
        path.push('?');
        for (name, value) in [("labelSelector", &self.labels), ("fieldSelector", &self.fields)] {
            if !value.is_empty() {
                path.push_str(&format!("{name}={}&", escaped(value)));
            }
        }
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PODS: Resource = Resource::namespaced("", "v1", "pods");
    const VMS: Resource = Resource::namespaced("kubevirt.io", "v1", "virtualmachines");
    const NODES: Resource = Resource::cluster("", "v1", "nodes");

    #[test]
    fn paths_of_collections_and_objects() {
        assert_eq!(PODS.collection("").unwrap(), "/api/v1/pods");
        assert_eq!(PODS.object(&Key::new("a", "b")).unwrap(), "/api/v1/namespaces/a/pods/b");
        let status = VMS.sub("status").object(&Key::new("a", "b")).unwrap();
        assert_eq!(status, "/apis/kubevirt.io/v1/namespaces/a/virtualmachines/b/status");
        assert_eq!(NODES.object(&Key::cluster("n:1")).unwrap(), "/api/v1/nodes/n:1");
        let scope = Scope::all().namespace("a").labels("x in (b,c)").name("d");
        let path = scope.path(&PODS).unwrap();
        let expected =
            "/api/v1/namespaces/a/pods?labelSelector=x%20in%20%28b%2Cc%29&fieldSelector=metadata.name%3Dd&";
        assert_eq!(path, expected);
    }

    #[test]
    fn names_that_would_change_the_path_are_refused() {
        for name in ["", ".", "..", "a/b", "a%2fb"] {
            let key = Key::new("ns", name);
            let refused = PODS.object(&key);
            // A slash in the name of a key moves the border between namespace and name; the path stays one of pods.
            assert!(refused.is_err(), "{name:?}: {refused:?}");
        }
        assert_eq!(
            PODS.object(&Key::new("ns", "a?b#c d")).unwrap(),
            "/api/v1/namespaces/ns/pods/a%3Fb%23c%20d"
        );
        assert!(PODS.object(&Key::cluster("a")).is_err(), "a namespace is required");
        assert!(PODS.collection("..").is_err());
    }
}
