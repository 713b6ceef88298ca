//! Carries out the plan of a run: from its volumes to a running guest, and back. Every step checks the present state first,
//! so that an interrupted start is resumed at any point, and a second one changes nothing.
//!
//! ```text
//! start: folder ─► networks ─► volumes shown ─► disks of the run ─► launch document ─► launcher ─► guest
//! clear: launcher asked to end ─► networks taken away ─► folder removed     (volumes stay with their claims)
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use api::kubevirt::{HostDisk, VirtualMachineInstance, Volume};
use api::launch::{Accelerator, Bus, Cpu, DiskDevice, Launch, Layout, Media, Memory, Storage};
use api::launcher::{Answer, Cause, Request, SOCKET, State as Doing};
use dir::Owner;

use super::csi_client::{self, Driver};
use super::disk::Access;
use super::findings;
use super::host::{self, MachineFacts};
use super::ids;
use super::kept::{self, Kept, KeptCpu};
use super::networks::{self, Networks};
use super::run::{self, Run};
use super::state::State;
use super::{images, process};
use crate::check;
use crate::error::{Error, Kind};
use crate::network::Attached;
use guest::{CallError, Client};
use virt::live::is_in_drive;
use virt::resolve::{self, Backend, Guest, Host, Made, Objects};
use virt::run::LauncherState;

/// How long a launcher may take to serve.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout of a launcher's status.
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);
/// How long it may take to end after it was asked to, and after it was killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// The inputs of a start.
pub(super) struct Start {
    pub(super) state: Arc<State>,
    pub(super) driver: Driver,
    /// The accelerator of `serve --accelerator`; `None`: KVM where it works.
    pub(super) accelerator: Option<Accelerator>,
    pub(super) instance: VirtualMachineInstance,
    /// The guest's identity: what it is called, and UUID and serial that it keeps.
    pub(super) guest: Guest,
    /// UID of the run's owner.
    pub(super) owner: String,
    pub(super) objects: Objects,
    /// Networks that it may name.
    pub(super) networks: Networks,
    /// Directories of files that `hostDisk` may name.
    pub(super) host_disks: Vec<PathBuf>,
    /// Volumes of its claims, by the claims' names.
    pub(super) claims: BTreeMap<String, csi_client::Volume>,
    pub(super) stop: Arc<AtomicBool>,
    /// Whether a guest is started where there is none.
    pub(super) launch: bool,
}

impl Start {
    /// The VM's user. One that runs keeps its user, also when another account has that number by now.
    fn user(&self, run: &Run) -> Result<Owner, Error> {
        match run.owner().filter(|_| run.is_started()) {
            Some(owner) => Ok(owner),
            None => self.state.ids().of(&ids::vm(&self.owner)),
        }
    }

    /// The access rights to the disk of a claim.
    fn access(&self, claim: &str, sharing: Sharing, user: Owner) -> Result<Access, Error> {
        let ids = self.state.ids();
        Ok(match sharing {
            Sharing::Alone => Access::writers(Owner { uid: user.uid, gid: ids.of(&ids::claim(claim))?.gid }),
            Sharing::Group => Access::writers(Owner { uid: 0, gid: ids.of(&ids::claim(claim))?.gid }),
            Sharing::ReadOnly => Access::readers(ids.of(&ids::readers(claim))?.gid),
        })
    }

    /// How a volume's claim is shared: a hotplugged one belongs to the VM's user alone, as a running VM gets no new group.
    fn sharing(&self, volume: &str, run: &Run) -> Sharing {
        if self.is_shareable(volume) && !run.is_started() { Sharing::Group } else { Sharing::Alone }
    }

    fn is_shareable(&self, volume: &str) -> bool {
        let disks = &self.instance.spec.domain.devices.disks;
        disks.iter().any(|disk| disk.name == volume && disk.shareable == Some(true))
    }

    /// Whether other guests have this file of the machine, too.
    fn is_shared(&self, volume: &str, host: &HostDisk) -> bool {
        host.shared == Some(true) || self.is_shareable(volume)
    }

    /// The access rights to a file of the machine: its VM's alone, or those of the group of all VMs that share it.
    fn host_access(&self, volume: &str, host: &HostDisk, user: Owner) -> Result<Access, Error> {
        if !self.is_shared(volume, host) {
            return Ok(Access::writers(user));
        }
        let group = self.state.ids().of(&ids::host_disk(&host.path))?.gid;
        Ok(Access::writers(Owner { uid: 0, gid: group }))
    }

    /// Groups that the VM's user needs besides its own: of disks that it shares, and of /dev/kvm.
    fn groups(&self) -> Result<Vec<u32>, Error> {
        let (ids, spec) = (self.state.ids(), &self.instance.spec);
        let mut groups: Vec<u32> = check::kvm_group().into_iter().collect();
        for volume in &spec.volumes {
            let claim = |name: &str| self.claims.get(name).map(|claim| claim.uid.clone());
            let ephemeral = volume.ephemeral.as_ref().and_then(|one| one.persistent_volume_claim.as_ref());
            let whose = match (&volume.container_disk, ephemeral, resolve::claim_of(volume)) {
                (Some(container), _, _) => {
                    Some(images::number_name(&self.state.path("images"), &container.image))
                }
                (None, Some(ephemeral), _) => claim(&ephemeral.claim_name).map(|uid| ids::readers(&uid)),
                (None, None, Some(name)) => {
                    claim(name).filter(|_| self.is_shareable(&volume.name)).map(|uid| ids::claim(&uid))
                }
                (None, None, None) => {
                    let host = volume.host_disk.as_ref();
                    let shared = host.filter(|host| self.is_shared(&volume.name, host));
                    shared.map(|host| ids::host_disk(&host.path))
                }
            };
            if let Some(whose) = whose {
                groups.push(ids.of(&whose)?.gid);
            }
        }
        Ok(groups)
    }
}

/// Other users of a claim's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    /// No other VM.
    Alone,
    /// VMs that all write to it.
    Group,
    /// VMs that only read it.
    ReadOnly,
}

/// The result of a start.
#[derive(Debug)]
pub(super) struct Started {
    /// Whether there is a guest.
    pub(super) guest: bool,
    /// The user that it runs as.
    pub(super) user: u32,
    pub(super) machine: String,
    /// Its vCPUs and memory.
    pub(super) size: Option<(Cpu, Memory)>,
    /// Its networks; `None`: it has no interface, or was only looked after.
    pub(super) attached: Option<Attached>,
}

/// Receives intermediate events of a start: a reason in one CamelCase word, and a text.
type Tell<'a> = dyn FnMut(&'static str, String) + 'a;

fn failed(path: &Path) -> impl Fn(io::Error) -> Error + '_ {
    move |error| Error::with(Kind::System, path.display().to_string(), error)
}

/// The remains of a run whose launcher is not asked: its end, if recorded.
pub(super) fn recorded_state(run: &Run) -> LauncherState {
    if !run.exists() {
        return LauncherState::Nothing;
    }
    run.end().map_or(LauncherState::Down, LauncherState::Ended)
}

/// Kills every process of a run's user. Answers how the run is then.
pub(super) fn kill(state: &State, run: &Run) -> LauncherState {
    if let Some(owner) = run.owner() {
        state.ids().end_all_of(owner.uid);
    }
    match recorded_state(run) {
        LauncherState::Down => LauncherState::Ended(run::ended(Cause::Killed)),
        seen @ (LauncherState::Nothing
        | LauncherState::Waiting
        | LauncherState::Guest(_)
        | LauncherState::Ended(_)) => seen,
    }
}

/// Inspects a run. A launcher that lives and does not answer is asked again.
pub(super) fn inspect(run: &Run) -> LauncherState {
    if !run.exists() {
        return LauncherState::Nothing;
    }
    if let Some(exit) = run.exit() {
        return LauncherState::Ended(exit);
    }
    let until = Instant::now() + TIMEOUT;
    loop {
        if let Ok(Answer::Status(status)) = run
            .client()
            .map_err(Into::into)
            .and_then(|mut client| client.call_within(Request::Status, STATUS_TIMEOUT))
        {
            return match (status.state, status.exit) {
                (_, Some(exit)) => LauncherState::Ended(exit),
                (Doing::Waiting, None) => LauncherState::Waiting,
                (state, None) => LauncherState::Guest(state),
            };
        }
        if !process::lives(&run.log()) || Instant::now() > until {
            return run.end().map_or(LauncherState::Down, LauncherState::Ended);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Brings a run from its present state to a running guest. Everything that it made is removed on failure. `tell` receives
/// events of slow steps, `adopt` the launcher, where this start makes it.
///
/// # Errors
/// The missing or refused resource.
pub(super) fn start(
    start: &Start,
    mut tell: impl FnMut(&'static str, String),
    adopt: impl FnOnce(Child),
) -> Result<Started, Error> {
    let run = start.state.run(start.instance.metadata.uid.as_deref().unwrap_or_default());
    let started = steps(start, &run, &mut tell, adopt);
    if started.is_err() && !run.is_started() {
        // The first failure is returned; the rest is removed with the run.
        drop(clear(&start.state, &run, &start.owner));
    }
    started
}

fn steps(start: &Start, run: &Run, tell: &mut Tell<'_>, adopt: impl FnOnce(Child)) -> Result<Started, Error> {
    let running = matches!(inspect(run), LauncherState::Guest(_));
    let user = start.user(run)?;
    run.make(user)?;
    let keep = start.state.guest(&start.owner);
    kept::make(&keep, user)?;
    let mut kept = kept::read(&keep)?;
    let (state, owner) = (&start.state, start.owner.as_str());
    let attached = if start.launch {
        start.networks.attach(state, &start.instance, owner, &kept.addresses, running)?
    } else {
        None
    };
    if let Some(attached) = &attached {
        kept.addresses = networks::addresses(attached);
    }
    let mut volumes = None;
    if start.launch && !running {
        capabilities(&start.state, tell)?;
        volumes = Some(disks(start, run, tell)?);
    }
    let namespace = networks::namespace(state, owner);
    if let Some(child) = launcher(state, run, user, &start.groups()?, namespace.as_deref())? {
        adopt(child);
    }
    let mut client = connect(run)?;
    let paths = volumes.iter().flat_map(BTreeMap::values).map(|volume| volume.path.clone()).collect();
    let before = volumes.is_none().then_some(&kept);
    let found = match (host::ask(state, &mut client, paths, start.accelerator, before), &volumes) {
        (Err(error), Some(_)) => return Err(error),
        (found, _) => found.ok(),
    };
    if let (Some(volumes), Some(found)) = (volumes, &found) {
        if kept.machine.is_empty() {
            kept.machine.clone_from(&found.host.machine);
        }
        kept.accelerator = Some(found.host.accelerator);
        kept.why.clone_from(&found.why);
        if !kept.why.is_empty() {
            let software = found.host.accelerator == Accelerator::Tcg;
            tell(if software { "SoftwareEmulation" } else { "KVM" }, kept.why.clone());
        }
        let document = resolved(start, run, &keep, &kept, found, volumes, attached.as_ref())?;
        let answer = client.launch(&document).map_err(|error| {
            Error::with(
                Kind::System,
                format!("the launcher does not start {}", start.guest.metadata.name),
                error,
            )
        })?;
        if let Answer::Launched { layout, processor, .. } = answer {
            kept.layout = layout;
            if let Some(became) = processor {
                let (accelerator, asked) = (document.accelerator, document.cpu.features);
                kept.processor = Some(KeptCpu::new(accelerator, asked, became));
            }
        }
        kept::write(&keep, &kept)?;
    }
    let answer = client.call_within(Request::Status, STATUS_TIMEOUT);
    let guest = match answer {
        Ok(Answer::Status(status)) => status.state != Doing::Waiting,
        Ok(_) | Err(_) => true,
    };
    // A launcher that has just ended is not asked; the size is in the status of one that runs.
    let size = found.and_then(|found| size(start, run, &keep, &found.host));
    Ok(Started { guest, user: user.uid, size, machine: kept.machine, attached })
}

/// Gives a guest that runs the volume `name` of its spec.
///
/// # Errors
/// The missing or refused resource.
pub(super) fn attach(start: &Start, name: &str) -> Result<(), Error> {
    let broken = |text: &str| Error::new(Kind::Content, format!("disk {name:?} {text}"));
    let run = start.state.run(start.instance.metadata.uid.as_deref().unwrap_or_default());
    let volume = start.instance.spec.volumes.iter().find(|volume| volume.name == name);
    let volume = volume.ok_or_else(|| broken("has no volume"))?;
    let storage = disk(start, &run, volume, &mut |_, _| ())?;
    let keep = start.state.guest(&start.owner);
    let mut kept = kept::read(&keep)?;
    let mut client = connect(&run)?;
    let paths = vec![storage.path.clone()];
    let found = host::ask(&start.state, &mut client, paths, start.accelerator, Some(&kept))?;
    let made = BTreeMap::from([(name.to_owned(), storage)]);
    let launch = resolved(start, &run, &keep, &kept, &found, made, None)?;
    let disk = launch.disks.into_iter().find(|disk| disk.name == name);
    let mut disk = disk.ok_or_else(|| broken("is not one of the guest's"))?;
    if let (DiskDevice::Cdrom, Media::Storage(storage)) = (disk.device, &disk.media) {
        let storage = Box::new(storage.clone());
        let answer = client.call(Request::Insert { name: name.to_owned(), storage });
        return answer.map(drop).map_err(|error| refused(name, error));
    }
    if !matches!(disk.bus, Bus::Virtio | Bus::Scsi) {
        return Err(broken("can be attached to a running guest on the bus scsi or virtio only"));
    }
    // The boot order was decided at the start.
    disk.boot_order = None;
    let answer = client.call(Request::AttachDisk(Box::new(disk)));
    if let Answer::Layout(layout) = answer.map_err(|error| refused(name, error))? {
        kept.layout = layout;
        kept::write(&keep, &kept)?;
    }
    Ok(())
}

/// Asks a guest that runs to let go of a volume. Answers whether it did.
///
/// # Errors
/// It is refused.
pub(super) fn detach(start: &Start, name: &str) -> Result<bool, Error> {
    let run = start.state.run(start.instance.metadata.uid.as_deref().unwrap_or_default());
    let keep = start.state.guest(&start.owner);
    if is_in_drive(&start.instance.spec, name) {
        let answer = connect(&run)?.call(Request::Eject(name.to_owned()));
        return answer.map(|_| true).map_err(|error| refused(name, error));
    }
    let mut kept = kept::read(&keep)?;
    let answer = connect(&run)?.call(Request::DetachDisk(name.to_owned()));
    let Answer::Layout(layout) = answer.map_err(|error| refused(name, error))? else { return Ok(false) };
    let gone = !layout.has(&format!("disk-{name}"));
    if gone {
        kept.layout = layout;
        kept::write(&keep, &kept)?;
    }
    Ok(gone)
}

fn refused(name: &str, error: CallError) -> Error {
    Error::with(Kind::System, format!("the launcher cannot change disk {name:?}"), error)
}

/// Keeps where devices are of a guest that runs.
pub(super) fn keep_layout(state: &State, owner: &str, layout: Layout) -> Result<(), Error> {
    let keep = state.guest(owner);
    let before = kept::read(&keep)?;
    if before.layout == layout { Ok(()) } else { kept::write(&keep, &Kept { layout, ..before }) }
}

/// Probes the features of QEMU and libvirt, unless they are known; sends an event before a slow probe.
fn capabilities(state: &State, tell: &mut Tell<'_>) -> Result<(), Error> {
    let refused = |error| process::unstarted("virt-launcher", error);
    let cache = state.path("capabilities");
    let mut command = Command::new(process::program("virt-launcher"));
    command.arg("capabilities").arg(&cache).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(refused)?;
    let mut said = String::new();
    let lines = child.stderr.take().into_iter().flat_map(|stderr| BufReader::new(stderr).lines());
    for line in lines.map_while(Result::ok) {
        line.strip_prefix("virt-launcher: ").unwrap_or(&line).clone_into(&mut said);
        tell("Preparing", said.clone());
    }
    if child.wait().map_err(refused)?.success() {
        return fs::set_permissions(&cache, fs::Permissions::from_mode(0o755)).map_err(failed(&cache));
    }
    Err(Error::new(Kind::System, said))
}

/// Volumes that are files or devices.
fn disks(start: &Start, run: &Run, tell: &mut Tell<'_>) -> Result<BTreeMap<String, Storage>, Error> {
    let mut disks = BTreeMap::new();
    for volume in start.instance.spec.volumes.iter().filter(|volume| resolve::is_storage(volume)) {
        let storage = disk(start, run, volume, tell)?;
        disks.insert(volume.name.clone(), storage);
    }
    Ok(disks)
}

fn disk(start: &Start, run: &Run, volume: &Volume, tell: &mut Tell<'_>) -> Result<Storage, Error> {
    let user = start.user(run)?;
    let claim = |name: &str, sharing: Sharing| {
        let missing =
            || Error::new(Kind::Content, format!("volume {:?}: there is no claim {name:?}", volume.name));
        let volume = start.claims.get(name).ok_or_else(missing)?;
        start.driver.publish(volume)?;
        let access = start.access(&volume.uid, sharing, user)?;
        volume.give(access)?;
        Ok::<_, Error>(images::raw(&volume.disk(), volume.block))
    };
    let path = |end: &str| run.path().join(format!("{}.{end}", volume.name));
    if let Some(claimed) = resolve::claim_of(volume) {
        return claim(claimed, start.sharing(&volume.name, run));
    }
    if let Some(container) = &volume.container_disk {
        let told = |percent| tell("Pulling", format!("image {}: {percent:.0}%", container.image));
        let (images, own) = (start.state.path("images"), path("image"));
        let ids = start.state.ids();
        images::container(&images, &own, container, &start.objects, ids, &start.stop, told)?;
        return images::overlay(&path("qcow2"), images::raw(&own, false), user);
    }
    if let Some(empty) = &volume.empty_disk {
        return images::empty(&path("img"), empty.capacity.as_ref(), user);
    }
    if let Some(ephemeral) = volume.ephemeral.as_ref().and_then(|one| one.persistent_volume_claim.as_ref()) {
        return images::overlay(&path("qcow2"), claim(&ephemeral.claim_name, Sharing::ReadOnly)?, user);
    }
    match &volume.host_disk {
        Some(host) => {
            let access = start.host_access(&volume.name, host, user)?;
            images::host(host, &start.host_disks, run.path(), &volume.name, user, access)
        }
        None => Err(Error::new(Kind::Content, format!("volume {:?} has no source", volume.name))),
    }
}

fn resolved(
    start: &Start,
    run: &Run,
    keep: &Path,
    kept: &Kept,
    found: &MachineFacts,
    volumes: BTreeMap<String, Storage>,
    attached: Option<&Attached>,
) -> Result<Launch, Error> {
    let host = Host { machine: kept.machine.clone(), ..found.host.clone() };
    let backend = |storage: Storage| {
        let direct = found.facts.direct.get(&storage.path).copied().unwrap_or(false);
        Backend { storage, direct, preallocated: false, block_sizes: None }
    };
    let volumes = volumes.into_iter().map(|(name, storage)| (name, backend(storage))).collect();
    let nics = attached.into_iter().flat_map(|attached| &attached.nics);
    let taps = nics.map(|nic| (nic.name.clone(), nic.tap.clone()));
    let made = Made {
        folder: run.own().to_string_lossy().into_owned(),
        state: kept::own(keep).to_string_lossy().into_owned(),
        volumes,
        taps: taps.collect(),
        layout: kept.layout.clone(),
        ..Made::default()
    };
    let mut spec = start.instance.spec.clone();
    if attached.is_none() {
        // It has none, or nothing is asked about them.
        spec.networks.clear();
        spec.domain.devices.interfaces.clear();
        spec.domain.devices.autoattach_pod_interface = Some(false);
    }
    let (launch, findings) = resolve::resolve(&spec, &start.guest, &host, &made, &start.objects, "spec");
    let mut launch = launch.ok_or_else(|| findings::invalid(&findings))?;
    if let Some(processor) = &kept.processor {
        processor.give(&mut launch);
    }
    Ok(launch)
}

/// The vCPUs and memory of a guest, independent of the resources made for it.
fn size(start: &Start, run: &Run, keep: &Path, host: &Host) -> Option<(Cpu, Memory)> {
    let mut spec = start.instance.spec.clone();
    resolve::leave_volumes_out(&mut spec);
    (spec.networks, spec.domain.devices.interfaces) = (Vec::new(), Vec::new());
    spec.domain.devices.autoattach_pod_interface = Some(false);
    let made = Made {
        folder: run.own().to_string_lossy().into_owned(),
        state: kept::own(keep).to_string_lossy().into_owned(),
        ..Made::default()
    };
    let (launch, _) = resolve::resolve(&spec, &start.guest, host, &made, &Objects::default(), "spec");
    launch.map(|launch| (launch.cpu, launch.memory))
}

/// Starts the launcher of a run as the VM's user with these groups besides its own, unless it lives.
fn launcher(
    state: &State,
    run: &Run,
    user: Owner,
    groups: &[u32],
    namespace: Option<&Path>,
) -> Result<Option<Child>, Error> {
    let mut command = Command::new(process::program("virt-launcher"));
    command.arg("run").arg("--capabilities").arg(state.path("capabilities"));
    command.arg("--user").arg(user.uid.to_string());
    for group in groups {
        command.arg("--group").arg(group.to_string());
    }
    command.arg(run.own()).stdout(Stdio::null());
    match process::start_in(command, &run.log(), namespace) {
        Ok(child) => Ok(Some(child)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
        Err(error) => Err(process::unstarted("virt-launcher", error)),
    }
}

fn connect(run: &Run) -> Result<Client, Error> {
    let until = Instant::now() + TIMEOUT;
    loop {
        match run.client() {
            Ok(client) => return Ok(client),
            Err(error) if !process::lives(&run.log()) || Instant::now() > until => {
                let said = process::last_words(&run.log());
                return Err(Error::with(
                    Kind::System,
                    format!("virt-launcher does not serve ({said})"),
                    error,
                ));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Takes away what was made for a run that has no guest.
///
/// # Errors
/// The launcher does not end, or the folder stays.
pub(super) fn clear(state: &State, run: &Run, owner: &str) -> Result<(), Error> {
    let user = run.owner().map(|owner| owner.uid);
    if process::lives(&run.log()) && !process::ended(&run.log(), Duration::from_secs(3)) {
        // A user that hides its launcher's socket has it killed.
        let asked = user.ok_or(io::ErrorKind::NotFound.into());
        let asked = asked.and_then(|user| process::stop_peer(&run.connect(SOCKET)?, user));
        if let (Err(_), Some(user)) = (asked, user) {
            state.ids().end_all_of(user);
        }
        if !process::ended(&run.log(), STOP_TIMEOUT) {
            user.map(|user| state.ids().end_all_of(user));
        }
        if !process::ended(&run.log(), STOP_TIMEOUT) {
            let text = format!("{}: its launcher does not end", run.path().display());
            return Err(Error::new(Kind::System, text));
        }
    }
    // A process that escaped from the launcher must not change files of the VM's next run.
    if let Some(user) = user {
        state.ids().end_all_of(user);
    }
    networks::detach(state, owner)?;
    run.remove()
}

/// Asks all guests to end, and waits until they did: each has its grace.
pub(super) fn end_all(runs: &Path) {
    let entries = fs::read_dir(runs).into_iter().flatten().flatten();
    let runs: Vec<Run> = entries.map(|entry| Run::new(entry.path())).collect();
    for run in &runs {
        // Its launcher is not there, or its guest is about to end.
        drop(
            run.client().map(|mut client| {
                client.call_within(Request::Shutdown { grace_seconds: None }, STATUS_TIMEOUT)
            }),
        );
    }
    for run in &runs {
        process::ended(&run.log(), Duration::from_secs(3600));
    }
}

#[cfg(test)]
mod tests {
    use api::launcher::Exit;

    use super::*;

    /// A start that failed since the guest had ended was taken for a launcher that is gone: it was started again for ever, each
    /// ended at once by the record, and `delete --force` hung.
    #[test]
    fn a_run_with_a_record_of_its_end_has_ended_although_its_launcher_is_gone() {
        let place = tempfile::tempdir().unwrap();
        let run = Run::new(place.path().join("run"));
        assert_eq!(recorded_state(&run), LauncherState::Nothing);
        let owner =
            Owner { uid: rustix::process::getuid().as_raw(), gid: rustix::process::getgid().as_raw() };
        run.make(owner).unwrap();
        assert_eq!(recorded_state(&run), LauncherState::Down);
        let exit = Exit { uid: "uid".to_owned(), cause: Cause::Lost, code: 1, time: 5 };
        let record = serde_json::to_vec(&exit).unwrap();
        fs::write(run.own().join(api::launcher::EXIT_RECORD), record).unwrap();
        assert_eq!(recorded_state(&run), LauncherState::Ended(exit));
    }
}
