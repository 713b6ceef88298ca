//! `CDIConfig`: settings for data import.

use std::collections::BTreeMap;

use crate::core::ResourceRequirements;
use crate::resource::{Empty, LocalReference, ObjectMeta, resource};

/// A share of a [`FilesystemOverhead`] in thousandths: `0`, `0.055`, `1`, with at most three digits behind the point.
pub fn thousandths(share: &str) -> Option<u32> {
    if share == "1" {
        return Some(1000);
    }
    let rest = share.strip_prefix('0')?;
    let digits = match rest {
        "" => rest,
        _ => rest.strip_prefix('.').filter(|digits| !digits.is_empty())?,
    };
    if digits.len() > 3 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    format!("{digits:0<3}").parse().ok()
}

resource! {
    /// Settings for data import: spec of `CDIConfig`, copied from `spec.config` of the `CDI` object.
    pub struct CdiConfigSpec {
        /// Ignored. Finished DataVolumes are kept.
        #[serde(rename = "dataVolumeTTLSeconds")]
        pub data_volume_ttl_seconds: Option<i32>,
        /// Names of enabled feature gates.
        pub feature_gates: Vec<String>,
        /// Share of a filesystem volume that is not available to the disk image.
        pub filesystem_overhead: Option<FilesystemOverhead>,
        /// Pull secrets for the images of worker pods.
        pub image_pull_secrets: Vec<LocalReference>,
        /// HTTP proxy for imports.
        pub import_proxy: Option<ImportProxy>,
        /// Registries (`HOST` or `HOST:PORT`) that may be contacted without TLS verification.
        pub insecure_registries: Vec<String>,
        /// Log level of the storage controllers and worker pods.
        pub log_verbosity: Option<i32>,
        /// Resource requests and limits of worker pods.
        pub pod_resource_requirements: Option<ResourceRequirements>,
        /// Whether new volumes are fully allocated. DataVolumes can override it. Default: false.
        pub preallocation: Option<bool>,
        /// Ignored: imports use no scratch volume.
        pub scratch_space_storage_class: Option<String>,
        /// TLS versions and ciphers accepted by the servers.
        pub tls_security_profile: Option<TlsSecurityProfile>,
        /// URL of the upload proxy that is published in the status of `CDIConfig`.
        #[serde(rename = "uploadProxyURLOverride")]
        pub upload_proxy_url_override: Option<String>,
        /// `Enabled` or `Disabled`: whether claims labelled for it are completed from the storage profile at
        /// admission.
        pub webhook_pvc_rendering: Option<String>,
    }

    /// Share of a filesystem volume that is reserved for the filesystem itself, from `0` to `1`.
    pub struct FilesystemOverhead {
        /// Value for all storage classes, such as `0.06`.
        pub global: Option<String> ["pattern" = r"^(0(?:\.\d{1,3})?|1)$"],
        /// Values for single storage classes, by class name.
        pub storage_class: BTreeMap<String, String>,
    }

    /// HTTP proxy settings of import pods.
    pub struct ImportProxy {
        /// Proxy URL for `http` sources.
        #[serde(rename = "HTTPProxy")]
        pub http_proxy: Option<String>,
        /// Proxy URL for `https` sources.
        #[serde(rename = "HTTPSProxy")]
        pub https_proxy: Option<String>,
        /// Comma-separated hosts, domains and networks that are contacted directly.
        pub no_proxy: Option<String>,
        /// ConfigMap in the install namespace with the CA certificates of the proxy.
        #[serde(rename = "trustedCAProxy")]
        pub trusted_ca_proxy: Option<String>,
    }

    /// TLS settings of the servers.
    pub struct TlsSecurityProfile {
        /// Settings for type `Custom`.
        pub custom: Option<TlsProfileSpec>,
        /// Settings for type `Intermediate` (no fields).
        pub intermediate: Option<Empty>,
        /// Settings for type `Modern` (no fields).
        pub modern: Option<Empty>,
        /// Settings for type `Old` (no fields).
        pub old: Option<Empty>,
        /// Selected profile.
        #[serde(rename = "type")]
        pub kind: Option<String> ["enum" = ["Old", "Intermediate", "Modern", "Custom"]],
    }

    /// Ciphers and lowest TLS version of a custom profile.
    pub struct TlsProfileSpec {
        /// OpenSSL names of the accepted cipher suites.
        pub ciphers: Vec<String> ["x-required" = true],
        /// Lowest accepted TLS version.
        #[serde(rename = "minTLSVersion")]
        pub min_tls_version: String ["x-required" = true, "enum" = ["VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13"]],
    }

    /// Effective data import settings of the cluster. The object named `config` is maintained by the operator.
    pub struct CdiConfig {
        /// `cdi.kubevirt.io/v1beta1`.
        pub api_version: String,
        /// `CDIConfig`.
        pub kind: String,
        /// Name and metadata.
        pub metadata: ObjectMeta,
        /// Requested settings.
        pub spec: CdiConfigSpec ["x-required" = true],
        /// Settings in effect.
        pub status: Option<CdiConfigStatus>,
    }

    /// Data import settings in effect.
    pub struct CdiConfigStatus {
        /// Resource requests and limits of worker pods.
        pub default_pod_resource_requirements: Option<ResourceRequirements>,
        /// Filesystem overhead, with a value for every storage class.
        pub filesystem_overhead: Option<FilesystemOverhead>,
        /// Pull secrets for the images of worker pods.
        pub image_pull_secrets: Vec<LocalReference>,
        /// HTTP proxy for imports.
        pub import_proxy: Option<ImportProxy>,
        /// Whether new volumes are fully allocated by default.
        pub preallocation: Option<bool>,
        /// Always empty: imports use no scratch volume.
        pub scratch_space_storage_class: Option<String>,
        /// CA certificate of the upload proxy, PEM.
        #[serde(rename = "uploadProxyCA")]
        pub upload_proxy_ca: Option<String>,
        /// URL at which clients reach the upload proxy.
        #[serde(rename = "uploadProxyURL")]
        pub upload_proxy_url: Option<String>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_as_the_schema_writes_them() {
        for (text, expected) in [("0", 0), ("1", 1000), ("0.06", 60), ("0.055", 55), ("0.5", 500)] {
            assert_eq!(thousandths(text), Some(expected), "{text}");
        }
        for text in ["", "2", "0.", "0.0555", ".5", "-0", "0.x", "00", "05", "1.0"] {
            assert_eq!(thousandths(text), None, "{text}");
        }
    }
}
