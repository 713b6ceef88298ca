//! A plugin run as a process: found along CNI_PATH, given our variables with another verb and our configuration on its
//! standard input. What it writes to standard error goes to ours.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::error::{Error, Kind};
use crate::protocol::{Call, Object, Verb};

/// The longest answer that is read, in bytes.
const ANSWER_LIMIT: u64 = 4 << 20;

/// Where `plugin` is.
///
/// # Errors
/// [`Kind::Config`] when it is in no folder of CNI_PATH.
pub(super) fn locate(plugin: &str, call: &Call) -> Result<PathBuf, Error> {
    let found = call.path.iter().map(|folder| folder.join(plugin)).find(|path| path.is_file());
    found.ok_or_else(|| {
        let folders: Vec<String> = call.path.iter().map(|folder| folder.display().to_string()).collect();
        Error::config(format!("the IPAM plugin {plugin} is not in CNI_PATH ({})", folders.join(":")))
    })
}

/// Runs `plugin` for `verb`; its standard output.
///
/// # Errors
/// [`Kind::Config`] when there is no such plugin, [`Kind::Delegate`] with its own code and words when it failed.
pub(super) fn run(plugin: &str, verb: Verb, call: &Call) -> Result<Vec<u8>, Error> {
    let program = locate(plugin, call)?;
    let failed = |error: std::io::Error| Error::io(format!("{} cannot be run", program.display()), error);
    let mut child = Command::new(&program)
        .env("CNI_COMMAND", verb.as_str())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut input) = child.stdin.take() {
        // A plugin may answer without having read everything.
        match input.write_all(&call.document) {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => return Err(failed(error)),
            Ok(()) | Err(_) => {}
        }
    }
    let mut answer = Vec::new();
    if let Some(output) = child.stdout.take() {
        output.take(ANSWER_LIMIT).read_to_end(&mut answer).map_err(failed)?;
    }
    let status = child.wait().map_err(failed)?;
    if status.success() {
        return Ok(answer);
    }
    Err(refusal(plugin, &answer).unwrap_or_else(|| {
        Error::new(
            Kind::Internal,
            format!("the IPAM plugin {plugin} failed ({status}) without an error message"),
        )
    }))
}

/// The error document of a plugin as our error.
fn refusal(plugin: &str, answer: &[u8]) -> Option<Error> {
    let document = Object::parse(answer, "the answer").ok()?;
    let code = u32::try_from(document.integer("code").ok()??).ok()?;
    let message = document.text("msg").ok()??;
    let details = document.text("details").ok().flatten().unwrap_or_default();
    let message = format!("{plugin}: {message}");
    Some(if details.is_empty() {
        Error::new(Kind::Delegate(code), message)
    } else {
        Error::with(Kind::Delegate(code), message, details.to_owned())
    })
}
