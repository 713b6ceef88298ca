//! DNS settings of a pod.

use crate::resource::resource;

resource! {
    /// DNS settings in addition to those of `dnsPolicy`.
    pub struct PodDnsConfig {
        /// IP addresses of DNS servers.
        pub nameservers: Vec<String>,
        /// Resolver options.
        pub options: Vec<PodDnsOption>,
        /// Search domains.
        pub searches: Vec<String>,
    }

    /// Resolver option.
    pub struct PodDnsOption {
        /// Name.
        pub name: Option<String>,
        /// Value, for options that have one.
        pub value: Option<String>,
    }
}
