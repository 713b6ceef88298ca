//! The program `operator`; see the library of the same name.

use std::process::ExitCode;

fn main() -> ExitCode {
    operator::main(std::env::args_os())
}
