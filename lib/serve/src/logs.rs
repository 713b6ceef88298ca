//! Log set-up: to stderr, text or JSON lines. Not here: progress, which is no log.
//!
//! Audience of levels: error and warn, every administrator; info, a watcher of one import; debug and trace, developers.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::Directive;
use tracing_subscriber::fmt::writer::MakeWriter;

/// Runs a write of log lines while a progress bar is hidden.
pub type Around = Box<dyn Fn(&mut dyn FnMut()) + Send + Sync>;

static AROUND: OnceLock<Around> = OnceLock::new();

/// The filter of the process's log, which [`set_levels`] replaces.
struct Reload {
    /// The level of the start.
    level: LevelFilter,
    replace: Box<dyn Fn(EnvFilter) + Send + Sync>,
}

static RELOAD: OnceLock<Reload> = OnceLock::new();

/// The level of klog's `-v=N`: up to 2 info, 3 and 4 debug, from 5 on trace.
pub fn klog_level(n: u8) -> LevelFilter {
    match n {
        0..=2 => LevelFilter::INFO,
        3 | 4 => LevelFilter::DEBUG,
        5.. => LevelFilter::TRACE,
    }
}

/// Starts logging to stderr: JSON lines if `json`, else text, in colour on a terminal. The variable RUST_LOG, where it
/// is set, goes over `level`. A second call changes nothing.
pub fn init(level: LevelFilter, json: bool) {
    let builder = tracing_subscriber::fmt().with_env_filter(filter(level, &[])).with_writer(Stderr);
    let (set, replace): (_, Box<dyn Fn(EnvFilter) + Send + Sync>) = if json {
        let builder = builder.json().flatten_event(true).with_filter_reloading();
        let handle = builder.reload_handle();
        let set = tracing::subscriber::set_global_default(builder.finish());
        (set, Box::new(move |filter| drop(handle.reload(filter))))
    } else {
        let colour = io::stderr().is_terminal();
        let builder = builder.with_ansi(colour).with_target(false).with_filter_reloading();
        let handle = builder.reload_handle();
        let set = tracing::subscriber::set_global_default(builder.finish());
        (set, Box::new(move |filter| drop(handle.reload(filter))))
    };
    if set.is_ok() {
        drop(RELOAD.set(Reload { level, replace }));
    }
}

/// Changes levels while the process runs: each of a part, by the path of its module, or of the whole process (`""`), as
/// klog counts them. Parts without a level have the level of the start again. RUST_LOG, where it is set, goes over all.
pub fn set_levels(levels: &[(&str, u8)]) {
    if let Some(Reload { level, replace }) = RELOAD.get() {
        replace(filter(*level, levels));
    }
}

/// The filter with a level for everything, and those of parts.
fn filter(level: LevelFilter, parts: &[(&str, u8)]) -> EnvFilter {
    let whole = parts.iter().find(|(part, _)| part.is_empty()).map(|(_, verbosity)| klog_level(*verbosity));
    let filter = EnvFilter::builder().with_default_directive(whole.unwrap_or(level).into()).from_env_lossy();
    let parts = if std::env::var_os(EnvFilter::DEFAULT_ENV).is_some() { &[] } else { parts };
    let parts = parts.iter().filter(|(part, _)| !part.is_empty());
    let parts = parts.map(|(part, verbosity)| directive(part, klog_level(*verbosity)));
    // Libraries below us: their warnings, not their work.
    let quiet = ["hyper", "rustls", "h2"].map(|library| directive(library, LevelFilter::WARN));
    parts.chain(quiet).fold(filter, EnvFilter::add_directive)
}

/// A level for the module `target` and those below it.
fn directive(target: &str, level: LevelFilter) -> Directive {
    format!("{target}={level}").parse().unwrap_or_else(|_| level.into())
}

/// From now on every log line is written inside `around`. The first call counts.
pub fn write_inside(around: Around) {
    drop(AROUND.set(around));
}

/// stderr, line by line, inside [`write_inside`]'s function. A line that cannot be written is lost silently: with a full
/// disk or a closed terminal behind stderr, a complaint there ends the process.
struct Stderr;

/// A log line with the line breaks inside it escaped: texts of other hosts and users must not look like lines of ours.
fn one_line(line: &[u8]) -> Cow<'_, [u8]> {
    let (inside, end) = match line {
        [inside @ .., b'\n'] => (inside, &b"\n"[..]),
        _ => (line, &b""[..]),
    };
    if !inside.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
        return Cow::Borrowed(line);
    }
    let mut escaped = Vec::with_capacity(line.len() + 8);
    for byte in inside {
        match byte {
            b'\n' => escaped.extend_from_slice(b"\\n"),
            b'\r' => escaped.extend_from_slice(b"\\r"),
            other => escaped.push(*other),
        }
    }
    escaped.extend_from_slice(end);
    Cow::Owned(escaped)
}

impl<'a> MakeWriter<'a> for Stderr {
    type Writer = Self;

    fn make_writer(&'a self) -> Self::Writer {
        Self
    }
}

impl Write for Stderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = one_line(line);
        let mut write = || drop(io::stderr().lock().write_all(&text));
        match AROUND.get() {
            Some(around) => around(&mut write),
            None => write(),
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_breaks_inside_a_line_are_escaped() {
        for (line, written) in [
            ("WARN failed error=a\n", "WARN failed error=a\n"),
            ("WARN failed error=a\nINFO all is well\r\n", "WARN failed error=a\\nINFO all is well\\r\n"),
            ("\n", "\n"),
            ("a\nb", "a\\nb"),
        ] {
            assert_eq!(String::from_utf8_lossy(&one_line(line.as_bytes())), written);
        }
    }

    #[test]
    fn levels_are_klogs() {
        let levels: Vec<_> = (0..7).map(klog_level).collect();
        let (info, debug, trace) = (LevelFilter::INFO, LevelFilter::DEBUG, LevelFilter::TRACE);
        assert_eq!(levels, [info, info, info, debug, debug, trace, trace]);
    }

    /// The highest levels that are logged for the process and for two of its parts.
    fn enabled() -> [LevelFilter; 3] {
        use tracing::{Level, enabled};
        let highest = |debug, trace| match (debug, trace) {
            (_, true) => LevelFilter::TRACE,
            (true, false) => LevelFilter::DEBUG,
            (false, false) => LevelFilter::INFO,
        };
        [
            highest(enabled!(target: "program", Level::DEBUG), enabled!(target: "program", Level::TRACE)),
            highest(
                enabled!(target: "program::one::inner", Level::DEBUG),
                enabled!(target: "program::one::inner", Level::TRACE),
            ),
            highest(
                enabled!(target: "program::two", Level::DEBUG),
                enabled!(target: "program::two", Level::TRACE),
            ),
        ]
    }

    #[test]
    fn levels_change_while_the_process_runs() {
        let (info, debug, trace) = (LevelFilter::INFO, LevelFilter::DEBUG, LevelFilter::TRACE);
        init(info, false);
        for (levels, expected) in [
            (&[][..], [info, info, info]),
            (&[("program::one", 5)], [info, trace, info]),
            (&[("program::one", 2), ("", 4)], [debug, info, debug]),
            (&[("", 6)], [trace, trace, trace]),
            (&[], [info, info, info]),
        ] {
            set_levels(levels);
            assert_eq!(enabled(), expected, "{levels:?}");
            assert!(!tracing::enabled!(target: "hyper", tracing::Level::INFO), "{levels:?}");
        }
    }
}
