//! The share of the API server's capacity that requests of the operator and of node agents get: neither limits itself, so that
//! the API server's fairness decides (flowcontrol.apiserver.k8s.io/v1).
//!
//! Not here: priorities of pods.

use serde_json::{Value, json};

use super::accounts::{AGENT, OPERATOR};
use super::{Settings, object, with};

/// Name of the FlowSchema.
const NAME: &str = "ferrovirt";
/// Before Kubernetes' own schemas of ServiceAccounts (9000) and behind those of its system components (up to 900).
const PRECEDENCE: u32 = 950;

/// Requests of both are in the level of workloads that others depend on; each account has its own queue.
pub(super) fn schema(settings: &Settings) -> Value {
    let subject = |name: &str| json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": settings.namespace, "name": name}});
    let rule = json!({
        "subjects": [subject(OPERATOR), subject(AGENT)],
        "resourceRules": [
            {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true, "namespaces": ["*"]},
        ],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    });
    let spec = json!({
        "priorityLevelConfiguration": {"name": "workload-high"},
        "matchingPrecedence": PRECEDENCE,
        "distinguisherMethod": {"type": "ByUser"},
        "rules": [rule],
    });
    with(object("flowcontrol.apiserver.k8s.io/v1", "FlowSchema", NAME, None), json!({"spec": spec}))
}
