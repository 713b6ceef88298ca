//! The start of a program whose log flags are klog's: its arguments, its logs, the provider of its TLS. Not here: the
//! program's own arguments, and the environment.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

use crate::logs;

/// Flags of the logs, as the containers' arguments of Kubernetes' programs have them (klog).
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Log {
    /// Verbosity: 1 info, 3 debug, 5 trace.
    #[arg(short, long = "v", global = true, value_name = "N", num_args = 0..=1, default_value_t = 0, default_missing_value = "1")]
    pub v: u8,
    /// Log as JSON lines.
    #[arg(long, global = true)]
    pub log_json: bool,
    /// Accepted without effect: klog's other flag in containers' arguments.
    #[arg(long, global = true, hide = true)]
    pub alsologtostderr: bool,
}

/// An argument as Go's flag package reads it: one dash before a flag stands for two. The short flags of help and version stay.
pub fn two_dashes(argument: OsString) -> OsString {
    match argument.to_str() {
        Some(text) if text.len() > 1 && text.starts_with('-') && !text.starts_with("--") => match text {
            "-h" | "-V" => argument,
            _ => format!("-{text}").into(),
        },
        _ => argument,
    }
}

/// Reads the arguments, the program's name first. Starts the logs with the flags that `log` finds, and installs the
/// process's provider of TLS.
///
/// # Errors
/// The exit code of an asked help (0) or a mistake (2), after it was printed.
pub fn start<A: Parser>(
    arguments: impl IntoIterator<Item = OsString>,
    log: impl FnOnce(&A) -> Log,
) -> Result<A, ExitCode> {
    let args = A::try_parse_from(arguments).map_err(|error| {
        // Help goes to stdout, mistakes to stderr.
        drop(error.print());
        ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
    })?;
    let log = log(&args);
    logs::init(logs::klog_level(log.v), log.log_json);
    // A second call would change nothing.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    Ok(args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_dash_stands_for_two() {
        for (argument, read) in [
            ("-url", "--url"),
            ("-v=5", "--v=5"),
            ("-v", "--v"),
            ("-h", "-h"),
            ("-", "-"),
            ("--v", "--v"),
            ("a-b", "a-b"),
        ] {
            assert_eq!(two_dashes(argument.into()), OsString::from(read));
        }
    }
}
