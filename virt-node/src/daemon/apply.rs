//! Does what was planned for a run: from its volumes to a guest that runs, and away again. Every step finds out what is
//! there before it makes it, so that a start that was cut short anywhere is gone on with, and a second one changes nothing.
//!
//! ```text
//! start: folder ─► networks ─► volumes shown ─► disks of the run ─► launch document ─► launcher ─► guest
//! clear: launcher asked to end ─► networks taken away ─► folder removed     (volumes stay with their claims)
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use api::kubevirt::{VirtualMachineInstance, VirtualMachineInstanceSpec, Volume};
use api::launch::{Accelerator, Bus, Cpu, CpuFeature, CpuModel, Launch, Layout, Memory, NamedCpu};
use api::launcher::{Answer, EXIT_RECORD, Exit, Request, SOCKET, State as Doing};
use api::names::QEMU_ID;
use serde::{Deserialize, Serialize};

use super::driver::{self, Driver};
use super::networks::{self, Networks};
use super::plan::Seen;
use super::state::State;
use super::{images, process};
use crate::error::{Error, Kind};
use crate::finding::{Finding, Verdict};
use crate::launcher::{CallError, Client};
use crate::network::Attached;
use crate::resolve::{self, Backend, Guest, Host, Made, Objects};

/// How long a launcher may take to serve, and to go.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a machine keeps between its runs, in its folder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Kept {
    /// The machine type of the first run.
    pub(super) machine: String,
    /// What its processors were in the first run.
    pub(super) processor: Option<KeptCpu>,
    /// Where devices were.
    pub(super) layout: Layout,
}

/// What a machine's `host-model` became.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct KeptCpu {
    /// What ran the guest: what others can do is another model.
    accelerator: Accelerator,
    /// Features that the machine asked for then; with others, it becomes another one.
    asked: Vec<CpuFeature>,
    became: NamedCpu,
}

impl KeptCpu {
    /// Gives a guest the processors that it had, where it asks for the same as then.
    fn give(&self, launch: &mut Launch) {
        let same = launch.accelerator == self.accelerator && launch.cpu.features == self.asked;
        if same && launch.cpu.model == CpuModel::HostModel {
            launch.cpu.model = CpuModel::Named(self.became.model.clone());
            launch.cpu.features.clone_from(&self.became.features);
        }
    }
}

/// What a start needs to know.
pub(super) struct Start {
    pub(super) state: Arc<State>,
    pub(super) driver: Driver,
    pub(super) host: Host,
    pub(super) instance: VirtualMachineInstance,
    /// The guest's identity: what it is called, and UUID and serial that it keeps.
    pub(super) guest: Guest,
    /// UID of whom the run belongs to.
    pub(super) owner: String,
    pub(super) objects: Objects,
    /// Networks that it may name.
    pub(super) networks: Networks,
    /// Volumes of its claims, by the claims' names.
    pub(super) claims: BTreeMap<String, driver::Volume>,
    pub(super) stop: Arc<AtomicBool>,
    /// Whether a guest is started where there is none.
    pub(super) launch: bool,
}

/// What a start did.
#[derive(Debug)]
pub(super) struct Started {
    /// Whether there is a guest.
    pub(super) guest: bool,
    pub(super) machine: String,
    /// What it has of processors and memory.
    pub(super) size: Option<(Cpu, Memory)>,
    /// Its networks; `None`: it has no interface, or was only looked after.
    pub(super) attached: Option<Attached>,
}

/// Who is told what a start has to say before it is done: a reason in one CamelCase word, and a text.
type Tell<'a> = dyn FnMut(&'static str, String) + 'a;

fn failed(path: &Path) -> impl Fn(io::Error) -> Error + '_ {
    move |error| Error::with(Kind::System, path.display().to_string(), error)
}

/// The log of a run's launcher, by which it is known.
pub(super) fn log(run: &Path) -> PathBuf {
    run.join("log")
}

/// What there is of a run. A launcher that does not answer but lives is asked again.
pub(super) fn look(run: &Path) -> Seen {
    if !run.exists() {
        return Seen::Nothing;
    }
    if let Some(exit) = exit(run) {
        return Seen::Ended(exit);
    }
    let until = Instant::now() + PATIENCE;
    loop {
        if let Ok(Answer::Status(status)) =
            Client::connect(run).map_err(Into::into).and_then(|mut client| client.call(Request::Status))
        {
            return match (status.state, status.exit) {
                (_, Some(exit)) => Seen::Ended(exit),
                (Doing::Waiting, None) => Seen::Waiting,
                (state, None) => Seen::Guest(state),
            };
        }
        if !process::lives(&log(run)) || Instant::now() > until {
            return exit(run).map_or(Seen::Down, Seen::Ended);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The record of a run's end.
pub(super) fn exit(run: &Path) -> Option<Exit> {
    serde_json::from_slice(&fs::read(run.join(EXIT_RECORD)).ok()?).ok()
}

/// Brings a run from whatever there is of it to a guest. What it made is taken away when there is none at the end.
/// `tell` is told what takes long, `adopt` is given the launcher, where this start makes it.
///
/// # Errors
/// What is missing, or was refused.
pub(super) fn start(
    start: &Start,
    mut tell: impl FnMut(&'static str, String),
    adopt: impl FnOnce(Child),
) -> Result<Started, Error> {
    let run = start.state.run(start.instance.metadata.uid.as_deref().unwrap_or_default());
    let started = steps(start, &run, &mut tell, adopt);
    if started.is_err() && !run.join("started").exists() {
        // The first failure is told; what stays is taken away with the run.
        drop(clear(&start.state, &run, &start.owner));
    }
    started
}

fn steps(
    start: &Start,
    run: &Path,
    tell: &mut Tell<'_>,
    adopt: impl FnOnce(Child),
) -> Result<Started, Error> {
    let running = matches!(look(run), Seen::Guest(_));
    fs::create_dir_all(run).map_err(failed(run))?;
    fs::set_permissions(run, fs::Permissions::from_mode(0o700)).map_err(failed(run))?;
    let keep = start.state.guest(&start.owner);
    let mut kept = kept(&keep)?;
    if kept.machine.is_empty() {
        kept.machine.clone_from(&start.host.machine);
    }
    let (state, owner) = (&start.state, start.owner.as_str());
    let attached =
        if start.launch { start.networks.attach(state, &start.instance, owner, running)? } else { None };
    let mut document = None;
    if start.launch && !running {
        capabilities(&start.state, tell)?;
        let volumes = disks(start, run, tell)?;
        document = Some(resolved(start, run, &keep, &kept, volumes, attached.as_ref())?);
    }
    if let Some(child) = launcher(state, run, networks::namespace(state, owner).as_deref())? {
        adopt(child);
    }
    let mut client = connect(run)?;
    if let Some(document) = document {
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
                kept.processor = Some(KeptCpu { accelerator, asked, became });
            }
        }
        keep_durably(&keep, &kept)?;
    }
    let answer = client.call(Request::Status);
    let guest = match answer {
        Ok(Answer::Status(status)) => status.state != Doing::Waiting,
        Ok(_) | Err(_) => true,
    };
    Ok(Started { guest, size: size(start, run, &keep), machine: kept.machine, attached })
}

/// Gives a guest that runs the volume `name` of its spec.
///
/// # Errors
/// What is missing, or was refused.
pub(super) fn attach(start: &Start, name: &str) -> Result<(), Error> {
    let broken = |text: &str| Error::new(Kind::Content, format!("disk {name:?} {text}"));
    let run = start.state.run(start.instance.metadata.uid.as_deref().unwrap_or_default());
    let volume = start.instance.spec.volumes.iter().find(|volume| volume.name == name);
    let volume = volume.ok_or_else(|| broken("has no volume"))?;
    let storage = disk(start, &run, volume, &mut |_, _| ())?;
    let keep = start.state.guest(&start.owner);
    let mut kept = kept(&keep)?;
    let made = BTreeMap::from([(name.to_owned(), images::backend(storage))]);
    let launch = resolved(start, &run, &keep, &kept, made, None)?;
    let disk = launch.disks.into_iter().find(|disk| disk.name == name);
    let mut disk = disk.ok_or_else(|| broken("is not one of the guest's"))?;
    if !matches!(disk.bus, Bus::Virtio | Bus::Scsi) {
        return Err(broken("can come to a guest that runs on scsi or virtio only"));
    }
    // What is booted from was decided at the start.
    disk.boot_order = None;
    let answer = connect(&run)?.call(Request::AttachDisk(Box::new(disk)));
    if let Answer::Layout(layout) = answer.map_err(|error| refused(name, error))? {
        kept.layout = layout;
        keep_durably(&keep, &kept)?;
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
    let mut kept = kept(&keep)?;
    let answer = connect(&run)?.call(Request::DetachDisk(name.to_owned()));
    let Answer::Layout(layout) = answer.map_err(|error| refused(name, error))? else { return Ok(false) };
    let gone = !layout.has(&format!("disk-{name}"));
    if gone {
        kept.layout = layout;
        keep_durably(&keep, &kept)?;
    }
    Ok(gone)
}

fn refused(name: &str, error: CallError) -> Error {
    Error::with(Kind::System, format!("the launcher and disk {name:?}"), error)
}

fn kept(folder: &Path) -> Result<Kept, Error> {
    let path = folder.join("kept.json");
    match fs::read(&path) {
        Ok(json) => serde_json::from_slice(&json).map_err(|error| failed(&path)(error.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Kept::default()),
        Err(error) => Err(failed(&path)(error)),
    }
}

/// Keeps where devices are of a guest that runs.
pub(super) fn keep_layout(state: &State, owner: &str, layout: Layout) -> Result<(), Error> {
    let keep = state.guest(owner);
    let before = kept(&keep)?;
    if before.layout == layout { Ok(()) } else { keep_durably(&keep, &Kept { layout, ..before }) }
}

fn keep_durably(folder: &Path, kept: &Kept) -> Result<(), Error> {
    let path = folder.join("kept.json");
    let json = serde_json::to_vec(kept).map_err(|error| failed(&path)(error.into()))?;
    fs::create_dir_all(folder).map_err(failed(folder))?;
    crate::launcher::replace_durably(&path, &json).map_err(failed(&path))
}

/// Has what QEMU and libvirt can do found out, where it is not known; says so before it takes long.
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
fn disks(start: &Start, run: &Path, tell: &mut Tell<'_>) -> Result<BTreeMap<String, Backend>, Error> {
    let mut backends = BTreeMap::new();
    for volume in start.instance.spec.volumes.iter().filter(|volume| resolve::is_storage(volume)) {
        let storage = disk(start, run, volume, tell)?;
        backends.insert(volume.name.clone(), images::backend(storage));
    }
    Ok(backends)
}

fn disk(
    start: &Start,
    run: &Path,
    volume: &Volume,
    tell: &mut Tell<'_>,
) -> Result<api::launch::Storage, Error> {
    let claim = |name: &str| {
        let missing =
            || Error::new(Kind::Content, format!("volume {:?}: there is no claim {name:?}", volume.name));
        let volume = start.claims.get(name).ok_or_else(missing)?;
        start.driver.publish(volume)?;
        let disk = volume.disk();
        if !volume.block && !disk.exists() {
            blank(&disk, volume)?;
        }
        Ok::<_, Error>(images::raw(&disk, volume.block))
    };
    let path = |end: &str| run.join(format!("{}.{end}", volume.name));
    if let Some(claimed) = claim_of(volume) {
        return claim(claimed);
    }
    if let Some(container) = &volume.container_disk {
        let told = |percent| tell("Pulling", format!("image {}: {percent:.0}%", container.image));
        let (images, own) = (start.state.path("images"), path("image"));
        images::container(&images, &own, container, &start.objects, &start.stop, told)?;
        return images::overlay(&path("qcow2"), images::raw(&own, false));
    }
    if let Some(empty) = &volume.empty_disk {
        return images::empty(&path("img"), empty.capacity.as_ref());
    }
    if let Some(ephemeral) = volume.ephemeral.as_ref().and_then(|one| one.persistent_volume_claim.as_ref()) {
        return images::overlay(&path("qcow2"), claim(&ephemeral.claim_name)?);
    }
    match &volume.host_disk {
        Some(host) => images::host(host),
        None => Err(Error::new(Kind::Content, format!("volume {:?} has no source", volume.name))),
    }
}

/// The disk of a claim that nobody filled: as large as the claim, as KubeVirt makes it.
fn blank(disk: &Path, volume: &driver::Volume) -> Result<(), Error> {
    images::empty(disk, Some(&api::resource::Quantity(volume.size.to_string()))).map(drop)
}

/// The claim that a volume of a guest is.
pub(super) fn claim_of(volume: &Volume) -> Option<&str> {
    let claim = volume.persistent_volume_claim.as_ref().map(|claim| claim.claim_name.as_str());
    claim.or(volume.data_volume.as_ref().map(|volume| volume.name.as_str()))
}

/// All claims that a guest needs.
pub(super) fn claims_of(spec: &VirtualMachineInstanceSpec) -> impl Iterator<Item = &str> {
    spec.volumes.iter().filter_map(|volume| {
        let ephemeral = volume.ephemeral.as_ref().and_then(|one| one.persistent_volume_claim.as_ref());
        claim_of(volume).or(ephemeral.map(|claim| claim.claim_name.as_str()))
    })
}

fn resolved(
    start: &Start,
    run: &Path,
    keep: &Path,
    kept: &Kept,
    volumes: BTreeMap<String, Backend>,
    attached: Option<&Attached>,
) -> Result<Launch, Error> {
    fs::create_dir_all(keep).map_err(failed(keep))?;
    chown(keep, Some(QEMU_ID), Some(QEMU_ID)).map_err(failed(keep))?;
    let host = Host { machine: kept.machine.clone(), ..start.host.clone() };
    let nics = attached.into_iter().flat_map(|attached| &attached.nics);
    let taps = nics.map(|nic| (nic.name.clone(), nic.tap.clone()));
    let made = Made {
        folder: run.to_string_lossy().into_owned(),
        state: keep.to_string_lossy().into_owned(),
        volumes,
        taps: taps.collect(),
        layout: kept.layout.clone(),
    };
    let mut spec = start.instance.spec.clone();
    if attached.is_none() {
        // It has none, or nothing is asked about them.
        spec.networks.clear();
        spec.domain.devices.interfaces.clear();
        spec.domain.devices.autoattach_pod_interface = Some(false);
    }
    let (launch, findings) = resolve::resolve(&spec, &start.guest, &host, &made, &start.objects, "spec");
    let mut launch = launch.ok_or_else(|| invalid(&findings))?;
    if let Some(processor) = &kept.processor {
        processor.give(&mut launch);
    }
    Ok(launch)
}

/// What a guest has of processors and memory, which nothing that is made for it changes.
fn size(start: &Start, run: &Path, keep: &Path) -> Option<(Cpu, Memory)> {
    let mut spec = start.instance.spec.clone();
    (spec.volumes, spec.networks) = (Vec::new(), Vec::new());
    (spec.domain.devices.disks, spec.domain.devices.interfaces) = (Vec::new(), Vec::new());
    spec.domain.devices.autoattach_pod_interface = Some(false);
    let made = Made {
        folder: run.to_string_lossy().into_owned(),
        state: keep.to_string_lossy().into_owned(),
        ..Made::default()
    };
    let (launch, _) = resolve::resolve(&spec, &start.guest, &start.host, &made, &Objects::default(), "spec");
    launch.map(|launch| (launch.cpu, launch.memory))
}

/// What is wrong with a guest, by fields.
pub(super) fn invalid(findings: &[Finding]) -> Error {
    let errors = findings.iter().filter(|finding| finding.verdict == Verdict::Error);
    let errors: Vec<String> = errors.map(|finding| format!("{}: {}", finding.path, finding.text)).collect();
    Error::new(Kind::Content, errors.join("; "))
}

/// Starts the launcher of a run, unless it lives.
fn launcher(state: &State, run: &Path, namespace: Option<&Path>) -> Result<Option<Child>, Error> {
    let mut command = Command::new(process::program("virt-launcher"));
    command.arg("run").arg("--capabilities").arg(state.path("capabilities")).arg(run);
    command.stdout(Stdio::null());
    match process::start_in(command, &log(run), namespace) {
        Ok(child) => Ok(Some(child)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
        Err(error) => Err(process::unstarted("virt-launcher", error)),
    }
}

fn connect(run: &Path) -> Result<Client, Error> {
    let until = Instant::now() + PATIENCE;
    loop {
        match Client::connect(run) {
            Ok(client) => return Ok(client),
            Err(error) if !process::lives(&log(run)) || Instant::now() > until => {
                let said = process::last_words(&log(run));
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
pub(super) fn clear(state: &State, run: &Path, owner: &str) -> Result<(), Error> {
    if process::lives(&log(run)) && !process::ended(&log(run), Duration::from_secs(3)) {
        drop(process::stop_peer(&run.join(SOCKET)));
        if !process::ended(&log(run), PATIENCE) {
            return Err(Error::new(Kind::System, format!("{}: its launcher does not end", run.display())));
        }
    }
    networks::detach(state, owner)?;
    match fs::remove_dir_all(run) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(run)(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Asks all guests to end, and waits until they did: each has its grace.
pub(super) fn end_all(runs: &Path) {
    let runs: Vec<PathBuf> =
        fs::read_dir(runs).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    for run in &runs {
        // Its launcher is not there, or its guest is about to end.
        drop(Client::connect(run).map(|mut client| client.call(Request::Shutdown { grace_seconds: None })));
    }
    for run in &runs {
        process::ended(&log(run), Duration::from_secs(3600));
    }
}
