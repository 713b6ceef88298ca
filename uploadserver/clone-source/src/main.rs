//! The program `clone-source`; see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    clone_source::run(std::env::args_os())
}
