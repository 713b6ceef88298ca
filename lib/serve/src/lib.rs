//! What every daemon has: HTTPS, probes, metrics, logs, shutdown.
//!
//! - [`body`]: the body of a request that a thread makes, of a file say.
//! - [`client`]: the name in a client's certificate.
//! - [`http`]: a small server, over TLS or plain.
//! - [`logs`]: text for people, JSON for collectors, levels as klog counts them.
//! - [`metrics`]: the text that Prometheus reads.
//! - [`signals`]: SIGTERM and SIGINT as a call.
//! - [`tls`]: certificates, self-signed or from files.
//! - [`trust`]: a client that believes every server.
//!
//! Not here: what is served. A program hands in functions; nothing here knows a metric's name.

pub mod body;
pub mod client;
pub mod http;
pub mod logs;
pub mod metrics;
pub mod signals;
pub mod tls;
pub mod trust;
