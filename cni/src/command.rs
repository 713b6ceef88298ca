//! The command line of the program under its own name, `cni`: what people and DaemonSets call. Runtimes call the plugins
//! by theirs.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use lexopt::prelude::*;

use crate::error::Error;
use crate::format::Format;
use crate::log_error;
use crate::{check_node, install};

/// Wrong usage.
const USAGE: u8 = 2;

/// The text of `--help`, which is the manual page, too.
pub const HELP: &str = "\
The CNI plugins of ferrovirt, in one program.

A container runtime calls a plugin by the name of its file: bridge, tuning, bandwidth, host-local, static, loopback or
tap, with or without cnv- before it. Under the name cni the program does this:

  cni install DIR      copies itself into DIR as cnv-bridge and cnv-tuning, and links bridge and tuning to them where
                       those names are free
  cni uninstall DIR    removes this program and the links to it from DIR; files of other programs, and of other versions of
                       this one, stay
  cni check-node       reports the kernel features that the plugins use

Options
      --all            install: all plugins, not only bridge and tuning
      --require NAME   check-node: fail unless NAME is offered; again for more (default: netlink, bridge, veth)
  -o, --output FORMAT  text or json (default: text)
  -h, --help           this
  -V, --version        the version

Examples
  cni install /opt/cni/bin
  cni install --all --output json /host/opt/cni/bin
  cni uninstall /opt/cni/bin
  cni check-node --require vlan-filtering --require nft-bridge

Exit code: 0 done, 1 failed or something required is missing, 2 wrong usage.
";

/// The parsed command line.
#[derive(Debug, PartialEq, Eq)]
enum Command {
    Help,
    Version,
    Install { folder: OsString, all: bool, format: Format },
    Uninstall { folder: OsString, format: Format },
    CheckNode { required: Vec<String>, format: Format },
}

/// Runs what `arguments`, without the program's name, ask for.
pub(crate) fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let answer = match parse(lexopt::Parser::from_args(arguments)) {
        Ok(Command::Help) => Ok((HELP.to_owned(), true)),
        Ok(Command::Version) => Ok((format!("cni {}\n", env!("CARGO_PKG_VERSION")), true)),
        Ok(Command::Install { folder, all, format }) => install::run(folder.as_ref(), all, format),
        Ok(Command::Uninstall { folder, format }) => install::undo(folder.as_ref(), format),
        Ok(Command::CheckNode { required, format }) => check_node::run(&required, format),
        Err(error) => {
            log_error(&format!("cni: {error}; see cni --help"));
            return ExitCode::from(USAGE);
        }
    };
    match answer {
        Ok((text, success)) => finish(&text, success),
        Err(error) => failed(&error),
    }
}

fn finish(text: &str, success: bool) -> ExitCode {
    if let Err(error) = std::io::stdout().write_all(text.as_bytes()) {
        log_error(&format!("cni: the answer cannot be written: {error}"));
        return ExitCode::FAILURE;
    }
    if success { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn failed(error: &Error) -> ExitCode {
    let details = error.details();
    let more = if details.is_empty() { String::new() } else { format!(": {details}") };
    log_error(&format!("cni: {error}{more}"));
    ExitCode::FAILURE
}

fn parse(mut parser: lexopt::Parser) -> Result<Command, lexopt::Error> {
    let mut words = Vec::new();
    let mut all = false;
    let mut required = Vec::new();
    let mut format = Format::Text;
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(Command::Help),
            Short('V') | Long("version") => return Ok(Command::Version),
            Short('o') | Long("output") => {
                format = match parser.value()?.string()?.as_str() {
                    "text" => Format::Text,
                    "json" => Format::Json,
                    other => return Err(format!("--output is text or json, not \"{other}\"").into()),
                }
            }
            Long("all") => all = true,
            Long("require") => {
                let name = parser.value()?.string()?;
                if !check_node::NAMES.contains(&name.as_str()) {
                    let known = check_node::NAMES.join(", ");
                    return Err(format!("--require: \"{name}\" is unknown; use {known}").into());
                }
                required.push(name);
            }
            Value(word) => words.push(word),
            Short(_) | Long(_) => return Err(argument.unexpected()),
        }
    }
    let mut words = words.into_iter();
    let command = words.next().ok_or("a command is missing: install, uninstall or check-node")?;
    let command = match command.to_str() {
        Some("install") if required.is_empty() => {
            let folder = words.next().ok_or("install needs the folder to install into")?;
            Command::Install { folder, all, format }
        }
        Some("uninstall") if required.is_empty() && !all => {
            let folder = words.next().ok_or("uninstall needs the folder to remove from")?;
            Command::Uninstall { folder, format }
        }
        Some("check-node") if !all => Command::CheckNode { required, format },
        Some("help") => Command::Help,
        Some("install") => return Err("--require belongs to check-node".into()),
        Some("check-node") => return Err("--all belongs to install".into()),
        Some("uninstall") => return Err("uninstall has neither --all nor --require".into()),
        Some(_) | None => {
            let command = command.to_string_lossy();
            return Err(format!("unknown command \"{}\"", command.escape_debug()).into());
        }
    };
    match words.next() {
        None => Ok(command),
        Some(word) => {
            Err(format!("unexpected argument \"{}\"", word.to_string_lossy().escape_debug()).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(line: &str) -> Result<Command, String> {
        let words = line.split_whitespace().map(OsString::from);
        parse(lexopt::Parser::from_args(words)).map_err(|error| error.to_string())
    }

    #[test]
    fn command_lines_are_parsed() {
        let folder = || OsString::from("/opt");
        for (line, wanted) in [
            ("--help", Command::Help),
            ("install -h", Command::Help),
            ("-V", Command::Version),
            ("install /opt", Command::Install { folder: folder(), all: false, format: Format::Text }),
            (
                "-ojson install --all /opt",
                Command::Install { folder: folder(), all: true, format: Format::Json },
            ),
            ("uninstall /opt", Command::Uninstall { folder: folder(), format: Format::Text }),
            ("check-node", Command::CheckNode { required: Vec::new(), format: Format::Text }),
            (
                "check-node --require=tun --output json",
                Command::CheckNode { required: vec!["tun".to_owned()], format: Format::Json },
            ),
        ] {
            assert_eq!(typed(line).unwrap(), wanted, "{line}");
        }
        for line in [
            "",
            "install",
            "install a b",
            "uninstall",
            "uninstall --all a",
            "uninstall --require tun a",
            "fly",
            "check-node x",
            "--output xml install a",
            "--require x check-node",
            "--require tun install a",
            "--all check-node",
            "-x",
        ] {
            assert!(typed(line).is_err(), "{line}");
        }
    }
}
