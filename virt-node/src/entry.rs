//! Wires the processes together: arguments in, text and exit code out. The one place where errors become exit codes.
//! Not here: the commands (`command`) and the daemon (`daemon`).

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use api::launch::Accelerator;
use api::manifest::TEXT_MAX;
use clap::Parser;

use crate::args::{AcceleratorArg, Node, NodeCommand, OfGuest, Serving};
use crate::cluster;
use crate::command::{Daemon, Deletion, Run};
use crate::error::{Error, Kind};
use crate::format::Format;
use crate::network::PodNetwork;
use crate::protocol::Verb;
use crate::{check, command, daemon};
use virt::fields::Place;
use virt::validate::{self, Documents};

/// How long objects may take to go: graces are in it.
const GONE: Duration = Duration::from_secs(600);

/// The output of a command, and its success.
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
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    if let Some(invocation) = cluster::chosen(&arguments) {
        return virt_client::run(&invocation, cluster::words(arguments));
    }
    match Node::try_parse_from(arguments) {
        Ok(args) => finish("virt-node", node(args)),
        Err(error) => usage(&error),
    }
}

/// The texts of files, each with its name for messages.
fn texts(files: &[PathBuf]) -> Result<Vec<(String, Vec<u8>)>, Error> {
    files.iter().map(|file| Ok((file.display().to_string(), read(file, TEXT_MAX)?))).collect()
}

fn node(args: Node) -> Result<Answer, Error> {
    let Node { state, namespace, command, .. } = args;
    let given = namespace.clone();
    let namespace = namespace.unwrap_or_else(|| validate::NAMESPACE.to_owned());
    let daemon = || Daemon::connect(&state);
    let power =
        |of: OfGuest, verb| command::power(&mut daemon()?, &namespace, &of.name, verb).map(Answer::good);
    match command {
        // Chosen before the arguments are parsed; here only behind other options.
        NodeCommand::Cluster { .. } => {
            Err(Error::new(Kind::Usage, "cluster must be the first word: virt-node cluster VERB"))
        }
        NodeCommand::Run { files, detach, console } => {
            let texts = texts(&files)?;
            let good = command::run(&state, &Run { detach, console }, &texts)?;
            Ok(Answer { text: String::new(), good })
        }
        NodeCommand::Apply { files } => {
            command::apply(&state, &texts(&files)?).map(|()| Answer::good(String::new()))
        }
        NodeCommand::Serve { serving, detached } => run_daemon(&state, serving, detached),
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
            command::scp(&state, &namespace, &copy, options).map(|()| Answer::good(String::new()))
        }
        NodeCommand::Start { of, paused } => power(of, Verb::Start { paused, once: false }),
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
        NodeCommand::Validate { files, all, output } => validated(&files, all, output),
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

fn run_daemon(state: &Path, serving: Serving, detached: bool) -> Result<Answer, Error> {
    if detached {
        // It fails for the leader of a session only, which has left its terminal then.
        _ = rustix::process::setsid();
    }
    let Serving { accelerator, pod_network, pod_network6, host_disk } = serving;
    let accelerator = match accelerator {
        AcceleratorArg::Auto => None,
        AcceleratorArg::Kvm => Some(Accelerator::Kvm),
        AcceleratorArg::Tcg => Some(Accelerator::Tcg),
    };
    let pod = PodNetwork { subnet: pod_network, subnet6: pod_network6 };
    let given = daemon::UserSettings { accelerator, pod, host_disks: host_disk };
    daemon::serve(state, given).map(|()| Answer::good(String::new()))
}

fn validated(files: &[PathBuf], all: bool, output: Format) -> Result<Answer, Error> {
    let texts = texts(files)?;
    let texts = texts.iter().map(|(name, text)| (name.as_str(), text.as_slice()));
    let report = Documents::parse(texts).validate(Place::Machine).report;
    let text = match output {
        Format::Text => report.text(all),
        Format::Json => report.json(all),
    };
    Ok(Answer { text, good: report.is_valid() })
}

/// A file, or standard input, of at most `most` bytes; of a longer one, one byte more is read, so that the caller notices.
fn read(file: &Path, most: usize) -> Result<Vec<u8>, Error> {
    let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    dir::read_input(file, limit)
        .map_err(|error| Error::with(Kind::System, format!("cannot read {}", file.display()), error))
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

/// Writes a line to standard error; a failure is ignored.
fn print_error(program: &str, text: &str) {
    drop(writeln!(io::stderr(), "{program}: {text}"));
}
