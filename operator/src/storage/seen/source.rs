//! The content to fill a claim with: `spec.source` of a DataVolume or of a VolumeImportSource.

use serde_json::Value;

use super::meta::{text, texts};

/// Sources that CDI has or had, and that are refused by their names.
pub const UNSUPPORTED: [&str; 3] = ["glance", "imageio", "vddk"];

/// Where content comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A URL, fetched by the importer.
    Remote(Remote),
    /// A container image, pulled by the importer or by the node.
    Registry(Registry),
    /// An empty disk.
    Blank,
    /// A client's upload.
    Upload,
    /// Another claim.
    Claim {
        /// Its namespace; empty for the same.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// A VolumeSnapshot.
    Snapshot {
        /// Its namespace; empty for the same.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// `spec.sourceRef`: a DataSource.
    Reference {
        /// Its kind.
        kind: String,
        /// Its namespace; empty for the same.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// One of [`UNSUPPORTED`].
    Unsupported(&'static str),
    /// None, or one that is not known.
    Missing,
}

/// Protocol of a [`Remote`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// HTTP and HTTPS.
    #[default]
    Http,
    /// S3.
    S3,
    /// Google Cloud Storage.
    Gcs,
}

/// A URL and how it is fetched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    /// How.
    pub protocol: Protocol,
    /// Where.
    pub url: String,
    /// Secret with credentials; empty for none.
    pub secret: String,
    /// ConfigMap with certificates; empty for none.
    pub certificates: String,
    /// Request headers.
    pub headers: Vec<String>,
    /// Secrets with request headers as their entries.
    pub secret_headers: Vec<String>,
    /// `algorithm:hex`; empty for none.
    pub checksum: String,
    /// Whether the server's certificate is not verified.
    pub insecure: bool,
}

/// A container image with a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registry {
    /// `docker://…` or `oci-archive:…`.
    pub url: String,
    /// An ImageStream of OpenShift; empty for none.
    pub image_stream: String,
    /// Whether the node pulls it.
    pub by_node: bool,
    /// Secret with credentials; empty for none.
    pub secret: String,
    /// ConfigMap with certificates; empty for none.
    pub certificates: String,
    /// Architecture; empty for the node's.
    pub architecture: String,
}

impl From<&Value> for Source {
    fn from(source: &Value) -> Self {
        let Some((kind, source)) =
            source.as_object().and_then(|fields| fields.iter().find(|(_, value)| !value.is_null()))
        else {
            return Self::Missing;
        };
        match kind.as_str() {
            "http" => Self::Remote(remote(Protocol::Http, source)),
            "s3" => Self::Remote(remote(Protocol::S3, source)),
            "gcs" => Self::Remote(remote(Protocol::Gcs, source)),
            "registry" => Self::Registry(Registry {
                url: text(&source["url"]),
                image_stream: text(&source["imageStream"]),
                by_node: source["pullMethod"] == "node",
                secret: text(&source["secretRef"]),
                certificates: text(&source["certConfigMap"]),
                architecture: text(&source["platform"]["architecture"]),
            }),
            "blank" => Self::Blank,
            "upload" => Self::Upload,
            "pvc" => Self::Claim { namespace: text(&source["namespace"]), name: text(&source["name"]) },
            "snapshot" => {
                Self::Snapshot { namespace: text(&source["namespace"]), name: text(&source["name"]) }
            }
            kind => Self::unsupported(kind).unwrap_or(Self::Missing),
        }
    }
}

impl Source {
    /// A source by its name in CDI, if it is not supported.
    pub fn unsupported(kind: &str) -> Option<Self> {
        UNSUPPORTED.into_iter().find(|one| *one == kind).map(Self::Unsupported)
    }
}

fn remote(protocol: Protocol, source: &Value) -> Remote {
    Remote {
        protocol,
        url: text(&source["url"]),
        secret: text(&source["secretRef"]),
        certificates: text(&source["certConfigMap"]),
        headers: texts(&source["extraHeaders"]),
        secret_headers: texts(&source["secretExtraHeaders"]),
        checksum: text(&source["checksum"]),
        insecure: source["insecureSkipVerify"] == true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_source_is_read() {
        let registry = Registry {
            url: "docker://a".into(),
            by_node: true,
            architecture: "arm64".into(),
            ..Registry::default()
        };
        for (source, expected) in [
            (
                json!({"http": {"url": "http://a", "checksum": "md5:0", "extraHeaders": ["a: b"]}}),
                Source::Remote(Remote {
                    url: "http://a".into(),
                    checksum: "md5:0".into(),
                    headers: vec!["a: b".into()],
                    ..Remote::default()
                }),
            ),
            (
                json!({"s3": {"url": "s3://a"}, "http": null}),
                Source::Remote(Remote { protocol: Protocol::S3, url: "s3://a".into(), ..Remote::default() }),
            ),
            (
                json!({"gcs": {"url": "gs://a"}}),
                Source::Remote(Remote { protocol: Protocol::Gcs, url: "gs://a".into(), ..Remote::default() }),
            ),
            (
                json!({"registry": {"url": "docker://a", "pullMethod": "node", "platform": {"architecture": "arm64"}}}),
                Source::Registry(registry),
            ),
            (json!({"blank": {}}), Source::Blank),
            (json!({"upload": {}}), Source::Upload),
            (
                json!({"pvc": {"name": "a", "namespace": "b"}}),
                Source::Claim { namespace: "b".into(), name: "a".into() },
            ),
            (
                json!({"snapshot": {"name": "a"}}),
                Source::Snapshot { namespace: String::new(), name: "a".into() },
            ),
            (json!({"vddk": {}}), Source::Unsupported("vddk")),
            (json!({"imageio": {}}), Source::Unsupported("imageio")),
            (json!({"glance": {"url": "https://a"}}), Source::Unsupported("glance")),
            (json!({}), Source::Missing),
            (Value::Null, Source::Missing),
            (json!({"floppy": {}}), Source::Missing),
        ] {
            assert_eq!(Source::from(&source), expected, "{source}");
        }
    }
}
