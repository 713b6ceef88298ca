//! The importer's environment variables, as data.

use thiserror::Error;

use crate::quantity::{self, QuantityError};

/// One import. Empty texts mean "not given", as in the environment, where a variable that is set to nothing and one
/// that is not set are the same.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Job {
    /// IMPORTER_SOURCE.
    pub source: SourceKind,
    /// IMPORTER_ENDPOINT: a URL.
    pub endpoint: String,
    /// IMPORTER_CONTENTTYPE.
    pub content: Content,
    /// IMPORTER_IMAGE_SIZE: the PVC's request in bytes.
    pub image_size: Option<u64>,
    /// OWNER_UID: label of the progress metric.
    pub owner_uid: String,
    /// FILESYSTEM_OVERHEAD: share of a Filesystem volume that is not the disk's; 0 for block.
    pub filesystem_overhead: f64,
    /// PREALLOCATION.
    pub preallocation: bool,
    /// INSECURE_TLS.
    pub insecure_tls: bool,
    /// CACHE_MODE.
    pub cache_mode: CacheMode,
    /// IMPORTER_ACCESS_KEY_ID.
    pub access_key_id: String,
    /// IMPORTER_SECRET_KEY.
    pub secret_key: String,
    /// GOOGLE_APPLICATION_CREDENTIALS: a file.
    pub google_credentials: String,
    /// IMPORTER_CERT_DIR: a folder of CA certificates.
    pub cert_dir: String,
    /// IMPORTER_PROXY_CERT_DIR: a folder of CA certificates.
    pub proxy_cert_dir: String,
    /// http_proxy.
    pub http_proxy: String,
    /// https_proxy.
    pub https_proxy: String,
    /// no_proxy.
    pub no_proxy: String,
    /// IMPORTER_EXTRA_HEADER_n, in the order of n: whole "Key: value" lines.
    pub extra_headers: Vec<String>,
    /// IMPORTER_CHECKSUM: "algo:hex".
    pub checksum: String,
    /// IMPORTER_PULL_METHOD.
    pub pull_method: PullMethod,
    /// IMPORTER_READY_FILE: node pull, written by the server.
    pub ready_file: String,
    /// IMPORTER_DONE_FILE: node pull, written by the importer.
    pub done_file: String,
    /// IMPORTER_REGISTRY_IMAGE_ARCHITECTURE.
    pub registry_architecture: String,
    /// REGISTRY_AUTH_FILE: a file of registry credentials, such as a mounted Secret's `.dockerconfigjson`. Ours, with
    /// the name that podman and skopeo know; upstream takes an access key only.
    pub registry_auth_file: String,
    /// IMPORTER_DISK_ID (imageio).
    pub disk_id: String,
    /// IMPORTER_UUID (vddk).
    pub uuid: String,
    /// IMPORTER_BACKING_FILE (vddk).
    pub backing_file: String,
    /// IMPORTER_THUMBPRINT (vddk).
    pub thumbprint: String,
    /// IMPORTER_CURRENT_CHECKPOINT (multi-stage).
    pub current_checkpoint: String,
    /// IMPORTER_PREVIOUS_CHECKPOINT (multi-stage).
    pub previous_checkpoint: String,
    /// IMPORTER_FINAL_CHECKPOINT (multi-stage).
    pub final_checkpoint: String,
}

/// Kind of source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SourceKind {
    /// HTTP and HTTPS; the default, as upstream.
    #[default]
    Http,
    /// S3.
    S3,
    /// Google Cloud Storage.
    Gcs,
    /// Container registry or OCI archive.
    Registry,
    /// oVirt imageio.
    Imageio,
    /// VMware VDDK.
    Vddk,
    /// OpenStack glance (legacy).
    Glance,
    /// No source: an empty disk.
    None,
}

/// The source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Content {
    /// A disk image.
    #[default]
    Kubevirt,
    /// A tar archive, unpacked into the volume.
    Archive,
}

/// How the target is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CacheMode {
    /// As the importer thinks best.
    #[default]
    Default,
    /// Without the page cache if the target takes that.
    TryNone,
}

/// The puller of a registry image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PullMethod {
    /// The importer.
    #[default]
    Pod,
    /// The node's container runtime.
    Node,
}

/// Why an environment is no job.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum JobError {
    /// A variable that has one of a few values has another.
    #[error("{name}=\"{value}\" is not one of {expected}")]
    Unknown {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// The allowed values.
        expected: &'static str,
    },
    /// IMPORTER_IMAGE_SIZE is no quantity.
    #[error("IMPORTER_IMAGE_SIZE: {0}")]
    Size(QuantityError),
    /// FILESYSTEM_OVERHEAD is no number from 0 to 1.
    #[error("FILESYSTEM_OVERHEAD=\"{0}\" is not a number from 0 to 1")]
    Overhead(String),
}

/// The texts of a closed set of values, both ways.
macro_rules! words {
    ($type:ty, $name:literal, $expected:literal, $($word:literal => $value:expr),+ $(,)?) => {
        impl $type {
            /// The value's word in the environment.
            pub fn word(self) -> &'static str {
                $(if self == $value { return $word; })+
                ""
            }

            fn from_word(word: &str) -> Result<Self, JobError> {
                match word {
                    $($word => Ok($value),)+
                    "" => Ok(Self::default()),
                    other => Err(JobError::Unknown {
                        name: $name, value: other.to_owned(), expected: $expected,
                    }),
                }
            }
        }
    };
}

words!(SourceKind, "IMPORTER_SOURCE", "http, s3, gcs, registry, imageio, vddk, glance, none",
    "http" => Self::Http, "s3" => Self::S3, "gcs" => Self::Gcs, "registry" => Self::Registry,
    "imageio" => Self::Imageio, "vddk" => Self::Vddk, "glance" => Self::Glance, "none" => Self::None);
words!(Content, "IMPORTER_CONTENTTYPE", "kubevirt, archive",
    "kubevirt" => Self::Kubevirt, "archive" => Self::Archive);
words!(CacheMode, "CACHE_MODE", "TRYNONE or nothing", "TRYNONE" => Self::TryNone);
words!(PullMethod, "IMPORTER_PULL_METHOD", "node, pod or nothing",
    "node" => Self::Node, "pod" => Self::Pod);

/// The name of the variable that marks a process as started by this contract.
pub const SOURCE_VARIABLE: &str = "IMPORTER_SOURCE";
const EXTRA_HEADER: &str = "IMPORTER_EXTRA_HEADER_";

/// A bool as Go's strconv.ParseBool reads it.
fn parse_bool(name: &'static str, value: &str) -> Result<bool, JobError> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        other => {
            Err(JobError::Unknown { name, value: other.to_owned(), expected: "true, false, 1, 0, t, f" })
        }
    }
}

fn parse_overhead(value: &str) -> Result<f64, JobError> {
    match value.parse::<f64>() {
        Ok(number) if (0.0..=1.0).contains(&number) => Ok(number),
        Ok(_) | Err(_) => Err(JobError::Overhead(value.to_owned())),
    }
}

impl Job {
    /// Reads a job from variables; others are ignored.
    ///
    /// PREALLOCATION must be a bool, a missing one is an error too, as upstream. INSECURE_TLS that is no bool is false.
    ///
    /// # Errors
    /// The first invalid variable.
    pub fn from_env<K, V>(variables: impl IntoIterator<Item = (K, V)>) -> Result<Self, JobError>
    where
        K: AsRef<str>,
        V: Into<String>,
    {
        let mut job = Self::default();
        let mut preallocation = String::new();
        let mut headers: Vec<(u64, String)> = Vec::new();
        for (name, value) in variables {
            let value: String = value.into();
            match name.as_ref() {
                SOURCE_VARIABLE => job.source = SourceKind::from_word(&value)?,
                "IMPORTER_CONTENTTYPE" => job.content = Content::from_word(&value)?,
                "IMPORTER_IMAGE_SIZE" if !value.is_empty() => {
                    job.image_size = Some(quantity::bytes(&value).map_err(JobError::Size)?);
                }
                "FILESYSTEM_OVERHEAD" if !value.is_empty() => {
                    job.filesystem_overhead = parse_overhead(&value)?
                }
                "PREALLOCATION" => preallocation = value,
                "INSECURE_TLS" => job.insecure_tls = parse_bool("INSECURE_TLS", &value).unwrap_or(false),
                "CACHE_MODE" => job.cache_mode = CacheMode::from_word(&value)?,
                "IMPORTER_PULL_METHOD" => job.pull_method = PullMethod::from_word(&value)?,
                name => {
                    if let Some(number) = name.strip_prefix(EXTRA_HEADER).and_then(|n| n.parse().ok()) {
                        headers.push((number, value));
                    } else if let Some(field) = job.text_mut(name) {
                        *field = value;
                    }
                }
            }
        }
        job.preallocation = parse_bool("PREALLOCATION", &preallocation)?;
        headers.sort();
        job.extra_headers = headers.into_iter().map(|(_, line)| line).collect();
        Ok(job)
    }

    /// The variables that [`Job::from_env`] reads back as `self`.
    pub fn to_env(&self) -> Vec<(String, String)> {
        let mut variables: Vec<(String, String)> = Vec::new();
        let mut set = |name: &str, value: String| {
            if !value.is_empty() {
                variables.push((name.to_owned(), value));
            }
        };
        set(SOURCE_VARIABLE, self.source.word().to_owned());
        set("IMPORTER_CONTENTTYPE", self.content.word().to_owned());
        set("IMPORTER_IMAGE_SIZE", self.image_size.map(|n| n.to_string()).unwrap_or_default());
        set("FILESYSTEM_OVERHEAD", self.filesystem_overhead.to_string());
        set("PREALLOCATION", self.preallocation.to_string());
        set("INSECURE_TLS", self.insecure_tls.to_string());
        set("CACHE_MODE", self.cache_mode.word().to_owned());
        set(
            "IMPORTER_PULL_METHOD",
            match self.pull_method {
                PullMethod::Node => PullMethod::Node.word().to_owned(),
                PullMethod::Pod => String::new(),
            },
        );
        for (number, line) in self.extra_headers.iter().enumerate() {
            set(&format!("{EXTRA_HEADER}{number}"), line.clone());
        }
        let mut copy = self.clone();
        for name in TEXTS {
            if let Some(text) = copy.text_mut(name) {
                set(name, std::mem::take(text));
            }
        }
        variables
    }

    /// The field of a variable that is taken as it is.
    fn text_mut(&mut self, name: &str) -> Option<&mut String> {
        Some(match name {
            "IMPORTER_ENDPOINT" => &mut self.endpoint,
            "OWNER_UID" => &mut self.owner_uid,
            "IMPORTER_ACCESS_KEY_ID" => &mut self.access_key_id,
            "IMPORTER_SECRET_KEY" => &mut self.secret_key,
            "GOOGLE_APPLICATION_CREDENTIALS" => &mut self.google_credentials,
            "IMPORTER_CERT_DIR" => &mut self.cert_dir,
            "IMPORTER_PROXY_CERT_DIR" => &mut self.proxy_cert_dir,
            "http_proxy" => &mut self.http_proxy,
            "https_proxy" => &mut self.https_proxy,
            "no_proxy" => &mut self.no_proxy,
            "IMPORTER_CHECKSUM" => &mut self.checksum,
            "IMPORTER_READY_FILE" => &mut self.ready_file,
            "IMPORTER_DONE_FILE" => &mut self.done_file,
            "IMPORTER_REGISTRY_IMAGE_ARCHITECTURE" => &mut self.registry_architecture,
            "REGISTRY_AUTH_FILE" => &mut self.registry_auth_file,
            "IMPORTER_DISK_ID" => &mut self.disk_id,
            "IMPORTER_UUID" => &mut self.uuid,
            "IMPORTER_BACKING_FILE" => &mut self.backing_file,
            "IMPORTER_THUMBPRINT" => &mut self.thumbprint,
            "IMPORTER_CURRENT_CHECKPOINT" => &mut self.current_checkpoint,
            "IMPORTER_PREVIOUS_CHECKPOINT" => &mut self.previous_checkpoint,
            "IMPORTER_FINAL_CHECKPOINT" => &mut self.final_checkpoint,
            _ => return None,
        })
    }
}

/// Every variable [`Job::text_mut`] knows.
const TEXTS: [&str; 22] = [
    "IMPORTER_ENDPOINT",
    "OWNER_UID",
    "IMPORTER_ACCESS_KEY_ID",
    "IMPORTER_SECRET_KEY",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "IMPORTER_CERT_DIR",
    "IMPORTER_PROXY_CERT_DIR",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "IMPORTER_CHECKSUM",
    "IMPORTER_READY_FILE",
    "IMPORTER_DONE_FILE",
    "IMPORTER_REGISTRY_IMAGE_ARCHITECTURE",
    "REGISTRY_AUTH_FILE",
    "IMPORTER_DISK_ID",
    "IMPORTER_UUID",
    "IMPORTER_BACKING_FILE",
    "IMPORTER_THUMBPRINT",
    "IMPORTER_CURRENT_CHECKPOINT",
    "IMPORTER_PREVIOUS_CHECKPOINT",
    "IMPORTER_FINAL_CHECKPOINT",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Job {
        let mut job = Job {
            source: SourceKind::Registry,
            content: Content::Archive,
            image_size: Some(1 << 40),
            filesystem_overhead: 0.055,
            preallocation: true,
            insecure_tls: true,
            cache_mode: CacheMode::TryNone,
            extra_headers: (0..12).map(|i| format!("X-{i}: a: b")).collect(),
            pull_method: PullMethod::Node,
            ..Job::default()
        };
        for name in TEXTS {
            *job.text_mut(name).unwrap() = format!("value of {name}");
        }
        job
    }

    #[test]
    fn jobs_read_back() {
        for source in ["http", "s3", "gcs", "registry", "imageio", "vddk", "glance", "none"] {
            let job = Job { source: SourceKind::from_word(source).unwrap(), ..full() };
            assert_eq!(job.source.word(), source);
            assert_eq!(Job::from_env(job.to_env()), Ok(job));
        }
        assert_eq!(Job::from_env(Job::default().to_env()), Ok(Job::default()));
    }

    #[test]
    fn order_of_headers_is_by_number() {
        let variables = [
            ("IMPORTER_EXTRA_HEADER_10", "c: 3"),
            ("IMPORTER_EXTRA_HEADER_2", "b: 2"),
            ("IMPORTER_EXTRA_HEADER_0", "a: 1"),
            ("IMPORTER_EXTRA_HEADER_x", "d: 4"),
            ("PREALLOCATION", "f"),
        ];
        let job = Job::from_env(variables).unwrap();
        assert_eq!(job.extra_headers, ["a: 1", "b: 2", "c: 3"]);
    }

    #[test]
    fn values_are_read_as_upstream_reads_them() {
        let read = |name: &'static str, value: &'static str| {
            Job::from_env([("PREALLOCATION", "false"), (name, value)])
        };
        assert_eq!(read("IMPORTER_IMAGE_SIZE", "1Gi").unwrap().image_size, Some(1 << 30));
        assert_eq!(read("IMPORTER_IMAGE_SIZE", "").unwrap().image_size, None);
        assert!(matches!(read("IMPORTER_IMAGE_SIZE", "big"), Err(JobError::Size(_))));
        assert!(read("PREALLOCATION", "T").unwrap().preallocation);
        assert!(matches!(read("PREALLOCATION", "yes"), Err(JobError::Unknown { .. })));
        assert!(matches!(Job::from_env([("A", "b")]), Err(JobError::Unknown { name: "PREALLOCATION", .. })));
        assert!(read("INSECURE_TLS", "1").unwrap().insecure_tls);
        assert!(!read("INSECURE_TLS", "maybe").unwrap().insecure_tls);
        assert!(matches!(read("IMPORTER_SOURCE", "ftp"), Err(JobError::Unknown { .. })));
        assert!(matches!(read("CACHE_MODE", "none"), Err(JobError::Unknown { .. })));
        for bad in ["1.1", "-0.1", "NaN", "inf", "6%"] {
            assert_eq!(read("FILESYSTEM_OVERHEAD", bad), Err(JobError::Overhead(bad.into())), "{bad}");
        }
    }
}
