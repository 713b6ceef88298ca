//! The program `virt-launcher`; see the library `virt_launcher`.

use std::process::ExitCode;

fn main() -> ExitCode {
    virt_launcher::launch(std::env::args_os())
}
