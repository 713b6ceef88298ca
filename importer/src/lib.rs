//! Imports a disk image of any format from any source straight into a volume: one process, bounded memory, no scratch.
//!
//! ```text
//!  args, environment ─► config ─► apply: source ─► disk_image::volume ─► target
//!                                    │  progress               │
//!                                    └───────► report ◄────────┘
//!                                 exit code, termination message, JSON
//! ```
//!
//! Two ways in, one way through: as `cdi-importer` (the environment contract) and as a command for people.
//! Not here: image formats, what becomes of a volume, writing (`disk_image`), resource types and contracts (`api`), HTTPS serving (`serve`).

mod apply;
pub mod args;
mod config;
mod entry;
mod inspect;
mod progress;
mod report;
mod size_detection;
pub mod source;

pub use args::Args;
pub use disk_image::volume::{Error, Kind, error};
pub use entry::run;

/// The command line, of which manual pages and tables of options are made.
pub fn command() -> clap::Command {
    <args::Args as clap::CommandFactory>::command()
}
