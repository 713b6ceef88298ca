//! The project's images in restricted pods that set `runAsNonRoot` and no user, as upstream's manifests run these programs: with
//! their arguments and environment, until they are ready or done.
//!
//! Not here: the poller, which `importer/poller` runs so with a registry.

use api::resource::Confidential;
use api::upload::clone::{Mode, SOURCE_DIR, Source};
use cluster::Resource;
use e2e::pki::Authority;
use serde_json::{Value, json};

use crate::platform::place::{PLACE, PODS, SECRETS, SERVICES};

/// Where the test's own pods are.
const SPACE: &str = "images";
/// Where the platform's Deployments are.
const PLATFORM: &str = "kubevirt-hyperconverged";
const DEPLOYMENTS: Resource = Resource::namespaced("apps", "v1", "deployments");
/// Of the upload server, for the sending side of a clone.
const SERVER: &str = "cdi-upload-target";
const CLONE: &str = "images/source-images/target";

/// A pod of the restricted profile around a container, its file system read-only.
fn restricted(name: &str, mut container: Value, volumes: &Value) -> Value {
    container["imagePullPolicy"] = json!("IfNotPresent");
    container["image"] = json!(format!("localhost/ferrovirt:{name}"));
    container["securityContext"] = json!({
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": true,
    });
    json!({
        "metadata": {"name": name, "labels": {"service": name}},
        "spec": {
            "restartPolicy": "Never",
            "securityContext": {
                "runAsNonRoot": true, "fsGroup": 107, "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": volumes,
        },
    })
}

fn set(name: &str, value: &str) -> Value {
    json!({"name": name, "value": value})
}

/// A blank disk, as CDI's controller asks for one.
fn importer() -> Value {
    let container = json!({
        "name": "importer",
        "args": ["-v=1"],
        "env": [
            set("IMPORTER_SOURCE", "none"), set("IMPORTER_ENDPOINT", ""), set("IMPORTER_CONTENTTYPE", "kubevirt"),
            set("IMPORTER_IMAGE_SIZE", "16Mi"), set("OWNER_UID", "1-2-3"), set("FILESYSTEM_OVERHEAD", "0"),
            set("INSECURE_TLS", "false"), set("PREALLOCATION", "false"),
        ],
        "volumeMounts": [{"name": "cdi-data-vol", "mountPath": "/data"}],
    });
    restricted("importer", container, &json!([{"name": "cdi-data-vol", "emptyDir": {}}]))
}

/// The receiving side of a clone; its certificates are in the Secret of its name.
fn uploadserver() -> Value {
    let container = json!({
        "name": "cdi-upload-server",
        "args": ["-v=1"],
        "env": [
            set("TLS_KEY_FILE", "/etc/tls/tls.key"), set("TLS_CERT_FILE", "/etc/tls/tls.crt"),
            set("CLIENT_CERT_FILE", "/etc/tls/ca.crt"), set("FILESYSTEM_OVERHEAD", "0"),
            set("UPLOAD_IMAGE_SIZE", "64Mi"), set("CLIENT_NAME", CLONE), set("DEADLINE", "2199-01-01T00:00:00Z"),
            set("PREALLOCATION", "false"), set("TLS_MIN_VERSION", "VersionTLS12"),
        ],
        "readinessProbe": {
            "httpGet": {"path": "/healthz", "port": 8443, "scheme": "HTTPS"}, "periodSeconds": 1,
        },
        "volumeMounts": [
            {"name": "cdi-data-vol", "mountPath": "/data"}, {"name": "tls-config", "mountPath": "/etc/tls"},
        ],
    });
    let volumes = json!([
        {"name": "cdi-data-vol", "emptyDir": {}}, {"name": "tls-config", "secret": {"secretName": SERVER}},
    ]);
    restricted("uploadserver", container, &volumes)
}

/// The sending side of that clone, of an empty volume.
fn clone_source(authority: &Authority) -> Value {
    let identity = authority.sign(CLONE, None, &[]).unwrap();
    let source = Source {
        client_key: Confidential(identity.key),
        client_cert: identity.certificate,
        server_ca_cert: authority.certificate(),
        upload_url: format!("https://{SERVER}.{SPACE}.svc/v1beta1/upload"),
        owner_uid: "1-2-3".into(),
        preallocation: false,
        mode: Mode::Filesystem,
        mount_point: SOURCE_DIR.into(),
    };
    let variables: Vec<Value> = source.to_env().into_iter().map(|(name, value)| set(&name, &value)).collect();
    let container = json!({
        "name": "cdi-clone-source",
        "args": ["-v=1"],
        "env": variables,
        "volumeMounts": [{"name": "cdi-data-vol", "mountPath": SOURCE_DIR}],
    });
    restricted("clone-source", container, &json!([{"name": "cdi-data-vol", "emptyDir": {}}]))
}

/// Another pod of a Deployment of the platform, which the image alone gives a user. No Service and no Deployment selects it.
fn copied(deployment: &str, name: &str, command: Option<&str>) -> Value {
    let found = PLACE.find(DEPLOYMENTS, PLATFORM, deployment).unwrap();
    let mut spec = found["spec"]["template"]["spec"].clone();
    spec["securityContext"].as_object_mut().unwrap().remove("runAsUser");
    assert_eq!(spec["securityContext"]["runAsNonRoot"], true, "{spec}");
    assert_eq!(spec["containers"][0]["securityContext"]["runAsUser"], Value::Null, "{spec}");
    if let Some(command) = command {
        spec["containers"][0]["command"] = json!([command]);
    }
    // No traffic is withdrawn from it.
    spec["containers"][0].as_object_mut().unwrap().remove("lifecycle");
    spec["terminationGracePeriodSeconds"] = json!(1);
    json!({"metadata": {"name": name, "labels": {"service": name}}, "spec": spec})
}

fn pod(namespace: &str, name: &str) -> Value {
    let pod = PLACE.find(PODS, namespace, name).unwrap();
    let state = &pod["status"]["containerStatuses"][0]["state"];
    assert_ne!(state["waiting"]["reason"], "CreateContainerConfigError", "{pod}");
    assert_ne!(pod["status"]["phase"], "Failed", "{pod}");
    pod
}

#[track_caller]
fn ready(namespace: &str, name: &str) {
    PLACE.until(namespace, &format!("{name} is ready"), || {
        let pod = pod(namespace, name);
        assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"].as_i64().unwrap_or(0), 0, "{pod}");
        let conditions = pod["status"]["conditions"].as_array()?;
        let ready = |one: &Value| one["type"] == "Ready" && one["status"] == "True";
        conditions.iter().any(ready).then_some(())
    });
}

/// The termination message at the end.
#[track_caller]
fn done(name: &str) -> String {
    PLACE.until(SPACE, &format!("the end of {name}"), || {
        let pod = pod(SPACE, name);
        let ended = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
        (pod["status"]["phase"] == "Succeeded").then(|| ended["message"].as_str().unwrap_or("").to_owned())
    })
}

#[test]
fn images_run_in_restricted_pods_without_a_user() {
    PLACE.namespace(SPACE);
    let copies = [
        ("cdi-uploadproxy", "images-uploadproxy", None),
        // The path in upstream's image.
        ("kubemacpool-mac-controller-manager", "images-macpool", Some("/manager")),
        ("ferrovirt-operator", "images-operator", None),
    ];
    for (deployment, name, command) in copies {
        PLACE.create(PODS, PLATFORM, &copied(deployment, name, command));
    }
    let authority = Authority::new("images").unwrap();
    let host = format!("{SERVER}.{SPACE}.svc");
    let identity = authority.sign(SERVER, None, &[host]).unwrap();
    let secret = json!({
        "metadata": {"name": SERVER},
        "stringData": {
            "tls.crt": identity.certificate, "tls.key": identity.key, "ca.crt": authority.certificate(),
        },
    });
    PLACE.create(SECRETS, SPACE, &secret);
    let service = json!({
        "metadata": {"name": SERVER},
        "spec": {
            "ports": [{"protocol": "TCP", "port": 443, "targetPort": 8443}],
            "selector": {"service": "uploadserver"},
        },
    });
    PLACE.create(SERVICES, SPACE, &service);
    PLACE.create(PODS, SPACE, &importer());
    PLACE.create(PODS, SPACE, &uploadserver());
    ready(SPACE, "uploadserver");
    PLACE.create(PODS, SPACE, &clone_source(&authority));
    assert!(done("importer").contains("Import Complete"));
    assert!(done("clone-source").contains("Clone Complete"));
    assert!(done("uploadserver").contains("Clone Complete"));
    for (_, name, _) in copies {
        ready(PLATFORM, name);
        PLACE.delete(PODS, PLATFORM, name);
    }
    PLACE.remove_namespace(SPACE);
}
