//! The commands that talk to the daemon: what each asks, and what a person sees of the answer.
//!
//! Not here: what becomes of it ([`crate::daemon`]).

mod console;
mod delete;
mod forward;
mod objects;
mod relay;
mod run;
mod service;
mod ssh;
mod table;
mod upload;
mod volume;

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use api::kind::Kind;
use serde_json::Value;

pub(crate) use console::{console, screen};
pub(crate) use delete::{Deletion, delete};
pub(crate) use forward::{forward, join_standard};
pub(crate) use objects::{Output, events, get, list, power};
pub(crate) use run::{Run, apply, run};
pub(crate) use service::install;
pub(crate) use ssh::{Login, scp, ssh};
pub(crate) use upload::{ImageUpload, upload};
pub(crate) use volume::{add_volume, remove_volume};

use crate::daemon;
use crate::error::{Error, Kind as ErrorKind};
use crate::protocol::{Answer, Call, GuestRow, RefusedKind, Request, Target, VERSION, VolumeRow};
use guest::found as programs;
use guest::framing;

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(60);
/// There where systemd runs the machine.
const SYSTEMD: &str = "/run/systemd/system";
/// How long a daemon may take to serve.
const START: Duration = Duration::from_secs(30);

/// A connection to the daemon of a state folder.
pub(crate) struct Daemon {
    stream: UnixStream,
    folder: PathBuf,
}

impl Daemon {
    /// The daemon that runs.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn connect(folder: &Path) -> Result<Self, Error> {
        let stream = UnixStream::connect(daemon::socket_of(folder)).map_err(|error| {
            let shown = folder.display();
            let text = if error.kind() == io::ErrorKind::PermissionDenied {
                format!(
                    "the daemon of {shown} is root's: run the command as root (members of the group {} may list, \
                     start, stop and connect to VMs)",
                    daemon::GROUP
                )
            } else {
                format!(
                    "no daemon serves {shown}; virt-node run starts one, so does virt-node serve (as root)"
                )
            };
            Error::with(ErrorKind::System, text, error)
        })?;
        Ok(Self { stream, folder: folder.to_owned() })
    }

    /// The daemon that runs, or one that is started now and stays.
    pub(crate) fn or_start(folder: &Path) -> Result<Self, Error> {
        if let Ok(daemon) = Self::connect(folder) {
            return Ok(daemon);
        }
        if !rustix::process::geteuid().is_root() {
            let text =
                format!("only root can use the daemon of {}: run the command as root", folder.display());
            return Err(Error::new(ErrorKind::Usage, text));
        }
        let failed = |error: io::Error| {
            Error::with(
                ErrorKind::System,
                format!("the daemon of {} cannot be started", folder.display()),
                error,
            )
        };
        // systemd starts it elsewhere.
        let folder = std::path::absolute(folder).map_err(failed)?;
        std::fs::create_dir_all(&folder).map_err(failed)?;
        let log = folder.join("daemon.log");
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&log).map_err(failed)?;
        let before = usize::try_from(file.metadata().map_err(failed)?.len()).unwrap_or(usize::MAX);
        let own = std::env::current_exe().map_err(failed)?;
        let mut child = starter(
            &own,
            &folder,
            &log,
            Path::new(SYSTEMD).is_dir() && programs::find("systemd-run").is_some(),
        )
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(file)
        .spawn()
        .map_err(failed)?;
        let mut handed_over = false;
        let until = Instant::now() + START;
        loop {
            if let Ok(daemon) = Self::connect(&folder) {
                return Ok(daemon);
            }
            // systemd-run ends well when it has started the daemon.
            let status = child.try_wait().map_err(failed)?;
            handed_over |= status.is_some_and(|status| status.success());
            let ended = status.is_some() && !handed_over;
            let text = std::fs::read(&log).unwrap_or_default();
            let text = String::from_utf8_lossy(text.get(before..).unwrap_or_default());
            // A daemon that another process starts at the same time serves as well.
            if ended && !text.contains(daemon::TAKEN) || Instant::now() > until {
                let said = text.lines().last().unwrap_or("see its log").to_owned();
                return Err(Error::new(ErrorKind::System, format!("the daemon does not serve: {said}")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// It is refused, or there is no answer.
    pub(crate) fn call(&mut self, request: Request) -> Result<Answer, Error> {
        match self.exchange(request) {
            Ok(answer) => refused(answer),
            Err(error) => Err(Error::with(ErrorKind::System, "the daemon does not answer", error)),
        }
    }

    fn exchange(&mut self, request: Request) -> io::Result<Answer> {
        framing::send(&self.stream, &Call { version: VERSION, request })?;
        self.stream.set_read_timeout(Some(TIMEOUT))?;
        let length = framing::next(&self.stream)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let json = framing::json(&self.stream, length.map_err(io::Error::other)?, TIMEOUT)?;
        Ok(serde_json::from_slice(&json)?)
    }

    /// Objects that an answer holds.
    pub(crate) fn objects(&mut self, request: Request) -> Result<Vec<Value>, Error> {
        let Answer::Objects(objects) = self.call(request)? else { return Err(unexpected()) };
        Ok(objects)
    }

    /// Machines and volumes in a few words each.
    pub(crate) fn rows(&mut self) -> Result<(Vec<GuestRow>, Vec<VolumeRow>), Error> {
        let Answer::Rows { guests, volumes } = self.call(Request::Rows)? else { return Err(unexpected()) };
        Ok((guests, volumes))
    }

    /// One object; `None`: there is none.
    pub(crate) fn object(&mut self, target: &Target) -> Result<Option<Value>, Error> {
        match self.exchange(Request::Get(target.clone())) {
            Ok(Answer::Objects(objects)) => Ok(objects.into_iter().next()),
            Ok(Answer::Refused { kind: RefusedKind::Missing, .. }) => Ok(None),
            Ok(answer) => refused(answer).map(|_| None),
            Err(error) => Err(Error::with(ErrorKind::System, "the daemon does not answer", error)),
        }
    }

    /// A connection of its own to the same daemon.
    pub(crate) fn another(&self) -> Result<Self, Error> {
        Self::connect(&self.folder)
    }

    /// The connection, once a stream was answered.
    pub(crate) fn into_stream(self) -> UnixStream {
        self.stream
    }
}

/// An answer that is none, as an error.
fn refused(answer: Answer) -> Result<Answer, Error> {
    let Answer::Refused { kind, message } = answer else { return Ok(answer) };
    let kind = match kind {
        RefusedKind::Missing | RefusedKind::State | RefusedKind::Invalid => ErrorKind::Content,
        RefusedKind::Failed => ErrorKind::System,
    };
    Err(Error::new(kind, message))
}

/// A user's name of an object: `NAME`, `KIND/NAME`, in a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    /// `None`: a machine, or a run without one.
    pub(crate) kind: Option<Kind>,
    pub(crate) name: String,
}

/// Kinds as kubectl shortens them.
const SHORT: [(&str, Kind); 7] = [
    ("vm", Kind::VirtualMachine),
    ("vmi", Kind::VirtualMachineInstance),
    ("dv", Kind::DataVolume),
    ("net-attach-def", Kind::NetworkAttachmentDefinition),
    ("pvc", Kind::PersistentVolumeClaim),
    ("secret", Kind::Secret),
    ("cm", Kind::ConfigMap),
];

impl std::str::FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((kind, name)) = text.split_once('/') else {
            return Ok(Self { kind: None, name: text.to_owned() });
        };
        let short = SHORT.iter().find(|(short, _)| kind.eq_ignore_ascii_case(short)).map(|(_, kind)| *kind);
        let long = Kind::ALL.into_iter().find(|one| {
            let plural = format!("{}s", one.name());
            kind.eq_ignore_ascii_case(one.name()) || kind.eq_ignore_ascii_case(&plural)
        });
        let known = short.or(long);
        let words: Vec<&str> = SHORT.iter().map(|(short, _)| *short).collect();
        let kind = known.ok_or_else(|| format!("{kind:?} is not one of {}", words.join(", ")))?;
        Ok(Self { kind: Some(kind), name: name.to_owned() })
    }
}

impl Named {
    pub(crate) fn target(&self, kind: Kind, namespace: &str) -> Target {
        Target { kind: kind.name().to_owned(), namespace: namespace.to_owned(), name: self.name.clone() }
    }
}

/// A line for a person, at once.
pub(crate) fn say(text: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    let told = writeln!(out, "{text}").and_then(|()| out.flush());
    told.map_err(|error| Error::with(ErrorKind::System, "the answer cannot be written", error))
}

/// That an answer does not belong to its request.
pub(crate) fn unexpected() -> Error {
    Error::new(ErrorKind::System, "the daemon sent an unexpected answer; both must be of one release")
}

/// A text at a path of an object.
pub(crate) fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

/// The command that starts a daemon which outlives this process and the login session it belongs to: where systemd runs, a
/// unit of its own, since the end of a session ends what was started in it.
fn starter(own: &Path, folder: &Path, log: &Path, systemd: bool) -> Command {
    let serve = [OsString::from("serve"), "--detached".into(), "--state".into(), folder.into()];
    if !systemd {
        let mut command = Command::new(own);
        command.args(serve);
        return command;
    }
    let mut command = Command::new("systemd-run");
    command.args(["--quiet", "--collect", "--property=KillMode=process", "--property=Delegate=yes"]);
    command.args(["--property=LimitNOFILE=65536", "--property=TasksMax=infinity"]);
    command.arg(format!("--property=StandardError=append:{}", log.display()));
    for name in ["PATH", "http_proxy", "https_proxy", "no_proxy"] {
        if let Some(value) = std::env::var_os(name) {
            let mut variable = OsString::from(format!("--setenv={name}="));
            variable.push(value);
            command.arg(variable);
        }
    }
    command.arg("--").arg(own).args(serve);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The end of a login session ends all processes that were started in it.
    #[test]
    fn daemon_is_a_unit_of_its_own_where_systemd_runs() {
        let starts = |systemd| {
            let (own, state, log) =
                (Path::new("/bin/virt-node"), Path::new("/state"), Path::new("/state/log"));
            let command = starter(own, state, log, systemd);
            let words = std::iter::once(command.get_program()).chain(command.get_args());
            words.map(|word| word.to_str().unwrap().to_owned()).collect::<Vec<_>>().join(" ")
        };
        let serve = "/bin/virt-node serve --detached --state /state";
        assert_eq!(starts(false), serve);
        let unit = starts(true);
        assert!(
            unit.starts_with("systemd-run --quiet --collect ") && unit.ends_with(&format!(" -- {serve}")),
            "{unit}"
        );
        // Stopping the daemon leaves its VMs alone: their processes are in its unit's group.
        for property in
            ["KillMode=process", "Delegate=yes", "TasksMax=infinity", "StandardError=append:/state/log"]
        {
            assert!(unit.contains(&format!(" --property={property}")), "{property}: {unit}");
        }
        assert!(!unit.contains("--user") && !unit.contains("--scope"), "{unit}");
    }

    #[test]
    fn kinds_have_short_names() {
        let named = |text: &str| text.parse::<Named>();
        assert_eq!(named("a").unwrap().kind, None);
        assert_eq!(named("vmi/a").unwrap().kind, Some(Kind::VirtualMachineInstance));
        assert_eq!(named("DataVolumes/a").unwrap().kind, Some(Kind::DataVolume));
        assert!(named("pod/a").unwrap_err().contains("is not one of vm, vmi"));
    }
}
