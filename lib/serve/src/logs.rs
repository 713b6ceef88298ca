//! Log set-up: to stderr, text or JSON lines. Not here: progress, which is no log.
//!
//! Audience of levels: error and warn, every administrator; info, a watcher of one import; debug and trace, developers.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::writer::MakeWriter;

/// Runs a write of log lines while something else (a progress bar) is out of the way.
pub type Around = Box<dyn Fn(&mut dyn FnMut()) + Send + Sync>;

static AROUND: OnceLock<Around> = OnceLock::new();

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
    let filter = tracing_subscriber::EnvFilter::builder()
        .with_default_directive(level.into())
        .from_env_lossy()
        .add_directive(quiet("hyper"))
        .add_directive(quiet("rustls"))
        .add_directive(quiet("h2"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(Stderr);
    let set = if json {
        tracing::subscriber::set_global_default(builder.json().flatten_event(true).finish())
    } else {
        let colour = io::stderr().is_terminal();
        tracing::subscriber::set_global_default(builder.with_ansi(colour).with_target(false).finish())
    };
    drop(set);
}

/// Libraries below us: their warnings, not their work.
fn quiet(target: &str) -> tracing_subscriber::filter::Directive {
    format!("{target}=warn").parse().unwrap_or_else(|_| LevelFilter::WARN.into())
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
}
