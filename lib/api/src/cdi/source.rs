//! Sources of a DataVolume's data.

use crate::resource::resource;

resource! {
    /// Origin of the data of a DataVolume; exactly one field is set.
    pub struct DataVolumeSource {
        /// HTTP server.
        pub http: Option<HttpSource>,
        /// S3 object store.
        pub s3: Option<ObjectSource>,
        /// Google Cloud Storage.
        pub gcs: Option<ObjectSource> ["x-omit" = ["certConfigMap"]],
        /// Disk in a container image.
        pub registry: Option<RegistrySource>,
        /// PersistentVolumeClaim that is cloned.
        pub pvc: Option<ClaimSource>,
        /// Empty disk.
        pub blank: Option<BlankSource>,
        /// Data that a client uploads.
        pub upload: Option<UploadSource>,
        /// OpenStack image service (not supported).
        pub glance: Option<GlanceSource>,
        /// oVirt image service (not supported).
        pub imageio: Option<ImageioSource>,
        /// VolumeSnapshot that is cloned.
        pub snapshot: Option<ClaimSource>,
        /// VMware disk, by VDDK (not supported).
        pub vddk: Option<VddkSource>,
    }

    /// Object in an S3 store or in Google Cloud Storage.
    pub struct ObjectSource {
        /// URL of the object.
        pub url: String ["x-required" = true],
        /// Secret with the credentials.
        pub secret_ref: Option<String>,
        /// ConfigMap with CA certificates.
        pub cert_config_map: Option<String>,
    }

    /// HTTP server.
    pub struct HttpSource {
        /// URL: `http://`, `https://`, or on a standalone machine `file:///` with a local file.
        pub url: String ["x-required" = true],
        /// Secret with user (`accessKeyId`) and password (`secretKey`).
        pub secret_ref: Option<String>,
        /// ConfigMap with CA certificates.
        pub cert_config_map: Option<String>,
        /// Request headers, each `Name: value`.
        pub extra_headers: Vec<String>,
        /// Secrets whose entries are request headers.
        pub secret_extra_headers: Vec<String>,
        /// Expected checksum of the downloaded bytes: `sha256:HEX`.
        pub checksum: Option<String>,
        /// Whether the server's certificate is left unverified. Default: false.
        pub insecure_skip_verify: Option<bool>,
    }

    /// OpenStack image service (not supported).
    pub struct GlanceSource {
        /// ConfigMap with CA certificates.
        pub cert_config_map: Option<String>,
        /// Secret with the credentials.
        pub secret_ref: Option<String>,
        /// URL of the image.
        pub url: Option<String>,
    }

    /// oVirt image service (not supported).
    pub struct ImageioSource {
        /// ConfigMap with CA certificates.
        pub cert_config_map: Option<String>,
        /// ID of the oVirt disk.
        pub disk_id: String ["x-required" = true],
        /// Whether the server's certificate is left unverified. Default: false.
        pub insecure_skip_verify: Option<bool>,
        /// Secret with the credentials.
        pub secret_ref: Option<String>,
        /// URL of the oVirt engine.
        pub url: String ["x-required" = true],
    }

    /// Claim, snapshot or DataSource by name.
    pub struct ClaimSource {
        /// Namespace. Default: that of the object.
        pub namespace: Option<String> ["x-required" = true],
        /// Name.
        pub name: String ["x-required" = true],
    }

    /// Disk in a container image.
    pub struct RegistrySource {
        /// Image: `docker://REGISTRY/NAME:TAG` or `oci-archive:FILE`.
        pub url: Option<String>,
        /// `pod` (default): the import pod pulls the image. `node`: the node's container runtime pulls it.
        pub pull_method: Option<String>,
        /// Secret with user and password of the registry.
        pub secret_ref: Option<String>,
        /// ConfigMap with CA certificates.
        pub cert_config_map: Option<String>,
        /// Platform that is selected from a multi-platform image. Default: the node's.
        pub platform: Option<Platform>,
        /// OpenShift ImageStream that names the image; with `pullMethod: node`.
        pub image_stream: Option<String>,
    }

    /// Platform of a container image.
    pub struct Platform {
        /// CPU architecture, such as `amd64`.
        pub architecture: Option<String>,
    }

    /// VMware disk, by VDDK (not supported).
    pub struct VddkSource {
        /// Path of the disk in the datastore.
        pub backing_file: Option<String>,
        /// ConfigMap with additional VDDK arguments.
        pub extra_args: Option<String>,
        /// Image with the VDDK library.
        #[serde(rename = "initImageURL")]
        pub init_image_url: Option<String>,
        /// Secret with the credentials.
        pub secret_ref: Option<String>,
        /// Fingerprint of the vCenter or ESXi certificate.
        pub thumbprint: Option<String>,
        /// URL of the vCenter or ESXi host.
        pub url: Option<String>,
        /// UUID of the virtual machine.
        pub uuid: Option<String>,
        /// ConfigMap with CA certificates.
        pub cert_config_map: Option<String>,
    }

    /// Empty disk (no fields).
    pub struct BlankSource {
    }

    /// Data that a client uploads (no fields).
    pub struct UploadSource {
    }
}
