//! Checks of a guest, in the form of a container's probes.

use crate::resource::{Empty, IntOrString, resource};

resource! {
    /// Check of a guest.
    pub struct Probe {
        /// Command in the guest, run by the guest agent.
        pub exec: Option<ExecAction>,
        /// Consecutive failures after which the check counts as failed. Default: 3.
        pub failure_threshold: Option<i32>,
        /// Ping of the guest agent.
        pub guest_agent_ping: Option<Empty>,
        /// HTTP request.
        pub http_get: Option<HttpGetAction>,
        /// Seconds from the start of the guest to the first check.
        pub initial_delay_seconds: Option<i32>,
        /// Seconds between checks. Default: 10.
        pub period_seconds: Option<i32>,
        /// Consecutive successes after which the check counts as passed. Default: 1.
        pub success_threshold: Option<i32>,
        /// TCP connection.
        pub tcp_socket: Option<TcpSocketAction>,
        /// Seconds until a check times out. Default: 1.
        pub timeout_seconds: Option<i32>,
    }

    /// Command in the guest.
    pub struct ExecAction {
        /// Program and arguments; exit code 0 is success.
        pub command: Vec<String>,
    }

    /// HTTP request; status codes from 200 to 399 are success.
    pub struct HttpGetAction {
        /// Host name. Default: the guest's IP address.
        pub host: Option<String>,
        /// Request headers.
        pub http_headers: Vec<HttpHeader>,
        /// Path. Default: `/`.
        pub path: Option<String>,
        /// Port number or name.
        pub port: IntOrString ["x-required" = true],
        /// `HTTP` (default) or `HTTPS`.
        pub scheme: Option<String>,
    }

    /// Request header.
    pub struct HttpHeader {
        /// Name.
        pub name: String ["x-required" = true],
        /// Value.
        pub value: String ["x-required" = true],
    }

    /// TCP connection; an accepted connection is success.
    pub struct TcpSocketAction {
        /// Host name. Default: the guest's IP address.
        pub host: Option<String>,
        /// Port number or name.
        pub port: IntOrString ["x-required" = true],
    }
}
