//! Container images without a container engine: layers from files, an OCI archive from layers.
//!
//! - [`layer`]: a layer as the OCI image specification has it, the same bytes for the same input.
//! - [`archive`]: the layers, one configuration and manifest per tag, and the index, in one tar file.
//! - [`product`]: what this project's own images hold.
//!
//! Not here: pulling, pushing and running; `ctr images import`, `podman load` and every registry's tools take the archive.

pub mod archive;
mod args;
mod build;
pub mod layer;
pub mod product;
pub mod root;

use std::ffi::OsString;
use std::process::ExitCode;

/// Builds the images of the arguments; returns the process's exit code.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    match args::parse(arguments).and_then(|args| build::build(&args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            args::print_error(&error);
            ExitCode::FAILURE
        }
    }
}
