//! The program `container-disk`; see the module `hold` of the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    cdi_containerimage_server::hold::run(std::env::args_os().skip(1))
}
