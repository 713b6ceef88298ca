//! Contracts between ferrovirt programs and with the outside: pure data and pure rules, no I/O, no async.
//!
//! A contract is one type that both its ends use: what a controller writes and what a worker reads cannot drift apart.
//!
//! - [`import`]: what an importer is told ([`import::Job`]) and what it answers ([`import::Outcome`]).
//! - [`kubevirt`], [`cdi`], [`multus`], [`core`]: the resources people write, by group; [`resource`] is what they are made
//!   of, [`kind`] names them.
//! - `manifest` (feature `yaml`): the documents of a text. `schema` (feature `crd`): schemas of the resources.
//! - [`launch`]: what virt-launcher is told about one guest; [`launcher`]: the conversation with it while that runs.
//! - [`net`]: MAC addresses, and who has which.
//! - [`upload`]: what an upload server is told, its paths and headers, the tokens of clients.
//! - [`quantity`]: Kubernetes quantities as bytes.
//! - [`names`]: every path, port and metric name of the contracts, once.
//!
//! Not here: reading the environment or files, clients.

pub mod cdi;
pub mod core;
pub mod import;
pub mod kind;
pub mod kubevirt;
pub mod launch;
pub mod launcher;
#[cfg(feature = "yaml")]
pub mod manifest;
pub mod multus;
pub mod names;
pub mod net;
pub mod quantity;
pub mod resource;
#[cfg(feature = "crd")]
pub mod schema;
pub mod upload;
