//! Deployments: operator, upload proxy. They run unprivileged, without capabilities and with a read-only root.

use api::downloads;
use serde_json::{Value, json};

use super::accounts::{self, PRIORITY};
use super::{HEALTH, HTTPS, OPERATOR, OPERATOR_DEPLOYMENT, SCRAPED, Settings, object, with};
use crate::defaults::KUBELET_DIRECTORY;

/// Name of the volume of supplied clients.
pub(super) const CLIENTS: &str = "clients";

/// All Deployments, with what they need besides accounts and Services.
pub(super) fn workloads(settings: &Settings) -> Vec<Value> {
    vec![operator(settings), upload_proxy(settings)]
}

/// Seconds that a pod serves after its deletion, before SIGTERM: for that long an API server, or a Service's clients, may
/// still send requests to it. A process that has just started would not receive the signal: as the first of its container
/// it ignores those that it does not handle yet.
pub(super) const WITHDRAWAL: u64 = 5;

/// The hook that makes the kubelet wait before it sends SIGTERM.
pub(super) fn withdrawal() -> Value {
    json!({"preStop": {"sleep": {"seconds": WITHDRAWAL}}})
}

/// An environment variable from a field of the pod.
pub(super) fn field(name: &str, path: &str) -> Value {
    json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
}

/// Rights of a container that needs none.
pub(super) fn confined() -> Value {
    json!({
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "capabilities": {"drop": ["ALL"]},
    })
}

/// Fields that the pods of all Deployments have.
pub(super) fn pod(settings: &Settings, account: &str, labels: &Value, container: &Value) -> Value {
    let mut spec = json!({
        "serviceAccountName": account,
        "priorityClassName": PRIORITY,
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": 65534,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
    });
    if settings.replicas != 1 {
        spec["topologySpreadConstraints"] = json!([{
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": labels},
        }]);
    }
    spec
}

/// A Deployment. A new pod is ready before an old one ends: also one replica has a ready pod at every moment of an update.
pub(super) fn deployment(
    settings: &Settings,
    name: &str,
    replicas: u32,
    selector: &Value,
    labels: &Value,
    spec: &Value,
) -> Value {
    let mut deployment = with(
        object("apps/v1", "Deployment", name, Some(&settings.namespace)),
        json!({"spec": {
            "replicas": replicas,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "selector": {"matchLabels": selector},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        }}),
    );
    deployment["metadata"]["labels"] = labels.clone();
    deployment
}

pub(super) fn budget(settings: &Settings, name: &str, selector: &Value) -> Value {
    with(
        object("policy/v1", "PodDisruptionBudget", name, Some(&settings.namespace)),
        json!({"spec": {"minAvailable": 1, "selector": {"matchLabels": selector}}}),
    )
}

fn operator(settings: &Settings) -> Value {
    let selector = json!({OPERATOR.0: OPERATOR.1});
    let labels = json!({OPERATOR.0: OPERATOR.1, SCRAPED.0: SCRAPED.1});
    let mut container = json!({
        "name": "operator",
        "image": settings.image("operator"),
        "args": ["run"],
        "env": [
            field("OPERATOR_NAMESPACE", "metadata.namespace"),
            field("POD_NAME", "metadata.name"),
            field("POD_IP", "status.podIP"),
            {"name": "IMAGE", "value": settings.image},
        ],
        "ports": [
            {"name": "https", "containerPort": HTTPS, "protocol": "TCP"},
            {"name": "health", "containerPort": HEALTH, "protocol": "TCP"},
        ],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "health"}, "periodSeconds": 2},
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": "health"},
            "initialDelaySeconds": 30,
            "periodSeconds": 10,
        },
        "resources": {"requests": {"cpu": "50m", "memory": format!("{}Mi", settings.operator_memory())}},
        "lifecycle": withdrawal(),
        "securityContext": confined(),
    });
    if settings.emulation
        && let Some(environment) = container["env"].as_array_mut()
    {
        environment.push(json!({"name": "KVM_EMULATION", "value": "true"}));
    }
    if settings.replicas == 0
        && let Some(environment) = container["env"].as_array_mut()
    {
        environment.push(json!({"name": "SCALE", "value": "true"}));
    }
    if settings.kubelet_directory != KUBELET_DIRECTORY
        && let Some(environment) = container["env"].as_array_mut()
    {
        environment.push(json!({"name": "KUBELET_DIRECTORY", "value": settings.kubelet_directory}));
    }
    let spec = pod(settings, accounts::OPERATOR, &selector, &container);
    let mut deployment =
        deployment(settings, OPERATOR_DEPLOYMENT, settings.replicas, &selector, &labels, &spec);
    // The operator's own field then: applied again, the manifest leaves it alone.
    if settings.replicas == 0
        && let Some(spec) = deployment["spec"].as_object_mut()
    {
        spec.remove("replicas");
    }
    deployment
}

/// The volume of supplied clients: a claim of the administrator's, or nothing.
pub(super) fn clients(claim: &str) -> Value {
    if claim.is_empty() {
        return json!({"name": CLIENTS, "emptyDir": {}});
    }
    json!({"name": CLIENTS, "persistentVolumeClaim": {"claimName": claim, "readOnly": true}})
}

fn upload_proxy(settings: &Settings) -> Value {
    let labels = json!({"cdi.kubevirt.io": "cdi-uploadproxy"});
    let mount = |name: &str, path: &str| json!({"name": name, "mountPath": path, "readOnly": true});
    let container = json!({
        "name": "cdi-uploadproxy",
        "image": settings.image("uploadproxy"),
        "args": ["-v=1"],
        "env": [
            {"name": "APISERVER_PUBLIC_KEY_FILE", "value": "/var/run/keys/id_rsa.pub"},
            {"name": "APISERVER_REVOKED_KEYS_FILE", "value": "/var/run/revoked/revoked.pub"},
            {"name": "POLL_LISTEN", "value": format!("[::]:{}", api::poll::PORT)},
            {"name": "POLL_CLIENT_CA_FILE", "value": "/var/run/certs/client-signer/ca-bundle.crt"},
            {"name": "DOWNLOADS_LISTEN", "value": format!("[::]:{}", downloads::PORT)},
        ],
        "ports": [
            {"name": "https", "containerPort": 8443, "protocol": "TCP"},
            {"name": "poll", "containerPort": api::poll::PORT, "protocol": "TCP"},
            {"name": "downloads", "containerPort": downloads::PORT, "protocol": "TCP"},
        ],
        "readinessProbe": {
            "httpGet": {"scheme": "HTTPS", "port": 8443, "path": "/healthz"},
            "initialDelaySeconds": 1,
            "periodSeconds": 5,
        },
        "lifecycle": withdrawal(),
        "resources": {"requests": {"cpu": "20m", "memory": "24Mi"}},
        "securityContext": confined(),
        "volumeMounts": [
            mount("server-cert", "/var/run/certs/cdi-uploadproxy-server-cert"),
            mount("client-cert", "/var/run/certs/cdi-uploadserver-client-cert"),
            mount("client-signer", "/var/run/certs/client-signer"),
            mount("keys", "/var/run/keys"),
            mount("revoked", "/var/run/revoked"),
            mount("clients", "/var/run/clients"),
        ],
    });
    let mut spec = pod(settings, accounts::UPLOAD_PROXY, &labels, &container);
    // Time for running uploads to finish when the pod ends.
    spec["terminationGracePeriodSeconds"] = json!(3600);
    spec["volumes"] = json!([
        {"name": "server-cert", "secret": {"secretName": "cdi-uploadproxy-server-cert"}},
        {"name": "client-cert", "secret": {"secretName": "cdi-uploadserver-client-cert"}},
        {"name": "client-signer", "configMap": {"name": "cdi-uploadserver-client-signer-bundle"}},
        // The private key is not mounted.
        {
            "name": "keys",
            "secret": {
                "secretName": "cdi-api-signing-key",
                "items": [{"key": "id_rsa.pub", "path": "id_rsa.pub"}],
            },
        },
        {"name": "revoked", "configMap": {"name": "cdi-uploadproxy-revoked-keys", "optional": true}},
        clients(&settings.clients_claim),
    ]);
    deployment(settings, "cdi-uploadproxy", 1, &labels, &labels, &spec)
}
