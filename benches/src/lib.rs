//! Benchmarks of the promises in SPECIFICATION.md, each against a named peer in the same run.
//!
//! ```text
//!  rows (data) ─► images (made once, cached) ─► rounds: peers and ours in turn ─► minima ─► bars ─► table, JSON
//!                                                 └ measure: one child process, wall, CPU seconds, peak memory
//! ```
//!
//! The programs are measured from outside, as processes, exactly as they ship. Not here: tests of behaviour, which each
//! package has of its own.

pub mod cni;
pub mod compare;
pub mod csi;
pub mod enclosure;
pub mod images;
pub mod inflate;
pub mod judge;
pub mod measure;
pub mod report;
pub mod rows;
pub mod run;
pub mod server;
pub mod size;
mod sys;
pub mod uploads;
pub mod virt;
