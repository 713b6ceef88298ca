//! Imports a disk image of any format from any source straight into a volume: one process, bounded memory, no scratch.
//!
//! ```text
//!  args, environment ─► config ─► plan (pure) ─► apply: source ─► disk_image::transfer ─► target
//!                                                  │ journal, checksum, progress            │
//!                                                  └──────────────► report ◄────────────────┘
//!                                                         exit code, termination message, JSON
//! ```
//!
//! Two ways in, one way through: as `cdi-importer` (the environment contract) and as a command for people.
//! Not here: image formats and writing (`disk_image`), resource types and contracts (`api`), HTTPS serving (`serve`).

mod apply;
mod archive;
pub mod args;
mod checksum;
mod clone;
mod config;
mod entry;
pub mod error;
mod inspect;
mod journal;
mod plan;
mod progress;
mod report;
pub mod source;
mod storage;
mod target;

pub use args::Args;
pub use entry::run;
pub use error::{Error, Kind};
