//! NetworkPolicies of the platform's pods: which ports are reached, and from where.

use serde_json::{Value, json};

use super::{HEALTH, HTTPS, METRICS, OPERATOR, Settings, object, with};

/// All policies. Ports that nodes and the API server reach are open to all sources: their addresses are not pods'.
pub(super) fn policies(settings: &Settings) -> Vec<Value> {
    let policy = |name: &str, selector: Value, ingress: Value| {
        with(
            object("networking.k8s.io/v1", "NetworkPolicy", name, Some(&settings.namespace)),
            json!({"spec": {
                "podSelector": {"matchLabels": selector},
                "policyTypes": ["Ingress"],
                "ingress": ingress,
            }}),
        )
    };
    let macpool = json!({"control-plane": "mac-controller-manager"});
    // Pods that mount a claim for a pool, and jobs that unmount it, listen to nothing. An empty list is not stored: applied
    // again, it would change the object.
    let mut pools = policy("hpp-pool", json!({}), json!(null));
    pools["spec"] = json!({
        "podSelector": {"matchExpressions": [{"key": super::pools::LABEL, "operator": "Exists"}]},
        "policyTypes": ["Ingress"],
    });
    vec![
        pools,
        policy(
            "ferrovirt-operator",
            json!({OPERATOR.0: OPERATOR.1}),
            json!([{"ports": [{"port": HTTPS}, {"port": HEALTH}]}]),
        ),
        policy(
            "virt-handler",
            json!({"kubevirt.io": "virt-handler"}),
            json!([
                {
                    "ports": [{"port": 8186}],
                    "from": [{"podSelector": {"matchLabels": {OPERATOR.0: OPERATOR.1}}}],
                },
                // Probes; metrics; changed blocks, for clients with a token.
                {"ports": [{"port": 8187}, {"port": METRICS}, {"port": api::hostpath::METADATA_PORT}]},
            ]),
        ),
        policy(
            "cdi-uploadproxy",
            json!({"cdi.kubevirt.io": "cdi-uploadproxy"}),
            json!([
                {"ports": [{"port": 8443}, {"port": api::downloads::PORT}]},
                {
                    "ports": [{"port": api::poll::PORT}],
                    "from": [{"podSelector": {"matchLabels": {OPERATOR.0: OPERATOR.1}}}],
                },
            ]),
        ),
        policy(
            "hostpath-provisioner-csi",
            json!({"k8s-app": "hostpath-provisioner"}),
            json!([{"ports": [{"port": 9898}, {"port": 8443}]}]),
        ),
        policy(
            "kubemacpool-mac-controller-manager",
            macpool.clone(),
            json!([
                {"ports": [{"port": 8000}, {"port": 8443}]},
                {"ports": [{"port": 8001}], "from": [{"podSelector": {"matchLabels": macpool}}]},
            ]),
        ),
    ]
}
