//! The program `uploadproxy`; see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    uploadproxy::run(std::env::args_os())
}
