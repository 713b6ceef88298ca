//! Operations on the one guest: calls become libvirt's, and libvirt's results become answers.
//!
//! Not here: clients, and when the guest ends.

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::launch::{CpuModel, DiskDevice, DiskFormat, Interface, Launch, Layout, Media, NamedCpu, Slot};
use api::launcher::{
    AFFINITY, AGENT_COMMAND_MAX, AGENT_TIMEOUT_MAX, Answer, Event, FREEZE_MAX, FREEZE_TIMEOUT, PauseReason,
    RefusedKind, Request, Size, State, Status,
};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::Notice;
use super::claims::Claims;
use super::dump::Dumps;
use super::facts;
use super::freeze::{Freeze, Thawed};
use super::libvirt::{self, Connection, Described, Domain, Failure};
use super::logs;
use super::pinning::{self, Pins};
use super::stats;
use crate::dhcp::Responders;
use crate::domain::{self, Device, device};
use crate::error::{Error, Kind as ErrorKind};
use crate::folder::{Deadline, Folder};
use crate::iso::iso;

/// Longest picture of a screen in bytes.
const PICTURE_MAX: usize = 20 << 20;

/// The guest agent's command that thaws all filesystems.
const THAW: &str = "{\"execute\": \"guest-fsfreeze-thaw\"}";

/// How soon a guest is asked again to let go of a device.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// Why a call is not done.
pub(super) struct Refusal {
    pub(super) kind: RefusedKind,
    pub(super) message: String,
}

impl Refusal {
    fn new(kind: RefusedKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self::new(RefusedKind::Failed, failure.0)
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::new(RefusedKind::Failed, error.chain())
    }
}

/// The CPU model that libvirt chose for a guest whose document leaves it open. `None` if the guest has ended.
fn processor(domain: &Domain<'_>, launch: &Launch) -> Option<NamedCpu> {
    match launch.cpu.model {
        CpuModel::HostModel => libvirt::processor(domain).ok().flatten(),
        CpuModel::HostPassthrough | CpuModel::Maximum | CpuModel::Named(_) => None,
    }
}

/// Names of disks in the guest by those of the launch document, from the names by our aliases.
fn targets(launch: &Launch, aliases: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let disks = launch.disks.iter().map(|disk| &disk.name);
    disks.filter_map(|name| Some((name.clone(), aliases.get(&Device::Disk(name).alias())?.clone()))).collect()
}

/// Devices that are to go.
#[derive(Default)]
struct Going {
    /// When the guest was asked last to let go of a device, by our alias.
    asked: HashMap<String, Instant>,
}

/// The guest.
pub(super) struct Guest {
    folder: Folder,
    connection: Arc<Connection>,
    /// Block devices that are its own.
    claims: Claims,
    notices: Sender<Notice>,
    /// Its DHCP responders.
    responders: Responders,
    /// Held while it is started or changed.
    starting: Mutex<Going>,
    /// Whether it was asked to end.
    stopping: AtomicBool,
    dumps: Dumps,
    freeze: Freeze,
}

impl Guest {
    pub(super) fn new(
        folder: Folder,
        connection: Arc<Connection>,
        claims: Claims,
        notices: Sender<Notice>,
    ) -> Self {
        Self {
            freeze: Freeze::new(folder.clone(), notices.clone()),
            folder,
            connection,
            claims,
            notices,
            responders: Responders::default(),
            starting: Mutex::default(),
            stopping: AtomicBool::new(false),
            dumps: Dumps::default(),
        }
    }

    pub(super) fn folder(&self) -> &Folder {
        &self.folder
    }

    pub(super) fn set_stopping(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// The launch document, once no start is in progress.
    pub(super) fn launched(&self) -> Result<Option<Launch>, Error> {
        // Nothing is left half done in memory by a thread that panicked.
        let _whole = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        self.folder.launch()
    }

    /// Stores the launch document, and starts the DHCP responders.
    fn keep(&self, launch: &Launch) -> Result<(), Error> {
        self.folder.set_launch(launch)?;
        self.respond(launch)
    }

    /// Takes over a guest that runs: its block devices, its DHCP responders, and its threads, which a start that was cut short
    /// has not pinned.
    pub(super) fn take_over(&self, launch: &Launch) -> Result<(), Error> {
        let kept = self.claims.keep(launch);
        self.respond(launch)?;
        kept?;
        let pins = pinning::pins(&launch.cpu).map_err(|text| Error::new(ErrorKind::System, text))?;
        self.pin(pins.as_ref()).map_err(|error| super::failed("threads of the guest", error))
    }

    /// Pins the threads of a guest that runs.
    fn pin(&self, pins: Option<&Pins>) -> Result<(), Failure> {
        let Some(pins) = pins else { return Ok(()) };
        libvirt::domain(&self.connection)?.map_or(Ok(()), |running| pinning::pin(&running, pins))
    }

    /// Starts the DHCP responders.
    fn respond(&self, launch: &Launch) -> Result<(), Error> {
        self.responders.set(&launch.interfaces)
    }

    /// The same if the guest was there.
    pub(super) fn started(&self) -> Result<Option<Launch>, Error> {
        let launched = self.launched()?;
        Ok(if self.folder.started()? { launched } else { None })
    }

    /// The same if there is a guest, or was: a start that failed has none.
    pub(super) fn begun(&self) -> Result<Option<Launch>, Error> {
        let launched = self.launched()?;
        let domain = libvirt::domain(&self.connection).map_err(|error| super::failed("libvirt", error))?;
        Ok(if domain.is_some() || self.folder.started()? { launched } else { None })
    }

    /// Carries out a request, and returns the answer.
    pub(super) fn answer(&self, request: Request) -> Result<Answer, Refusal> {
        match request {
            Request::Launch(document) => self.launch(document.get().as_bytes()),
            Request::Status | Request::Watch => Ok(Answer::Status(self.status()?)),
            Request::Pause => self.with(|domain| domain.suspend()),
            Request::Unpause => {
                if libvirt::state(&self.domain()?)?.0 == State::Running {
                    return Err(Refusal::new(RefusedKind::State, "the guest is not paused"));
                }
                self.with(|domain| domain.resume())
            }
            Request::Shutdown { grace_seconds } => {
                let grace = match grace_seconds {
                    Some(seconds) => seconds,
                    None => self.launched()?.map_or(0, |launch| launch.grace_seconds),
                };
                self.with(|_| Ok(()))?;
                let gone = |_| Refusal::new(RefusedKind::State, "the guest ended");
                self.notices.send(Notice::Stop(Some(Duration::from_secs(grace)))).map_err(gone)?;
                Ok(Answer::Done)
            }
            Request::Kill => self.with(|domain| domain.destroy()),
            Request::SoftReboot => self.with(libvirt::soft_reboot),
            Request::Reset => {
                let answer = self.with(|domain| domain.reset())?;
                // It starts with filesystems that are not frozen.
                if self.freeze.is_on() {
                    self.freeze.end();
                }
                Ok(answer)
            }
            Request::AttachDisk(disk) => {
                let name = disk.name.clone();
                self.attach(Device::Disk(&name), |launch| {
                    launch.disks.retain(|other| other.name != disk.name);
                    launch.disks.push(*disk);
                })
            }
            Request::AttachInterface(interface) => {
                if let Some(answer) = self.set_link(&interface)? {
                    return Ok(answer);
                }
                let name = interface.name.clone();
                self.attach(Device::Interface(&name), |launch| {
                    launch.interfaces.retain(|other| other.name != interface.name);
                    launch.interfaces.push(*interface);
                })
            }
            Request::DetachDisk(name) => self.detach(Device::Disk(&name)),
            Request::Insert { name, storage } => self.change_medium(&name, Media::Storage(*storage)),
            Request::Eject(name) => self.change_medium(&name, Media::Empty),
            Request::ResizeDisk { name, size } => self.resize(&name, size),
            Request::Grow { processors, memory } => self.grow(processors, memory),
            Request::DetachInterface(name) => self.detach(Device::Interface(&name)),
            Request::Agent { command, timeout_seconds } => {
                Ok(Answer::Agent(self.agent(&command, timeout_seconds)?))
            }
            Request::Freeze { seconds } => self.freeze(seconds),
            Request::Thaw => {
                let _alone = self.freeze.alone();
                self.agent(THAW, FREEZE_TIMEOUT)?;
                self.freeze.end();
                Ok(Answer::Done)
            }
            Request::Facts { paths, kvm_works } => {
                if paths.len() > facts::PATHS_MAX {
                    let text = format!("{} disks; {} is the limit", paths.len(), facts::PATHS_MAX);
                    return Err(Refusal::new(RefusedKind::Invalid, text));
                }
                Ok(Answer::Facts(facts::gather(&paths, kvm_works)))
            }
            Request::Dump { path } => {
                drop(self.domain()?);
                let refused = |(kind, message)| Refusal { kind, message };
                self.dumps.begin(path, &self.connection).map_err(refused)?;
                Ok(Answer::Status(self.status()?))
            }
            Request::Describe => Ok(Answer::Description(self.domain()?.xml()?)),
            Request::Stats => {
                let (running, launch) = (self.domain()?, self.document()?);
                let disks = targets(&launch, &libvirt::described(&running)?.targets);
                let taps = launch.interfaces.into_iter().map(|one| (one.name, one.tap)).collect();
                let mut stats = stats::of(libvirt::statistics(&running)?, &disks, &taps);
                // Left out where a vCPU's thread has ended during the read: the other counters are complete.
                let affinity = pinning::affinity(&running).ok();
                stats.numbers.extend(affinity.map(|count| (AFFINITY.to_owned(), count)));
                Ok(Answer::Stats(stats))
            }
            Request::Screenshot => {
                let domain = self.domain()?;
                let (mime, picture) = domain.screenshot(PICTURE_MAX)?;
                Ok(Answer::Screenshot { mime, content: STANDARD.encode(picture) })
            }
        }
    }

    fn domain(&self) -> Result<Domain<'_>, Refusal> {
        libvirt::domain(&self.connection)?.ok_or_else(|| {
            Refusal::new(RefusedKind::State, "no guest runs: it was not launched, or has ended")
        })
    }

    fn with(&self, act: impl FnOnce(&Domain<'_>) -> Result<(), Failure>) -> Result<Answer, Refusal> {
        match act(&self.domain()?) {
            Ok(()) => Ok(Answer::Done),
            // It may have gone in between.
            Err(failure) => match libvirt::domain(&self.connection)? {
                Some(_) => Err(failure.into()),
                None => Err(Refusal::new(RefusedKind::State, "the guest ended")),
            },
        }
    }

    fn agent(&self, command: &str, seconds: u32) -> Result<String, Refusal> {
        let seconds = c_int::try_from(seconds).ok().filter(|_| seconds <= AGENT_TIMEOUT_MAX);
        let Some(seconds) = seconds.filter(|_| command.len() <= AGENT_COMMAND_MAX) else {
            let limits = format!(
                "a command for the guest agent has at most {AGENT_COMMAND_MAX} bytes and a timeout of at most {AGENT_TIMEOUT_MAX} s"
            );
            return Err(Refusal::new(RefusedKind::Invalid, limits));
        };
        Ok(self.domain()?.agent(command, seconds)?)
    }

    /// Freezes the filesystems for a time. The guest agent refuses a second freeze, which only lengthens the first.
    fn freeze(&self, seconds: u64) -> Result<Answer, Refusal> {
        if seconds > FREEZE_MAX {
            let text = format!("a freeze of {seconds} s; {FREEZE_MAX} s is the limit");
            return Err(Refusal::new(RefusedKind::Invalid, text));
        }
        let _alone = self.freeze.alone();
        let state = self.agent("{\"execute\": \"guest-fsfreeze-status\"}", FREEZE_TIMEOUT)?;
        let frozen = state.contains("\"frozen\"");
        // Before it: what is frozen and then forgotten would stay so.
        self.thaw_in(Duration::from_secs(seconds))?;
        if !frozen
            && let Err(refusal) = self.agent("{\"execute\": \"guest-fsfreeze-freeze\"}", FREEZE_TIMEOUT)
        {
            // Some filesystems may be frozen, so the deadline stays where they cannot be thawed.
            if self.agent(THAW, FREEZE_TIMEOUT).is_ok() {
                self.freeze.end();
            }
            return Err(refusal);
        }
        self.freeze.report();
        Ok(Answer::Done)
    }

    /// Has the filesystems thawed after a time.
    pub(super) fn thaw_in(&self, time: Duration) -> Result<(), Failure> {
        let connection = Arc::clone(&self.connection);
        self.freeze.begin(time, move || match libvirt::domain(&connection) {
            Ok(Some(domain)) => match c_int::try_from(FREEZE_TIMEOUT).map(|time| domain.agent(THAW, time)) {
                Ok(Ok(_)) => Thawed::Yes,
                Ok(Err(_)) | Err(_) => Thawed::No,
            },
            Ok(None) => Thawed::Yes,
            Err(_) => Thawed::No,
        })
    }

    /// Sets the link of an interface that is there; `None`: it is not there, or its link is in this state.
    fn set_link(&self, wanted: &Interface) -> Result<Option<Answer>, Refusal> {
        let invalid = |error: &dyn ToString| Refusal::new(RefusedKind::Invalid, error.to_string());
        let _alone = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        let (running, before) = (self.domain()?, self.document()?);
        let of_name = Device::Interface(&wanted.name);
        let mut launch = before.clone();
        let there = launch.interfaces.iter_mut().find(|one| one.name == wanted.name);
        let Some(there) = there.filter(|there| there.link_up != wanted.link_up) else { return Ok(None) };
        if !libvirt::has(&running, &of_name.alias())? {
            return Ok(None);
        }
        there.link_up = wanted.link_up;
        let device = device(&launch, of_name, &running.xml()?).map_err(|error| invalid(&error))?;
        let Some((xml, _)) = device else { return Err(invalid(&"the guest has no such device")) };
        libvirt::update(&running, &xml)?;
        self.keep(&launch)?;
        Ok(Some(Answer::Layout(launch.layout)))
    }

    /// Starts the guest of a document, or finds it started.
    fn launch(&self, document: &[u8]) -> Result<Answer, Refusal> {
        let invalid = |error: &dyn ToString| Refusal::new(RefusedKind::Invalid, error.to_string());
        let mut launch = Launch::read(document).map_err(|error| invalid(&error))?;
        let place = self.folder.path();
        // In a pod /var/run leads to /run.
        let same = std::fs::canonicalize(&launch.folder).is_ok_and(|named| named == place);
        if let Some(instance) = self.folder.instance()?.filter(|instance| *instance != launch.uid) {
            let text =
                format!("launch document: uid: {} is not {instance}, which this pod is for", launch.uid);
            return Err(invalid(&text));
        }
        if !same {
            return Err(invalid(&format!(
                "launch document: folder: {} is another one than the launcher's, {}",
                launch.folder,
                place.display()
            )));
        }
        let _starting = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(exit) = self.folder.exit()? {
            let message = format!("the guest ended ({}); a launcher runs one guest once", exit.uid);
            return Err(Refusal::new(RefusedKind::State, message));
        }
        if let Some(running) = libvirt::domain(&self.connection)? {
            return match self.folder.launch()? {
                Some(there) if there.uid == launch.uid => {
                    let processor = processor(&running, &there);
                    Ok(Answer::Launched { new: false, layout: there.layout, processor })
                }
                Some(_) | None => {
                    Err(Refusal::new(RefusedKind::State, "this launcher runs another guest already"))
                }
            };
        }
        let domain = domain::domain(&launch).map_err(|error| invalid(&error))?;
        let pins = pinning::pins(&launch.cpu).map_err(|text| invalid(&text))?;
        for medium in &launch.media {
            let image = iso(medium).map_err(|error| invalid(&error))?;
            self.folder.write(&format!("{}.iso", medium.name), &image)?;
        }
        if let Some(state) = launch.devices.tpm.as_ref().and_then(|tpm| tpm.state.as_ref()) {
            self.folder.keep_tpm(Path::new(state))?;
        }
        launch.layout = domain.layout;
        self.claims.hold(&launch)?;
        self.keep(&launch)?;
        self.folder.forget(Deadline::Kill)?;
        self.folder.forget(Deadline::Thaw)?;
        let created = libvirt::create(&self.connection, &domain.xml, launch.paused);
        // A guest with threads that cannot be pinned is not the one that was asked for.
        let pinned = created.and_then(|()| self.pin(pins.as_ref()).inspect_err(|_| drop(self.kill())));
        if let Err(failure) = pinned {
            self.claims.release()?;
            return Err(failure.into());
        }
        self.folder.set_started(&launch)?;
        let processor = self.domain().ok().and_then(|domain| processor(&domain, &launch));
        Ok(Answer::Launched { new: true, layout: launch.layout, processor })
    }

    /// The launch document of a running guest.
    fn document(&self) -> Result<Launch, Refusal> {
        let gone = || Refusal::new(RefusedKind::State, "no guest runs: it was not launched, or has ended");
        self.folder.launch()?.ok_or_else(gone)
    }

    /// Adds a device to what was asked for, and to the guest, unless that has it.
    fn attach(&self, wanted: Device<'_>, add: impl FnOnce(&mut Launch)) -> Result<Answer, Refusal> {
        let invalid = |error: &dyn ToString| Refusal::new(RefusedKind::Invalid, error.to_string());
        let mut alone = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        let (running, mut before) = (self.domain()?, self.document()?);
        if libvirt::has(&running, &wanted.alias())? {
            return Ok(Answer::Layout(before.layout));
        }
        // Of a move that was cut short, or of a device that just goes.
        if !self.forget(&running, &mut before, &wanted.alias(), &mut alone)? {
            let text = "QEMU has not closed the previous disk of this name yet; retry";
            return Err(Refusal::new(RefusedKind::State, text));
        }
        let mut launch = before.clone();
        add(&mut launch);
        launch.write().map_err(|error| invalid(&error))?;
        // Controllers, too, are part of the machine: they cannot come later.
        let device = device(&launch, wanted, &running.xml()?).map_err(|error| invalid(&error))?;
        let Some((xml, mut layout)) = device else { return Err(invalid(&"the guest has no such device")) };
        // One of the free ports is for it; more free ones are the next start's to make.
        let fits = |slot: &Slot| match slot {
            Slot::Port(port) => *port <= before.layout.ports,
            Slot::Conventional(_) | Slot::Root(_) => true,
        };
        if let Some(Slot::Root(slot)) = layout.slots.get(&wanted.alias()) {
            let text =
                format!("nothing can be added at 0000:00:{slot:02x}.0 while the guest runs; restart it");
            return Err(invalid(&text));
        }
        if layout.slots.values().all(fits) {
            layout.ports = before.layout.ports;
        }
        let controllers = |layout: &Layout| {
            let others = layout.slots.keys().filter(|alias| **alias != wanted.alias());
            (layout.ports, others.cloned().collect::<Vec<_>>())
        };
        if controllers(&before.layout) != controllers(&layout) {
            return Err(invalid(&"the guest was started without a slot for such a device; restart it"));
        }
        launch.layout = layout;
        self.claims.hold(&launch)?;
        let attached = self.keep(&launch).map_err(Refusal::from);
        if let Err(refusal) = attached.and_then(|()| Ok(libvirt::attach(&running, &xml)?)) {
            self.keep(&before)?;
            self.claims.keep(&before)?;
            return Err(refusal);
        }
        Ok(Answer::Layout(launch.layout))
    }

    /// Asks the guest to let go of a device. One that it does not have is gone already. The layout has the device until
    /// QEMU has closed its disk.
    fn detach(&self, wanted: Device<'_>) -> Result<Answer, Refusal> {
        let mut alone = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        let (running, mut launch) = (self.domain()?, self.document()?);
        let alias = wanted.alias();
        if libvirt::has(&running, &alias)? {
            self.ask_to_let_go(&running, &alias, &mut alone)?;
        } else {
            self.forget(&running, &mut launch, &alias, &mut alone)?;
        }
        Ok(Answer::Layout(launch.layout))
    }

    /// Asks once, and again only after a while, while QEMU has the device: libvirt takes a device that QEMU does not know
    /// any more for gone, leaves its disk open if QEMU still takes it apart, and libvirt 9.0 ends by an invalid access.
    fn ask_to_let_go(&self, running: &Domain<'_>, alias: &str, alone: &mut Going) -> Result<(), Refusal> {
        let before = alone.asked.get(alias);
        if before.is_some_and(|before| before.elapsed() < ASK_AGAIN) || !libvirt::is_in_qemu(running, alias)?
        {
            return Ok(());
        }
        let again = before.is_some();
        alone.asked.insert(alias.to_owned(), Instant::now());
        match libvirt::detach(running, alias) {
            Err(failure) if !again => {
                alone.asked.remove(alias);
                Err(failure.into())
            }
            // It may not be asked again so soon; it was asked before.
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Changes the medium of a CD drive.
    fn change_medium(&self, name: &str, medium: Media) -> Result<Answer, Refusal> {
        let invalid = |text: String| Refusal::new(RefusedKind::Invalid, format!("disk {name}: {text}"));
        let _alone = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        let (running, before) = (self.domain()?, self.document()?);
        let mut launch = before.clone();
        let drive = launch.disks.iter_mut().find(|disk| disk.name == name);
        let Some(drive) = drive.filter(|disk| disk.device == DiskDevice::Cdrom) else {
            return Err(invalid("the guest has no such CD drive".to_owned()));
        };
        if drive.media == medium {
            return Ok(Answer::Done);
        }
        drive.media = medium;
        launch.write().map_err(|error| invalid(error.to_string()))?;
        let targets = libvirt::described(&running)?.targets;
        let target = targets.get(&Device::Disk(name).alias());
        let target = target.ok_or_else(|| invalid("the guest has no such CD drive".to_owned()))?;
        let Some(xml) = domain::drive(&launch, name, target) else {
            return Err(invalid("was removed".to_owned()));
        };
        self.keep(&launch)?;
        if let Err(failure) = libvirt::change_medium(&running, &xml) {
            self.keep(&before)?;
            return Err(failure.into());
        }
        Ok(Answer::Done)
    }

    /// Makes a disk larger, where it is not as large yet.
    fn resize(&self, name: &str, size: u64) -> Result<Answer, Refusal> {
        let invalid = |text: &str| Refusal::new(RefusedKind::Invalid, format!("disk {name}: {text}"));
        let _alone = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        let (running, launch) = (self.domain()?, self.document()?);
        let disk = launch.disks.iter().find(|disk| disk.name == name);
        let Some(Media::Storage(storage)) = disk.map(|disk| &disk.media) else {
            return Err(invalid("the guest has no such disk"));
        };
        if storage.format != DiskFormat::Raw {
            return Err(invalid("a disk over a backing file cannot grow"));
        }
        if !size.is_multiple_of(512) {
            return Err(invalid("its size is not a multiple of 512 bytes"));
        }
        let length = std::fs::metadata(&storage.path).map_err(|error| invalid(&error.to_string()))?.len();
        if !storage.block && length > size {
            return Err(invalid(&format!("it has {length} bytes and would shrink")));
        }
        libvirt::resize(&running, &storage.path, size)?;
        Ok(Answer::Done)
    }

    /// Gives the guest processors and memory that it has not yet.
    fn grow(&self, processors: u32, memory: u64) -> Result<Answer, Refusal> {
        let invalid = |text: String| Refusal::new(RefusedKind::Invalid, text);
        {
            let _alone = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
            let (running, launch) = (self.domain()?, self.document()?);
            let found = libvirt::described(&running)?;
            let per_socket = launch.cpu.cores * launch.cpu.threads;
            if processors > found.processors {
                let most = launch.cpu.max_sockets * per_socket;
                if processors > most {
                    return Err(invalid(format!(
                        "{processors} vCPUs: the guest was started with room for {most}; restart it for more"
                    )));
                }
                if !processors.is_multiple_of(per_socket) {
                    return Err(invalid(format!(
                        "{processors} vCPUs: vCPUs are added in sockets of {per_socket}"
                    )));
                }
                libvirt::set_processors(&running, processors)?;
            }
            if memory > launch.memory.guest + found.requested {
                let most = launch.memory.max_guest;
                if memory > most {
                    return Err(invalid(format!(
                        "{memory} bytes of memory: the guest was started with room for {most} bytes; restart it for more"
                    )));
                }
                let device = domain::memory(&launch, memory).ok_or_else(|| {
                    invalid(format!("{memory} bytes of memory: memory is added in blocks of 2 MiB"))
                })?;
                libvirt::update(&running, &device)?;
            }
        }
        Ok(Answer::Status(self.status()?))
    }

    /// Takes a device that is gone out of what was asked for; the next that comes may have its place. A disk that QEMU cannot
    /// close yet stays: the answer is false.
    fn forget(
        &self,
        running: &Domain<'_>,
        launch: &mut Launch,
        alias: &str,
        alone: &mut Going,
    ) -> Result<bool, Refusal> {
        let disk = launch.disks.iter().find(|disk| Device::Disk(&disk.name).alias() == alias);
        if let Some(Media::Storage(storage)) = disk.map(|disk| &disk.media)
            && !libvirt::close(running, &storage.path)?
        {
            return Ok(false);
        }
        alone.asked.remove(alias);
        launch.disks.retain(|disk| Device::Disk(&disk.name).alias() != alias);
        launch.interfaces.retain(|one| Device::Interface(&one.name).alias() != alias);
        launch.layout.slots.remove(alias);
        launch.layout.units.retain(|unit, _| unit.split_once('/').map_or("", |(_, name)| name) != alias);
        self.keep(launch)?;
        self.claims.keep(launch)?;
        Ok(true)
    }

    /// Remembers that a device is gone. Answers our alias of it.
    fn removed(&self, device: &str) -> String {
        let alias = libvirt::own_alias(device);
        let mut alone = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Ok(Some(mut launch)), Ok(running)) = (self.folder.launch(), self.domain()) {
            // A failure here is repaired when the device is next attached or detached.
            drop(self.forget(&running, &mut launch, alias, &mut alone));
        }
        alias.to_owned()
    }

    /// The state of the domain, and its description; `None`: there is no domain.
    fn doing(&self) -> Result<Option<(State, Option<PauseReason>, Described)>, Failure> {
        let Some(domain) = libvirt::domain(&self.connection)? else { return Ok(None) };
        match libvirt::state(&domain) {
            Ok((state, reason)) => Ok(Some((state, reason, libvirt::described(&domain).unwrap_or_default()))),
            // It may have gone in between.
            Err(failure) => libvirt::domain(&self.connection)?.map_or(Ok(None), |_| Err(failure)),
        }
    }

    /// How the guest is, as of libvirt.
    pub(super) fn status(&self) -> Result<Status, Error> {
        let failed = |error| super::failed("libvirt", error);
        let (launch, exit) = (self.folder.launch()?, self.folder.exit()?);
        let (state, reason, found) = match (self.doing().map_err(failed)?, &exit) {
            (_, Some(_)) => (State::Ended, None, None),
            (None, None) if self.folder.started()? => (State::Ended, None, None),
            (None, None) => (State::Waiting, None, None),
            (Some((State::Running, _, found)), None) if self.stopping.load(Ordering::Relaxed) => {
                (State::Stopping, None, Some(found))
            }
            // While its memory is dumped its processors stand still, which no client asked for.
            (Some((State::Paused, Some(PauseReason::Other), found)), None) if self.dumps.is_writing() => {
                (State::Running, None, Some(found))
            }
            (Some((state, reason, found)), None) => (state, reason, Some(found)),
        };
        let size = launch.as_ref().zip(found.as_ref()).map(|(launch, found)| Size {
            processors: found.processors,
            memory: launch.memory.guest + found.more_memory,
        });
        let (agent, aliases) = found.map(|found| (found.agent, found.targets)).unwrap_or_default();
        let targets = launch.as_ref().map(|launch| targets(launch, &aliases)).unwrap_or_default();
        let (frozen, dump) = (self.freeze.is_on(), self.dumps.last());
        let uid = launch.map(|launch| launch.uid);
        Ok(Status { state, reason, uid, exit, agent, size, targets, frozen, dump })
    }

    /// The event for clients of a change that is not the end.
    pub(super) fn event(&self, notice: libvirt::Notice) -> Result<Option<Event>, Error> {
        Ok(match notice {
            // The event that follows is reported.
            libvirt::Notice::SwitchingOff { .. } => None,
            // The end is reported when it is recorded.
            libvirt::Notice::Lifecycle { .. } | libvirt::Notice::Changed => {
                Some(self.status()?).filter(|status| status.state != State::Ended).map(Event::Status)
            }
            libvirt::Notice::Removed { device } => Some(Event::Detached { device: self.removed(&device) }),
            libvirt::Notice::Rebooted => Some(Event::Rebooted),
            libvirt::Notice::Watchdog => Some(Event::Watchdog),
            libvirt::Notice::IoError { disk, reason } => Some(Event::IoError { disk, reason }),
            libvirt::Notice::Agent { connected } => Some(Event::Agent { connected }),
        })
    }

    /// Asks the guest to switch itself off. One that stands still cannot hear it, and goes on first.
    pub(super) fn press_power_button(&self) -> Result<(), Failure> {
        let Some(domain) = libvirt::domain(&self.connection)? else { return Ok(()) };
        if libvirt::state(&domain)?.0 == State::Paused {
            domain.resume()?;
        }
        libvirt::press_power_button(&domain)
    }

    /// Keeps the logs short that the guest writes, or QEMU for it.
    pub(super) fn shorten_logs(&self) -> Result<(), Error> {
        let Some(launch) = self.started()? else { return Ok(()) };
        let serial = launch.devices.serial.and_then(|serial| serial.log).map(PathBuf::from);
        let qemu = self.folder.libvirt().join("log/qemu");
        let failed = |path: &Path| {
            let name = path.display().to_string();
            move |error: std::io::Error| Error::with(ErrorKind::System, name, error)
        };
        let entries = std::fs::read_dir(&qemu).map_err(failed(&qemu))?.flatten().map(|entry| entry.path());
        let logs = entries.filter(|path| path.extension().is_some_and(|end| end == "log"));
        for path in serial.into_iter().chain(logs) {
            logs::shorten(&path).map_err(failed(&path))?;
        }
        Ok(())
    }

    pub(super) fn kill(&self) -> Result<(), Failure> {
        libvirt::domain(&self.connection)?.map_or(Ok(()), |domain| domain.destroy())
    }
}
