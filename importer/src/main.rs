//! The program `importer`; see the library of the same name.

use std::process::ExitCode;

fn main() -> ExitCode {
    importer::run(std::env::args_os())
}
