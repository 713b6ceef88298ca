//! The process of one guest, from its launch document to libvirt's domain, and what is done with that until its end. It is
//! the same on a single machine and in a pod.
//!
//! ```text
//!  virt-launcher run DIRECTORY              first process: no libvirt (outer)
//!    └─ virt-launcher worker DIRECTORY      second: libvirt, the socket's calls and events (worker)
//!         └─ QEMU                           outlives the worker, and is the first process's child then
//! ```
//!
//! It links neither TLS nor HTTP nor gRPC.
//!
//! Not here: rules for guests (`virt`), the socket's other end and networks (`guest`).

mod args;
mod capabilities;
mod dhcp;
mod domain;
mod entry;
mod environment;
mod error;
mod folder;
mod handover;
mod iso;
mod output;
mod plan;
mod supervisor;
mod tail;
mod tools;
mod worker;

pub use domain::{Domain, DomainError, domain};
pub use entry::launch;
pub use error::{Error, Kind};
pub use iso::{IsoError, iso};

/// The command line, of which manual pages and tables of options are made.
pub fn command() -> clap::Command {
    <args::Launcher as clap::CommandFactory>::command()
}
