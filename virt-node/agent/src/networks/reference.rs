//! Which NetworkAttachmentDefinition a network of a VMI means, and whether a guest of the VMI's namespace may use it: pure.

use std::fmt;

/// Namespace of definitions that every guest may use.
const SHARED: &str = "default";

/// A definition's namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Reference {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Reference {
    /// Reads `NAME` or `NAMESPACE/NAME`; without a namespace it is that of the VMI.
    ///
    /// # Errors
    /// The text, where it is neither.
    pub(crate) fn read(text: &str, own: &str) -> Result<Self, String> {
        let (namespace, name) = text.split_once('/').unwrap_or((own, text));
        if is_name(namespace) && is_name(name) {
            return Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() });
        }
        Err(format!("{text:?} is neither NAME nor NAMESPACE/NAME of a NetworkAttachmentDefinition"))
    }

    /// Whether a guest of the namespace `own` may use it: definitions of its own namespace, of `default`, and of the
    /// namespaces that the administrator shares, as with Multus' `namespaceIsolation`.
    ///
    /// # Errors
    /// The reason, with what can be done.
    pub(crate) fn allowed(&self, own: &str, shared: &[String]) -> Result<(), String> {
        let Self { namespace, .. } = self;
        if namespace == own || namespace == SHARED || shared.iter().any(|one| one == namespace || one == "*")
        {
            return Ok(());
        }
        Err(format!(
            "VMs of namespace {own} may not use the NetworkAttachmentDefinition {self}: create it in {own} or in {SHARED}, or \
             let the platform share its namespace (operator manifests --shared-network-namespaces {namespace})"
        ))
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Whether the API server takes a text as the name of an object.
fn is_name(text: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    (1..=253).contains(&text.len())
        && text.bytes().all(good)
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.ends_with(|last: char| last.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_a_name_with_or_without_a_namespace() {
        for (text, wanted) in
            [("blue", "own/blue"), ("infra/blue", "infra/blue"), ("default/a.b-c", "default/a.b-c")]
        {
            assert_eq!(Reference::read(text, "own").unwrap().to_string(), wanted);
        }
        for text in ["", "/", "a/", "/a", "a/b/c", "Blue", "a b", "../x", "a/..", "-a", &"a".repeat(254)] {
            assert!(Reference::read(text, "own").is_err(), "{text:?}");
        }
    }

    #[test]
    fn definitions_of_other_namespaces_are_used_only_where_they_are_shared() {
        let shared = ["infra".to_owned()];
        let allowed = |text: &str, shared: &[String]| {
            Reference::read(text, "own").and_then(|reference| reference.allowed("own", shared))
        };
        for text in ["blue", "own/blue", "default/blue", "infra/blue"] {
            allowed(text, &shared).unwrap();
        }
        let said = allowed("other/blue", &shared).unwrap_err();
        assert!(said.contains("other/blue") && said.contains("--shared-network-namespaces other"), "{said}");
        assert!(allowed("infra/blue", &[]).is_err());
        allowed("other/blue", &["*".to_owned()]).unwrap();
    }
}
