//! The program `virt-launcher`; see the library `virt_node`.

use std::process::ExitCode;

fn main() -> ExitCode {
    virt_node::launch(std::env::args_os())
}
