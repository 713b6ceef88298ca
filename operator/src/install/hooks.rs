//! Objects of the Helm chart that run around `helm uninstall`: Jobs with `operator uninstall`, and their rights. The first
//! removes the objects that switch the platform on; it fails while virtual machines or DataVolumes exist, and Helm stops.
//! The second removes what agents wrote on nodes, when they are gone.
//!
//! Not here: what the chart installs.

use serde_json::{Value, json};

use super::roles::{RBAC, rule};
use super::workloads::{confined, field};
use super::{Settings, object, with};

/// Seconds until a Job gives up; Helm waits as long by default.
const DEADLINE: u64 = 290;

/// A Job of `operator uninstall`, and when Helm runs it.
struct Hook<'a> {
    /// Name of its objects.
    name: &'a str,
    /// Helm's name of the event.
    event: &'a str,
    /// Option of the command.
    option: &'a str,
    rules: Vec<Value>,
}

/// All objects, in the order in which Helm makes them.
pub(super) fn all(settings: &Settings) -> Vec<Value> {
    let switches = |group: &str, plural: &str| rule(group, &[plural], &["get", "list", "delete"]);
    let before = Hook {
        name: "ferrovirt-uninstall",
        event: "pre-delete",
        option: "--only-custom-resources",
        rules: crate::removal::SWITCHES.map(|(_, one)| switches(one.group, one.plural)).to_vec(),
    };
    let after = Hook {
        name: "ferrovirt-clean-nodes",
        event: "post-delete",
        option: "--only-nodes",
        rules: vec![rule("", &["nodes"], &["list", "patch"]), rule("", &["nodes/status"], &["patch"])],
    };
    [before, after].iter().flat_map(|hook| hook.objects(settings)).collect()
}

impl Hook<'_> {
    fn objects(&self, settings: &Settings) -> Vec<Value> {
        let (name, namespace) = (self.name, Some(settings.namespace.as_str()));
        let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name});
        let subject = json!({"kind": "ServiceAccount", "name": name, "namespace": settings.namespace});
        let container = json!({
            "name": "uninstall",
            "image": settings.image("operator"),
            "args": ["uninstall", self.option, format!("--timeout={}", DEADLINE - 10)],
            "env": [field("OPERATOR_NAMESPACE", "metadata.namespace")],
            "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
            "securityContext": confined(),
        });
        let job = json!({
            "backoffLimit": 0,
            "activeDeadlineSeconds": DEADLINE,
            "template": {"spec": {
                "serviceAccountName": name,
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
            object("v1", "ServiceAccount", name, namespace),
            with(object(RBAC, "ClusterRole", name, None), json!({"rules": self.rules})),
            with(
                object(RBAC, "ClusterRoleBinding", name, None),
                json!({"roleRef": role, "subjects": [subject]}),
            ),
            with(object("batch/v1", "Job", name, namespace), json!({"spec": job})),
        ];
        let annotated = |(order, mut object): (usize, Value)| {
            object["metadata"]["annotations"] = json!({
                "helm.sh/hook": self.event,
                "helm.sh/hook-weight": order.to_string(),
                // The Job of a failed removal stays, with the reason in its log.
                "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded",
            });
            object
        };
        all.into_iter().enumerate().map(annotated).collect()
    }
}
