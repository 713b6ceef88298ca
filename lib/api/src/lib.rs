//! Contracts between ferrovirt programs and with the outside: pure data and pure rules, no I/O, no async.
//!
//! A contract is one type that both its ends use: what a controller writes and what a worker reads cannot drift apart.
//!
//! - [`import`]: what an importer is told ([`import::Job`]) and what it answers ([`import::Outcome`]).
//! - [`quantity`]: Kubernetes quantities as bytes.
//! - [`names`]: every path, port and metric name of the contracts, once.
//!
//! Not here: reading the environment or files, resource types of Kubernetes.

pub mod import;
pub mod names;
pub mod quantity;
