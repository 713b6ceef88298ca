//! The process of one guest, from its launch document to libvirt's domain, and what is done with that until its end.
//!
//! ```text
//!  virt-launcher run FOLDER              first process: no libvirt (outer)
//!    └─ virt-launcher worker FOLDER      second: libvirt, the socket's calls and events (worker)
//!         └─ QEMU                        outlives the worker, and is the first process's child then
//! ```

mod capabilities;
mod client;
mod domain;
mod folder;
mod iso;
mod outer;
mod plan;
mod sys;
mod worker;

pub use client::{CallError, Client};
pub use domain::{Domain, DomainError, domain};
pub use iso::{IsoError, iso};

pub(crate) use capabilities::{Made, make as make_capabilities, probe};
pub(crate) use folder::{replace, replace_durably};
pub(crate) use outer::run;
pub(crate) use sys::{Signal, block_signals, next_signal};
pub(crate) use worker::run as work;
