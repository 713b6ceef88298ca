//! Wires a process together: arguments or environment, logs, signals, metrics, progress, the answer.
//! Not here: any decision about the import.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use api::import::{Job, Outcome, SOURCE_VARIABLE};
use api::names;
use clap::CommandFactory;
use disk_image::Stop;
use disk_image::volume::{Contract, Session};
use tracing::level_filters::LevelFilter;

use crate::apply;
use crate::args::{Args, Invocation};
use crate::config::{Config, Limits, Location, Output, Root, Show};
use crate::error::{Error, Kind};
use crate::inspect;
use crate::progress::{self, Shown};
use crate::report::{self, Answer};
use crate::size_detection;
use crate::source::{node_pull, version};

/// After a signal the process is gone within two seconds, whatever hangs.
const LAST_MOMENT: Duration = Duration::from_millis(1700);
/// How long a source may fail that is only asked for its version: its pod is started again.
const POLL_TIMEOUT: Duration = Duration::from_secs(20);

/// The program: arguments in (its name first), exit code out.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    if size_detection::is_meant(arguments.first()) {
        start_logs(None, LevelFilter::INFO, false);
        let root = std::env::var(api::names::ROOT_VARIABLE).ok();
        return ExitCode::from(size_detection::run(arguments.get(1..).unwrap_or_default(), root.as_deref()));
    }
    let output = output_asked(&arguments);
    let args = match Args::parse_from_os(arguments) {
        Ok(args) => args,
        Err(error) => {
            // clap prints help and version to stdout, mistakes to stderr.
            let told = error.print();
            let exit = u8::try_from(error.exit_code()).unwrap_or(2);
            return match (exit, output) {
                (0, _) if told.is_err() => ExitCode::FAILURE,
                (0, _) | (_, Output::Text) => ExitCode::from(exit),
                (_, Output::Json) => {
                    let text = error.render().to_string();
                    let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
                    say(&Answer { stderr: None, ..plain_failure(&Error::usage(first), output) })
                }
            };
        }
    };
    // One provider for all TLS of the process; a second call would be a no-op.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let logs = args.logs();
    let terminal = io::stderr().is_terminal();
    let stopping = match Stopping::watch() {
        Ok(stopping) => stopping,
        Err(error) => {
            return say(&plain_failure(
                &Error::with(Kind::Process, "cannot watch for signals", error),
                output,
            ));
        }
    };
    match args.into_invocation(terminal, |name| std::env::var(name).ok()) {
        Err(error) => say(&plain_failure(&error, output)),
        Ok(Invocation::Completion(shell)) => {
            let mut command = Args::command();
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut command, "importer", &mut script);
            let script = String::from_utf8_lossy(&script).into_owned();
            say(&Answer { stdout: Some(script), ..Answer::default() })
        }
        Ok(Invocation::Inspect(asked)) => {
            start_logs(logs.v, LevelFilter::WARN, logs.log_json);
            let answer = match inspect::inspect(&asked, &stopping.stop) {
                Ok(text) => Answer { stdout: Some(text), ..Answer::default() },
                Err(error) => {
                    let asked = report::ImportFacts {
                        contract: Contract::CommandLine,
                        location: Some(&asked.location),
                        output: asked.output,
                        scratch_mounted: false,
                        signal: stopping.signal(),
                    };
                    report::answer(asked, &Err(error))
                }
            };
            say(&answer)
        }
        Ok(Invocation::Import(config)) => {
            start_logs(logs.v, LevelFilter::WARN, logs.log_json);
            import(&config, &stopping)
        }
        Ok(Invocation::Nothing) if std::env::var_os(SOURCE_VARIABLE).is_some() => {
            start_logs(logs.v, LevelFilter::INFO, logs.log_json);
            by_environment(&stopping, import)
        }
        Ok(Invocation::Version) => {
            start_logs(logs.v, LevelFilter::INFO, logs.log_json);
            by_environment(&stopping, version)
        }
        Ok(Invocation::Nothing) => {
            drop(Args::command().print_help());
            ExitCode::from(2)
        }
    }
}

fn start_logs(v: Option<u8>, default: LevelFilter, json: bool) {
    serve::logs::init(v.map_or(default, serve::logs::klog_level), json);
}

fn by_environment(stopping: &Stopping, work: fn(&Config, &Stopping) -> ExitCode) -> ExitCode {
    // Variables that are not UTF-8 are not the contract's.
    let variables: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)))
        .collect();
    let get = |name: &str| variables.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let root = Root {
        folder: PathBuf::from(get(names::ROOT_VARIABLE).unwrap_or("/")),
        metrics_port: get(names::METRICS_PORT_VARIABLE)
            .and_then(|port| port.parse().ok())
            .unwrap_or(names::METRICS_PORT),
    };
    let config = Job::from_env(variables.iter().map(|(k, v)| (k, v)))
        .map_err(|e| Error::with(Kind::Usage, "invalid environment configuration", e))
        .and_then(|job| {
            let secret = secret_headers(&root.path(names::SECRET_HEADERS_DIR))?;
            Config::from_job(job, secret, &root)
        });
    match config {
        Ok(config) => work(&config, stopping),
        Err(error) => {
            let asked = report::ImportFacts {
                contract: Contract::Environment,
                location: None,
                output: Output::Text,
                scratch_mounted: false,
                signal: None,
            };
            finish(&report::answer(asked, &Err(error)), Some(&root.path(names::TERMINATION_LOG)))
        }
    }
}

/// Header lines of mounted Secrets: one header per file that is not hidden, in folders in the order of their names.
fn secret_headers(folder: &Path) -> Result<Vec<String>, Error> {
    let failed = |e| Error::with(Kind::Usage, format!("cannot read the headers in {}", folder.display()), e);
    let sorted = |folder: &Path| -> io::Result<Vec<PathBuf>> {
        let mut paths =
            std::fs::read_dir(folder)?.map(|e| e.map(|e| e.path())).collect::<io::Result<Vec<_>>>()?;
        paths.retain(|path| !path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")));
        paths.sort();
        Ok(paths)
    };
    let mut lines = Vec::new();
    if !folder.is_dir() {
        return Ok(lines);
    }
    for secret in sorted(folder).map_err(failed)? {
        let files = if secret.is_dir() { sorted(&secret).map_err(failed)? } else { vec![secret] };
        for file in files.iter().filter(|file| file.is_file()) {
            lines.push(std::fs::read_to_string(file).map_err(failed)?.trim_end().to_owned());
        }
    }
    Ok(lines)
}

fn import(config: &Config, stopping: &Stopping) -> ExitCode {
    let session = Session { stop: stopping.stop.clone(), ..Session::default() };
    if let Some(address) = config.metrics {
        progress::serve(&session.meter, &config.owner_uid, address);
    }
    let scratch_mounted = config.volume.scratch_mounted();
    let show = if std::env::var_os(names::PROGRESS_VARIABLE).is_some() { Show::Lines } else { config.show };
    let shown = Shown::start(&session.meter, show);
    let outcome = apply::import(config, &session);
    drop(shown);
    let answer =
        report::answer(report::ImportFacts::of(config, scratch_mounted, stopping.signal()), &outcome);
    let exit = finish(&answer, config.termination_log.as_deref());
    // With any other code the kubelet starts us again, and then the server is needed: one that has ended in order does
    // not come back.
    if answer.exit == 0
        && matches!(config.location, Location::NodePull(_))
        && let Some(done) = &config.access.done_file
        && let Err(error) = node_pull::done(done)
    {
        tracing::warn!(%error, path = %done.display(), "cannot signal the end of the import to the server in the pulled image's container");
    }
    exit
}

/// Reports the version of the source.
fn version(config: &Config, stopping: &Stopping) -> ExitCode {
    let limits = Limits { patience: POLL_TIMEOUT, connections: 1, ..config.limits.clone() };
    let answer = match version::version(&config.location, &config.access, &limits, &stopping.stop) {
        Ok(version) => {
            let outcome = Outcome { version: Some(version.clone()), ..Outcome::default() };
            Answer { stdout: Some(version), termination: Some(outcome.to_line()), ..Answer::default() }
        }
        Err(error) => report::answer(report::ImportFacts::of(config, false, stopping.signal()), &Err(error)),
    };
    finish(&answer, config.termination_log.as_deref())
}

/// How a report is asked for, whether the rest of the command line makes sense or not.
fn output_asked(arguments: &[OsString]) -> Output {
    let mut before = None;
    for argument in arguments.iter().skip(1).take_while(|&argument| argument != "--") {
        if argument == "--output=json"
            || (argument == "json" && before.is_some_and(|flag| flag == "--output"))
        {
            return Output::Json;
        }
        before = Some(argument);
    }
    Output::Text
}

fn plain_failure(error: &Error, output: Output) -> Answer {
    let asked = report::ImportFacts {
        contract: Contract::CommandLine,
        location: None,
        output,
        scratch_mounted: false,
        signal: None,
    };
    report::answer(asked, &Err(error_of(error)))
}

/// A copy with the same content.
fn error_of(error: &Error) -> Error {
    Error::new(error.kind(), crate::error::chain(error))
}

fn finish(answer: &Answer, termination_log: Option<&Path>) -> ExitCode {
    if let (Some(path), Some(message)) = (termination_log, &answer.termination)
        && let Err(error) = std::fs::write(path, message)
    {
        tracing::warn!(%error, path = %path.display(), "the termination message cannot be written");
    }
    say(answer)
}

fn say(answer: &Answer) -> ExitCode {
    if let Some(text) = &answer.stderr {
        drop(writeln!(io::stderr().lock(), "{text}"));
    }
    let told = answer.stdout.as_ref().map_or(Ok(()), |text| {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.write_all(if text.ends_with('\n') { b"" } else { b"\n" })?;
        out.flush()
    });
    match (told, answer.exit) {
        // A caller that requested a report must not take its absence for success.
        (Err(error), 0) => {
            let text =
                format!("importer: all is done but the report: standard output cannot be written: {error}");
            drop(writeln!(io::stderr().lock(), "{text}"));
            ExitCode::FAILURE
        }
        (Ok(()) | Err(_), exit) => ExitCode::from(exit),
    }
}

/// The wish to stop, and the signal it came by.
#[derive(Clone, Debug)]
struct Stopping {
    stop: Stop,
    signal: Arc<AtomicU8>,
}

impl Stopping {
    fn watch() -> io::Result<Self> {
        let stopping = Self { stop: Stop::new(), signal: Arc::default() };
        let told = stopping.clone();
        serve::signals::watch(move |signal| {
            if told.signal.swap(signal.exit_code(), Ordering::AcqRel) != 0 {
                return;
            }
            tracing::warn!(?signal, "stopping");
            told.stop.set();
            let code = i32::from(signal.exit_code());
            // Writes that are not journaled by then are repeated next time.
            drop(std::thread::Builder::new().name("watchdog".into()).spawn(move || {
                std::thread::sleep(LAST_MOMENT);
                leave(code);
            }));
        })?;
        Ok(stopping)
    }

    fn signal(&self) -> Option<u8> {
        Some(self.signal.load(Ordering::Acquire)).filter(|&code| code != 0)
    }
}

#[expect(clippy::exit, reason = "something hangs and the process has promised to be gone")]
fn leave(code: i32) -> ! {
    std::process::exit(code)
}
