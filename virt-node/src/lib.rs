//! `virt-node` runs virtual machines on one machine, with no cluster, from the YAML that KubeVirt takes; `virt-launcher` is
//! the process of one guest, the same as in a cluster.
//!
//! ```text
//! YAML ─documents─► validate ─► resolve ──────────► Launch ──socket──► virt-launcher ─► libvirt's XML ─► QEMU
//!        (api)      (fields)    (rules, defaults)   (api::launch)      (domain)
//!                                  ▲
//!                  facts about the machine, resources made for the guest
//! ```
//!
//! The stages:
//!
//! 1. **Documents** (`api::manifest`): bounded YAML; resources that keep what they do not know (`api::kubevirt`, …).
//! 2. **Fields and rules**: [`validate`] reports fields that are unknown, not built or without meaning, by `api::schema` and one
//!    table; [`resolve`] holds every rule between fields and every default, once: `validate` calls it with a machine that
//!    has everything, a start with what was found. Both are pure.
//! 3. **Launch document** (`api::launch`): the one contract between the starter of a guest and its launcher: versioned,
//!    resolved, refused as a whole when a value cannot be.
//! 4. **Domain** ([`launcher`]): from the launch document to libvirt's XML, every place of a device written out; the layout
//!    is answered, recorded by the starter, and given with the next launch, so that guests find their devices again.
//! 5. **Machine** ([`check`]): what this machine offers, by trying it.
//! 6. **Launcher** ([`launcher`]): two processes (PID 1 without libvirt; its worker, which embeds libvirt and can be killed
//!    without harm to the guest), one socket (`api::launcher`), one record of the end.
//! 7. **Networks** ([`network`]): a namespace for each guest, CNI, and the way from there to the guest; `dhcp` is the configuration that the
//!    launcher's worker hands out.
//! 8. **Daemon** (`daemon`): keeps objects, decides from (wanted, found) what to make, fill, attach and start, does it and
//!    undoes it; **commands** (`command`): its clients.
//!
//! 9. **Commands for a cluster** (`cluster`): chosen here, done by `virt_client`.
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
