//! virt-agent: see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    virt_agent::run(std::env::args_os())
}
