//! What every daemon has: HTTPS, probes, metrics, logs, shutdown.
//!
//! - [`https`]: a small HTTPS server with a certificate it signs itself.
//! - [`logs`]: text for people, JSON for collectors, levels as klog counts them.
//! - [`signals`]: SIGTERM and SIGINT as a call.
//!
//! Not here: what is served. A program hands in functions; nothing here knows a metric's name.

pub mod https;
pub mod logs;
pub mod signals;
