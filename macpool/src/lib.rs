//! MAC addresses for every virtual machine, from replicas that cannot collide and cannot block a cluster: kubemacpool's
//! webhook.
//!
//! ```text
//!  API server ──review──► webhook ─► review ─► pool ◄── watch ◄── objects that are there
//!                            │ mTLS, 200 ms     ▲ blocks
//!                            └─► peers          └── store  ◄─compare-and-swap─► one ConfigMap; Secret, caBundle
//! ```
//!
//! Pure:
//! - [`api::net`]: addresses and ranges of them, their owners, and which one is next; virt-node has the same.
//! - [`blocks`]: the replica of each block of addresses.
//! - [`fields`]: the fields that are read of objects; [`namespaces`]: the decisions of their namespaces.
//! - [`review`]: the webhook, from an AdmissionReview to its answer.
//! - [`collision`]: addresses that several running objects have.
//! - [`certificates`]: the store of the webhook's certificate and its authorities.
//!
//! Around them [`state`] is what a replica knows, and the rest brings it there and asks it.
//!
//! Not here: what KubeVirt does with an address.

mod args;
pub mod blocks;
pub mod certificates;
pub mod collision;
mod config;
mod decision;
mod entry;
pub mod error;
pub mod fields;
mod metrics;
mod metrics_auth;
pub mod namespaces;
mod partial_object;
mod peers;
pub mod review;
mod state;
mod store;
mod tls;
mod watch;
mod webhook;

pub use entry::run;
pub use error::{Error, Kind};

/// The command line, of which manual pages and tables of options are made.
pub fn command() -> clap::Command {
    <args::Args as clap::CommandFactory>::command()
}
