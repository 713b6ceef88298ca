//! Volumes from the folders of a node: the hostpath CSI driver, in place of hostpath-provisioner's.
//!
//! ```text
//!  kubelet, sidecars ─► identity, controller, node ─► request ─► plan (pure) ─► apply ─► pool, mounts, device
//!   gRPC on a socket     wire types in and out        checked     decides        does     one folder, one kernel
//! ```
//!
//! The disk and the kernel hold all state: volumes are directories and files, mounts and loop devices are queried. No state
//! is kept that could be wrong after a restart, and no incomplete volume is ever visible.
//!
//! [`mounter`] is another program in the same file: it mounts the volume of a pool's claim.
//!
//! The process is also its own node-driver-registrar ([`registration`]) and livenessprobe ([`health`]), and serves
//! [`metrics`], and the node's agent the [`pool_states`].
//!
//! Not here: HTTP, logs and signals (`serve`), Kubernetes.

mod amount;
mod apply;
mod args;
mod call;
pub mod config;
mod controller;
mod device;
mod directory;
mod driver;
mod entry;
pub mod error;
mod extents;
mod fault;
mod group;
mod health;
mod http2;
pub mod id;
mod identity;
mod latency;
pub mod locks;
mod metadata;
mod metrics;
mod mounter;
mod mounts;
mod node;
mod pagination;
mod plan;
mod pool;
mod pool_states;
mod pools;
mod publications;
mod record;
mod registration;
mod request;
mod socket;
mod status;
mod sys;
#[cfg(test)]
mod testing;
mod topology;
mod volume_health;
mod wake;
mod worker;

pub use entry::run;
pub use error::{Error, Kind};

/// The command line, of which manual pages and tables of options are made.
pub fn command() -> clap::Command {
    <args::Args as clap::CommandFactory>::command()
}
