//! Wires the program together: arguments in, text and exit code out. The one place where errors become exit codes.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use api::launch::{DOCUMENT_MAX, Launch};
use api::launcher::{Answer as Response, Event, Request, Status};
use base64::Engine;
use clap::Parser;
use guest::{CallError, Client};

use crate::args::{ClientCommand, Launcher, LauncherCommand};
use crate::capabilities::{self, Made};
use crate::error::{Error, Kind};
use crate::output::{print_error, usage};
use crate::{domain::domain, iso::iso, supervisor, tools, worker};

/// The output of a command, and its success.
struct Answer {
    text: String,
    good: bool,
}

/// The program `virt-launcher`: arguments in (its name first), exit code out. Under the name of a tool it is that one.
pub fn launch(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let name = arguments.first().map(Path::new).and_then(Path::file_name);
    let name = name.and_then(|name| name.to_str()).unwrap_or_default();
    if let Some(code) = tools::run(name, arguments.clone()) {
        return code;
    }
    match Launcher::try_parse_from(arguments) {
        Ok(args) => finish("virt-launcher", of_launcher(args)),
        Err(error) => usage(&error),
    }
}

fn of_launcher(args: Launcher) -> Result<Answer, Error> {
    match args.command {
        LauncherCommand::Run { folder, capabilities, user, groups, pod } => {
            if pod.pod {
                supervisor::prepare_pod(&folder, pod.uid.as_deref())?;
            }
            let exit = supervisor::run(&folder, capabilities.as_deref(), user, &groups, |text| {
                print_error("virt-launcher", text)
            })?;
            Ok(Answer { text: String::new(), good: exit.code == 0 })
        }
        LauncherCommand::Worker { folder, stop } => {
            worker::run(&folder, stop).map(|_| Answer { text: String::new(), good: true })
        }
        LauncherCommand::Probe { folder, emulator } => {
            capabilities::probe(&folder, &emulator).map(|text| Answer { text, good: true })
        }
        LauncherCommand::Capabilities { cache } => {
            let text = match capabilities::make(&cache, |text| print_error("virt-launcher", text))? {
                Made::Created => "made\n",
                Made::AlreadyThere => "already there\n",
            };
            Ok(Answer { text: text.to_owned(), good: true })
        }
        LauncherCommand::Ask { folder, request } => ask(&folder, request),
        LauncherCommand::Media { file, folder } => {
            let (launch, shown) = document(&file)?;
            let mut text = String::new();
            for medium in &launch.media {
                let image = iso(medium).map_err(|error| refused(&shown, &error))?;
                let path = folder.join(format!("{}.iso", medium.name));
                dir::replace(&path, &image, 0o600).map_err(|error| {
                    Error::with(Kind::System, format!("cannot write {}", path.display()), error)
                })?;
                text.push_str(&format!("{}\n", path.display()));
            }
            Ok(Answer { text, good: true })
        }
        LauncherCommand::Domain { file, layout } => {
            let (launch, shown) = document(&file)?;
            let domain = domain(&launch).map_err(|error| refused(&shown, &error))?;
            let text = if layout { pretty(&domain.layout)? } else { domain.xml };
            Ok(Answer { text, good: true })
        }
    }
}

/// A file's launch document, and what the file is called.
fn document(file: &Path) -> Result<(Launch, String), Error> {
    let shown = file.display().to_string();
    let launch = Launch::read(&read(file, DOCUMENT_MAX)?).map_err(|error| refused(&shown, &error))?;
    Ok((launch, shown))
}

/// A file's entry of a list of a launch document.
fn entry<T: serde::de::DeserializeOwned>(file: &Path) -> Result<T, Error> {
    let json = serde_json::from_slice(&read(file, DOCUMENT_MAX)?);
    json.map_err(|error| refused(&file.display().to_string(), &error))
}

fn refused(shown: &str, error: &dyn std::fmt::Display) -> Error {
    Error::new(Kind::Content, format!("{shown}: {error}"))
}

fn pretty(value: &impl serde::Serialize) -> Result<String, Error> {
    let json = serde_json::to_string_pretty(value);
    let json = json.map_err(|error| Error::with(Kind::System, "the answer cannot be written", error))?;
    Ok(format!("{json}\n"))
}

/// A call of a launcher that runs.
fn ask(folder: &Path, asked: ClientCommand) -> Result<Answer, Error> {
    let shown = folder.display().to_string();
    let failed = |error: CallError| match error {
        CallError::Refused(_, said) => Error::new(Kind::Content, format!("{shown}: {said}")),
        CallError::Lost(_) | CallError::Frame(_) | CallError::Launch(_) => {
            Error::with(Kind::System, shown.clone(), error)
        }
    };
    let mut client = Client::connect(folder).map_err(|error| failed(error.into()))?;
    let request = match asked {
        ClientCommand::Launch { file } => {
            let answer = client.launch(&document(&file)?.0).map_err(failed)?;
            return Ok(Answer { text: pretty(&answer)?, good: true });
        }
        ClientCommand::Watch => return watch(&mut client).map_err(failed),
        ClientCommand::Screenshot { file } => {
            let answer = client.call(Request::Screenshot).map_err(failed)?;
            if let Response::Screenshot { content, .. } = answer {
                let picture = base64::engine::general_purpose::STANDARD.decode(content);
                let picture = picture.map_err(|error| Error::with(Kind::System, shown.clone(), error))?;
                dir::replace(&file, &picture, 0o600).map_err(|error| {
                    Error::with(Kind::System, format!("cannot write {}", file.display()), error)
                })?;
            }
            return Ok(Answer { text: String::new(), good: true });
        }
        ClientCommand::Status => Request::Status,
        ClientCommand::Facts { paths } => Request::Facts { paths, kvm_works: None },
        ClientCommand::Pause => Request::Pause,
        ClientCommand::Unpause => Request::Unpause,
        ClientCommand::Shutdown { grace_period } => Request::Shutdown { grace_seconds: grace_period },
        ClientCommand::Kill => Request::Kill,
        ClientCommand::SoftReboot => Request::SoftReboot,
        ClientCommand::Reset => Request::Reset,
        ClientCommand::AttachDisk { file } => Request::AttachDisk(Box::new(entry(&file)?)),
        ClientCommand::AttachInterface { file } => Request::AttachInterface(Box::new(entry(&file)?)),
        ClientCommand::ResizeDisk { name, size } => Request::ResizeDisk { name, size },
        ClientCommand::Grow { processors, memory } => Request::Grow { processors, memory },
        ClientCommand::DetachDisk { name } => Request::DetachDisk(name),
        ClientCommand::DetachInterface { name } => Request::DetachInterface(name),
        ClientCommand::Agent { command, timeout } => Request::Agent { command, timeout_seconds: timeout },
    };
    let answer = client.call(request).map_err(failed)?;
    Ok(Answer { text: pretty(&answer)?, good: true })
}

/// Prints what happens as it happens.
fn watch(client: &mut Client) -> Result<Answer, CallError> {
    let answer = client.call(Request::Watch)?;
    print_line(&answer)?;
    loop {
        if let Some(event) = client.event(Duration::from_secs(3600))? {
            print_line(&event)?;
            if matches!(event, Event::Status(Status { exit: Some(_), .. })) {
                return Ok(Answer { text: String::new(), good: true });
            }
        }
    }
}

fn print_line(value: &impl serde::Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    io::stdout().write_all(&line)
}

/// A file, or standard input, of at most `most` bytes; of a longer one, one byte more is read, so that the caller notices.
fn read(file: &Path, most: usize) -> Result<Vec<u8>, Error> {
    let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    dir::read_input(file, limit)
        .map_err(|error| Error::with(Kind::System, format!("cannot read {}", file.display()), error))
}

fn finish(program: &str, answer: Result<Answer, Error>) -> ExitCode {
    match answer {
        Ok(Answer { text, good }) => {
            let written = io::stdout().write_all(text.as_bytes());
            match (written, good) {
                (Ok(()), true) => ExitCode::SUCCESS,
                (Ok(()), false) => ExitCode::from(1),
                (Err(error), _) => {
                    print_error(program, &format!("the answer cannot be written: {error}"));
                    ExitCode::from(3)
                }
            }
        }
        Err(error) => {
            print_error(program, &error.chain());
            ExitCode::from(match error.kind() {
                Kind::Content => 1,
                Kind::Usage => 2,
                Kind::System => 3,
            })
        }
    }
}
