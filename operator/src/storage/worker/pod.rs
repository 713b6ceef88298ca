//! The common parts of all worker pods.

use serde_json::{Value, json};

use crate::storage::names;
use crate::storage::seen::{Claim, map};
use crate::storage::settings::Settings;

/// Images of the workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Images {
    /// Importer.
    pub importer: String,
    /// Upload server.
    pub uploadserver: String,
    /// Sending side of a clone.
    pub clone_source: String,
    /// `imagePullPolicy` of all of them.
    pub pull_policy: String,
}

/// Environment variables in a container's form.
pub(in crate::storage) fn environment(variables: Vec<(String, String)>) -> Vec<Value> {
    variables.into_iter().map(|(name, value)| json!({"name": name, "value": value})).collect()
}

/// The security context of every container: workers write to their volumes only.
pub(in crate::storage) fn restricted() -> Value {
    json!({
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "runAsNonRoot": true,
        "runAsUser": api::names::QEMU_ID,
        "runAsGroup": api::names::QEMU_ID,
    })
}

/// The volume of the claim that a worker writes to, and how the container gets it: mounts and devices.
pub(super) fn target(claim: &Claim) -> (Value, Value, Value) {
    let volume = json!({"name": "cdi-data-vol", "persistentVolumeClaim": {"claimName": claim.meta.name}});
    if claim.block {
        let device = json!([{"name": "cdi-data-vol", "devicePath": api::names::BLOCK_DEVICE}]);
        return (volume, json!([]), device);
    }
    (volume, json!([{"name": "cdi-data-vol", "mountPath": api::names::DATA_DIR}]), json!([]))
}

/// Annotations that pass from a claim to its worker's pod.
const PASSED_ON: [(&str, Option<&str>); 4] = [
    ("k8s.v1.cni.cncf.io/networks", None),
    ("v1.multus-cni.io/default-network", None),
    ("sidecar.istio.io/inject", Some("false")),
    ("linkerd.io/inject", Some("disabled")),
];

/// The annotations of a worker's pod: `own`, and those that pass from the user's claim.
pub(super) fn annotations(claim: &Claim, own: &str) -> Value {
    let mut annotations = json!({own: "yes"});
    for (name, usual) in PASSED_ON {
        if let Some(value) = claim.meta.annotation(name).or(usual) {
            annotations[name] = json!(value);
        }
    }
    annotations
}

/// Fills in the parts of a pod's spec that the user's claim and the settings decide.
pub(in crate::storage) fn complete(spec: &mut Value, claim: &Claim, settings: &Settings) {
    spec["enableServiceLinks"] = json!(false);
    spec["securityContext"] = json!({
        "runAsNonRoot": true, "runAsUser": api::names::QEMU_ID, "fsGroup": api::names::QEMU_ID,
        "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": {"type": "RuntimeDefault"},
    });
    for (annotation, field) in
        [(names::PRIORITY_CLASS, "priorityClassName"), (names::SERVICE_ACCOUNT, "serviceAccountName")]
    {
        if let Some(value) = claim.meta.annotation(annotation).filter(|value| !value.is_empty()) {
            spec[field] = json!(value);
        }
    }
    for field in ["nodeSelector", "affinity", "tolerations"] {
        let value = &settings.placement[field];
        if !value.is_null() {
            spec[field] = value.clone();
        }
    }
    // A worker never talks to the cluster; an account is for its image pull secrets.
    spec["automountServiceAccountToken"] = json!(false);
    if !settings.pull_secrets.is_empty() {
        let secrets: Vec<Value> = settings.pull_secrets.iter().map(|name| json!({"name": name})).collect();
        spec["imagePullSecrets"] = Value::Array(secrets);
    }
}

/// The argument that sets the verbosity of a worker's log.
pub(in crate::storage) fn verbosity(settings: &Settings) -> String {
    format!("-v={}", settings.verbosity)
}

/// The resources of a worker: limits never below requests.
pub(in crate::storage) fn resources(settings: &Settings) -> Value {
    let mut resources = settings.resources.clone();
    for (name, asked) in map(&settings.resources["requests"]) {
        let bytes = |text: &str| api::quantity::bytes(text).ok();
        let limit = settings.resources["limits"][&name].as_str().and_then(bytes);
        if let (Some(asked_bytes), Some(limit)) = (bytes(&asked), limit)
            && asked_bytes > limit
        {
            resources["limits"][&name] = json!(asked);
        }
    }
    resources
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_placed_by_the_settings() {
        let mut spec = json!({});
        let placement = json!({"nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}],
            "affinity": {"nodeAffinity": {}}});
        let settings = Settings { placement: placement.clone(), ..Settings::default() };
        complete(&mut spec, &Claim::default(), &settings);
        for field in ["nodeSelector", "affinity", "tolerations"] {
            assert_eq!(spec[field], placement[field]);
        }
        let mut spec = json!({});
        complete(&mut spec, &Claim::default(), &Settings::default());
        assert!(spec.get("nodeSelector").is_none() && spec.get("tolerations").is_none(), "{spec}");
    }
}
