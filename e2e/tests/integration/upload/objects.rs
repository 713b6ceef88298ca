//! Objects of the cluster as JSON, by kind and name, and waiting for what becomes of them.

use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::upload::CLUSTER;

fn resource(kind: &str) -> (ApiResource, bool) {
    let (group, version, plural, namespaced) = match kind {
        "Pod" => ("", "v1", "pods", true),
        "Secret" => ("", "v1", "secrets", true),
        "ConfigMap" => ("", "v1", "configmaps", true),
        "Service" => ("", "v1", "services", true),
        "Endpoints" => ("", "v1", "endpoints", true),
        "Event" => ("", "v1", "events", true),
        "PersistentVolumeClaim" => ("", "v1", "persistentvolumeclaims", true),
        "DataVolume" => ("cdi.kubevirt.io", "v1beta1", "datavolumes", true),
        "CDIConfig" => ("cdi.kubevirt.io", "v1beta1", "cdiconfigs", false),
        "UploadTokenRequest" => ("upload.cdi.kubevirt.io", "v1beta1", "uploadtokenrequests", true),
        "APIService" => ("apiregistration.k8s.io", "v1", "apiservices", false),
        other => panic!("no kind {other}"),
    };
    (ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural), namespaced)
}

/// All objects of a kind, in a namespace or of the cluster.
fn api(kind: &str, namespace: &str) -> Api<DynamicObject> {
    match resource(kind) {
        (resource, true) => Api::namespaced_with(CLUSTER.client(), namespace, &resource),
        (resource, false) => Api::all_with(CLUSTER.client(), &resource),
    }
}

fn value(object: &DynamicObject) -> Value {
    serde_json::to_value(object).unwrap()
}

/// Makes an object, given without its kind; gives what the API server made of it.
#[track_caller]
pub(crate) fn create(kind: &str, namespace: &str, mut object: Value) -> Value {
    object["apiVersion"] = json!(resource(kind).0.api_version);
    object["kind"] = json!(kind);
    let made: DynamicObject = serde_json::from_value(object).unwrap();
    value(&CLUSTER.run(api(kind, namespace).create(&PostParams::default(), &made)).unwrap())
}

pub(crate) fn get(kind: &str, namespace: &str, name: &str) -> Option<Value> {
    CLUSTER.run(api(kind, namespace).get_opt(name)).unwrap().as_ref().map(value)
}

pub(crate) fn list(kind: &str, namespace: &str) -> Vec<Value> {
    let found = CLUSTER.run(api(kind, namespace).list(&kube::api::ListParams::default())).unwrap();
    found.items.iter().map(value).collect()
}

pub(crate) fn patch(kind: &str, namespace: &str, name: &str, patch: &Value) {
    let patched = api(kind, namespace);
    CLUSTER.run(patched.patch(name, &PatchParams::default(), &Patch::Merge(patch))).unwrap();
}

pub(crate) fn patch_status(kind: &str, namespace: &str, name: &str, status: &Value) {
    let (patched, patch) = (api(kind, namespace), json!({"status": status}));
    CLUSTER.run(patched.patch_status(name, &PatchParams::default(), &Patch::Merge(&patch))).unwrap();
}

/// Has an object removed, without waiting for its end.
pub(crate) fn delete(kind: &str, namespace: &str, name: &str) {
    CLUSTER.run(api(kind, namespace).delete(name, &DeleteParams::default())).unwrap();
}

/// The value of an annotation.
pub(crate) fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object["metadata"]["annotations"][key].as_str()
}

/// Asks until there is an answer.
#[track_caller]
pub(crate) fn until<T>(what: &str, answer: impl FnMut() -> Option<T>) -> T {
    CLUSTER.until(what, answer)
}

pub(crate) fn described() -> String {
    CLUSTER.described()
}

/// The log of a pod.
pub(crate) fn log(namespace: &str, pod: &str) -> String {
    let said = CLUSTER.kubectl().args(["-n", namespace, "logs", pod]).output().unwrap();
    String::from_utf8_lossy(&said.stdout).into_owned()
}

/// Waits until the only container of a pod has ended well; gives its termination message.
#[track_caller]
pub(crate) fn ended(namespace: &str, pod: &str) -> String {
    until(&format!("{pod} ends"), || {
        let found = get("Pod", namespace, pod)?;
        let ended = &found["status"]["containerStatuses"][0]["state"]["terminated"];
        (ended["exitCode"] == 0).then(|| ended["message"].as_str().unwrap_or_default().to_owned())
    })
}
