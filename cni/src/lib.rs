//! The bridge CNI plugin and its family for virtual machines, in one static program: `bridge`, `tuning`, `bandwidth`,
//! `host-local`, `static`, `loopback`, `tap`, chosen by the name the program is called by, and the same names with `cnv-` before them.
//! Called `cni`, it installs itself and looks at the node.
//!
//! A plugin process lives for a few milliseconds: no async runtime, no threads, few system calls. What is asked comes
//! through `protocol`; the library `link` speaks to the kernel and goes into the pod's namespace; every plugin is a
//! folder of its own that decides in `plan` and does in `apply`. `ipam` asks an address of another plugin, which runs as
//! a process of its own or, when it is ours, right here.
//!
//! Not here: anything that lives longer than a call, and any knowledge of Kubernetes.

mod bandwidth;
mod bridge;
mod check_node;
mod command;
mod error;
mod format;
mod install;
mod ipam;
mod loopback;
mod namespace;
mod nft;
mod protocol;
mod tap;
mod tuning;

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use link::netlink;
use serde_json::{Value, json};

pub use command::HELP;
pub use error::{Error, Kind};

use protocol::{Answer, Environment, Outcome, Plugin, Verb, Version};

/// The names of the plugins, each also with `cnv-` before it.
pub(crate) const PLUGINS: [&str; 7] =
    ["bandwidth", "bridge", "host-local", "loopback", "static", "tap", "tuning"];

/// Runs the plugin that the program's name asks for, and answers on standard output.
pub fn run(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let program = arguments.next().unwrap_or_default();
    let name = Path::new(&program).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match plugin(name) {
        Some(plugin) => serve(plugin.as_ref()),
        None if Environment::of_process().command.is_empty() => command::run(arguments),
        None => {
            let name = name.escape_debug();
            let known = PLUGINS.join(", ");
            let message =
                format!("no plugin is called \"{name}\"; those are {known}, with or without cnv- before");
            write_answer(&protocol::answer(Err(Error::new(Kind::Environment, message)), None))
        }
    }
}

/// The plugin of a file's name.
fn plugin(name: &str) -> Option<Box<dyn Plugin>> {
    Some(match name.strip_prefix("cnv-").unwrap_or(name) {
        "bandwidth" => Box::new(bandwidth::Bandwidth),
        "bridge" => Box::new(bridge::Bridge),
        "host-local" => Box::new(ipam::HostLocal),
        "loopback" => Box::new(loopback::Loopback),
        "static" => Box::new(ipam::Fixed),
        "tap" => Box::new(tap::Tap),
        "tuning" => Box::new(tuning::Tuning),
        _ => return None,
    })
}

fn serve(plugin: &dyn Plugin) -> ExitCode {
    let environment = Environment::of_process();
    if environment.command.is_empty() {
        let versions = Version::ALL.map(Version::as_str).join(", ");
        log_error(&format!(
            "CNI plugin {} of ferrovirt {}\nCNI protocol versions supported: {versions}",
            plugin.name(),
            env!("CARGO_PKG_VERSION"),
        ));
        return ExitCode::SUCCESS;
    }
    let reading = protocol::read(&environment, std::io::stdin().lock());
    let (call, result) = match reading.call {
        Err(error) => (None, Err(error)),
        Ok(None) => (None, Ok(Some(versions()))),
        Ok(Some(call)) => {
            let result = perform(plugin, &call);
            (Some(call), result)
        }
    };
    let answer = protocol::answer(result, reading.version);
    let code = write_answer(&answer);
    // A lost answer: the runtime does not know of the attachment.
    if answer.success
        && code == ExitCode::FAILURE
        && let Some(call) = call.filter(|call| call.verb == Verb::Add)
        && let Err(error) = plugin.delete(&call)
    {
        log_error(&error.to_string());
    }
    code
}

/// Writes the one document of an answer, at once: a reader sees it or nothing.
fn write_answer(answer: &Answer) -> ExitCode {
    if let Some(document) = &answer.document {
        let text = document.to_string() + "\n";
        if let Err(error) = std::io::stdout().write_all(text.as_bytes()) {
            log_error(&format!("the answer cannot be written: {error}"));
            return ExitCode::FAILURE;
        }
    }
    if answer.success { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn perform(plugin: &dyn Plugin, call: &protocol::Call) -> Result<Option<Value>, Error> {
    match call.verb {
        Verb::Add => plugin.add(call).and_then(|outcome: Outcome| outcome.render(call.version)).map(Some),
        Verb::Delete => plugin.delete(call).map(|()| None),
        Verb::Check => plugin.check(call).map(|()| None),
        Verb::Collect => plugin.collect(call).map(|()| None),
        Verb::Status => plugin.status(call).map(|()| None),
        Verb::Version => Ok(Some(versions())),
    }
}

fn versions() -> Value {
    json!({
        "cniVersion": Version::NEWEST.as_str(),
        "supportedVersions": Version::ALL.map(Version::as_str),
    })
}

/// A line for the runtime's log. Standard output belongs to the answer alone.
pub(crate) fn log_error(line: &str) {
    // Ignored: stderr is the only log.
    let _ = writeln!(std::io::stderr(), "{line}");
}
