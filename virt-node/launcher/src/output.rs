//! Text for people on the standard streams, as all names of the program write it.

use std::io::{self, Write};
use std::process::ExitCode;

/// Prints help, version or a mistake in the arguments, and gives the exit code.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    // clap prints help and version to stdout, mistakes to stderr.
    let told = error.print();
    let exit = u8::try_from(error.exit_code()).unwrap_or(2);
    if told.is_err() && exit == 0 { ExitCode::FAILURE } else { ExitCode::from(exit) }
}

/// Prints an error with the name of the program.
pub(crate) fn print_error(program: &str, text: &str) {
    drop(writeln!(io::stderr(), "{program}: {text}"));
}
