//! The program `cdi-source-update-poller`; see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    cdi_source_update_poller::run(std::env::args_os())
}
