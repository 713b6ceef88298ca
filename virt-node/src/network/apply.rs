//! Does what is planned about attachments, and looks after what the machine's first one changes and its last one leaves. Each
//! step may be done again; what fails is undone in reverse.
//!
//! ```text
//! STATE/lock           held while a guest is added to or removed from the records
//! STATE/machine.json   how the machine was before the pod network's first guest of this boot; put back by its last
//! ```

use std::fs::{self, File};
use std::io;
use std::path::Path;

use link::Namespace;
use link::netlink::{Link, Router};
use link::nft::Filter;
use link::nft::batch::{Batch, INET, Table};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use guest::network::cache::{self, Entry};
use guest::network::plan::{self, RecordedAttachment, Step};
use guest::network::{self as wire, runtime};

use super::machine_addresses::MachineAddresses;
use super::{Addresses, Attached, Interface, Places, WantedNetworks, firewall, pod};
use crate::error::{Error, Kind};

/// The masquerading table, made by the plugin `bridge` of ours and of the reference.
const MASQUERADE: Table = Table { family: INET, name: "cni_plugins_masquerade" };
/// Its chain of rules.
const CHECKS: &str = "masq_checks";
/// Most interfaces of a guest: each has an address of its own to answer from.
const INTERFACES_MAX: usize = 200;

fn failed(path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |error| Error::with(Kind::System, path.display().to_string(), error)
}

/// How the machine was.
#[derive(Debug, Serialize, Deserialize)]
struct Machine {
    /// The boot of the machine, after which all is otherwise anyway.
    #[serde(default)]
    boot: String,
    bridge: bool,
    masquerade: bool,
}

/// See [`super::attach`].
pub(super) fn attach(
    places: &Places,
    wanted: &WantedNetworks,
    previous: &Addresses,
) -> Result<Attached, Error> {
    if !api::cni::is_name(&wanted.container) {
        let message = format!("{:?} is not of letters, digits, _, . and -", wanted.container);
        return Err(Error::new(Kind::Content, message));
    }
    if wanted.interfaces.len() > INTERFACES_MAX {
        let message = format!("{} interfaces; {INTERFACES_MAX} are the most", wanted.interfaces.len());
        return Err(Error::new(Kind::Content, message));
    }
    for folder in [&places.state, &places.namespaces] {
        fs::create_dir_all(folder).map_err(failed(folder))?;
    }
    let mut done = Vec::new();
    let attached = attach_noting(places, wanted, previous, &mut done);
    attached.map_err(|error| {
        let mut error = error;
        for entry in done.iter().rev() {
            error = error.and(take_away(places, entry).err());
        }
        error.and(clean(places, &wanted.container).err())
    })
}

fn attach_noting(
    places: &Places,
    wanted: &WantedNetworks,
    previous: &Addresses,
    done: &mut Vec<Entry>,
) -> Result<Attached, Error> {
    let path = runtime::namespace(places, &wanted.container);
    let entries = cache::of(&places.state, &wanted.container)?;
    let noted: Vec<RecordedAttachment> = entries
        .iter()
        .map(|entry| RecordedAttachment { link: entry.if_name.clone(), done: entry.is_whole() })
        .collect();
    let links: Vec<&str> = wanted.interfaces.iter().map(|one| one.names.pod.as_str()).collect();
    let there = Namespace::find(&path)?.is_some();
    for step in plan::steps(&links, &noted, there) {
        match step {
            Step::Detach(at) => entries.get(at).map_or(Ok(()), |entry| take_away(places, entry))?,
            Step::Namespace => wire::loopback(&Namespace::create(&path)?.0)?,
            Step::Attach { wanted: at, again } => {
                let Some(one) = wanted.interfaces.get(at) else { continue };
                let before = || previous.get(&one.name).filter(|_| one.network.is_host_local());
                let addresses = match again.and_then(|at| entries.get(at)) {
                    Some(entry) => runtime::addresses(entry),
                    None => before().into_iter().flatten().map(ToString::to_string).collect(),
                };
                done.push(add(places, wanted, one, &addresses)?);
            }
        }
    }
    let outcomes = runtime::outcomes(places, wanted)?;
    let mut attached = wire::wire(wanted, &outcomes, &wire::machine(&places.state), &path)?;
    if wanted.interfaces.iter().any(|one| one.network.name() == pod::NAME) {
        let closed = firewall::closed()?;
        let lets = |(said, command)| format!("{said}; this lets them through: {command}");
        attached.notes.extend(closed.into_iter().map(lets));
    }
    Ok(attached)
}

/// Attaches with the previous addresses; where another guest has them by now, or the network does not give them any more, with
/// any.
fn add(
    places: &Places,
    wanted: &WantedNetworks,
    one: &Interface,
    previous: &[String],
) -> Result<Entry, Error> {
    // Until the plugin has recorded the addresses, no other daemon takes them.
    let lock = || MachineAddresses::lock(&pod::addresses(&places.state));
    let machine = (one.network.name() == pod::NAME).then(lock).transpose()?;
    let add = |previous: &[String]| -> Result<Entry, Error> {
        let addresses = match &machine {
            Some(machine) => machine.choose(one.network.subnets(), previous)?,
            None => previous.to_vec(),
        };
        let mut entry = runtime::entry(places, wanted, one, &addresses);
        begin(places, &entry)?;
        runtime::add(places, &mut entry)?;
        Ok(entry)
    };
    add(previous).or_else(|error| if previous.is_empty() { Err(error) } else { add(&[]) })
}

/// Notes an attachment that is about to begin, and how the machine was before the first one.
fn begin(places: &Places, entry: &Entry) -> Result<(), Error> {
    let _lock = lock(places)?;
    let file = places.state.join("machine.json");
    let boot = boot()?;
    if entry.network_name == pod::NAME && read_machine(&file)?.is_none_or(|noted| noted.boot != boot) {
        let links = Link::all(&Router::open()?.ask(Link::list(None))?);
        let machine = Machine {
            boot,
            bridge: links.iter().any(|link| link.name == pod::BRIDGE),
            masquerade: Filter::open()?.chain(MASQUERADE, CHECKS)?.is_some(),
        };
        let json = serde_json::to_vec(&machine).map_err(|error| {
            let text = format!("cannot record the machine's network state in {}", file.display());
            Error::with(Kind::System, text, error)
        })?;
        dir::replace(&file, &json, 0o600).map_err(|error| failed(&file)(error.into()))?;
    }
    Ok(cache::write(&places.state, entry)?)
}

fn lock(places: &Places) -> Result<File, Error> {
    let path = places.state.join("lock");
    let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(failed(&path))?;
    flock(&file, FlockOperation::LockExclusive).map_err(|errno| failed(&path)(errno.into()))?;
    Ok(file)
}

/// See [`super::check`].
pub(super) fn check(places: &Places, wanted: &WantedNetworks) -> Result<(), Error> {
    let path = runtime::namespace(places, &wanted.container);
    let outcomes = runtime::outcomes(places, wanted)?;
    wire::check(wanted, &outcomes, &wire::machine(&places.state), &path)?;
    for entry in cache::of(&places.state, &wanted.container)? {
        // The name that a bridge has taken away, and no dummy bears, is missed by CHECK.
        if wire::has(&path, &entry.if_name)? {
            runtime::check(places, &entry)?;
        }
    }
    Ok(())
}

/// See [`super::detach`].
pub(super) fn detach(places: &Places, container: &str) -> Result<(), Error> {
    let mut errors = Vec::new();
    for entry in cache::of(&places.state, container)?.iter().rev() {
        errors.extend(take_away(places, entry).err());
    }
    errors.extend(clean(places, container).err());
    let mut errors = errors.into_iter();
    match errors.next() {
        None => Ok(()),
        Some(first) => Err(errors.fold(first, |all, one| all.and(Some(one)))),
    }
}

/// One attachment back: what we put between, then CNI's DEL. After a failure in the namespace DEL is called all the same.
fn take_away(places: &Places, entry: &Entry) -> Result<(), Error> {
    let result = entry.result.clone().unwrap_or_default();
    // On a disk that is full it goes all the same.
    drop(entry.leave(&places.state));
    let unwired = wire::unwire(&entry.namespace, &entry.if_name, &result);
    let deleted = runtime::delete(places, entry);
    match (unwired, deleted) {
        (Ok(()), deleted) => Ok(deleted?),
        (Err(error), deleted) => Err(error.and(deleted.err()).into()),
    }
}

/// After attachments are gone: the namespace with the guest's last one, and what the machine's last one leaves.
fn clean(places: &Places, container: &str) -> Result<(), Error> {
    if !places.state.exists() {
        return Ok(());
    }
    let lock = lock(places)?;
    let all = cache::all(&places.state)?;
    if all.iter().all(|entry| entry.container_id != container) {
        Namespace::remove(&runtime::namespace(places, container))?;
    }
    if all.iter().any(|entry| entry.network_name == pod::NAME) {
        return Ok(());
    }
    put_back(places)?;
    let mut gone = vec![pod::addresses(&places.state)];
    if all.is_empty() {
        gone.extend(["begun", "results"].map(|folder| places.state.join(folder)));
        // Temporary files of interrupted writes; under the lock there is no other writer.
        let found = fs::read_dir(&places.state).map_err(failed(&places.state))?.flatten();
        gone.extend(
            found.map(|one| one.path()).filter(|path| {
                path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
            }),
        );
    }
    for path in gone {
        let gone = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        match gone {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(&path)(error)),
            Ok(()) | Err(_) => {}
        }
    }
    drop(lock);
    Ok(())
}

/// This boot of the machine.
fn boot() -> Result<String, Error> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    Ok(fs::read_to_string(path).map_err(failed(path))?.trim().to_owned())
}

fn read_machine(file: &Path) -> Result<Option<Machine>, Error> {
    match fs::read(file) {
        Ok(text) => serde_json::from_slice(&text).map_err(|error| {
            Error::with(
                Kind::Content,
                format!("{} is not valid JSON; remove it while no guest runs", file.display()),
                error,
            )
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(file)(error)),
    }
}

/// The machine as it was before the pod network's first guest.
fn put_back(places: &Places) -> Result<(), Error> {
    let file = places.state.join("machine.json");
    let Some(machine) = read_machine(&file)? else { return Ok(()) };
    if machine.boot != boot()? {
        return fs::remove_file(&file).map_err(failed(&file));
    }
    if !machine.bridge {
        pod::remove_bridge()?;
    }
    let mut filter = Filter::open()?;
    // Other runtimes' plugins share the table; the kernel removes none that is used.
    if !machine.masquerade
        && filter.chain(MASQUERADE, CHECKS)?.is_some()
        && filter.rules(MASQUERADE, CHECKS)?.is_empty()
    {
        let mut batch = Batch::new();
        batch.delete_table(MASQUERADE);
        filter.commit(&batch)?.done()?;
    }
    // Forwarding stays on: other services of the machine may rely on it by now.
    fs::remove_file(&file).map_err(failed(&file))
}
