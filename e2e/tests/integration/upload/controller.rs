//! Stands in for CDI's controller: makes upload servers' pods as it does (v1.66, `pkg/controller/upload-controller.go`, with
//! the names of `pkg/common`) and reports their progress in annotations and phases. Its Service is headless, or has an
//! address and port 443, as in its earlier versions: both are made.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use api::upload::annotation::{CONTENT_TYPE, POD_PHASE, POD_READY, TARGET};
use api::upload::{PROXY_CLIENT, service_name};
use e2e::volume::Volume;
use serde_json::{Value, json};

use crate::upload::objects::{annotation, create, delete, get, list, patch, patch_status, until};
use crate::upload::site::certificate;
use crate::upload::{CLUSTER, SITE};

/// The image under test.
const IMAGE: &str = "localhost/ferrovirt:uploadserver";
const CLAIM: &str = "PersistentVolumeClaim";

/// The result of `SetRestrictedSecurityContext` (`pkg/controller/common`) for a container; a pod with mounts gets fsGroup
/// 107.
pub(crate) fn restricted() -> Value {
    json!({
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
        "allowPrivilegeEscalation": false,
        "runAsNonRoot": true,
        "runAsUser": 107,
    })
}

pub(crate) fn resources() -> Value {
    json!({"requests": {"cpu": "100m", "memory": "60M"}, "limits": {"cpu": "750m", "memory": "600M"}})
}

/// Makes Secret, Service and pod of a claim's upload server, for this client; gives the name of all three.
pub(crate) fn serve(claim: &Value, client: &str, headless: bool) -> String {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let (namespace, claim_name) = (text(&claim["metadata"]["namespace"]), text(&claim["metadata"]["name"]));
    let uid = text(&claim["metadata"]["uid"]);
    let name = service_name(&claim_name);
    let host = format!("{name}.{namespace}.svc");
    create("Secret", &namespace, certificate(&SITE.authority, &name, &host, std::slice::from_ref(&host)));
    let (port, address) = if headless { (8443, json!("None")) } else { (443, Value::Null) };
    create(
        "Service",
        &namespace,
        json!({
            "metadata": {"name": name, "labels": {"cdi.kubevirt.io": "cdi-upload-server"}},
            "spec": {
                "clusterIP": address,
                "ports": [{"protocol": "TCP", "port": port, "targetPort": 8443}],
                "selector": {"service": name},
            },
        }),
    );
    let block = claim["spec"]["volumeMode"] == "Block";
    let set = |name: &str, value: &str| json!({"name": name, "value": value});
    let size = claim["spec"]["resources"]["requests"]["storage"].as_str().unwrap();
    let mut environment = vec![
        set("TLS_KEY_FILE", "/etc/tls/tls.key"),
        set("TLS_CERT_FILE", "/etc/tls/tls.crt"),
        set("CLIENT_CERT_FILE", "/etc/tls/ca.crt"),
        set("FILESYSTEM_OVERHEAD", if block { "0" } else { "0.06" }),
        set("UPLOAD_IMAGE_SIZE", size),
        set("CLIENT_NAME", client),
        set("DEADLINE", "2199-01-01T00:00:00Z"),
        set("PREALLOCATION", "false"),
        set("TLS_CIPHERS", "TLS_AES_128_GCM_SHA256,ECDHE-ECDSA-AES128-GCM-SHA256"),
        set("TLS_MIN_VERSION", "VersionTLS12"),
    ];
    let mut mounts = vec![json!({"name": "tls-config", "mountPath": "/etc/tls"})];
    let mut devices = Vec::new();
    let mut volumes = vec![
        json!({"name": "cdi-data-vol", "persistentVolumeClaim": {"claimName": claim_name}}),
        json!({"name": "tls-config", "secret": {"secretName": name}}),
    ];
    // Every upload has scratch there, and no clone.
    let scratch = (client == PROXY_CLIENT).then(|| scratch_name(&claim_name));
    if let Some(scratch) = &scratch {
        mounts.push(json!({"name": "cdi-scratch-vol", "mountPath": "/scratch"}));
        volumes.push(json!({"name": "cdi-scratch-vol", "persistentVolumeClaim": {"claimName": scratch}}));
    }
    if block {
        environment.push(set("DESTINATION", "/dev/cdi-block-volume"));
        devices.push(json!({"name": "cdi-data-vol", "devicePath": "/dev/cdi-block-volume"}));
    } else {
        mounts.push(json!({"name": "cdi-data-vol", "mountPath": "/data"}));
    }
    let container = json!({
        "name": "cdi-upload-server",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "args": ["-v=1"],
        "env": environment,
        "readinessProbe": {
            "httpGet": {"path": "/healthz", "port": 8443, "scheme": "HTTPS"},
            "initialDelaySeconds": 2, "periodSeconds": 5,
        },
        "resources": resources(),
        "securityContext": restricted(),
        "volumeMounts": mounts,
        "volumeDevices": devices,
    });
    let pod = create(
        "Pod",
        &namespace,
        json!({
            "metadata": {
                "name": name,
                "annotations": {"cdi.kubevirt.io/storage.createdByUploadController": "yes"},
                "labels": {
                    "app": "containerized-data-importer",
                    "cdi.kubevirt.io": "cdi-upload-server",
                    "cdi.kubevirt.io/uploadTarget": uid,
                    "service": name,
                },
                "ownerReferences": [{
                    "apiVersion": "v1", "kind": CLAIM, "name": claim_name, "uid": uid,
                    "blockOwnerDeletion": true, "controller": true,
                }],
            },
            "spec": {
                "restartPolicy": "OnFailure",
                "securityContext": {"fsGroup": 107},
                "containers": [container],
                "volumes": volumes,
            },
        }),
    );
    if let Some(scratch) = scratch {
        make_scratch(claim, &pod, &scratch);
    }
    name
}

/// Name of the claim that an upload to `claim` has at /scratch.
fn scratch_name(claim: &str) -> String {
    format!("{claim}-scratch")
}

/// Makes the claim of a pod's scratch, of the size of the one that is filled. It goes with the pod.
fn make_scratch(claim: &Value, pod: &Value, name: &str) {
    let namespace = claim["metadata"]["namespace"].as_str().unwrap();
    let resources = &claim["spec"]["resources"];
    let size = resources["requests"]["storage"].as_str().unwrap().parse().unwrap();
    Volume::folder(&CLUSTER, namespace, name, size).unwrap();
    create(
        CLAIM,
        namespace,
        json!({
            "metadata": {
                "name": name,
                "labels": {"app": "containerized-data-importer"},
                "ownerReferences": [{
                    "apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"],
                    "uid": pod["metadata"]["uid"], "blockOwnerDeletion": true, "controller": true,
                }],
            },
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": resources},
        }),
    );
}

/// The clean-up after a claim is filled: its server goes, and with that its scratch.
pub(crate) fn clean_up(namespace: &str, claim: &str) {
    until(&format!("{claim} is filled"), || {
        (annotation(&get(CLAIM, namespace, claim)?, POD_PHASE) == Some("Succeeded")).then_some(())
    });
    let (server, scratch) = (service_name(claim), scratch_name(claim));
    assert!(get(CLAIM, namespace, &scratch).is_some(), "{scratch} is as long as its pod");
    for kind in ["Service", "Pod"] {
        delete(kind, namespace, &server);
    }
    until(&format!("{scratch} is gone"), || get(CLAIM, namespace, &scratch).is_none().then_some(()));
}

/// Whether a pod answers its probe.
pub(crate) fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
}

/// Acts for the claims and DataVolumes of a namespace, until it is dropped.
pub(crate) struct Controller {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Controller {
    pub(crate) fn start(namespace: &'static str) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let end = ended.clone();
        let thread = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                list("DataVolume", namespace).iter().for_each(|volume| of_data_volume(namespace, volume));
                list(CLAIM, namespace).iter().for_each(|claim| of_claim(namespace, claim));
                std::thread::sleep(Duration::from_millis(300));
            }
        });
        Self { ended, thread: Some(thread) }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

fn of_claim(namespace: &str, claim: &Value) {
    let Some(name) = claim["metadata"]["name"].as_str() else { return };
    if annotation(claim, TARGET).is_none() || annotation(claim, POD_PHASE) == Some("Succeeded") {
        return;
    }
    let server = service_name(name);
    let Some(pod) = get("Pod", namespace, &server) else {
        // Every other one by its address: both kinds of Service are out there.
        serve(claim, PROXY_CLIENT, name.len() % 2 == 0);
        return;
    };
    let phase = pod["status"]["phase"].as_str().unwrap_or_default();
    let ready = if is_ready(&pod) { "true" } else { "false" };
    if annotation(claim, POD_PHASE) != Some(phase) || annotation(claim, POD_READY) != Some(ready) {
        let annotations = json!({POD_PHASE: phase, POD_READY: ready});
        patch(CLAIM, namespace, name, &json!({"metadata": {"annotations": annotations}}));
    }
}

fn of_data_volume(namespace: &str, volume: &Value) {
    let Some(name) = volume["metadata"]["name"].as_str() else { return };
    let Some(claim) = get(CLAIM, namespace, name) else {
        let content = volume["spec"]["contentType"].as_str().unwrap_or("kubevirt");
        create(
            CLAIM,
            namespace,
            json!({
                "metadata": {
                    "name": name,
                    "annotations": {TARGET: "", CONTENT_TYPE: content},
                    "ownerReferences": [{
                        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "name": name,
                        "uid": volume["metadata"]["uid"], "blockOwnerDeletion": true, "controller": true,
                    }],
                },
                "spec": volume["spec"]["storage"],
            }),
        );
        return;
    };
    let phase = match (annotation(&claim, POD_PHASE), annotation(&claim, POD_READY)) {
        (Some("Succeeded"), _) => "Succeeded",
        (_, Some("true")) => "UploadReady",
        (_, _) => "UploadScheduled",
    };
    if volume["status"]["phase"] != phase {
        patch_status("DataVolume", namespace, name, &json!({"phase": phase}));
    }
}
