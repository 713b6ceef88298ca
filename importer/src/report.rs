//! The only place where an outcome becomes exit codes, termination messages, and text or JSON for people.
//!
//! Environment: exit 0 with a JSON line, or exit 1 with plain text (upstream `cmd/cdi-importer/importer.go`; strings
//! that controllers match on are kept). Command line: the codes of [`exit_code`], the chain of errors once.

use std::fmt::Write as _;

use api::import::Outcome;
use api::names::TERMINATION_LOG_MAX;
use serde::Serialize;

use crate::config::{Config, Location, Output};
use disk_image::volume::error::{chain, contract_chain};
use disk_image::volume::plan::{self, CONVERT, Unstreamable};
use disk_image::volume::{Contract, Done, Error, Kind};

/// The result of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) exit: u8,
    /// For the termination log.
    pub(crate) termination: Option<String>,
    pub(crate) stdout: Option<String>,
    pub(crate) stderr: Option<String>,
}

/// Facts about the import in addition to its result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ImportFacts<'a> {
    pub(crate) contract: Contract,
    pub(crate) location: Option<&'a Location>,
    pub(crate) output: Output,
    pub(crate) scratch_mounted: bool,
    /// Exit code of the signal that stopped the import, if one did.
    pub(crate) signal: Option<u8>,
}

impl<'a> ImportFacts<'a> {
    pub(crate) fn of(config: &'a Config, scratch_mounted: bool, signal: Option<u8>) -> Self {
        Self {
            contract: config.volume.contract,
            location: Some(&config.location),
            output: config.output,
            scratch_mounted,
            signal,
        }
    }
}

/// The answer to an outcome.
pub(crate) fn answer(asked: ImportFacts<'_>, outcome: &Result<Done, Error>) -> Answer {
    match (asked.contract, outcome) {
        (Contract::Environment, Ok(done)) => environment_done(done),
        (Contract::Environment, Err(error)) => environment_failed(asked, error),
        (Contract::CommandLine, Ok(done)) => command_done(asked, done),
        (Contract::CommandLine, Err(error)) => command_failed(asked, error),
    }
}

fn environment_done(done: &Done) -> Answer {
    if done.silent {
        return Answer::default();
    }
    let mut message = "Import Complete".to_owned();
    for warning in &done.warnings {
        let _infallible = write!(message, "; warning: {warning}");
    }
    let outcome = Outcome {
        preallocation_applied: done.preallocated.then_some(true),
        labels: done.labels.clone(),
        message: Some(message),
        ..Outcome::default()
    };
    Answer { termination: Some(outcome.to_line()), ..Answer::default() }
}

fn environment_failed(asked: ImportFacts<'_>, error: &Error) -> Answer {
    let exit_with = |exit, text: String| Answer {
        exit,
        stderr: Some(text.clone()),
        termination: Some(text),
        stdout: None,
    };
    let process =
        |error: &Error| exit_with(1, one_line(&format!("Unable to process data: {}", contract_chain(error))));
    match error.kind() {
        Kind::Checksum => {
            Answer { stderr: Some(chain(error)), ..answer_line(&Outcome::message(chain(error))) }
        }
        Kind::NeedsScratch => match plan::unstreamable(asked.contract, asked.scratch_mounted) {
            Unstreamable::AskForScratch => {
                let outcome =
                    Outcome { scratch_space_required: Some(true), ..Outcome::message(chain(error)) };
                Answer { stderr: Some(chain(error)), ..answer_line(&outcome) }
            }
            Unstreamable::Fail => exit_with(
                1,
                one_line(&format!("Unable to process data: {}; {CONVERT}", contract_chain(error))),
            ),
        },
        Kind::Connect => {
            let word = asked.location.map_or("unknown", Location::word);
            exit_with(
                1,
                one_line(&format!("Unable to connect to {word} data source: {}", contract_chain(error))),
            )
        }
        Kind::Stopped => Answer { exit: asked.signal.unwrap_or(1), ..process(error) },
        Kind::Usage | Kind::Refused | Kind::NoRoom | Kind::Target | Kind::Process | Kind::Digest => {
            process(error)
        }
    }
}

fn answer_line(outcome: &Outcome) -> Answer {
    Answer { termination: Some(outcome.to_line()), ..Answer::default() }
}

fn command_done(asked: ImportFacts<'_>, done: &Done) -> Answer {
    let stdout = match asked.output {
        Output::Json => serde_json::to_string(done).ok(),
        Output::Text => {
            let mut text = format!(
                "{} in {:.1} s: {} read, {} written, {} of zeroes skipped, {}",
                if done.format.is_empty() { "done" } else { "imported" },
                done.seconds,
                size(done.bytes_read),
                size(done.bytes_written),
                size(done.zeroes_skipped),
                if done.engine.is_empty() { "no engine" } else { &done.engine },
            );
            if done.bytes_resumed > 0 {
                let _infallible = write!(text, "; {} were there already", size(done.bytes_resumed));
            }
            for warning in &done.warnings {
                let _infallible = write!(text, "\nwarning: {warning}");
            }
            Some(text)
        }
    };
    Answer { stdout, ..Answer::default() }
}

#[derive(Serialize)]
struct Failure {
    error: String,
    kind: &'static str,
    exit_code: u8,
}

fn command_failed(asked: ImportFacts<'_>, error: &Error) -> Answer {
    let exit = match (error.kind(), asked.signal) {
        (Kind::Stopped, Some(signal)) => signal,
        (kind, _) => exit_code(kind),
    };
    let mut text = chain(error);
    if error.kind() == Kind::NeedsScratch {
        let _infallible =
            write!(text, "; {CONVERT}, save it to a file and import that, or give --scratch DIR");
    }
    if error.kind() == Kind::Stopped {
        text.push_str("; the same command goes on from where it stopped, where the source has ranges");
    }
    let stdout = match asked.output {
        Output::Json => {
            let failure = Failure { error: text.clone(), kind: kind_word(error.kind()), exit_code: exit };
            serde_json::to_string(&failure).ok()
        }
        Output::Text => None,
    };
    Answer { exit, termination: None, stdout, stderr: Some(format!("importer: {text}")) }
}

/// Exit codes of the command line, documented in its help. They never change meaning.
fn exit_code(kind: Kind) -> u8 {
    match kind {
        Kind::Process => 1,
        Kind::Usage => 2,
        Kind::Connect => 3,
        Kind::Refused => 4,
        Kind::NoRoom => 5,
        Kind::Checksum | Kind::Digest => 6,
        Kind::Target => 7,
        Kind::NeedsScratch => 8,
        Kind::Stopped => 130,
    }
}

fn kind_word(kind: Kind) -> &'static str {
    match kind {
        Kind::Process => "failed",
        Kind::Usage => "usage",
        Kind::Connect => "source",
        Kind::Refused => "refused",
        Kind::NoRoom => "no-room",
        Kind::Checksum => "checksum",
        Kind::Digest => "digest",
        Kind::Target => "target",
        Kind::NeedsScratch => "not-streamable",
        Kind::Stopped => "stopped",
    }
}

/// One line that fits the termination log: plain text is cut at its end.
fn one_line(text: &str) -> String {
    let mut line: String =
        text.split(['\n', '\r']).map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>().join("; ");
    if line.len() > TERMINATION_LOG_MAX {
        let end =
            (0..=TERMINATION_LOG_MAX - "…".len()).rev().find(|&i| line.is_char_boundary(i)).unwrap_or(0);
        line.truncate(end);
        line.push('…');
    }
    line
}

/// Bytes for people.
#[expect(clippy::cast_precision_loss, reason = "shown with one decimal")]
pub(crate) fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            return if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1024.0;
    }
    format!("{value:.1} PiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts_of(contract: Contract, location: &Location) -> ImportFacts<'_> {
        ImportFacts {
            contract,
            location: Some(location),
            output: Output::Text,
            scratch_mounted: false,
            signal: None,
        }
    }

    fn environment(outcome: &Result<Done, Error>) -> Answer {
        let location = Location::parse("https://h/i").unwrap();
        answer(facts_of(Contract::Environment, &location), outcome)
    }

    fn io(code: i32) -> std::io::Error {
        std::io::Error::from_raw_os_error(code)
    }

    #[test]
    fn success_reports_import_complete() {
        let answer = environment(&Ok(Done::default()));
        assert_eq!(answer.exit, 0);
        assert_eq!(answer.termination.as_deref(), Some(r#"{"message":"Import Complete"}"#));
        let done = Done { preallocated: true, ..Done::default() };
        assert_eq!(
            environment(&Ok(done)).termination.as_deref(),
            Some(r#"{"preallocationApplied":true,"message":"Import Complete"}"#)
        );
        let done = Done { silent: true, ..Done::default() };
        assert_eq!(environment(&Ok(done)), Answer::default());
        let done = Done { warnings: vec!["looks like HTML".into()], ..Done::default() };
        assert_eq!(
            environment(&Ok(done)).termination.as_deref(),
            Some(r#"{"message":"Import Complete; warning: looks like HTML"}"#)
        );
        let done = Done { labels: [("k".to_owned(), "v".to_owned())].into(), ..Done::default() };
        assert_eq!(
            environment(&Ok(done)).termination.as_deref(),
            Some(r#"{"labels":{"k":"v"},"message":"Import Complete"}"#)
        );
    }

    #[test]
    fn failures_are_plain_text_with_exit_1() {
        for (error, expected) in [
            (
                Error::with(Kind::Process, "the disk cannot be written", io(5)),
                "Unable to process data: the disk cannot be written: Input/output error (os error 5)",
            ),
            (
                Error::connect("cannot open https://h/i", io(111)),
                "Unable to connect to http data source: cannot open https://h/i: Connection refused (os error 111)",
            ),
            (
                Error::from(disk_image::Error::target("writing /data/disk.img", io(28))),
                "Unable to process data: the target is full; free some room or use a larger one: writing /data/disk.img: no space left on device (os error 28)",
            ),
            (
                Error::from(disk_image::Error::target("writing", io(122))),
                "Unable to process data: the target is full; free some room or use a larger one: writing: disk quota exceeded (os error 122)",
            ),
            (
                plan::fits(Contract::Environment, 11, 10, None).unwrap_err(),
                "Unable to process data: virtual image size 11 is larger than the reported available storage 10. A larger PVC is required",
            ),
            (Error::usage("a\nb\n"), "Unable to process data: a; b"),
        ] {
            let answer = environment(&Err(error));
            assert_eq!((answer.exit, answer.termination.as_deref()), (1, Some(expected)));
        }
        let long = environment(&Err(Error::usage("é".repeat(5000))));
        assert!(long.termination.unwrap().len() <= TERMINATION_LOG_MAX);
    }

    #[test]
    fn a_checksum_mismatch_is_exit_0() {
        let answer = environment(&Err(Error::new(Kind::Checksum, "checksum mismatch: expected a, got b")));
        assert_eq!(answer.exit, 0);
        assert_eq!(
            answer.termination.as_deref(),
            Some(r#"{"message":"checksum mismatch: expected a, got b"}"#)
        );
    }

    #[test]
    fn scratch_is_asked_for_once() {
        let location = Location::Stdin;
        let error: Result<Done, Error> = Err(Error::new(Kind::NeedsScratch, "tables come late"));
        let mut asked = facts_of(Contract::Environment, &location);
        let first = answer(asked, &error);
        assert_eq!(first.exit, 0);
        assert_eq!(
            first.termination.as_deref(),
            Some(r#"{"scratchSpaceRequired":true,"message":"tables come late"}"#)
        );
        asked.scratch_mounted = true;
        let again = answer(asked, &error);
        assert_eq!(
            (again.exit, again.termination.as_deref()),
            (
                1,
                Some(
                    "Unable to process data: tables come late; convert the image first (qemu-img convert -O qcow2 IN OUT writes its tables before its data)"
                )
            )
        );
    }

    #[test]
    fn the_command_lines_codes_are_stable() {
        let location = Location::Stdin;
        for (kind, code) in [
            (Kind::Process, 1),
            (Kind::Usage, 2),
            (Kind::Connect, 3),
            (Kind::Refused, 4),
            (Kind::NoRoom, 5),
            (Kind::Checksum, 6),
            (Kind::Digest, 6),
            (Kind::Target, 7),
            (Kind::NeedsScratch, 8),
            (Kind::Stopped, 130),
        ] {
            let answer = answer(facts_of(Contract::CommandLine, &location), &Err(Error::new(kind, "why")));
            assert_eq!((answer.exit, answer.termination), (code, None), "{kind:?}");
            assert!(answer.stderr.unwrap().starts_with("importer: why"));
        }
        let stopped = ImportFacts { signal: Some(143), ..facts_of(Contract::CommandLine, &location) };
        let stopped = answer(stopped, &Err(Error::new(Kind::Stopped, "s")));
        assert!(stopped.exit == 143 && stopped.stderr.unwrap().contains("the same command goes on"));
        let json = ImportFacts { output: Output::Json, ..facts_of(Contract::CommandLine, &location) };
        assert_eq!(
            answer(json, &Err(Error::new(Kind::Refused, "no disk"))).stdout.as_deref(),
            Some(r#"{"error":"no disk","kind":"refused","exit_code":4}"#)
        );
    }

    #[test]
    fn sizes_for_people() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (10 << 30, "10.0 GiB"),
            (u64::MAX, "16384.0 PiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }
}
