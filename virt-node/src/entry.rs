//! Wires the processes together: arguments in, text and exit code out. The one place where errors become exit codes.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use api::launch::{Accelerator, DOCUMENT_MAX, Launch};
use api::launcher::{Answer as Said, Event, Request, Status};
use api::manifest::TEXT_MAX;
use base64::Engine;
use clap::Parser;

use crate::args::{
    AcceleratorArg, Asked, Format, Launcher, LauncherCommand, Node, NodeCommand, OfGuest, Serving,
};
use crate::command::{Daemon, Deletion, Run};
use crate::error::{Error, Kind};
use crate::launcher::{CallError, Client, Made};
use crate::network::PodNetwork;
use crate::protocol::Verb;
use crate::{check, command, daemon, launcher, validate};

/// How long objects may take to go: graces are in it.
const GONE: Duration = Duration::from_secs(600);

/// What a command says, and whether all is well.
struct Answer {
    text: String,
    good: bool,
}

impl Answer {
    fn good(text: String) -> Self {
        Self { text, good: true }
    }
}

/// The program `virt-node`: arguments in (its name first), exit code out.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    match Node::try_parse_from(arguments) {
        Ok(args) => finish("virt-node", node(args)),
        Err(error) => usage(&error),
    }
}

/// The program `virt-launcher`: arguments in (its name first), exit code out.
pub fn launch(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    match Launcher::try_parse_from(arguments) {
        Ok(args) => finish("virt-launcher", of_launcher(args)),
        Err(error) => usage(&error),
    }
}

/// Files' texts, each with the name it is told by.
fn texts(files: &[PathBuf]) -> Result<Vec<(String, Vec<u8>)>, Error> {
    files.iter().map(|file| Ok((file.display().to_string(), read(file, TEXT_MAX)?))).collect()
}

fn node(args: Node) -> Result<Answer, Error> {
    let Node { state, namespace, command } = args;
    let given = namespace.clone();
    let namespace = namespace.unwrap_or_else(|| validate::NAMESPACE.to_owned());
    let daemon = || Daemon::connect(&state);
    let power =
        |of: OfGuest, verb| command::power(&mut daemon()?, &namespace, &of.name, verb).map(Answer::good);
    match command {
        NodeCommand::Run { files, detach, console } => {
            let texts = texts(&files)?;
            let good = command::run(&state, &Run { detach, console }, texts)?;
            Ok(Answer { text: String::new(), good })
        }
        NodeCommand::Serve { serving, detached } => {
            if detached {
                // It fails for the leader of a session only, which has left its terminal then.
                _ = rustix::process::setsid();
            }
            let Serving { accelerator, pod_network, pod_network6 } = serving;
            let accelerator = match accelerator {
                AcceleratorArg::Auto => None,
                AcceleratorArg::Kvm => Some(Accelerator::Kvm),
                AcceleratorArg::Tcg => Some(Accelerator::Tcg),
            };
            let pod = PodNetwork { subnet: pod_network, subnet6: pod_network6 };
            let given = daemon::Given { accelerator, pod };
            daemon::serve(&state, given).map(|()| Answer::good(String::new()))
        }
        NodeCommand::InstallService { serving, print } => {
            command::install(&state, &serving.words(), print).map(Answer::good)
        }
        NodeCommand::List { output } => {
            command::list(&mut daemon()?, given.as_deref(), output).map(Answer::good)
        }
        NodeCommand::Get { object, output } => {
            command::get(&mut daemon()?, &namespace, &object, output).map(Answer::good)
        }
        NodeCommand::Events { name, output } => {
            command::events(&mut daemon()?, &namespace, name, output).map(Answer::good)
        }
        NodeCommand::Console(of) => {
            command::console(daemon()?, &namespace, &of.name).map(|()| Answer::good(String::new()))
        }
        NodeCommand::Vnc { of, port } => {
            command::screen(&daemon()?, &namespace, &of.name, port).map(|()| Answer::good(String::new()))
        }
        NodeCommand::PortForward { object, ports, address, stdio } => {
            match (stdio, ports.as_slice()) {
                (false, ports) => command::forward(daemon()?, &namespace, &object, address, ports)?,
                (true, [port]) => command::join_standard(daemon()?, &namespace, &object, *port)?,
                (true, _) => return Err(Error::new(Kind::Usage, "--stdio is for one port")),
            }
            Ok(Answer::good(String::new()))
        }
        NodeCommand::Ssh { login, options, command } => {
            command::ssh(&state, &namespace, login, options, command).map(|()| Answer::good(String::new()))
        }
        NodeCommand::Scp { copy, options } => {
            command::scp(&state, &namespace, copy, options).map(|()| Answer::good(String::new()))
        }
        NodeCommand::Start { of, paused } => power(of, Verb::Start { paused }),
        NodeCommand::Stop { of, grace } => power(of, Verb::Stop { grace_seconds: grace.seconds() }),
        NodeCommand::Restart { of, grace } => power(of, Verb::Restart { grace_seconds: grace.seconds() }),
        NodeCommand::Pause(of) => power(of, Verb::Pause),
        NodeCommand::Unpause(of) => power(of, Verb::Unpause),
        NodeCommand::SoftReboot(of) => power(of, Verb::SoftReboot),
        NodeCommand::Reset(of) => power(of, Verb::Reset),
        NodeCommand::AddVolume { of, volume } => {
            command::add_volume(&mut daemon()?, &namespace, &of.name, volume).map(Answer::good)
        }
        NodeCommand::RemoveVolume { of, volume_name, persist: _, dry_run } => {
            command::remove_volume(&mut daemon()?, &namespace, &of.name, volume_name, dry_run)
                .map(Answer::good)
        }
        NodeCommand::ImageUpload(typed) => {
            command::upload(&state, &namespace, &typed).map(|()| Answer::good(String::new()))
        }
        NodeCommand::Delete { objects, files, grace, no_wait } => {
            let deletion = Deletion {
                namespace,
                named: objects,
                texts: texts(&files)?,
                grace_seconds: grace.seconds(),
                wait: (!no_wait).then_some(GONE),
            };
            let good = command::delete(&mut daemon()?, &deletion)?;
            Ok(Answer { text: String::new(), good })
        }
        NodeCommand::Validate { files, all, output } => {
            let report = validate::validate(&texts(&files)?);
            let text = match output {
                Format::Text => report.text(all),
                Format::Json => report.json(all),
            };
            Ok(Answer { text, good: report.is_valid() })
        }
        NodeCommand::Check { output } => {
            let report = check::check(&state);
            let text = match output {
                Format::Text => report.text(),
                Format::Json => report.json(),
            };
            Ok(Answer { text, good: report.is_good() })
        }
    }
}

fn of_launcher(args: Launcher) -> Result<Answer, Error> {
    match args.command {
        LauncherCommand::Run { folder, capabilities } => {
            let exit =
                launcher::run(&folder, capabilities.as_deref(), |text| complain("virt-launcher", text))?;
            Ok(Answer { text: String::new(), good: exit.code == 0 })
        }
        LauncherCommand::Worker { folder, stop } => {
            launcher::work(&folder, stop).map(|_| Answer { text: String::new(), good: true })
        }
        LauncherCommand::Probe { folder, emulator } => {
            launcher::probe(&folder, &emulator).map(|()| Answer { text: String::new(), good: true })
        }
        LauncherCommand::Capabilities { cache } => {
            let text = match launcher::make_capabilities(&cache, |text| complain("virt-launcher", text))? {
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
                let image = launcher::iso(medium).map_err(|error| refused(&shown, &error))?;
                let path = folder.join(format!("{}.iso", medium.name));
                launcher::replace(&path, &image).map_err(|error| {
                    Error::with(Kind::System, format!("cannot write {}", path.display()), error)
                })?;
                text.push_str(&format!("{}\n", path.display()));
            }
            Ok(Answer { text, good: true })
        }
        LauncherCommand::Domain { file, layout } => {
            let (launch, shown) = document(&file)?;
            let domain = launcher::domain(&launch).map_err(|error| refused(&shown, &error))?;
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
fn ask(folder: &Path, asked: Asked) -> Result<Answer, Error> {
    let shown = folder.display().to_string();
    let failed = |error: CallError| match error {
        CallError::Refused(_, said) => Error::new(Kind::Content, format!("{shown}: {said}")),
        CallError::Lost(_) | CallError::Frame(_) | CallError::Launch(_) => {
            Error::with(Kind::System, shown.clone(), error)
        }
    };
    let mut client = Client::connect(folder).map_err(|error| failed(error.into()))?;
    let request = match asked {
        Asked::Launch { file } => {
            let answer = client.launch(&document(&file)?.0).map_err(failed)?;
            return Ok(Answer { text: pretty(&answer)?, good: true });
        }
        Asked::Watch => return watch(&mut client).map_err(failed),
        Asked::Screenshot { file } => {
            let answer = client.call(Request::Screenshot).map_err(failed)?;
            if let Said::Screenshot { content, .. } = answer {
                let picture = base64::engine::general_purpose::STANDARD.decode(content);
                let picture = picture.map_err(|error| Error::with(Kind::System, shown.clone(), error))?;
                launcher::replace(&file, &picture).map_err(|error| {
                    Error::with(Kind::System, format!("cannot write {}", file.display()), error)
                })?;
            }
            return Ok(Answer { text: String::new(), good: true });
        }
        Asked::Status => Request::Status,
        Asked::Pause => Request::Pause,
        Asked::Unpause => Request::Unpause,
        Asked::Shutdown { grace_period } => Request::Shutdown { grace_seconds: grace_period },
        Asked::Kill => Request::Kill,
        Asked::SoftReboot => Request::SoftReboot,
        Asked::Reset => Request::Reset,
        Asked::AttachDisk { file } => Request::AttachDisk(Box::new(entry(&file)?)),
        Asked::AttachInterface { file } => Request::AttachInterface(Box::new(entry(&file)?)),
        Asked::ResizeDisk { name, size } => Request::ResizeDisk { name, size },
        Asked::Grow { processors, memory } => Request::Grow { processors, memory },
        Asked::DetachDisk { name } => Request::DetachDisk(name),
        Asked::DetachInterface { name } => Request::DetachInterface(name),
        Asked::Agent { command, timeout } => Request::Agent { command, timeout_seconds: timeout },
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

/// A file, or standard input, of at most `most` bytes; a longer one is read one byte too far, to be told.
fn read(file: &Path, most: usize) -> Result<Vec<u8>, Error> {
    let shown = file.display();
    let failed = |error| Error::with(Kind::System, format!("cannot read {shown}"), error);
    let input: Box<dyn Read> = if file.as_os_str() == "-" {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(file).map_err(failed)?)
    };
    let mut text = Vec::new();
    let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    input.take(limit).read_to_end(&mut text).map_err(failed)?;
    Ok(text)
}

fn usage(error: &clap::Error) -> ExitCode {
    // clap prints help and version to stdout, mistakes to stderr.
    let told = error.print();
    let exit = u8::try_from(error.exit_code()).unwrap_or(2);
    if told.is_err() && exit == 0 { ExitCode::FAILURE } else { ExitCode::from(exit) }
}

fn finish(program: &str, answer: Result<Answer, Error>) -> ExitCode {
    match answer {
        Ok(Answer { text, good }) => {
            let written = io::stdout().write_all(text.as_bytes());
            match (written, good) {
                (Ok(()), true) => ExitCode::SUCCESS,
                (Ok(()), false) => ExitCode::from(1),
                (Err(error), _) => {
                    complain(program, &format!("the answer cannot be written: {error}"));
                    ExitCode::from(3)
                }
            }
        }
        Err(error) => {
            complain(program, &error.chain());
            ExitCode::from(match error.kind() {
                Kind::Content => 1,
                Kind::Usage => 2,
                Kind::System => 3,
            })
        }
    }
}

/// A line on standard error; nobody is left to tell when that fails.
fn complain(program: &str, text: &str) {
    drop(writeln!(io::stderr(), "{program}: {text}"));
}
