//! The name of an object within its resource: namespace and name in one allocation, cheap to clone.

use std::fmt;
use std::sync::Arc;

/// Namespace and name. A cluster-scoped object has an empty namespace. Shown as `namespace/name`, or `name`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// The key of an object in a namespace.
    pub fn new(namespace: &str, name: &str) -> Self {
        if namespace.is_empty() {
            Self(Arc::from(name))
        } else {
            Self(Arc::from(format!("{namespace}/{name}")))
        }
    }

    /// The key of a cluster-scoped object.
    pub fn cluster(name: &str) -> Self {
        Self(Arc::from(name))
    }

    /// The namespace; empty for a cluster-scoped object.
    pub fn namespace(&self) -> &str {
        self.0.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or(&self.0, |(_, name)| name)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_show_namespace_and_name() {
        let key = Key::new("shop", "db");
        assert_eq!((key.namespace(), key.name(), key.to_string().as_str()), ("shop", "db", "shop/db"));
        let key = Key::cluster("node-1");
        assert_eq!((key.namespace(), key.name(), key.to_string().as_str()), ("", "node-1", "node-1"));
        assert_eq!(Key::new("", "node-1"), key);
    }
}
