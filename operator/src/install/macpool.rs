//! The MAC pool: its objects, which the operator makes for a `NetworkAddonsConfig`. Its account, rights, Services and
//! NetworkPolicy are installed with everything else.

use serde_json::{Value, json};

use super::workloads::{WITHDRAWAL, budget, confined, deployment, field, pod, withdrawal};
use super::{Settings, accounts, label, object, webhooks, with};

/// Name of the Deployment.
pub const DEPLOYMENT: &str = "kubemacpool-mac-controller-manager";
/// Name of the ConfigMap with the range.
pub const RANGE: &str = "kubemacpool-mac-range-config";
/// Name of the webhook's Service.
pub const SERVICE: &str = super::services::MACPOOL;
/// Name of the webhook configuration.
pub const WEBHOOK: &str = "kubemacpool-mutator";

/// Choices of a `NetworkAddonsConfig`.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// First and last address.
    pub range: (String, String),
    /// Replicas: two where two nodes take pods, else one.
    pub replicas: u32,
    /// When authority and certificate are renewed, and for how long the old ones are valid: `CA_ROTATE_INTERVAL` and so on.
    pub intervals: [(&'static str, String); 4],
    /// Pull policy of the image, if one is given.
    pub pull_policy: Option<String>,
    /// `nodeSelector`, `affinity` and `tolerations` of the pods, as far as given.
    pub placement: Value,
    /// Arguments for TLS.
    pub tls: Vec<String>,
}

impl Default for Pool {
    fn default() -> Self {
        let text = |text: &str| text.to_owned();
        Self {
            range: (text("02:00:00:00:00:00"), text("02:ff:ff:ff:ff:ff")),
            replicas: 2,
            intervals: [
                ("CA_ROTATE_INTERVAL", text("48h0m0s")),
                ("CA_OVERLAP_INTERVAL", text("24h0m0s")),
                ("CERT_ROTATE_INTERVAL", text("24h0m0s")),
                ("CERT_OVERLAP_INTERVAL", text("12h0m0s")),
            ],
            pull_policy: None,
            placement: json!({}),
            tls: Vec::new(),
        }
    }
}

/// All objects, in the order in which they are created: the webhook comes last.
pub fn objects(settings: &Settings, pool: &Pool) -> Vec<Value> {
    let settings = &Settings { replicas: pool.replicas, ..settings.clone() };
    let mut all = vec![ranges(settings, pool), manager(settings, pool)];
    if pool.replicas > 1 {
        let selector = json!({"control-plane": "mac-controller-manager"});
        all.push(budget(settings, DEPLOYMENT, &selector));
    }
    all.push(webhooks::macpool(settings));
    for object in &mut all {
        label(object);
    }
    all
}

/// The range.
fn ranges(settings: &Settings, pool: &Pool) -> Value {
    let (first, last) = &pool.range;
    let mut ranges = with(
        object("v1", "ConfigMap", RANGE, Some(&settings.namespace)),
        json!({"data": {"RANGE_START": first, "RANGE_END": last}}),
    );
    ranges["metadata"]["labels"] = json!({"control-plane": "mac-controller-manager"});
    ranges
}

fn manager(settings: &Settings, pool: &Pool) -> Value {
    let range =
        |key: &str| json!({"name": key, "valueFrom": {"configMapKeyRef": {"name": RANGE, "key": key}}});
    // Upstream's selector; a Deployment's cannot be changed.
    let selector = json!({"control-plane": "mac-controller-manager", "controller-tools.k8s.io": "1.0"});
    let labels = json!({
        "app": "kubemacpool",
        "control-plane": "mac-controller-manager",
        "controller-tools.k8s.io": "1.0",
    });
    let mut environment = vec![
        field("POD_NAMESPACE", "metadata.namespace"),
        field("POD_NAME", "metadata.name"),
        field("POD_IP", "status.podIP"),
        range("RANGE_START"),
        range("RANGE_END"),
    ];
    environment.extend(pool.intervals.iter().map(|(name, value)| json!({"name": name, "value": value})));
    let mut arguments = vec!["--v=production".to_owned(), "--wait-time=300".to_owned()];
    arguments.extend(pool.tls.iter().cloned());
    let mut container = json!({
        "name": "manager",
        "image": settings.image("macpool"),
        "args": arguments,
        "env": environment,
        "ports": [
            {"name": "webhook-server", "containerPort": 8000, "protocol": "TCP"},
            {"name": "replicas", "containerPort": 8001, "protocol": "TCP"},
            {"name": "metrics", "containerPort": 8443, "protocol": "TCP"},
        ],
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": "webhook-server", "scheme": "HTTPS"},
            "periodSeconds": 2,
        },
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": "webhook-server", "scheme": "HTTPS"},
            "initialDelaySeconds": 30,
            "periodSeconds": 10,
        },
        "resources": {"requests": {"cpu": "20m", "memory": "32Mi"}},
        "lifecycle": withdrawal(),
        "securityContext": confined(),
    });
    if let Some(policy) = &pool.pull_policy {
        container["imagePullPolicy"] = json!(policy);
    }
    let mut spec =
        pod(settings, accounts::MACPOOL, &json!({"control-plane": "mac-controller-manager"}), &container);
    // A replica that ends answers for 2 seconds more, after its preStop hook, and releases its blocks.
    spec["terminationGracePeriodSeconds"] = json!(10 + WITHDRAWAL);
    let spec = with(spec, pool.placement.clone());
    deployment(settings, DEPLOYMENT, settings.replicas, &selector, &labels, &spec)
}
