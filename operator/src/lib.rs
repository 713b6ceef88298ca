//! The operator: controllers, admission and aggregated APIs of the platform, in one process.
//!
//! ```text
//!  main ─► args ─► config ─► entry ─┬─ area: controllers, one lease per area   (storage, compute, platform)
//!                                   ├─ health: probes and metrics
//!                                   └─ serve: aggregated APIs, on every replica
//! ```
//!
//! - [`args`]: the command line. [`config`]: what it means. [`entry`]: runtime, signals, logs.
//! - [`area`]: how a group of controllers plugs in, and under which lease it runs.
//! - [`compute`]: virtual machines, their instances and launcher pods, nodes.
//! - `flavor`: instance types and preferences that VMs refer to. `view`: what is read of objects, one file per kind.
//!   `fill`: typed changes of what is written.
//! - `authority`: certificates of our own, kept in Secrets.
//! - [`health`]: probes and metrics. [`serve`](mod@serve): aggregated APIs and the
//!   certificates behind them.
//! - [`storage`]: DataVolumes, populators, clones, storage profiles. [`volumes`]: which node makes a claim's volume.
//! - `bundle`: the support bundle. `removal`: `operator uninstall`. [`install`]: everything that is installed, as data.
//! - [`platform`]: the objects `HyperConverged`, `KubeVirt` and `CDI`.
//!
//! Areas never call each other; they meet in objects. Not here: anything that runs on a node.

pub mod area;
pub mod args;
mod authority;
mod bundle;
pub mod compute;
pub mod config;
pub mod context;
pub mod defaults;
pub mod entry;
mod error;
mod fill;
mod flavor;
pub mod health;
pub mod install;
mod lifetimes;
pub mod platform;
mod removal;
pub mod serve;
pub mod storage;
mod view;
pub mod volumes;

pub use entry::main;
pub use error::{Error, Kind, Result};

/// The command line, of which manual pages and tables of options are made.
pub fn command() -> clap::Command {
    <args::Args as clap::CommandFactory>::command()
}
