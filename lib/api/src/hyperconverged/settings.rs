//! Settings of `HyperConverged` that both versions have in the same form.

use crate::core::LabelSelector;
use crate::kubevirt::LogVerbosity;
use crate::resource::{Empty, resource};

resource! {
    /// Lifetime of the certificates of all components.
    pub struct Certificates {
        /// CA certificates.
        pub ca: Option<CaLifetime> ["x-default" = {"duration": "48h0m0s", "renewBefore": "24h0m0s"}],
        /// Server and client certificates.
        pub server: Option<ServerLifetime> ["x-default" = {"duration": "24h0m0s", "renewBefore": "12h0m0s"}],
    }

    /// Lifetime of CA certificates.
    pub struct CaLifetime {
        /// Validity; at least ten minutes.
        pub duration: Option<String> ["x-default" = "48h0m0s"],
        /// Time before expiry at which a new CA is created; at least ten minutes.
        pub renew_before: Option<String> ["x-default" = "24h0m0s"],
    }

    /// Lifetime of server and client certificates.
    pub struct ServerLifetime {
        /// Validity; at least ten minutes.
        pub duration: Option<String> ["x-default" = "24h0m0s"],
        /// Time before expiry at which a new certificate is created; at least ten minutes.
        pub renew_before: Option<String> ["x-default" = "12h0m0s"],
    }

    /// TLS settings of the servers.
    pub struct TlsProfile {
        /// Settings for type `Custom`.
        pub custom: Option<CustomTlsProfile>,
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
    pub struct CustomTlsProfile {
        /// OpenSSL names of the accepted cipher suites.
        pub ciphers: Vec<String>,
        /// Lowest accepted TLS version.
        #[serde(rename = "minTLSVersion")]
        pub min_tls_version: Option<String> ["enum" = ["VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13"]],
    }

    /// Log levels of the components.
    pub struct LogLevels {
        /// Level of the storage components.
        pub cdi: Option<i32>,
        /// Levels of the compute components.
        pub kubevirt: Option<LogVerbosity>,
    }

    /// Range of MAC addresses; both ends are set, or none.
    pub struct MacRange {
        /// Last address.
        pub range_end: Option<String> ["pattern" = "^([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}$"],
        /// First address.
        pub range_start: Option<String> ["pattern" = "^([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}$"],
    }

    /// Overcommit of memory.
    pub struct Density {
        /// Guest memory as a percentage of the memory that the pod requests.
        pub memory_overcommit_percentage: Option<i64> ["x-default" = 100, "minimum" = 10],
    }

    /// Defaults of VMs.
    pub struct VirtualMachineSettings {
        /// Whether guests do not report free memory pages.
        pub disable_free_page_reporting: Option<bool> ["x-default" = false],
        /// Whether serial consoles are not logged.
        pub disable_serial_console_log: Option<bool> ["x-default" = false],
    }

    /// Settings of data import.
    pub struct StorageImport {
        /// Registries (`HOST` or `HOST:PORT`) that may be contacted without TLS verification.
        pub insecure_registries: Vec<String> ["x-kubernetes-list-type" = "set"],
    }

    /// SCSI persistent reservations.
    pub struct PersistentReservation {
        /// Whether guests may use them.
        pub enabled: Option<bool>,
    }

    /// Metrics of guests that are exported.
    pub struct AllowedMetrics {
        /// Names. `none`: no metric. Default: all.
        pub allowed_metrics: Vec<String> ["x-kubernetes-validations" = [{"rule": "(self.size() <= 1) || !self.exists(r, (r == 'none'))", "message": "'none' must be the only entry"}]],
    }

    /// Quota that counts guests without the overhead of their pods.
    pub struct ApplicationAwareQuota {
        /// Whether quotas over several namespaces are allowed.
        pub allow_application_aware_cluster_resource_quota: Option<bool> ["x-default" = false],
        /// Whether the quota is deployed; v1 only.
        pub enable: Option<bool> ["x-default" = false],
        /// Labels of the namespaces in which it counts.
        pub namespace_selector: Option<LabelSelector>,
        /// How the resources of a guest are counted.
        pub vmi_calc_config_name: Option<String> ["enum" = ["VmiPodUsage", "VirtualResources", "DedicatedVirtualResources", "IgnoreVmiCalculator", "GuestEffectiveResources"], "x-default" = "DedicatedVirtualResources"],
    }
}
