//! The program `cni`; see the library of the same name.

use std::process::ExitCode;

fn main() -> ExitCode {
    cni::run(std::env::args_os())
}
