//! Program `container-disk`: keeps a container of a user's image running, so that the image's files stay mounted while a
//! guest uses its disk.
//!
//! The node agent bind-mounts the disk from this container into the launcher's container; this program opens nothing
//! itself. It is linked statically because the image may hold nothing but a disk. As process 1 of its container it gets
//! no default action for signals, so it handles SIGTERM and SIGINT itself.
//!
//! Not here: which file of the image is the disk, and whether it is one.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};

/// The text of `-h`.
const USAGE: &str = "\
Usage: container-disk

Keeps its container running until SIGTERM or SIGINT, so that a virtual machine can use a disk of the container's image.
It takes no arguments and ends with exit code 0.

  -h, --help   this text";

/// The program: arguments in (without its name), exit code out. 0: ended by a signal, or help was asked for; 1: signals
/// cannot be received; 2: there are arguments.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    match arguments.into_iter().next() {
        None => {}
        Some(help) if ["-h", "-help", "--help"].iter().any(|one| help == *one) => {
            say(USAGE);
            return ExitCode::SUCCESS;
        }
        Some(other) => {
            say(&format!("unexpected argument {other:?}\n{USAGE}"));
            return ExitCode::from(2);
        }
    }
    match wait() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("container-disk: cannot receive signals: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Returns after SIGTERM or SIGINT.
fn wait() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        Ok(())
    })
}

fn say(text: &str) {
    // A closed standard error is no reason to fail.
    drop(writeln!(io::stderr().lock(), "{text}"));
}
