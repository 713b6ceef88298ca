//! Carries out ADD and DEL. A failed ADD restores its changes in reverse; a DEL only logs values that the kernel does not
//! let it restore, since the plugins after it are about to remove the interface.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use netlink_packet_route::link::LinkAttribute;

use crate::error::Error;
use crate::log_error;
use crate::namespace;
use crate::netlink::{Flag, Link, Request, Router};
use crate::protocol::{Attachment, Call, Outcome};
use crate::tuning::backup::{self, Backup};
use crate::tuning::config::{self, Config, Sysctl};

/// Tunes.
///
/// # Errors
/// Everything that was done is undone; what could not be is in the details.
pub(super) fn add(config: &Config, call: &Call) -> Result<Outcome, Error> {
    let outcome = tuned(previous(call)?, config, call);
    // A result that the version cannot represent is rejected before anything is changed.
    outcome.render(call.version)?;
    let (home, pod) = namespace::of_call(call)?;
    pod.inside(&home, || {
        let mut undo = Undo::default();
        match change(config, call, &mut undo) {
            Ok(()) => Ok(()),
            Err(error) => {
                let mut errors = vec![error];
                errors.extend(undo.run());
                Error::all(errors)
            }
        }
    })?;
    Ok(outcome)
}

/// Restores the values from the ADD's backup file, and removes the file.
///
/// # Errors
/// [`crate::Kind::Io`] when the file stays; when the kernel could not be asked, in which case it stays too, for the next DEL.
pub(super) fn delete(call: &Call) -> Result<(), Error> {
    // A folder that no ADD would take holds nothing.
    let Ok(folder) = config::folder(&call.config) else { return Ok(()) };
    let path = backup::path(&folder, &call.attachment);
    let Some((backup, whole)) = Backup::read(&path)? else { return backup::remove(&path) };
    if let Some((home, pod)) = namespace::of_deletion(call)? {
        pod.inside(&home, || restore(&backup, call))?;
    }
    if whole {
        return backup::remove(&path);
    }
    // The plugins after it are about to take the interface away: no reason to keep them from it.
    let kept = backup::set_aside(&path)?;
    let Attachment { container, interface } = &call.attachment;
    log_error(&format!(
        "{interface} of container {container} is not restored: its backup file is invalid, and is kept as {}",
        kept.display()
    ));
    Ok(())
}

/// The result so far.
///
/// # Errors
/// [`crate::Kind::Config`] when there is none: tuning has nothing to tune on its own.
pub(super) fn previous(call: &Call) -> Result<Outcome, Error> {
    Outcome::previous(&call.config, call.version)?.ok_or_else(|| {
        Error::config(
            "\"prevResult\" is missing: tuning changes an interface that an earlier plugin of the chain has made",
        )
    })
}

fn tuned(mut outcome: Outcome, config: &Config, call: &Call) -> Outcome {
    let interfaces = outcome.interfaces.iter_mut();
    for interface in interfaces.filter(|interface| interface.name == call.attachment.interface) {
        if let Some(mac) = config.mac {
            interface.mac = mac.to_string();
        }
        // Only where the result has an MTU: results of older versions have none.
        if let (Some(mtu), Some(told)) = (config.mtu, &mut interface.mtu) {
            *told = mtu;
        }
    }
    outcome
}

fn change(config: &Config, call: &Call, undo: &mut Undo) -> Result<(), Error> {
    for sysctl in &config.sysctls {
        // Some can only be written; those cannot be put back.
        let before = std::fs::read(&sysctl.file).ok();
        write(&sysctl.file, sysctl.value.as_bytes()).map_err(|error| sysctl_refused(sysctl, error))?;
        undo.0.extend(before.map(|before| Step::Sysctl { file: sysctl.file.clone(), before }));
    }
    if !config.changes_the_link() {
        return Ok(());
    }
    let mut router = Router::open()?;
    let link = link(call, &mut router)?;
    let backup = Backup::of(&link, config);
    let path = backup::path(&config.folder, &call.attachment);
    undo.0.push(Step::File { path: path.clone(), before: std::fs::read(&path).ok() });
    backup.write(&path)?;
    let wanted = Backup {
        mac: config.mac,
        promiscuous: config.promiscuous.then_some(true),
        mtu: config.mtu,
        all_multicast: config.all_multicast,
        transmit_queue: config.transmit_queue,
    };
    // Noted before: an answer can get lost, and setting what is set already does no harm.
    undo.0.extend(requests(&link, &backup).into_iter().map(Step::Link));
    let answers = router.exchange(requests(&link, &wanted))?;
    Error::all(answers.into_iter().filter_map(|answer| answer.done().err().map(Error::from)).collect())
}

fn restore(backup: &Backup, call: &Call) -> Result<(), Error> {
    let mut router = Router::open()?;
    let name = &call.attachment.interface;
    let answer = router.exchange(vec![Link::get(name)])?.into_iter().next();
    let Some(link) = answer.map(crate::bridge::present).transpose()?.flatten() else { return Ok(()) };
    for answer in router.exchange(requests(&link, backup))? {
        if let Err(error) = answer.done().map_err(Error::from) {
            log_error(&format!("{name}: {error}: {}", error.details()));
        }
    }
    Ok(())
}

/// The attachment's interface in the namespace this process is in.
pub(super) fn link(call: &Call, router: &mut Router) -> Result<Link, Error> {
    let name = &call.attachment.interface;
    let gone = || Error::new(crate::Kind::UnknownContainer, format!("{name} is not in the container"));
    Link::all(&router.ask(Link::get(name))?).pop().ok_or_else(gone)
}

/// One request for each attribute that is given, always in the same order.
fn requests(link: &Link, wanted: &Backup) -> Vec<Request> {
    let (index, name) = (link.index, &link.name);
    let switch = |flag, on: bool, what: &str| {
        let no = if on { "" } else { "no longer " };
        Link::switch(index, flag, on, format!("make {name} {no}{what}"))
    };
    let mut requests = Vec::new();
    requests.extend(wanted.mac.map(|mac| {
        let attribute = LinkAttribute::Address(mac.0.to_vec());
        Link::change(index, attribute, format!("set the Ethernet address of {name} to {mac}"))
    }));
    requests.extend(wanted.promiscuous.map(|on| switch(Flag::Promiscuous, on, "promiscuous")));
    requests.extend(
        wanted.mtu.map(|mtu| {
            Link::change(index, LinkAttribute::Mtu(mtu), format!("set the MTU of {name} to {mtu}"))
        }),
    );
    requests.extend(wanted.all_multicast.map(|on| switch(Flag::AllMulticast, on, "receive all multicasts")));
    requests.extend(wanted.transmit_queue.map(|length| {
        let what = format!("set the transmit queue of {name} to {length}");
        Link::change(index, LinkAttribute::TxQueueLen(length), what)
    }));
    requests
}

fn write(file: &Path, value: &[u8]) -> std::io::Result<()> {
    OpenOptions::new().write(true).open(file)?.write_all(value)
}

fn sysctl_refused(sysctl: &Sysctl, error: std::io::Error) -> Error {
    let (key, value) = (sysctl.key.escape_debug(), sysctl.value.escape_debug());
    Error::with(
        crate::Kind::Kernel,
        format!("the kernel did not set the sysctl \"{key}\" to \"{value}\""),
        error,
    )
}

/// The completed steps.
#[derive(Default)]
struct Undo(Vec<Step>);

enum Step {
    Sysctl { file: PathBuf, before: Vec<u8> },
    File { path: PathBuf, before: Option<Vec<u8>> },
    Link(Request),
}

impl Undo {
    /// Undoes all steps, the last one first; returns the errors of steps that could not be undone.
    fn run(self) -> Vec<Error> {
        self.0.into_iter().rev().filter_map(|step| step.undo().err()).collect()
    }
}

impl Step {
    fn undo(self) -> Result<(), Error> {
        let failed = |path: &Path, error| Error::io(format!("{} cannot be restored", path.display()), error);
        match self {
            Self::Sysctl { file, before } => write(&file, &before).map_err(|error| failed(&file, error)),
            Self::File { path, before: Some(before) } => {
                std::fs::write(&path, before).map_err(|error| failed(&path, error))
            }
            Self::File { path, before: None } => backup::remove(&path),
            Self::Link(request) => Ok(Router::open()?.ask(request).map(drop)?),
        }
    }
}
