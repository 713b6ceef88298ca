//! Limits that launcher pods have because of their namespace: its quotas refuse pods without a limit, or its labels ask
//! for one. Pure.
//!
//! Not here: limits that an instance has itself ([`super::resources`]), and reading the objects.

use std::collections::BTreeMap;

use api::core::LabelSelector;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::view::selects;

/// Label of a namespace: memory limit as a multiple of the request, `1.5` for example.
const RATIO: &str = "alpha.kubevirt.io/auto-memory-limits-ratio";
/// The multiple of other namespaces, in per cent.
const USUAL_PERCENT: u32 = 200;

/// A ResourceQuota, as far as limits depend on it.
#[derive(Debug, Default, Deserialize)]
pub(in crate::compute) struct Quota {
    #[serde(default)]
    spec: QuotaSpec,
}

#[derive(Debug, Default, Deserialize)]
struct QuotaSpec {
    #[serde(default)]
    hard: BTreeMap<String, IgnoredAny>,
}

impl Quota {
    fn has(&self, resource: &str) -> bool {
        self.spec.hard.contains_key(resource)
    }
}

/// A namespace, as far as limits depend on it.
#[derive(Debug, Default, Deserialize)]
pub(in crate::compute) struct Namespace {
    metadata: NamespaceMetadata,
}

#[derive(Debug, Default, Deserialize)]
struct NamespaceMetadata {
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

/// Limits of a container where the instance gives none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::compute) struct AutoLimits {
    /// The memory limit in per cent of the request.
    pub(super) memory_percent: Option<u32>,
    /// Whether there is a CPU limit: a CPU for each vCPU.
    pub(super) cpu: bool,
}

#[cfg(test)]
impl AutoLimits {
    /// None.
    pub(in crate::compute) const NONE: Self = Self { memory_percent: None, cpu: false };
}

/// Whether the namespace itself matters besides its quotas: it need not be read otherwise.
pub(in crate::compute) fn needs_namespace(quotas: &[Quota], selector: Option<&LabelSelector>) -> bool {
    selector.is_some() || quotas.iter().any(|quota| quota.has("limits.memory"))
}

/// The limits of pods in a namespace. `selector`: of namespaces where pods have a CPU limit without a quota
/// (`autoCPULimitNamespaceLabelSelector`).
pub(in crate::compute) fn limits(
    quotas: &[Quota],
    namespace: &Namespace,
    selector: Option<&LabelSelector>,
) -> AutoLimits {
    let limited = |resource: &str| quotas.iter().any(|quota| quota.has(resource));
    let labels = &namespace.metadata.labels;
    let label = |name: &str| labels.get(name).map(String::as_str);
    let percent = || label(RATIO).and_then(super::percent).unwrap_or(USUAL_PERCENT);
    AutoLimits {
        memory_percent: limited("limits.memory").then(percent),
        cpu: limited("limits.cpu") || selector.is_some_and(|selector| selects(selector, label)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn quotas_on_limits_and_labels_of_the_namespace_ask_for_limits() {
        let team = json!({"matchLabels": {"limited": "true"}});
        let two = |memory_percent, cpu| AutoLimits { memory_percent, cpu };
        for (hard, labels, selector, wanted) in [
            (json!([]), json!({}), Value::Null, AutoLimits::NONE),
            (
                json!([{"requests.memory": "1Gi", "cpu": "4", "pods": "3"}]),
                json!({}),
                Value::Null,
                AutoLimits::NONE,
            ),
            (json!([{"limits.memory": "1Gi"}]), json!({}), Value::Null, two(Some(200), false)),
            (json!([{"limits.cpu": 4}]), json!({}), Value::Null, two(None, true)),
            (
                json!([{"limits.cpu": "4"}, {"limits.memory": "1Gi"}]),
                json!({}),
                Value::Null,
                two(Some(200), true),
            ),
            (json!([{"limits.memory": "1Gi"}]), json!({RATIO: "1.2"}), Value::Null, two(Some(120), false)),
            // Less than the request is refused by Kubernetes.
            (json!([{"limits.memory": "1Gi"}]), json!({RATIO: "0.5"}), Value::Null, two(Some(200), false)),
            (json!([{"limits.memory": "1Gi"}]), json!({RATIO: "much"}), Value::Null, two(Some(200), false)),
            (json!([]), json!({RATIO: "3"}), Value::Null, AutoLimits::NONE),
            (json!([]), json!({"limited": "true"}), team.clone(), two(None, true)),
            (json!([]), json!({"limited": "false"}), team, AutoLimits::NONE),
            (json!([]), json!({}), json!({}), two(None, true)),
        ] {
            let quotas = hard.as_array().unwrap().iter().map(|hard| json!({"spec": {"hard": hard}}));
            let quotas: Vec<Quota> = quotas.map(|quota| serde_json::from_value(quota).unwrap()).collect();
            let namespace: Namespace =
                serde_json::from_value(json!({"metadata": {"name": "n", "labels": labels}})).unwrap();
            let selector: Option<LabelSelector> = serde_json::from_value(selector).unwrap();
            let selector = selector.as_ref();
            assert_eq!(limits(&quotas, &namespace, selector), wanted, "{hard} {labels} {selector:?}");
            if !needs_namespace(&quotas, selector) {
                assert_eq!(limits(&quotas, &Namespace::default(), None), wanted, "{hard} {labels}");
            }
        }
    }
}
