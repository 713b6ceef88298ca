//! The program `manual`; see the library of the same name.

use std::process::ExitCode;

fn main() -> ExitCode {
    manual::run(std::env::args_os())
}
