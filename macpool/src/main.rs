//! The program `macpool`; see the library of the same name.

use std::process::ExitCode;

fn main() -> ExitCode {
    macpool::run(std::env::args_os())
}
