//! References to objects of any kind.

use crate::resource::resource;

resource! {
    /// Reference to an object in the same namespace.
    pub struct TypedLocalReference {
        /// Kind.
        pub kind: String ["x-required" = true],
        /// API group; empty for the core group.
        pub api_group: Option<String>,
        /// Name.
        pub name: String ["x-required" = true],
    }

    /// Reference to an object.
    pub struct TypedReference {
        /// Kind.
        pub kind: String ["x-required" = true],
        /// API group; empty for the core group.
        pub api_group: Option<String>,
        /// Name.
        pub name: String ["x-required" = true],
        /// Namespace. Default: that of the referring object.
        pub namespace: Option<String>,
    }
}
