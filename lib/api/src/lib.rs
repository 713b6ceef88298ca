//! Contracts between ferrovirt programs and with the outside: pure data and pure rules, no I/O, no async.
//!
//! A contract is one type that both its ends use: what a controller writes and what a worker reads cannot drift apart.
//!
//! - [`import`]: the job of an importer ([`import::Job`]) and its result ([`import::Outcome`]).
//! - [`kubevirt`], [`instancetype`], [`cdi`], [`multus`], [`hyperconverged`], [`ssp`], [`addons`], [`hostpath`],
//!   [`core`]: resources by group;
//!   [`component`] is shared by the installation objects.
//!   [`resource`] holds what all are made of, [`kind`] names those that a standalone machine reads.
//! - `manifest` (feature `yaml`): the documents of a text. `schema`, `definition` (feature `crd`): schemas of the
//!   resources and their CustomResourceDefinitions.
//! - [`launch`]: the document from which virt-launcher starts one guest; [`launcher`]: the protocol with it while that runs.
//! - [`cni`]: the input of network plugins.
//! - [`net`]: MAC addresses and their owners.
//! - [`upload`]: the environment of an upload server, its paths and headers, the tokens of clients.
//! - [`poll`]: the operator's questions about the source of a DataImportCron. [`downloads`]: paths of client downloads.
//! - [`quantity`]: Kubernetes quantities as bytes. [`duration`]: durations as Go writes them.
//! - [`nodes`]: labels of nodes. [`names`]: every path, port and metric name of the contracts, once.
//!
//! Not here: reading the environment or files, clients.

pub mod addons;
pub mod cdi;
pub mod cni;
pub mod component;
pub mod core;
#[cfg(feature = "crd")]
pub mod definition;
pub mod downloads;
pub mod duration;
pub mod hostpath;
pub mod hyperconverged;
pub mod import;
pub mod instancetype;
pub mod kind;
pub mod kubevirt;
pub mod launch;
pub mod launcher;
#[cfg(feature = "yaml")]
pub mod manifest;
pub mod multus;
pub mod names;
pub mod net;
pub mod nodes;
pub mod poll;
pub mod quantity;
pub mod resource;
#[cfg(feature = "crd")]
pub mod schema;
pub mod ssp;
pub mod upload;
