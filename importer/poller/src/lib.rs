//! Reads the digest of a DataImportCron's container image and writes it to the DataImportCron: the program that the
//! CronJobs of CDI's controller start.
//!
//! ```text
//!  args, environment ─► config ─► digest: `importer inspect`, a process ─► sha256:…
//!                                                                             │
//!               DataImportCron ◄─ apply: read, replace ◄─ plan: annotations ◄─┘
//! ```
//!
//! The registry is the importer's business, which is next to this program in the image: one client of registries, one set
//! of rules for certificates, proxies and passwords. No decoder of images is in the process with the cluster's token.
//!
//! Not here: registries (`importer`), the schedule and the imports that follow from a digest (CDI's controller).

mod apply;
mod args;
mod config;
mod digest;
mod entry;
mod error;
mod plan;

pub use entry::run;

/// The command line, of which manual pages and tables of options are made.
pub fn command() -> clap::Command {
    <args::Args as clap::CommandFactory>::command()
}
