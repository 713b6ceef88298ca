//! The program `hpp-csi`; see the library of the same name.

use std::process::ExitCode;

fn main() -> ExitCode {
    hpp_csi::run(std::env::args_os())
}
