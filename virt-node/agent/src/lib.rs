//! `virt-agent`: runs the virtual machines of one Kubernetes node, in place of KubeVirt's virt-handler.
//!
//! ```text
//! API server ══ VMIs, pods, Node of this node ══► guests ──► launcher's socket, network namespace, disks (pods)
//!        ▲ status, events, heartbeat                │
//! kubelet ◄── device plugins (devices)              └──► consoles, power commands (streams) ◄── operator, mutual TLS
//! ```
//!
//! - [`args`], [`config`], [`entry`]: from the command line to a running process.
//! - [`settings`]: the KubeVirt object. [`devices`]: the kubelet's device plugins. [`node`]: the Node object and KVM.
//! - [`pods`]: files and processes of launcher pods, none of them trusted.
//! - [`networks`]: secondary networks of launcher pods, attached by CNI plugins of the node.
//! - [`guests`]: the reconciler. [`streams`]: what the operator asks over HTTPS. [`metrics`]: what Prometheus reads.
//! - [`storage`]: the volumes of the node's claims, without CSI sidecars.
//!
//! Not here: rules of guests (lib/virt), launcher and network namespaces (lib/guest), the Kubernetes client (lib/cluster).

mod args;
mod config;
mod devices;
mod entry;
mod error;
mod guests;
mod metrics;
mod networks;
mod node;
mod pods;
mod settings;
pub mod storage;
mod streams;
mod sys;

pub use entry::run;
pub use error::{Error, Kind};

/// The command line, of which manual pages and tables of options are made.
pub fn command() -> clap::Command {
    <args::Args as clap::CommandFactory>::command()
}
