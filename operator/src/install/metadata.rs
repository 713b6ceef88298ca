//! Access to the driver's changed blocks: the definition of SnapshotMetadataService, for clusters without it, and
//! the driver's object, by which backup programs find the service, its certificate's authorities and its audience.
//!
//! Pure. Not here: the service (the node agent), its Service object ([`super::services`]).

use api::hostpath::{METADATA_AUDIENCE, METADATA_PORT, METADATA_SERVICE};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::hostpath::DRIVER;
use super::{Settings, object, with};

/// Group of the kind.
pub const GROUP: &str = "cbt.storage.k8s.io";
/// Its plural.
pub const PLURAL: &str = "snapshotmetadataservices";
/// Its versions, the preferred one first.
pub const VERSIONS: [&str; 2] = ["v1beta1", "v1alpha1"];

/// The review in which Kubernetes approved the kind.
const APPROVAL: &str = "https://github.com/kubernetes-csi/external-snapshot-metadata/pull/2";

/// Name of the definition.
pub fn definition_name() -> String {
    format!("{PLURAL}.{GROUP}")
}

/// The definition.
pub fn definition() -> Value {
    let version = |name: &str| {
        let text = |description: &str| json!({"type": "string", "description": description});
        let mut authorities = text("Certificates of the authorities that sign the service's certificate.");
        authorities["format"] = json!("byte");
        let spec = json!({
            "type": "object",
            "description": "Where the service is, and how it is trusted.",
            "required": ["address", "audience", "caCert"],
            "properties": {
                "address": text("Host and port of the gRPC service."),
                "audience": text("Audience of the token in each request."),
                "caCert": authorities,
            },
        });
        let mut version = json!({
            "name": name,
            "served": true,
            "storage": name == VERSIONS[0],
            "schema": {"openAPIV3Schema": {
                "type": "object",
                "description": "SnapshotMetadata service of the CSI driver with the object's name.",
                "required": ["spec"],
                "properties": {
                    "apiVersion": {"type": "string"},
                    "kind": {"type": "string"},
                    "metadata": {"type": "object"},
                    "spec": spec,
                },
            }},
        });
        if name != VERSIONS[0] {
            version["deprecated"] = json!(true);
        }
        version
    };
    let mut definition =
        object("apiextensions.k8s.io/v1", "CustomResourceDefinition", &definition_name(), None);
    // Kubernetes asks for it in its own groups.
    definition["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": APPROVAL});
    with(
        definition,
        json!({"spec": {
            "group": GROUP,
            "scope": "Cluster",
            "names": {
                "kind": "SnapshotMetadataService",
                "listKind": "SnapshotMetadataServiceList",
                "plural": PLURAL,
                "singular": "snapshotmetadataservice",
                "shortNames": ["sms"],
            },
            "versions": VERSIONS.map(version),
        }}),
    )
}

/// The driver's object, in a version of the kind; `authorities` in PEM.
pub fn service(settings: &Settings, version: &str, authorities: &str) -> Value {
    let mut service = with(
        object(&format!("{GROUP}/{version}"), "SnapshotMetadataService", DRIVER, None),
        json!({"spec": {
            "address": format!("{METADATA_SERVICE}.{}.svc:{METADATA_PORT}", settings.namespace),
            "audience": METADATA_AUDIENCE,
            "caCert": BASE64_STANDARD.encode(authorities),
        }}),
    );
    super::hostpath::label(&mut service);
    service
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_has_the_kind_of_the_object() {
        let definition = definition();
        assert_eq!(definition["metadata"]["name"], "snapshotmetadataservices.cbt.storage.k8s.io");
        let stored: Vec<&Value> = definition["spec"]["versions"].as_array().unwrap().iter().collect();
        assert_eq!((&stored[0]["storage"], &stored[1]["storage"]), (&json!(true), &json!(false)));
        let service = service(&Settings::default(), VERSIONS[0], "PEM");
        assert_eq!(service["apiVersion"], "cbt.storage.k8s.io/v1beta1");
        assert_eq!(service["spec"]["address"], "hpp-snapshot-metadata.kubevirt-hyperconverged.svc:8188");
        assert_eq!(service["spec"]["caCert"], "UEVN");
        let fields = &stored[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
        for name in service["spec"].as_object().unwrap().keys() {
            assert!(fields[name].is_object(), "{name}");
        }
    }
}
