//! Commands for virtual machines in a cluster: virtctl's verbs, flags and messages, sent to the API server alone.
//!
//! ```text
//!  kubectl virt VERB │ virt-node --kubeconfig FILE VERB │ virt-node cluster VERB
//!        └─ args ─► entry ─┬─ power, guest, volume, expose, create, …  one request, one message
//!                          └─ console, vnc, usb, forward ─ stream ─► WebSocket of the API server
//! ```
//!
//! The same program serves as `kubectl-virt` and, inside `virt-node`, as its commands for clusters. Three modules are public
//! because `virt-node` uses them for guests of its own machine: [`terminal`], [`port`], [`ssh`].
//!
//! Not here: the connection to the API server (lib/cluster), the effect of a request (operator).

mod adm;
mod args;
mod console;
mod create;
mod credentials;
mod dump;
mod entry;
mod error;
mod expand;
mod expose;
mod forward;
mod graph;
mod guest;
mod output;
pub mod port;
mod power;
mod site;
pub mod ssh;
mod stream;
mod target;
pub mod terminal;
mod upload;
mod usb;
mod version;
mod vnc;
mod volume;

pub use entry::{Invocation, run};

/// The command line, of which manual pages and tables of options are made.
pub fn command() -> clap::Command {
    <args::Client as clap::CommandFactory>::command()
}
