//! Label selectors.

use std::collections::BTreeMap;

use crate::resource::resource;

resource! {
    /// Selection of objects by labels; all requirements must be met.
    pub struct LabelSelector {
        /// Requirements.
        pub match_expressions: Vec<LabelSelectorRequirement>,
        /// Labels that must be present with these values.
        pub match_labels: BTreeMap<String, String>,
    }

    /// Requirement on one label.
    pub struct LabelSelectorRequirement {
        /// Name of the label.
        pub key: String ["x-required" = true],
        /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
        pub operator: String ["x-required" = true],
        /// Values that the operator compares with.
        pub values: Vec<String>,
    }
}
