//! The program `virt-node`; see the library of the same name.

use std::process::ExitCode;

fn main() -> ExitCode {
    virt_node::run(std::env::args_os())
}
