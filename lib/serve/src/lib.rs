//! Shared by every daemon: HTTP and TLS, certificates, probes, metrics, logs, shutdown.
//!
//! - [`authority`]: an authority of the program's own: when it and its certificates are replaced, and making them.
//! - [`body`]: the body of a request that a thread makes, of a file for example.
//! - [`client`]: the name in a client's certificate.
//! - `failure`: the error of programs between clients and upload servers, and its exit codes (feature `push`).
//! - [`datagrams`]: datagrams in a stream of bytes.
//! - [`http`]: a small server for probes and metrics on a thread of its own.
//! - [`logs`]: text for people, JSON for collectors, levels as klog counts them.
//! - [`metrics`]: the text that Prometheus reads.
//! - `peer`: connections to upload servers and proxies (feature `push`).
//! - `push`: a client that sends a file to an upload server and continues after broken connections (feature `push`).
//! - [`route`]: methods and paths to handlers, bodies with a bound.
//! - [`server`]: connections, their limits, HTTP/1 and HTTP/2.
//! - [`signals`]: SIGTERM and SIGINT as a call.
//! - `start`: arguments, log flags, the provider of TLS (feature `flags`).
//! - [`tls`]: identities from files, from memory or self-signed; reload.
//! - [`trust`]: a client of servers with given authorities, or of any server.
//! - [`upgrade`]: streams in place of an HTTP/1 connection.
//! - [`websocket`]: WebSocket streams (feature `websocket`).
//!
//! Not here: what is served. A program hands in functions; nothing here knows a metric's name.

pub mod authority;
pub mod body;
pub mod client;
pub mod datagrams;
#[cfg(feature = "push")]
pub mod failure;
pub mod http;
pub mod logs;
pub mod metrics;
#[cfg(feature = "push")]
pub mod peer;
#[cfg(feature = "push")]
pub mod push;
pub mod route;
pub mod server;
pub mod signals;
#[cfg(feature = "flags")]
pub mod start;
pub mod tls;
pub mod trust;
pub mod upgrade;
#[cfg(feature = "websocket")]
pub mod websocket;

/// Any error, boxed: what bodies may fail with.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
