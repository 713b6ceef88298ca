//! Services, with upstream's names.

use api::downloads;
use api::hostpath::{METADATA_PORT, METADATA_SERVICE};
use serde_json::{Value, json};

use super::{HEALTH, HTTPS, METRICS, OPERATOR, SCRAPED, Settings, object, with};

/// Service of the MAC pool's webhook.
pub(super) const MACPOOL: &str = "kubemacpool-service";

/// Services of the operator: name, port, labels by which Prometheus finds it.
const OF_OPERATOR: [(&str, u16, Option<&str>); 6] = [
    ("virt-api", 443, None),
    ("cdi-api", 443, None),
    ("kubevirt-operator-webhook", 443, None),
    ("hco-webhook-service", 443, None),
    ("kubevirt-hyperconverged-operator-metrics", HTTPS, Some("prometheus.hco.kubevirt.io")),
    ("cdi-prometheus-metrics", HTTPS, Some("prometheus.cdi.kubevirt.io")),
];

/// All Services.
pub(super) fn services(settings: &Settings) -> Vec<Value> {
    let service = |name: &str, selector: (&str, &str), port: Value| {
        with(
            object("v1", "Service", name, Some(&settings.namespace)),
            json!({"spec": {"selector": {selector.0: selector.1}, "ports": [port]}}),
        )
    };
    let mut all: Vec<Value> = OF_OPERATOR
        .iter()
        .map(|(name, port, monitored)| {
            let (port_name, target) =
                if monitored.is_some() { ("metrics", HEALTH) } else { ("https", HTTPS) };
            let port = json!({"name": port_name, "port": port, "targetPort": target, "protocol": "TCP"});
            let mut service = service(name, OPERATOR, port);
            if let Some(label) = monitored {
                service["metadata"]["labels"] = json!({*label: "true"});
            }
            service
        })
        .collect();
    let mut proxy = service(
        "cdi-uploadproxy",
        ("cdi.kubevirt.io", "cdi-uploadproxy"),
        json!({"name": "https", "port": 443, "targetPort": 8443, "protocol": "TCP"}),
    );
    proxy["metadata"]["labels"] = json!({"cdi.kubevirt.io": "cdi-uploadproxy"});
    let mut poller = service(
        api::poll::SERVICE,
        ("cdi.kubevirt.io", "cdi-uploadproxy"),
        json!({"name": "poll", "port": 443, "targetPort": api::poll::PORT, "protocol": "TCP"}),
    );
    poller["metadata"]["labels"] = json!({"cdi.kubevirt.io": api::poll::SERVICE});
    let clients = service(
        downloads::SERVICE,
        ("cdi.kubevirt.io", "cdi-uploadproxy"),
        json!({"name": "http", "port": downloads::PORT, "targetPort": downloads::PORT, "protocol": "TCP"}),
    );
    all.extend([proxy, poller, clients]);
    // Upstream's: one Service for all pods with the label, over TLS.
    let mut scraped = service(
        "kubevirt-prometheus-metrics",
        SCRAPED,
        json!({"name": "metrics", "port": 443, "targetPort": METRICS, "protocol": "TCP"}),
    );
    scraped["metadata"]["labels"] = json!({SCRAPED.0: SCRAPED.1});
    all.push(scraped);
    all.push(service(
        MACPOOL,
        ("control-plane", "mac-controller-manager"),
        json!({"name": "webhook", "port": 443, "targetPort": 8000, "protocol": "TCP"}),
    ));
    let mut metrics = service(
        "kubemacpool-metrics-service",
        ("control-plane", "mac-controller-manager"),
        json!({"name": "metrics", "port": 8443, "targetPort": 8443, "protocol": "TCP"}),
    );
    metrics["metadata"]["labels"] =
        json!({"control-plane": "mac-controller-manager", "prometheus.kubemacpool.io": "true"});
    let mut pools = service(
        "hpp-prometheus-metrics",
        ("k8s-app", "hostpath-provisioner"),
        json!({"name": "metrics", "port": 8443, "targetPort": 8443, "protocol": "TCP"}),
    );
    pools["metadata"]["labels"] = json!({"prometheus.hostpathprovisioner.kubevirt.io": "true"});
    let metadata = service(
        METADATA_SERVICE,
        ("kubevirt.io", "virt-handler"),
        json!({"name": "grpc", "port": METADATA_PORT, "targetPort": METADATA_PORT, "protocol": "TCP"}),
    );
    all.extend([metrics, pools, metadata]);
    all
}
