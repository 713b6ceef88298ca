//! The program `cdi-containerimage-server`; see the library of the same name.

use std::process::ExitCode;

fn main() -> ExitCode {
    cdi_containerimage_server::run(std::env::args_os().skip(1))
}
