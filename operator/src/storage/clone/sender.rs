//! The sending side of a clone by copying: a pod in the source's namespace that reads the source claim, and the Secret with
//! its key. Both are named after the target's id.

use api::resource::Confidential;
use api::upload::clone::{Mode, SOURCE_DIR, Source};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::storage::names;
use crate::storage::seen::{Claim, Worker};
use crate::storage::settings::Settings;
use crate::storage::signers::Issued;
use crate::storage::worker::{Images, pod};

/// The inputs of a sender.
#[derive(Clone, Copy, Debug)]
pub struct Sender<'a> {
    /// The claim that is cloned into.
    pub target: &'a Claim,
    /// The claim that is read.
    pub source: &'a Claim,
    /// The claim that the receiving server has.
    pub written: &'a Claim,
    /// The receiving server's pod.
    pub server: &'a Worker,
    /// Settings of transfers.
    pub settings: &'a Settings,
    /// Worker images.
    pub images: &'a Images,
}

/// Name of pod and Secret.
pub fn name(target_uid: &str) -> String {
    format!("{target_uid}-source-pod")
}

/// Common name of the sender's certificate, by which the server knows it.
pub fn client(source: (&str, &str), target: &Claim) -> String {
    format!("{}/{}-{}/{}", source.0, source.1, target.meta.namespace, target.meta.name)
}

/// Metadata of a helper of a clone in this namespace: owned by the target where it can be.
pub fn metadata(name: &str, namespace: &str, target: &Claim) -> Value {
    let mut metadata = json!({
        "name": name,
        "namespace": namespace,
        "labels": {"app": names::APP, names::OWNED_BY: target.meta.uid, names::EXCLUDED_FROM_BACKUP: "true"},
        "annotations": {names::CLONE_FOR: format!("{}/{}", target.meta.namespace, target.meta.name)},
    });
    if namespace == target.meta.namespace {
        metadata["ownerReferences"] = json!([crate::storage::populate::prime::owner(target)]);
    }
    metadata
}

/// The Secret with certificate and key.
pub fn secret(target: &Claim, namespace: &str, issued: &Issued) -> Value {
    let encoded = |text: &str| BASE64_STANDARD.encode(text);
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(&name(&target.meta.uid), namespace, target),
        "data": {"tls.crt": encoded(&issued.identity.certificate), "tls.key": encoded(&issued.identity.key)},
    })
}

/// The pod. The server's address is given to it, so that it does not wait for DNS.
pub fn pod(sender: &Sender<'_>, trusted: &str) -> Value {
    let Sender { target, source, written, server, settings, images } = *sender;
    let host = crate::storage::worker::upload::host(written);
    let job = Source {
        client_key: Confidential::default(),
        client_cert: String::new(),
        server_ca_cert: trusted.to_owned(),
        upload_url: format!("https://{host}:{}/v1beta1/upload", api::names::UPLOAD_PORT),
        owner_uid: target.meta.uid.clone(),
        preallocation: target.meta.says(names::PREALLOCATION_REQUESTED, "true"),
        mode: if source.block { Mode::Block } else { Mode::Filesystem },
        mount_point: if source.block { api::names::BLOCK_DEVICE } else { SOURCE_DIR }.to_owned(),
    };
    let secret = name(&target.meta.uid);
    let mut variables = pod::environment(job.to_env());
    for (variable, key) in [("CLIENT_KEY", "tls.key"), ("CLIENT_CERT", "tls.crt")] {
        let from = json!({"secretKeyRef": {"name": secret, "key": key}});
        variables.push(json!({"name": variable, "valueFrom": from}));
    }
    let (mounts, devices) = match source.block {
        true => (json!([]), json!([{"name": "cdi-source-vol", "devicePath": api::names::BLOCK_DEVICE}])),
        false => (json!([{"name": "cdi-source-vol", "mountPath": SOURCE_DIR, "readOnly": true}]), json!([])),
    };
    let mut spec = json!({
        "restartPolicy": "OnFailure",
        "hostAliases": [{"ip": server.address, "hostnames": [host]}],
        "containers": [{
            "name": names::CLONE_SOURCE_POD,
            "image": images.clone_source,
            "imagePullPolicy": images.pull_policy,
            "args": [pod::verbosity(settings)],
            "env": variables,
            "ports": [{"name": "metrics", "containerPort": api::names::METRICS_PORT, "protocol": "TCP"}],
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "resources": pod::resources(settings),
            "securityContext": pod::restricted(),
            "volumeMounts": mounts,
            "volumeDevices": devices,
        }],
        "volumes": [{
            "name": "cdi-source-vol",
            "persistentVolumeClaim": {"claimName": source.meta.name, "readOnly": !source.block},
        }],
    });
    pod::complete(&mut spec, target, settings);
    // The account is one of the target's namespace.
    if source.meta.namespace != target.meta.namespace
        && let Some(spec) = spec.as_object_mut()
    {
        spec.remove("serviceAccountName");
    }
    let mut metadata = metadata(&secret, &source.meta.namespace, target);
    metadata["labels"][names::WORKER] = json!(names::CLONE_SOURCE_POD);
    metadata["labels"][names::CLONE_ID] = json!(secret);
    metadata["labels"]["prometheus.cdi.kubevirt.io"] = json!("true");
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(namespace: &str, name: &str) -> Claim {
        Claim::from(&json!({"metadata": {"name": name, "namespace": namespace, "uid": name}}))
    }

    #[test]
    fn a_sender_finds_its_server_and_shows_no_key() {
        let (target, source, temporary) =
            (claim("mine", "copy"), claim("golden", "disk"), claim("mine", "tmp-pvc-copy"));
        let server = Worker { address: "10.0.0.7".into(), ..Worker::default() };
        let (settings, images) = (Settings::default(), Images::default());
        let made = pod(
            &Sender {
                target: &target,
                source: &source,
                written: &temporary,
                server: &server,
                settings: &settings,
                images: &images,
            },
            "ca",
        );
        assert_eq!(made["metadata"]["name"], "copy-source-pod");
        assert_eq!(made["metadata"]["namespace"], "golden");
        assert!(made["metadata"].get("ownerReferences").is_none(), "owners are in one namespace");
        let alias = &made["spec"]["hostAliases"][0];
        assert_eq!(
            (&alias["ip"], &alias["hostnames"][0]),
            (&json!("10.0.0.7"), &json!("cdi-upload-tmp-pvc-copy.mine.svc"))
        );
        let text = made["spec"]["containers"][0]["env"].to_string();
        assert!(text.contains(r#""secretKeyRef":{"key":"tls.key""#), "{text}");
        assert!(text.contains("https://cdi-upload-tmp-pvc-copy.mine.svc:8443/v1beta1/upload"), "{text}");
        assert_eq!(made["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"], true);
        assert_eq!(client(("golden", "disk"), &target), "golden/disk-mine/copy");
    }
}
