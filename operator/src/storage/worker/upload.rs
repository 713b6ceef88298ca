//! The upload server of a claim: Service, Secret with its certificate, and pod. Service and pod have upstream's name; the
//! Secret's name depends on the Service's id, so that a server that is made again never has an earlier one's certificate.
//!
//! ```text
//!  claim ◄─owns─ Service ◄─owns─ Secret
//!        ◄─owns─ pod ──mounts──► Secret
//! ```
//! Deleting the Service removes the Secret; deleting the claim removes everything.

use api::upload::{Server, service_name};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::pod::{Images, annotations, complete, environment, resources, restricted, target, verbosity};
use crate::storage::names;
use crate::storage::seen::Claim;
use crate::storage::settings::Settings;
use crate::storage::signers::Issued;

/// Where the server's certificate is mounted.
const CERTIFICATES: &str = "/etc/tls";

/// The inputs of an upload server's pod.
#[derive(Clone, Copy, Debug)]
pub struct Upload<'a> {
    /// The user's claim; its annotations pass to the pod.
    pub target: &'a Claim,
    /// The claim that is written to: the target or its prime.
    pub written: &'a Claim,
    /// Owner reference to the written claim.
    pub owner: &'a Value,
    /// Common name of the one client.
    pub client: &'a str,
    /// Whether all blocks are reserved.
    pub preallocation: bool,
    /// Uid in the progress metric.
    pub owner_uid: &'a str,
    /// Settings of transfers.
    pub settings: &'a Settings,
    /// Worker images.
    pub images: &'a Images,
}

/// The host name of a claim's upload server.
pub fn host(written: &Claim) -> String {
    format!("{}.{}.svc", service_name(&written.meta.name), written.meta.namespace)
}

/// The Secret's name.
fn secret_name(written: &Claim, service_uid: &str) -> String {
    let service = service_name(&written.meta.name);
    format!("{service}-{}", names::digest(service_uid, 8))
}

/// The Service: headless, as clients connect to the server's own port.
pub fn service(written: &Claim, owner: &Value) -> Value {
    let name = service_name(&written.meta.name);
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": written.meta.namespace,
            "labels": {"app": names::APP, names::WORKER: names::UPLOAD_SERVER},
            "annotations": {names::CREATED_BY_UPLOAD: "yes"},
            "ownerReferences": [owner],
        },
        "spec": {
            "clusterIP": "None",
            "ports": [{"protocol": "TCP", "port": api::names::UPLOAD_PORT, "targetPort": api::names::UPLOAD_PORT}],
            "selector": {"service": name},
        },
    })
}

/// The Secret with the certificate, and the authority of clients.
pub fn secret(written: &Claim, service_uid: &str, issued: &Issued) -> Value {
    let encoded = |text: &str| BASE64_STANDARD.encode(text);
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": secret_name(written, service_uid),
            "namespace": written.meta.namespace,
            "labels": {"app": names::APP, names::WORKER: names::UPLOAD_SERVER},
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Service", "name": service_name(&written.meta.name), "uid": service_uid,
            }],
        },
        "data": {
            "tls.crt": encoded(&issued.identity.certificate),
            "tls.key": encoded(&issued.identity.key),
            "ca.crt": encoded(&issued.trusted),
        },
    })
}

/// The pod. `deadline`: when the server ends without an upload, RFC 3339.
pub fn pod(upload: &Upload<'_>, service_uid: &str, deadline: &str) -> Value {
    let Upload { target: user, written, owner, settings, images, .. } = *upload;
    let name = service_name(&written.meta.name);
    let below = |file: &str| format!("{CERTIFICATES}/{file}");
    let server = Server {
        key_file: below("tls.key"),
        cert_file: below("tls.crt"),
        client_cert_file: below("ca.crt"),
        client_name: upload.client.to_owned(),
        image_size: Some(user.size),
        filesystem_overhead: settings.overhead_of(user.class.as_deref(), user.block).share(),
        preallocation: upload.preallocation,
        destination: if written.block { api::names::BLOCK_DEVICE.to_owned() } else { String::new() },
        deadline: deadline.to_owned(),
        owner_uid: upload.owner_uid.to_owned(),
        tls_ciphers: settings.tls_ciphers.join(","),
        tls_min_version: settings.tls_version.clone(),
        ..Server::default()
    };
    let (volume, mut mounts, devices) = target(written);
    if let Some(mounts) = mounts.as_array_mut() {
        mounts.push(json!({"name": "tls-config", "mountPath": CERTIFICATES, "readOnly": true}));
    }
    let mut spec = json!({
        "restartPolicy": "OnFailure",
        "containers": [{
            "name": names::UPLOAD_SERVER,
            "image": images.uploadserver,
            "imagePullPolicy": images.pull_policy,
            "args": [verbosity(settings)],
            "env": environment(server.to_env()),
            "ports": [{"name": "https", "containerPort": api::names::UPLOAD_PORT, "protocol": "TCP"}],
            "readinessProbe": {
                "httpGet": {"path": "/healthz", "port": api::names::UPLOAD_PORT, "scheme": "HTTPS"},
                "periodSeconds": 1,
            },
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "resources": resources(settings),
            "securityContext": restricted(),
            "volumeMounts": mounts,
            "volumeDevices": devices,
        }],
        "volumes": [volume, {"name": "tls-config", "secret": {"secretName": secret_name(written, service_uid)}}],
    });
    complete(&mut spec, user, settings);
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": written.meta.namespace,
            "labels": {
                "app": names::APP, names::WORKER: names::UPLOAD_SERVER, "service": name,
                "cdi.kubevirt.io/uploadTarget": written.meta.uid,
            },
            "annotations": annotations(user, names::CREATED_BY_UPLOAD),
            "ownerReferences": [owner],
        },
        "spec": spec,
    })
}

#[cfg(test)]
mod tests {
    use serve::authority::Identity;

    use super::*;

    #[test]
    fn a_server_is_restricted_and_knows_its_one_client() {
        let claim = Claim::from(&json!({
            "metadata": {"name": "prime-u", "namespace": "n", "uid": "p"},
            "spec": {"volumeMode": "Block", "resources": {"requests": {"storage": "1Gi"}}},
        }));
        let owner = json!({"uid": "p"});
        let settings = Settings {
            tls_version: "VersionTLS13".to_owned(),
            tls_ciphers: vec!["A".to_owned(), "B".to_owned()],
            verbosity: 3,
            ..Settings::default()
        };
        let images = Images::default();
        let made = pod(
            &Upload {
                target: &claim,
                written: &claim,
                owner: &owner,
                client: api::upload::PROXY_CLIENT,
                preallocation: false,
                owner_uid: "o",
                settings: &settings,
                images: &images,
            },
            "s1",
            "2026-01-01T00:00:00Z",
        );
        let container = &made["spec"]["containers"][0];
        let variables = container["env"].as_array().unwrap().iter();
        let read = Server::from_env(
            variables.map(|one| (one["name"].as_str().unwrap(), one["value"].as_str().unwrap())),
        )
        .unwrap();
        assert_eq!((read.tls_min_version.as_str(), read.tls_ciphers.as_str()), ("VersionTLS13", "A,B"));
        assert_eq!(container["args"], json!(["-v=3"]));
        assert_eq!(read.client_name, "client.upload-server.cdi.kubevirt.io");
        assert_eq!((read.image_size, read.filesystem_overhead), (Some(1 << 30), 0.0));
        assert_eq!(read.destination, "/dev/cdi-block-volume");
        assert_eq!(container["securityContext"]["capabilities"]["drop"][0], "ALL");
        assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
        assert_eq!(made["metadata"]["name"], "cdi-upload-prime-u");
        let service = service(&claim, &owner);
        let selected = service["spec"]["selector"]["service"].clone();
        assert_eq!(made["metadata"]["labels"]["service"], selected);
        let identity = Identity { certificate: "c".into(), key: "k".into(), from: 0, until: 0 };
        let secret = secret(&claim, "s1", &Issued { identity, trusted: "ca".into() });
        assert_eq!(made["spec"]["volumes"][1]["secret"]["secretName"], secret["metadata"]["name"]);
        assert_eq!(secret["metadata"]["ownerReferences"][0]["uid"], "s1");
        assert_ne!(secret_name(&claim, "s1"), secret_name(&claim, "s2"));
    }
}
