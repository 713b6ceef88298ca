//! The contract of one import: [`Job`] goes in as environment variables, [`Outcome`] comes out as the termination
//! message. Names and meanings are those of upstream CDI (`pkg/common`, `cmd/cdi-importer`).
//!
//! Not here: the process environment and the files it names.

mod job;
pub mod node;
mod outcome;

pub use job::{CacheMode, Content, Job, JobError, PullMethod, SOURCE_VARIABLE, SourceKind};
pub use outcome::{Outcome, VddkInfo};
