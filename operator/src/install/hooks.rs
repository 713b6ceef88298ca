//! Objects of the Helm chart that run before `helm uninstall` removes anything: a Job with `operator uninstall
//! --only-custom-resources`, and its rights. It fails while virtual machines or DataVolumes exist, and Helm stops.
//!
//! Not here: what the chart installs.

use serde_json::{Value, json};

use super::roles::{RBAC, rule};
use super::workloads::confined;
use super::{Settings, object, with};

const NAME: &str = "ferrovirt-uninstall";
/// Seconds until the Job gives up; Helm waits as long by default.
const DEADLINE: u64 = 290;

/// All objects, in the order in which Helm makes them.
pub(super) fn before_removal(settings: &Settings) -> Vec<Value> {
    let namespace = Some(settings.namespace.as_str());
    let switches = |group: &str, plural: &str| rule(group, &[plural], &["get", "list", "delete"]);
    let rules = crate::removal::SWITCHES.map(|(_, one)| switches(one.group, one.plural));
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": NAME});
    let subject = json!({"kind": "ServiceAccount", "name": NAME, "namespace": settings.namespace});
    let container = json!({
        "name": "uninstall",
        "image": settings.image("operator"),
        "args": ["uninstall", "--only-custom-resources", format!("--timeout={}", DEADLINE - 10)],
        "env": [super::workloads::field("OPERATOR_NAMESPACE", "metadata.namespace")],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
        "securityContext": confined(),
    });
    let job = json!({
        "backoffLimit": 0,
        "activeDeadlineSeconds": DEADLINE,
        "template": {"spec": {
            "serviceAccountName": NAME,
            "restartPolicy": "Never",
            "securityContext": {
                "runAsNonRoot": true,
                "runAsUser": 65534,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
        }},
    });
    let all = [
        object("v1", "ServiceAccount", NAME, namespace),
        with(object(RBAC, "ClusterRole", NAME, None), json!({"rules": rules})),
        with(object(RBAC, "ClusterRoleBinding", NAME, None), json!({"roleRef": role, "subjects": [subject]})),
        with(object("batch/v1", "Job", NAME, namespace), json!({"spec": job})),
    ];
    let hook = |(order, mut object): (usize, Value)| {
        object["metadata"]["annotations"] = json!({
            "helm.sh/hook": "pre-delete",
            "helm.sh/hook-weight": order.to_string(),
            // The Job of a failed removal stays, with the reason in its log.
            "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded",
        });
        object
    };
    all.into_iter().enumerate().map(hook).collect()
}
