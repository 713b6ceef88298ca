//! The Container Network Interface (specification 1.1.0): what a runtime gives plugins, pure.
//!
//! Not here: running plugins, keeping their answers.

mod configuration;

pub use configuration::{Configuration, is_name};
