//! Executes a plugin: its variables, its input and its output, with bounds on all of them.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, OFlags, fcntl_getfl, fcntl_setfl, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use serde_json::Value;

use crate::error::{Error, Kind};

/// How long a plugin may take: it may wait for a server of addresses.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Longest answer, in bytes.
const ANSWER_MAX: usize = 1 << 20;
/// How much of its remarks is kept, in bytes.
const REMARKS_MAX: usize = 4 << 10;

/// The variables of a call (specification 1.1.0, section 2).
#[derive(Clone, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) verb: &'static str,
    pub(crate) container: &'a str,
    pub(crate) namespace: &'a Path,
    pub(crate) interface: &'a str,
    pub(crate) arguments: &'a [(String, String)],
    /// Folders of plugins.
    pub(crate) path: &'a [PathBuf],
}

/// The file of a plugin.
///
/// # Errors
/// It is in none of the folders.
pub(crate) fn program(plugin: &str, folders: &[PathBuf]) -> Result<PathBuf, Error> {
    let file = folders.iter().map(|folder| folder.join(plugin)).find(|file| file.is_file());
    file.ok_or_else(|| {
        let folders: Vec<String> = folders.iter().map(|one| one.display().to_string()).collect();
        let message = format!("the CNI plugin {plugin} is in none of the directories {}", folders.join(", "));
        Error::new(Kind::System, message)
    })
}

/// Executes the plugin of a name; its answer, null where it has none.
///
/// # Errors
/// The plugin is missing, or fails, in its own words; it takes too long or prints too much, and is killed then.
pub(crate) fn execute(plugin: &str, call: &Call<'_>, request: &[u8]) -> Result<Value, Error> {
    let what = format!("CNI plugin {plugin}, {}", call.verb);
    let failed = |error: io::Error| Error::with(Kind::System, what.clone(), error);
    let file = program(plugin, call.path)?;
    let mut input =
        memfd_create("request", MemfdFlags::CLOEXEC).map(File::from).map_err(|errno| failed(errno.into()))?;
    input.write_all(request).and_then(|()| input.rewind()).map_err(failed)?;
    let path = std::env::join_paths(call.path);
    let path = path.map_err(|error| {
        Error::with(Kind::System, "the directories of CNI plugins cannot be joined to a path", error)
    })?;
    let arguments: Vec<String> = call.arguments.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let mut command = Command::new(&file);
    command
        .env("CNI_COMMAND", call.verb)
        .env("CNI_CONTAINERID", call.container)
        .env("CNI_NETNS", call.namespace)
        .env("CNI_IFNAME", call.interface)
        .env("CNI_ARGS", arguments.join(";"))
        .env("CNI_PATH", path)
        .stdin(Stdio::from(input))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let begun = Instant::now();
    let mut child = command.spawn().map_err(failed)?;
    let listened = listen(&mut child);
    if !matches!(listened, Ok(Some(_))) {
        // Its children, too.
        if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            _ = kill_process_group(group, Signal::KILL);
        }
    }
    let status = child.wait().map_err(failed)?;
    let Call { verb, container, interface, .. } = call;
    let microseconds = begun.elapsed().as_micros();
    tracing::debug!(plugin, verb, container, interface, microseconds, "a CNI plugin ended");
    let Some((answer, remarks)) = listened.map_err(failed)? else {
        let message = format!(
            "{what}: it did not end within {} s, or its answer exceeds {ANSWER_MAX} bytes",
            TIMEOUT.as_secs()
        );
        return Err(Error::new(Kind::System, message));
    };
    if !status.success() {
        return Err(refused(&what, &answer, &remarks));
    }
    if answer.iter().all(u8::is_ascii_whitespace) {
        return Ok(Value::Null);
    }
    serde_json::from_slice(&answer)
        .map_err(|error| Error::with(Kind::System, format!("{what}: its answer is not JSON"), error))
}

/// The output until its end; `None` when it takes too long or prints too much.
fn listen(child: &mut Child) -> io::Result<Option<(Vec<u8>, Vec<u8>)>> {
    let gone = || io::Error::other("no pipe");
    let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
    let process = pidfd_open(id, PidfdFlags::empty())?;
    let mut output = child.stdout.take().ok_or_else(gone)?;
    let mut errors = child.stderr.take().ok_or_else(gone)?;
    for pipe in [output.as_fd(), errors.as_fd()] {
        fcntl_setfl(pipe, fcntl_getfl(pipe)? | OFlags::NONBLOCK)?;
    }
    let (mut answer, mut remarks) = (Vec::new(), Vec::new());
    let (mut more, mut chatter) = (true, true);
    let until = Instant::now() + TIMEOUT;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut waiting = vec![PollFd::new(&process, PollFlags::IN)];
        waiting.extend(more.then(|| PollFd::new(&output, PollFlags::IN)));
        waiting.extend(chatter.then(|| PollFd::new(&errors, PollFlags::IN)));
        match poll(&mut waiting, Some(&timeout)) {
            Ok(0) => return Ok(None),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        // Before the pipes are read: they have all of its output when it has ended.
        let ended = waiting.first().is_some_and(|one| !one.revents().is_empty());
        more = drain(&mut output, &mut answer, ANSWER_MAX + 1)?;
        chatter = drain(&mut errors, &mut remarks, usize::MAX)?;
        // The last lines matter most.
        remarks.drain(..remarks.len().saturating_sub(REMARKS_MAX));
        if answer.len() > ANSWER_MAX {
            return Ok(None);
        }
        if ended {
            return Ok(Some((answer, remarks)));
        }
    }
}

/// Reads what is there, up to `most` bytes in all; whether there may be more.
fn drain(pipe: &mut impl Read, into: &mut Vec<u8>, most: usize) -> io::Result<bool> {
    let mut piece = [0; 4096];
    // An endless writer is left to the caller's time limit.
    for _ in 0..64 {
        let room = most.saturating_sub(into.len()).min(piece.len());
        if room == 0 {
            return Ok(true);
        }
        let read = piece.get_mut(..room).map_or(Ok(0), |room| pipe.read(room));
        match read {
            Ok(0) => return Ok(false),
            Ok(count) => into.extend(piece.iter().take(count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// The plugin's own words: its error document, else the end of its remarks.
fn refused(what: &str, answer: &[u8], remarks: &[u8]) -> Error {
    let document: Value = serde_json::from_slice(answer).unwrap_or_default();
    let text = |key: &str| document.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let mut said: Vec<String> = ["msg", "details"].iter().filter_map(|key| text(key)).map(bounded).collect();
    if said.is_empty() {
        said.push(bounded(String::from_utf8_lossy(remarks).trim()));
    }
    Error::new(Kind::System, format!("{what}: {}", said.join(": ")))
}

fn bounded(text: &str) -> String {
    text.chars().take(REMARKS_MAX / 4).map(|one| if one.is_control() { ' ' } else { one }).collect()
}
