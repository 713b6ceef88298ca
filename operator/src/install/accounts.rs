//! Namespace, priority class and ServiceAccounts.

use serde_json::{Value, json};

use super::{Settings, object, with};

/// ServiceAccount of the operator; upstream's name, which security policies and documentation refer to.
pub(super) const OPERATOR: &str = "kubevirt-controller";
/// ServiceAccount of the node agent.
pub(super) const AGENT: &str = "kubevirt-handler";
/// ServiceAccount of the MAC pool.
pub(super) const MACPOOL: &str = "kubemacpool-sa";
/// ServiceAccount of the upload proxy.
pub(super) const UPLOAD_PROXY: &str = "cdi-uploadproxy";
/// ServiceAccount of the CSI sidecars.
pub(super) const HOSTPATH: &str = "hostpath-provisioner-admin-csi";
/// Priority class of the platform's pods.
pub(super) const PRIORITY: &str = "kubevirt-cluster-critical";

/// The namespace of everything else.
pub(super) fn namespace(settings: &Settings) -> Vec<Value> {
    let mut namespace = object("v1", "Namespace", &settings.namespace, None);
    // The node agent and the CSI driver mount and wire networks: their pods are privileged. The label of run levels
    // keeps the MAC pool's webhook out of its own way.
    namespace["metadata"]["labels"] = json!({
        "pod-security.kubernetes.io/enforce": "privileged",
        "openshift.io/cluster-monitoring": "true",
        "runlevel": "0",
    });
    let priority = with(
        object("scheduling.k8s.io/v1", "PriorityClass", PRIORITY, None),
        json!({
            "value": 1_000_000_000,
            "globalDefault": false,
            "description": "Pods that virtual machines depend on",
        }),
    );
    vec![namespace, priority]
}

/// The accounts of all pods that use the API.
pub(super) fn accounts(settings: &Settings) -> Vec<Value> {
    [OPERATOR, AGENT, MACPOOL, UPLOAD_PROXY, HOSTPATH]
        .iter()
        .map(|name| object("v1", "ServiceAccount", name, Some(&settings.namespace)))
        .collect()
}
