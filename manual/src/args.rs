//! The command line of `manual`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Parser;

/// Writes manual pages and shell completions of all programs.
#[derive(Debug, Parser)]
#[command(name = "manual", version)]
pub(crate) struct Args {
    /// Directory for shared data, such as /usr/local/share; files go below man, bash-completion, zsh and fish.
    pub(crate) directory: PathBuf,
}

pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Args, clap::Error> {
    Args::try_parse_from(arguments)
}

#[expect(clippy::print_stderr, reason = "the one place that prints an error to the user")]
pub(crate) fn print_error(error: &anyhow::Error) {
    eprintln!("manual: {error:#}");
}
