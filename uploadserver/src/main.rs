//! The program `uploadserver`; see the library of the same name.

use std::process::ExitCode;

fn main() -> ExitCode {
    uploadserver::run(std::env::args_os())
}
