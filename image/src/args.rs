//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;

use crate::product::SETS;

/// Builds a set of container images as an OCI archive.
#[derive(Debug, Parser)]
#[command(name = "image", version)]
pub(crate) struct Args {
    /// Folder of the build, cargo's target folder
    #[arg(long, value_name = "FOLDER")]
    pub(crate) target: PathBuf,
    /// Cargo's profile of the build, which is the name of its folder there
    #[arg(long, value_name = "NAME", default_value = "release")]
    pub(crate) profile: String,
    /// Which images: those of the programs, or the one that VMs run in
    #[arg(long, value_name = "NAME", default_value = "programs", value_parser = SETS.map(|set| set.name))]
    pub(crate) set: String,
    /// Cache of the Debian packages of the lowest layer between builds; without it they are downloaded for every build
    #[arg(long, value_name = "FOLDER")]
    pub(crate) cache: Option<PathBuf>,
    /// Remove the debug information of programs; needs `strip` of binutils
    #[arg(long)]
    pub(crate) strip: bool,
    /// The archive to write
    #[arg(value_name = "FILE")]
    pub(crate) output: PathBuf,
}

pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Args> {
    Ok(Args::try_parse_from(arguments)?)
}

#[expect(clippy::print_stderr, reason = "the one place that prints an error to the user")]
pub(crate) fn print_error(error: &anyhow::Error) {
    eprintln!("{error:#}");
}
