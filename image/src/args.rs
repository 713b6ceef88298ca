//! What was typed.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;

/// Builds the container image of all programs as an OCI archive.
#[derive(Debug, Parser)]
#[command(name = "image", version)]
pub(crate) struct Args {
    /// Folder of the build, cargo's target folder
    #[arg(long, value_name = "FOLDER")]
    pub(crate) target: PathBuf,
    /// Cargo's profile of the build, which is the name of its folder there
    #[arg(long, value_name = "NAME", default_value = "release")]
    pub(crate) profile: String,
    /// Where the Debian packages of the lowest layer are kept between builds; fetched anew without it
    #[arg(long, value_name = "FOLDER")]
    pub(crate) cache: Option<PathBuf>,
    /// The archive to write
    #[arg(value_name = "FILE")]
    pub(crate) output: PathBuf,
}

pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Args> {
    Ok(Args::try_parse_from(arguments)?)
}

#[expect(clippy::print_stderr, reason = "the one place where an error is told to the person who typed")]
pub(crate) fn complain(error: &anyhow::Error) {
    eprintln!("{error:#}");
}
