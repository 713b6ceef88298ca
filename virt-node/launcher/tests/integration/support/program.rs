//! A program of this folder, run to its end.

use std::fs::File;
use std::io::{Seek, Write};
use std::process::{Command, Output, Stdio};

use super::waiting::output;

/// Runs `program` with these arguments and this standard input.
pub(crate) fn run(program: &str, arguments: &[&str], input: &[u8]) -> Output {
    let mut file: File = tempfile::tempfile().unwrap();
    file.write_all(input).unwrap();
    file.rewind().unwrap();
    output(Command::new(program).args(arguments).stdin(Stdio::from(file)))
}
