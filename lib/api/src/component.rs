//! Settings that the installation objects `KubeVirt` and `CDI` share.

use crate::resource::resource;

resource! {
    /// Lifetime of certificates.
    pub struct CertificateLifetime {
        /// Validity, such as `48h`.
        pub duration: Option<String>,
        /// Time before expiry at which a certificate is renewed.
        pub renew_before: Option<String>,
    }

    /// Patch for an installed object.
    pub struct ComponentPatch {
        /// Patch document, JSON.
        pub patch: String ["x-required" = true],
        /// Name of the object.
        pub resource_name: String ["x-required" = true, "minLength" = 1],
        /// Kind of the object, such as `Deployment`.
        pub resource_type: String ["x-required" = true, "minLength" = 1],
        /// `json`, `merge` or `strategic`.
        #[serde(rename = "type")]
        pub kind: String ["x-required" = true],
    }
}

/// The lowest TLS version of a security profile: its `type`, and `minTLSVersion` of a custom one. Without a type: that of
/// `Intermediate`.
pub fn least_tls_version<'a>(kind: Option<&str>, custom: Option<&'a str>) -> &'a str {
    match kind {
        Some("Old") => "VersionTLS10",
        Some("Modern") => "VersionTLS13",
        Some("Custom") => custom.unwrap_or("VersionTLS12"),
        _ => "VersionTLS12",
    }
}
