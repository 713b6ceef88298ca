//! `cdi-source-update-poller` in pods as CDI's controller makes them (v1.66, `pkg/controller/dataimportcron-controller.go`,
//! `InitPollerPodSpec`), with the rights of CDI's ServiceAccount and an image that changes.

use std::fs;

use e2e::peer::registry::{self, Registry};
use image::layer::{self, Layer, Member};
use serde_json::{Value, json};

use crate::importer::pod::{self, IMAGE, authority, keys};
use crate::importer::{CLUSTER, disks, namespace};

const DESIRED: &str = "cdi.kubevirt.io/storage.import.sourceDesiredDigest";
const LAST: &str = "cdi.kubevirt.io/storage.import.lastCronTime";
const ACCOUNT: &str = "cdi-cronjob";

#[track_caller]
fn kubectl(arguments: &[&str]) -> String {
    let run = CLUSTER.kubectl().args(arguments).output().unwrap();
    assert!(run.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).unwrap()
}

/// The kind, the account with upstream's rights, and a DataImportCron of this image.
fn install(namespace: &str, url: &str) {
    let kind = "dataimportcrons.cdi.kubevirt.io";
    let name = json!({"name": ACCOUNT, "namespace": namespace});
    let rights = json!({
        "apiGroups": ["cdi.kubevirt.io"], "resources": ["dataimportcrons"], "verbs": ["get", "list", "update"],
    });
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let objects = [
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": kind},
            "spec": {
                "group": "cdi.kubevirt.io", "scope": "Namespaced",
                "names": {"kind": "DataImportCron", "plural": "dataimportcrons"},
                "versions": [{"name": "v1beta1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
            },
        }),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": name}),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": ACCOUNT},
            "rules": [rights],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": ACCOUNT},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ACCOUNT},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}],
        }),
    ];
    apply("poller", &json!({"apiVersion": "v1", "kind": "List", "items": objects}));
    kubectl(&["wait", "--for=condition=Established", "--timeout=60s", &format!("crd/{kind}")]);
    let cron = json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataImportCron",
        "metadata": {"name": "nightly", "namespace": namespace, "annotations": {"of": "others"}},
        "spec": {
            "managedDataSource": "image", "schedule": "0 3 * * *",
            "template": {"spec": {"source": {"registry": {"url": url}}}},
        },
    });
    apply("nightly", &cron);
}

#[track_caller]
fn apply(name: &str, object: &Value) {
    let file = CLUSTER.place().path(&format!("{name}.json"));
    fs::write(&file, object.to_string()).unwrap();
    kubectl(&["apply", "--server-side", "-f", file.to_str().unwrap()]);
}

/// The pod of a poll.
fn pod(name: &str, namespace: &str, url: &str, certificates: Option<&str>, keys: &str) -> Value {
    let mut command =
        vec!["/usr/bin/cdi-source-update-poller", "-ns", namespace, "-cron", "nightly", "-url", url];
    let (mut mounts, mut volumes) = (Vec::new(), Vec::new());
    if let Some(map) = certificates {
        command.extend(["-certdir", "/certs"]);
        mounts.push(json!({"name": "cdi-cert-vol", "mountPath": "/certs"}));
        volumes.push(json!({"name": "cdi-cert-vol", "configMap": {"name": map}}));
    }
    let variables: Vec<Value> = [
        ("IMPORTER_ACCESS_KEY_ID", "accessKeyId"),
        ("IMPORTER_SECRET_KEY", "secretKey"),
    ]
    .map(|(name, key)| json!({"name": name, "valueFrom": {"secretKeyRef": {"name": keys, "key": key}}}))
    .into_iter()
    .chain(["http_proxy", "https_proxy", "no_proxy"].map(|name| json!({"name": name, "value": ""})))
    .collect();
    json!({
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "serviceAccountName": ACCOUNT,
            "containers": [{
                "name": "cdi-source-update-poller",
                "image": IMAGE,
                "imagePullPolicy": "IfNotPresent",
                "command": command,
                "env": variables,
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": mounts,
                "securityContext": {
                    "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
                    "allowPrivilegeEscalation": false, "runAsNonRoot": true,
                },
            }],
            "volumes": volumes,
        },
    })
}

/// Runs a pod to its end: its exit code, termination message and log.
#[track_caller]
fn run(namespace: &str, pod: Value) -> (i32, String, String) {
    let ended = pod::run(&CLUSTER, namespace, pod);
    (ended.exit, ended.message, ended.log)
}

fn annotations(namespace: &str) -> Value {
    let text = kubectl(&["-n", namespace, "get", "dataimportcrons", "nightly", "-o", "json"]);
    serde_json::from_str::<Value>(&text).unwrap()["metadata"]["annotations"].clone()
}

/// A layer with a file of this content, and its folder.
fn content(text: &str) -> (Layer, tempfile::TempDir) {
    let folder = tempfile::tempdir_in(disks::folder_of(&disks::SMALL)).unwrap();
    let file = folder.path().join("disk.img");
    fs::write(&file, text).unwrap();
    let members = [
        ("disk".to_owned(), Member::Folder { mode: 0o755 }),
        ("disk/disk.img".to_owned(), Member::File { from: file, mode: 0o444 }),
    ];
    (layer::pack(&members.into(), &folder.path().join("layer")).unwrap(), folder)
}

#[test]
fn a_data_import_cron_gets_the_digest_of_its_image() {
    let namespace = namespace("poller");
    let registry = Registry::start(CLUSTER.place()).unwrap();
    let (first, _folder) = content("first");
    let image = CLUSTER.run(registry.push("disks/polled", &first, &[])).unwrap();
    let url = format!("docker://{image}");
    install(namespace, &url);
    let trusted = Some(authority(&CLUSTER, namespace, registry.authority()));
    let keys = keys(&CLUSTER, namespace, registry::USER, registry::PASSWORD);

    let (exit, message, log) = run(namespace, pod("untrusted", namespace, &url, None, keys));
    assert_eq!(exit, 1, "{log}");
    assert!(message.contains("not trusted"), "{message}");
    assert_eq!(annotations(namespace), json!({"of": "others"}));

    let (exit, message, log) = run(namespace, pod("first", namespace, &url, trusted, keys));
    assert_eq!(exit, 0, "{message}\n{log}");
    let digest = CLUSTER.run(registry.digest("disks/polled")).unwrap();
    let found = annotations(namespace);
    assert_eq!((&found[DESIRED], &found["of"]), (&json!(digest), &json!("others")));
    assert!(found[LAST].as_str().unwrap().ends_with('Z'));

    let (second, _folder) = content("second");
    CLUSTER.run(registry.push("disks/polled", &second, &[])).unwrap();
    let (exit, message, log) = run(namespace, pod("second", namespace, &url, trusted, keys));
    assert_eq!(exit, 0, "{message}\n{log}");
    let newer = CLUSTER.run(registry.digest("disks/polled")).unwrap();
    assert_ne!(digest, newer);
    assert_eq!(annotations(namespace)[DESIRED], newer);

    kubectl(&["delete", "clusterrolebinding", ACCOUNT]);
    let (exit, message, log) = run(namespace, pod("refused", namespace, &url, trusted, keys));
    assert_eq!(exit, 3, "{log}");
    assert!(message.starts_with("cannot read DataImportCron poller/nightly: "), "{message}");
}
