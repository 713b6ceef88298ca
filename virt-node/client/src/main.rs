//! The program `kubectl-virt` (`kubectl virt`); see the library of this package.

use std::process::ExitCode;

fn main() -> ExitCode {
    virt_client::run(&virt_client::Invocation::kubectl_plugin(), std::env::args_os())
}
