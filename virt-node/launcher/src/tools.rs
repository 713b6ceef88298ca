//! Tools that the kubelet, backup software and support bundles run in a launcher's pod, under upstream's names: `virt-probe`,
//! `virt-freezer` and a `virsh` of the commands that such tools use, clients of the launcher's socket, and `virt-tail`
//! ([`crate::tail`]).
//!
//! | name | exit codes |
//! |---|---|
//! | `virt-probe` | the command's own; 1: it could not be run, or the agent does not answer in time |
//! | `virt-freezer` | 0: done, or there is no guest or no agent; 1: the guest agent refuses |
//! | `virsh` | 0; 1: no such domain, or the launcher refuses |
//!
//! Not here: when a probe runs, what a backup does.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use api::launcher::{AGENT_TIMEOUT_MAX, Answer, FREEZE_MAX, Request, State, Status};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::{Parser, Subcommand};
use guest::Client;
use serde_json::{Value, json};

use crate::output::{print_error, usage};
use crate::tail;

/// The launcher's directory in a pod.
const FOLDER: &str = "/var/run/kubevirt-private";
/// How often the end of a command in the guest is looked for.
const POLL: Duration = Duration::from_millis(100);
/// A freeze ends after so many seconds by itself, unless the caller gives another time.
const FREEZE_SECONDS: u64 = 300;

/// Runs the tool of this name; `None`: there is none.
pub(crate) fn run(name: &str, arguments: Vec<OsString>) -> Option<ExitCode> {
    match name {
        "virt-probe" => Some(parsed(arguments, |probe: Probe| probe.run())),
        "virt-freezer" => Some(parsed(arguments, |freezer: Freezer| freezer.run())),
        "virsh" => Some(parsed(arguments, |virsh: Virsh| virsh.run())),
        "virt-tail" => Some(parsed(arguments, |tail: Tail| tail.run())),
        _ => None,
    }
}

fn parsed<T: Parser>(arguments: Vec<OsString>, run: impl FnOnce(T) -> Result<u8, String>) -> ExitCode {
    let name = T::command().get_name().to_owned();
    match T::try_parse_from(arguments) {
        Err(error) => usage(&error),
        Ok(tool) => match run(tool) {
            Ok(code) => ExitCode::from(code),
            Err(text) => {
                print_error(&name, &text);
                ExitCode::FAILURE
            }
        },
    }
}

/// Prints; a closed stream is no reason to fail.
fn say(text: &str) {
    drop(io::stdout().write_all(text.as_bytes()));
}

fn connect(folder: &Path) -> Result<Client, String> {
    Client::connect(folder).map_err(|error| format!("cannot connect to virt-launcher: {error}"))
}

fn status(client: &mut Client) -> Result<Status, String> {
    match client.call(Request::Status) {
        Ok(Answer::Status(status)) => Ok(status),
        Ok(_) => Err("virt-launcher sent an unexpected answer".to_owned()),
        Err(error) => Err(error::chain(&error)),
    }
}

/// The result of a command of the guest agent.
fn agent(client: &mut Client, command: &Value, seconds: u32) -> Result<Value, String> {
    let timeout_seconds = seconds.clamp(1, AGENT_TIMEOUT_MAX);
    let answer = client.call(Request::Agent { command: command.to_string(), timeout_seconds });
    let text = match answer {
        Ok(Answer::Agent(text)) => text,
        Ok(_) => return Err("virt-launcher sent an unexpected answer".to_owned()),
        Err(error) => return Err(error::chain(&error)),
    };
    let answer: Value = serde_json::from_str(&text).map_err(|error| format!("the guest agent: {error}"))?;
    Ok(answer["return"].clone())
}

/// Runs a command in the guest, or asks whether its agent is there.
#[derive(Debug, Parser)]
#[command(name = "virt-probe", version)]
struct Probe {
    /// Name of the domain; a pod has one.
    #[arg(long = "domainName", value_name = "NAME")]
    domain: Option<String>,
    /// Path of the launcher's socket, as upstream has it; not used.
    #[arg(long, hide = true)]
    socket: Option<String>,
    /// Seconds that the command has.
    #[arg(long = "timeoutSeconds", value_name = "SECONDS", default_value_t = 1)]
    timeout: u32,
    /// The command: a path in the guest.
    #[arg(long, required_unless_present = "ping")]
    command: Option<String>,
    /// Ask the agent whether it is there.
    #[arg(long = "guestAgentPing", conflicts_with = "command")]
    ping: bool,
    #[arg(long, hide = true, default_value = FOLDER)]
    folder: PathBuf,
    /// Arguments of the command, behind `--`.
    #[arg(last = true)]
    arguments: Vec<String>,
}

impl Probe {
    fn run(self) -> Result<u8, String> {
        let mut client = connect(&self.folder)?;
        let Some(command) = self.command else {
            agent(&mut client, &json!({"execute": "guest-ping"}), self.timeout)?;
            return Ok(0);
        };
        let deadline = Instant::now() + Duration::from_secs(self.timeout.max(1).into());
        let begin = json!({"execute": "guest-exec",
            "arguments": {"path": command, "arg": self.arguments, "capture-output": true}});
        let begun = agent(&mut client, &begin, self.timeout)?;
        let pid = begun["pid"].as_i64().ok_or("the guest agent runs no command")?;
        loop {
            let ask = json!({"execute": "guest-exec-status", "arguments": {"pid": pid}});
            let found = agent(&mut client, &ask, self.timeout)?;
            if found["exited"] == true {
                let data = |field: &str| {
                    found[field].as_str().and_then(|data| STANDARD.decode(data).ok()).unwrap_or_default()
                };
                // A closed stream is no reason to fail.
                drop(io::stdout().write_all(&data("out-data")));
                drop(io::stderr().write_all(&data("err-data")));
                // Without a code it was ended by a signal.
                let code = found["exitcode"].as_i64().unwrap_or(1);
                return Ok(u8::try_from(code).unwrap_or(1));
            }
            if Instant::now() >= deadline {
                return Err(format!("{command} has not ended after {} s", self.timeout));
            }
            std::thread::sleep(POLL);
        }
    }
}

/// Freezes or thaws the guest's filesystems around a backup.
#[derive(Debug, Parser)]
#[command(name = "virt-freezer", version)]
struct Freezer {
    /// Freeze.
    #[arg(long, required_unless_present = "unfreeze")]
    freeze: bool,
    /// Thaw.
    #[arg(long, conflicts_with = "freeze")]
    unfreeze: bool,
    /// Name of the VirtualMachineInstance; a pod has one.
    #[arg(long)]
    name: Option<String>,
    /// Its namespace.
    #[arg(long)]
    namespace: Option<String>,
    /// Seconds after which the freeze ends by itself.
    #[arg(long = "unfreezeTimeoutSeconds", value_name = "SECONDS", default_value_t = FREEZE_SECONDS)]
    timeout: u64,
    #[arg(long, hide = true, default_value = FOLDER)]
    folder: PathBuf,
}

impl Freezer {
    fn run(self) -> Result<u8, String> {
        let mut client = connect(&self.folder)?;
        let status = status(&mut client)?;
        if !matches!(status.state, State::Running | State::Stopping) {
            say("Guest is not running, exiting\n");
            return Ok(0);
        }
        if !status.agent {
            say("No guest agent, exiting\n");
            return Ok(0);
        }
        let request = if self.unfreeze {
            Request::Thaw
        } else {
            Request::Freeze { seconds: self.timeout.min(FREEZE_MAX) }
        };
        client.call(request).map(|_| 0).map_err(|error| error::chain(&error))
    }
}

/// Prints what a guest writes to its serial console, until SIGTERM.
#[derive(Debug, Parser)]
#[command(name = "virt-tail", version)]
struct Tail {
    /// The console's log.
    #[arg(long = "logfile", value_name = "FILE")]
    file: PathBuf,
}

impl Tail {
    fn run(self) -> Result<u8, String> {
        let failed = |error: io::Error| format!("{}: {error}", self.file.display());
        tail::follow(&self.file, &mut io::stdout().lock()).map(|()| 0).map_err(failed)
    }
}

/// Commands of libvirt's `virsh` about the one guest of a pod.
#[derive(Debug, Parser)]
#[command(name = "virsh", version)]
struct Virsh {
    /// Connection, as libvirt's has it; a pod has one.
    #[arg(short, long, value_name = "URI")]
    connect: Option<String>,
    /// Only read; commands that change something are not here.
    #[arg(short, long)]
    readonly: bool,
    #[arg(long, hide = true, default_value = FOLDER)]
    folder: PathBuf,
    #[command(subcommand)]
    command: VirshCommand,
}

#[derive(Debug, Subcommand)]
enum VirshCommand {
    /// Lists domains.
    List {
        /// Inactive ones, too; a pod has none.
        #[arg(long)]
        all: bool,
        /// Names alone.
        #[arg(long)]
        name: bool,
    },
    /// Prints a domain's description.
    Dumpxml { domain: String },
    /// Prints what a domain is doing.
    Domstate { domain: String },
    /// Prints what a domain has.
    Domstats { domain: Option<String> },
    /// Prints a domain's memory.
    Dommemstat { domain: String },
    /// Sends a command to a domain's guest agent.
    QemuAgentCommand {
        domain: String,
        command: String,
        /// Seconds to wait.
        #[arg(long, default_value_t = 5)]
        timeout: u32,
        /// Print it indented.
        #[arg(long)]
        pretty: bool,
    },
}

impl Virsh {
    fn run(self) -> Result<u8, String> {
        let mut client = connect(&self.folder)?;
        let status = status(&mut client)?;
        let xml = match status.state {
            State::Waiting | State::Starting | State::Ended => None,
            State::Running | State::Paused | State::Stopping => Some(description(&mut client)?),
        };
        let name = xml.as_deref().and_then(name_of);
        let found = |wanted: &str| match name {
            Some(name) if wanted == name || wanted == "1" => Ok(name.to_owned()),
            _ => Err(format!("error: failed to get domain '{wanted}'")),
        };
        match self.command {
            VirshCommand::List { name: true, .. } => {
                say(&name.map_or(String::new(), |name| format!("{name}\n")))
            }
            VirshCommand::List { .. } => say(&list(name, word(&status))),
            VirshCommand::Dumpxml { domain } => {
                found(&domain)?;
                say(&xml.clone().unwrap_or_default());
            }
            VirshCommand::Domstate { domain } => {
                found(&domain)?;
                say(&format!("{}\n\n", word(&status)));
            }
            VirshCommand::Domstats { domain } => {
                let name = match domain {
                    Some(domain) => found(&domain)?,
                    None => name.unwrap_or_default().to_owned(),
                };
                say(&stats(&name, &status));
            }
            VirshCommand::Dommemstat { domain } => {
                found(&domain)?;
                let memory = status.size.map_or(0, |size| size.memory >> 10);
                say(&format!("actual {memory}\n"));
            }
            VirshCommand::QemuAgentCommand { domain, command, timeout, pretty } => {
                found(&domain)?;
                let command: Value =
                    serde_json::from_str(&command).map_err(|error| format!("error: the command: {error}"))?;
                let answer = json!({"return": agent(&mut client, &command, timeout)?});
                let text = if pretty {
                    serde_json::to_string_pretty(&answer)
                } else {
                    serde_json::to_string(&answer)
                };
                say(&format!("{}\n", text.unwrap_or_default()));
            }
        }
        Ok(0)
    }
}

/// The domain's XML as libvirt has it.
fn description(client: &mut Client) -> Result<String, String> {
    match client.call(Request::Describe) {
        Ok(Answer::Description(xml)) => Ok(xml),
        Ok(_) => Err("virt-launcher sent an unexpected answer".to_owned()),
        Err(error) => Err(error::chain(&error)),
    }
}

fn name_of(xml: &str) -> Option<&str> {
    let (_, rest) = xml.split_once("<name>")?;
    rest.split_once("</name>").map(|(name, _)| name)
}

/// libvirt's word for what a guest is doing.
fn word(status: &Status) -> &'static str {
    match status.state {
        State::Running => "running",
        State::Paused => "paused",
        State::Stopping => "in shutdown",
        State::Waiting | State::Starting | State::Ended => "shut off",
    }
}

fn list(name: Option<&str>, state: &str) -> String {
    let width = name.map_or(4, |name| name.len().max(4));
    let mut text = format!(" {:<4} {:<width$}   State\n{}\n", "Id", "Name", "-".repeat(width + 17));
    if let Some(name) = name {
        text.push_str(&format!(" {:<4} {name:<width$}   {state}\n", 1));
    }
    text.push('\n');
    text
}

fn stats(name: &str, status: &Status) -> String {
    let state = match status.state {
        State::Running => 1,
        State::Paused => 3,
        State::Stopping => 4,
        State::Waiting | State::Starting | State::Ended => 5,
    };
    let mut text = format!("Domain: '{name}'\n  state.state={state}\n");
    if let Some(size) = status.size {
        text.push_str(&format!(
            "  balloon.current={}\n  vcpu.current={}\n",
            size.memory >> 10,
            size.processors
        ));
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn tools_take_upstreams_arguments() {
        Probe::command().debug_assert();
        Freezer::command().debug_assert();
        Virsh::command().debug_assert();
        Tail::command().debug_assert();
        let probe = [
            "virt-probe",
            "--domainName",
            "n_vm",
            "--timeoutSeconds",
            "5",
            "--command",
            "cat",
            "--",
            "-n",
            "/a",
        ];
        let probe = Probe::try_parse_from(probe).unwrap();
        assert_eq!((probe.command.as_deref(), probe.timeout), (Some("cat"), 5));
        assert_eq!(probe.arguments, ["-n", "/a"]);
        let ping = ["virt-probe", "--guestAgentPing", "--domainName", "n_vm", "--timeoutSeconds", "1"];
        assert!(Probe::try_parse_from(ping).unwrap().ping);
        let freeze = ["/usr/bin/virt-freezer", "--freeze", "--name", "vm", "--namespace", "n"];
        assert_eq!(Freezer::try_parse_from(freeze).unwrap().timeout, FREEZE_SECONDS);
        assert!(Freezer::try_parse_from(["virt-freezer"]).is_err());
        for line in [
            "list --all",
            "dumpxml n_vm",
            "-r domstate n_vm",
            "-c qemu:///session domstats",
            "dommemstat n_vm",
        ] {
            Virsh::try_parse_from(std::iter::once("virsh").chain(line.split(' '))).unwrap();
        }
    }

    #[test]
    fn a_list_is_libvirts() {
        let text = list(Some("shop_db"), "running");
        assert_eq!(text, " Id   Name      State\n------------------------\n 1    shop_db   running\n\n");
        assert_eq!(name_of("<domain>\n  <name>shop_db</name>"), Some("shop_db"));
    }
}
