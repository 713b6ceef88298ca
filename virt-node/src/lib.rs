//! `virt-node` runs virtual machines on one machine, with no cluster, from the YAML that KubeVirt takes. Each guest has a
//! process of its own, `virt-launcher`, the same as in a cluster.
//!
//! ```text
//! YAML ─documents─► validate ─► resolve ──────────► Launch ──socket──► virt-launcher ─► libvirt's XML ─► QEMU
//!        (api)      (virt: fields, rules, defaults) (api::launch)
//!                                  ▲
//!                  facts about the machine, resources made for the guest
//! ```
//!
//! The stages:
//!
//! 1. **Documents** (`api::manifest`): bounded YAML; resources that keep what they do not know (`api::kubevirt`, …).
//! 2. **Fields and rules**: [`virt::validate`] reports fields that are unknown, not built or without meaning, by `api::schema`
//!    and one table; [`virt::resolve`] holds every rule between fields and every default, once: `validate` calls it with a
//!    machine that has every feature, a start with the detected ones. Both are pure.
//! 3. **Launch document** (`api::launch`): the one contract between the starter of a guest and its launcher: versioned,
//!    resolved, refused as a whole when a value cannot be.
//! 4. **Launcher** (package `virt-launcher`): one socket (`api::launcher`), one record of the end. It answers with the layout of
//!    devices, which the starter records and gives with the next launch, so that guests find their devices again.
//! 5. **Machine** ([`check`]): the features of this machine, by trying them.
//! 6. **Networks** ([`network`]): a namespace for each guest, CNI, and the way from there to the guest.
//! 7. **Daemon** (`daemon`): keeps objects, decides from (wanted, found) what to make, fill, attach and start, does it and
//!    undoes it; **commands** (`command`): its clients.
//! 8. **Commands for a cluster** (`cluster`): chosen here, done by `virt_client`.
//!
//! Not here: disk formats, network plugins, volumes: those are programs of their own, called by their contracts.

mod args;
pub mod check;
mod cluster;
mod command;
mod daemon;
mod entry;
mod error;
mod format;
pub mod network;
mod protocol;

pub use entry::run;
pub use error::{Error, Kind};

/// The command line, of which manual pages and tables of options are made.
pub fn command() -> clap::Command {
    <args::Node as clap::CommandFactory>::command()
}
