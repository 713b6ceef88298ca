//! The group cdi.kubevirt.io, version v1beta1: `DataVolume`, upstream's fields as of CDI 1.66.
//!
//! Not here: how a source becomes an importer's job.

use crate::core::ClaimResources;
use crate::resource::{Condition, ObjectMeta, resource};

/// Group and version as objects write them.
pub const API_VERSION: &str = "cdi.kubevirt.io/v1beta1";

resource! {
    /// A claim, and what it is filled with once.
    pub struct DataVolume {
        /// `cdi.kubevirt.io/v1beta1`.
        pub api_version: String,
        /// `DataVolume`.
        pub kind: String,
        /// Its name, and the claim's.
        pub metadata: ObjectMeta,
        /// What is wanted.
        pub spec: DataVolumeSpec,
        /// How far it is.
        pub status: Option<DataVolumeStatus>,
    }

    /// What is wanted of a DataVolume.
    pub struct DataVolumeSpec {
        /// Where its content comes from.
        pub source: Option<DataVolumeSource>,
        /// The claim as it is made. One of this and `storage`.
        pub pvc: Option<StorageSpec>,
        /// The claim, with what is left out filled in from what the storage can do.
        pub storage: Option<StorageSpec>,
        /// `kubevirt` (default): a disk. `archive`: a tar's files.
        pub content_type: Option<String>,
        /// Whether all blocks are reserved. Default: no.
        pub preallocation: Option<bool>,
    }

    /// Where a DataVolume's content comes from: one of these.
    pub struct DataVolumeSource {
        /// A web server.
        pub http: Option<HttpSource>,
        /// An S3 store.
        pub s3: Option<ObjectSource>,
        /// Google Cloud Storage.
        pub gcs: Option<ObjectSource>,
        /// The disk in a container image.
        pub registry: Option<RegistrySource>,
        /// Another claim: a clone.
        pub pvc: Option<ClaimSource>,
        /// Nothing: an empty disk.
        pub blank: Option<BlankSource>,
        /// Whatever is sent to it.
        pub upload: Option<UploadSource>,
    }

    /// A web server.
    pub struct HttpSource {
        /// `http://`, `https://`, or `file:///` with a file of the machine (standalone).
        pub url: String,
        /// A Secret with `accessKeyId` and `secretKey`: user and password.
        pub secret_ref: Option<String>,
        /// A ConfigMap with certificates to trust.
        pub cert_config_map: Option<String>,
        /// Request headers, `Key: value`.
        pub extra_headers: Vec<String>,
        /// Secrets whose entries are request headers.
        pub secret_extra_headers: Vec<String>,
        /// Checksum of the bytes as they are downloaded: `sha256:…`.
        pub checksum: Option<String>,
        /// Whether the server's certificate is left unverified. Default: no.
        pub insecure_skip_verify: Option<bool>,
    }

    /// An object in an S3 store or in Google Cloud Storage.
    pub struct ObjectSource {
        /// Where it is.
        pub url: String,
        /// A Secret with credentials.
        pub secret_ref: Option<String>,
        /// A ConfigMap with certificates to trust.
        pub cert_config_map: Option<String>,
    }

    /// The disk in a container image.
    pub struct RegistrySource {
        /// `docker://REGISTRY/NAME:TAG`, or `oci-archive:FILE`.
        pub url: Option<String>,
        /// `pod` (default), or `node`: the node pulls the image.
        pub pull_method: Option<String>,
        /// A Secret with user and password.
        pub secret_ref: Option<String>,
        /// A ConfigMap with certificates to trust.
        pub cert_config_map: Option<String>,
        /// Which of an image's platforms. Default: this machine's.
        pub platform: Option<Platform>,
    }

    /// A platform.
    pub struct Platform {
        /// Such as `amd64`.
        pub architecture: Option<String>,
    }

    /// A claim that is cloned.
    pub struct ClaimSource {
        /// Its namespace. Default: the same.
        pub namespace: Option<String>,
        /// Its name.
        pub name: String,
    }

    /// An empty disk; has no options.
    pub struct BlankSource {
    }

    /// An upload; has no options.
    pub struct UploadSource {
    }

    /// What is wanted of a claim.
    pub struct StorageSpec {
        /// `ReadWriteOnce`, `ReadWriteMany`, `ReadOnlyMany`, `ReadWriteOncePod`.
        pub access_modes: Vec<String>,
        /// Its size, in `requests.storage`. With `storage` and a clone: default is the source's.
        pub resources: Option<ClaimResources>,
        /// Kind of storage; standalone, the name of a pool. Default: the default one.
        pub storage_class_name: Option<String>,
        /// `Filesystem` (default) or `Block`.
        pub volume_mode: Option<String>,
    }

    /// How far a DataVolume is.
    pub struct DataVolumeStatus {
        /// `Pending`, `ImportScheduled`, `ImportInProgress`, `CloneInProgress`, `Succeeded`, `Failed`, …
        pub phase: Option<String>,
        /// Per cent with a sign, such as `42.0%`, or `N/A`.
        pub progress: Option<String>,
        /// Tries that failed.
        pub restart_count: Option<u32>,
        /// The claim.
        pub claim_name: Option<String>,
        /// Bound, Running, Ready.
        pub conditions: Vec<Condition>,
    }
}
