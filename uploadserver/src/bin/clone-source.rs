//! The program `clone-source`; see the module `clone` of the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    uploadserver::clone::run(std::env::args_os())
}
