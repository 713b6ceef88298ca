//! `KubeVirt` configuration of the platform's own components: API clients, TLS, seccomp, supporting containers.

use crate::core::ResourceAmounts;
use crate::resource::resource;

resource! {
    /// Settings of a component that take effect without a restart.
    pub struct ReloadableComponent {
        /// Client of the Kubernetes API.
        pub rest_client: Option<RestClient>,
    }

    /// Client of the Kubernetes API.
    pub struct RestClient {
        /// Limit of the request rate.
        pub rate_limiter: Option<RateLimiter>,
    }

    /// Limit of the request rate.
    pub struct RateLimiter {
        /// Token bucket.
        pub token_bucket_rate_limiter: Option<TokenBucket>,
    }

    /// Token bucket for requests.
    pub struct TokenBucket {
        /// Most requests at once.
        pub burst: i64 ["x-required" = true],
        /// Requests per second.
        pub qps: f64 ["x-required" = true],
    }

    /// Seccomp profiles.
    pub struct SeccompConfiguration {
        /// Profile of launcher pods.
        pub virtual_machine_instance_profile: Option<InstanceSeccompProfile>,
    }

    /// Seccomp profile of launcher pods.
    pub struct InstanceSeccompProfile {
        /// Profile in place of the default one.
        pub custom_profile: Option<CustomSeccompProfile>,
    }

    /// Seccomp profile; one field is set.
    pub struct CustomSeccompProfile {
        /// Path of a profile on the node, below the kubelet's seccomp directory.
        pub localhost_profile: Option<String>,
        /// Whether the container runtime's default profile is used.
        pub runtime_default_profile: Option<bool>,
    }

    /// Resources of the supporting containers of one type.
    pub struct SupportContainerResources {
        /// Requests and limits.
        pub resources: ResourceAmounts ["x-required" = true],
        /// `container-disk`, `hotplug-disk`, `virtiofs`, `sidecar`, `vmexport` or `guest-console-log`.
        #[serde(rename = "type")]
        pub kind: String ["x-required" = true],
    }

    /// TLS settings of the servers.
    pub struct TlsConfiguration {
        /// Accepted cipher suites; only with TLS 1.2.
        pub ciphers: Vec<String> ["x-kubernetes-list-type" = "set"],
        /// Lowest accepted TLS version.
        #[serde(rename = "minTLSVersion")]
        pub min_tls_version: Option<String> ["enum" = ["VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13"]],
    }
}
