//! The program `image`; see the library of the same name.

use std::process::ExitCode;

fn main() -> ExitCode {
    image::run(std::env::args_os())
}
