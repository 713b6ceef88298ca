//! Manual pages, shell completions and tables of options, made from the programs' own command lines.
//!
//! - [`programs`]: every program and its command line.
//! - [`man`]: manual pages. [`completion`]: scripts for bash, zsh and fish.
//! - [`table`]: the options as tables, which stand between two marks in the pages of `docs`.
//!
//! `make install` runs it. Not here: the pages themselves; what an option means, which its own help has.

mod args;
pub mod completion;
pub mod man;
pub mod programs;
pub mod table;

use std::ffi::OsString;
use std::process::ExitCode;

/// Writes the files of the arguments; returns the process's exit code.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    match args::parse(arguments) {
        Ok(args) => match man::write(&args.directory).and_then(|()| completion::write(&args.directory)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                args::print_error(&error);
                ExitCode::FAILURE
            }
        },
        Err(error) => error.exit(),
    }
}
