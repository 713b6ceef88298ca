//! Feature gates of a KubeVirt object. Not here: which gates there are.

use serde::Deserialize;

/// The lists of gates in `spec.configuration.developerConfiguration`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Gates {
    feature_gates: Vec<String>,
    disabled_feature_gates: Vec<String>,
}

impl Gates {
    /// Whether a gate that is off by default is on: listed, and not disabled.
    pub(crate) fn has(&self, name: &str) -> bool {
        let lists = |list: &[String]| list.iter().any(|one| one == name);
        lists(&self.feature_gates) && !lists(&self.disabled_feature_gates)
    }
}
