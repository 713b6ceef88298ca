//! The program `uploadproxy`; see the module `proxy` of the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    uploadserver::proxy::run(std::env::args_os())
}
