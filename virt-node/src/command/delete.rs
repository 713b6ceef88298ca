//! `virt-node delete`: objects go, and what belongs to them.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use api::kind::Kind;
use api::manifest;

use super::{Daemon, Named, say};
use crate::error::{Error, Kind as ErrorKind};
use crate::protocol::{Request, Target};
use virt::validate;

/// How often it is looked whether they are gone.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The arguments of the command.
pub(crate) struct Deletion {
    pub(crate) namespace: String,
    pub(crate) named: Vec<Named>,
    /// Texts with the objects to delete.
    pub(crate) texts: Vec<(String, Vec<u8>)>,
    pub(crate) grace_seconds: Option<u64>,
    /// Whether it is waited until they are gone, and how long.
    pub(crate) wait: Option<Duration>,
}

/// Has objects go away. Those of files that are gone already are no mistake.
pub(crate) fn delete(daemon: &mut Daemon, typed: &Deletion) -> Result<bool, Error> {
    let mut targets = Vec::new();
    for named in &typed.named {
        targets.push(found(daemon, named, &typed.namespace)?);
    }
    for (name, text) in &typed.texts {
        let documents = manifest::documents(text);
        let documents =
            documents.map_err(|error| Error::new(ErrorKind::Content, format!("{name}: {error}")))?;
        for document in documents {
            let Some(kind) = document.known() else { continue };
            let target = Target {
                kind: kind.name().to_owned(),
                namespace: document.namespace.unwrap_or_else(|| validate::NAMESPACE.to_owned()),
                name: document.name,
            };
            if daemon.object(&target)?.is_some() {
                targets.push(target);
            }
        }
    }
    if !targets.is_empty() {
        daemon.call(Request::Delete { targets: targets.clone(), grace_seconds: typed.grace_seconds })?;
    }
    let until = typed.wait.map(|wait| Instant::now() + wait);
    for target in &targets {
        let Target { kind, namespace, name } = target;
        let Some(until) = until else {
            say(&format!("{kind} {namespace}/{name} is being deleted"))?;
            continue;
        };
        while daemon.object(target)?.is_some() {
            if Instant::now() > until {
                let text = format!(
                    "{kind} {namespace}/{name} is still being deleted; virt-node events -n {namespace} {name} shows the progress"
                );
                return Err(Error::new(ErrorKind::System, text));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        say(&format!("{kind} {namespace}/{name} deleted"))?;
    }
    Ok(true)
}

/// The object of a name: a machine, else a run.
fn found(daemon: &mut Daemon, named: &Named, namespace: &str) -> Result<Target, Error> {
    let kinds = match named.kind {
        Some(kind) => vec![kind],
        None => vec![Kind::VirtualMachine, Kind::VirtualMachineInstance],
    };
    for kind in &kinds {
        let target = named.target(*kind, namespace);
        if daemon.object(&target)?.is_some() {
            return Ok(target);
        }
    }
    let name = &named.name;
    let looked_for: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
    let mut text = format!("there is no {} {namespace}/{name}", looked_for.join(" or "));
    // A name alone deletes no disk: the other kinds want to be named.
    for kind in Kind::ALL.into_iter().filter(|kind| !kinds.contains(kind)) {
        if daemon.object(&named.target(kind, namespace))?.is_some() {
            let word = kind.name();
            let _infallible = write!(
                text,
                "; there is a {word}: `virt-node delete -n {namespace} {word}/{name}` deletes it"
            );
        }
    }
    Err(Error::new(ErrorKind::Content, text))
}
