//! The launcher's second process: it holds libvirt, and can be killed without harm to the guest. What it knows it asks of
//! libvirt; when a guest that was asked to end is to be killed is noted for the next worker.
//!
//! ```text
//! clients ──► calls, each client's on its own thread ──► libvirt ──► QEMU
//!    ▲                          │ stop                      │ notices
//!    └──────── events ◄──── this thread: the guest's end ◄──┘
//! ```

mod claims;
mod clients;
mod dump;
mod facts;
mod freeze;
mod guest;
mod libvirt;
mod logs;
mod pinning;
mod stats;

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use api::launcher::capabilities::Capabilities;
use api::launcher::{Cause, Event, Exit};
use rustix::process::{Signal as Sent, getppid, set_parent_process_death_signal};

use crate::error::{Error, Kind};
use crate::folder::{Deadline, Folder};
use crate::handover::Found;
use crate::plan::{self, First, StartState};
use ::guest::signals as sys;
use claims::Claims;
use clients::Clients;
use guest::Guest;

/// How often the power button is pressed until the guest reacts: one that boots does not see it.
const PRESS: Duration = Duration::from_secs(5);
/// How long clients may take to read of the end.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// How long it must be quiet until memory is given back.
const IDLE_DELAY: Duration = Duration::from_secs(2);

/// How often it is looked whether logs are too long.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// The messages to the worker's first thread.
pub(super) enum Notice {
    /// By libvirt.
    Libvirt(libvirt::Notice),
    /// The guest is to end, within this time or the launch document's.
    Stop(Option<Duration>),
    /// Clients are to be sent the status.
    Status,
}

/// Runs until the guest's end, which is recorded then.
pub(crate) fn run(path: &Path, stop: bool) -> Result<Exit, Error> {
    let system = |what: &'static str| move |error: std::io::Error| Error::with(Kind::System, what, error);
    set_parent_process_death_signal(Some(Sent::KILL))
        .map_err(std::io::Error::from)
        .map_err(system("cannot watch the supervisor process"))?;
    _ = rustix::thread::set_name(c"launcher-worker");
    // It may have been gone before.
    let outer = getppid();
    sys::block_signals().map_err(system("signals cannot be blocked"))?;
    let folder = Folder::new(path)?;
    let found = Found::take().map_err(system("the supervisor's sockets cannot be taken over"))?;
    let claims = Claims::new(found.kept, found.devices);
    let (sender, notices) = channel();
    let connection = libvirt::open(&folder, sender.clone()).map_err(|error| failed("libvirt", error))?;
    let domain = libvirt::settled(&connection).map_err(|error| failed("libvirt", error))?.is_some();
    let state =
        StartState { exit: folder.exit()?, launch: folder.launch()?, domain, started: folder.started()? };
    let mut adopted = None;
    match plan::first(state) {
        First::End(exit) => return Ok(exit),
        First::Record(launch, cause) => return record(&folder, &launch.uid, cause),
        First::Refuse => {
            return Err(Error::new(
                Kind::System,
                "libvirt runs a domain in this directory that the launcher did not start",
            ));
        }
        First::Adopt(launch) => {
            folder.set_started(&launch)?;
            adopted = Some(launch);
        }
        First::Wait => {}
    }
    // Of a start that was cut short, it is about no guest.
    let left = if adopted.is_some() { folder.remaining(Deadline::Kill)? } else { None };
    let frozen = if adopted.is_some() { folder.remaining(Deadline::Thaw)? } else { None };
    let guest = Arc::new(Guest::new(folder, connection, claims, sender.clone()));
    if left.is_some() {
        // Before the first request for its state.
        guest.set_stopping();
    }
    if let Some(left) = frozen {
        guest.thaw_in(left).map_err(|error| failed("the guest's filesystems cannot be thawed", error))?;
    }
    if let Some(Err(error)) = adopted.map(|launch| guest.take_over(&launch)) {
        // It has its addresses and its disks; that it cannot ask for them again is no reason to leave it alone.
        drop(writeln!(io::stderr(), "{}", error.chain()));
    }
    let clients = Arc::new(Clients::default());
    clients::listen(found.listener, Arc::clone(&guest), Arc::clone(&clients))
        .map_err(system("cannot use the launcher's socket"))?;
    watch_signals(sender.clone()).map_err(system("signals cannot be waited for"))?;
    if stop {
        // The receiver is below.
        drop(sender.send(Notice::Stop(None)));
    }
    if getppid() != outer {
        return Err(Error::new(Kind::System, "the supervisor process has ended"));
    }
    monitor(&guest, &clients, &notices, left)
}

/// Finds out what QEMU can do, which libvirt then keeps in its folder.
pub(super) fn probe(folder: &Folder, emulator: &str) -> Result<Capabilities, Error> {
    let (sender, _receiver) = channel();
    let connection = libvirt::open(folder, sender).map_err(|error| failed("libvirt", error))?;
    libvirt::capabilities(&connection, emulator).map_err(|error| failed("libvirt", error))
}

fn failed(what: &str, error: libvirt::Failure) -> Error {
    Error::with(Kind::System, what.to_owned(), error)
}

fn watch_signals(notices: Sender<Notice>) -> std::io::Result<()> {
    let wait = move || {
        while let Ok(signal) = sys::next_signal(None) {
            // libvirt reaps its own children.
            if signal == Some(sys::Signal::Stop) && notices.send(Notice::Stop(None)).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(wait).map(drop)
}

fn record(folder: &Folder, uid: &str, cause: Cause) -> Result<Exit, Error> {
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let exit = Exit { uid: uid.to_owned(), cause, code: cause.code(), time: time.as_secs() };
    folder.set_exit(&exit)?;
    Ok(exit)
}

/// When a guest that was asked to end is asked again, and when it is killed.
struct Ending {
    press: Instant,
    kill: Instant,
}

impl Ending {
    fn within(left: Duration) -> Self {
        let now = Instant::now();
        // One that is for ever is a century.
        let kill = now.checked_add(left).unwrap_or(now + Duration::from_secs(3_153_600_000));
        Self { press: now, kill }
    }
}

/// Reports events to clients, and handles the end. A guest with a time `left` was asked to end before.
fn monitor(
    guest: &Guest,
    clients: &Clients,
    notices: &Receiver<Notice>,
    left: Option<Duration>,
) -> Result<Exit, Error> {
    let mut ending = left.map(Ending::within);
    let mut reset = false;
    let mut quiet = Some(Instant::now() + IDLE_DELAY);
    let mut look = Instant::now() + POLL_INTERVAL;
    loop {
        let due = ending.as_ref().map(|ending| ending.press.min(ending.kill));
        let next = due.into_iter().chain(quiet).fold(look, Instant::min);
        match notices.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::new(Kind::System, "libvirt's events have ended"));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Ok(Notice::Stop(grace)) => {
                let Some(launch) = guest.begun()? else {
                    if grace.is_none() {
                        // A signal, and no guest: none will be requested any more.
                        return Err(Error::new(Kind::System, "asked to end before a guest was launched"));
                    }
                    continue;
                };
                let mut new = Ending::within(grace.unwrap_or(Duration::from_secs(launch.grace_seconds)));
                new.kill = ending.map_or(new.kill, |before| before.kill.min(new.kill));
                // Without the note the next worker has to be asked again.
                let left = new.kill.saturating_duration_since(Instant::now());
                drop(guest.folder().set_remaining(Deadline::Kill, left));
                ending = Some(new);
                guest.set_stopping();
            }
            Ok(Notice::Status) => {
                // Clients can ask for it.
                if let Ok(status) = guest.status() {
                    clients.broadcast(&Event::Status(status));
                }
            }
            Ok(Notice::Libvirt(libvirt::Notice::SwitchingOff { details })) => {
                // Others may follow, of what libvirt does then.
                reset |= libvirt::is_reset(&details);
            }
            Ok(Notice::Libvirt(notice)) => {
                quiet = Some(Instant::now() + IDLE_DELAY);
                if let Some(cause) = libvirt::end(&notice) {
                    // A start that fails ends a domain too, but no guest.
                    if let Some(launch) = guest.started()? {
                        let cause = if reset && cause == Cause::Shutdown { Cause::Rebooted } else { cause };
                        let exit = record(guest.folder(), &launch.uid, cause)?;
                        if let Ok(status) = guest.status() {
                            clients.broadcast(&Event::Status(status));
                        }
                        clients.drain(SHUTDOWN_GRACE);
                        return Ok(exit);
                    }
                } else if let Ok(Some(event)) = guest.event(notice) {
                    // An event that cannot be reported must not affect the guest; clients can ask for the status.
                    clients.broadcast(&event);
                }
            }
        }
        let now = Instant::now();
        if quiet.is_some_and(|quiet| now >= quiet) {
            quiet = None;
            // On failure a little more memory stays in use.
            drop(::guest::memory::give_back());
        }
        if now >= look {
            look = now + POLL_INTERVAL;
            // One that cannot be cut now is tried again.
            drop(guest.shorten_logs());
        }
        if let Some(due) = &mut ending {
            // If it has ended in between, its own event reports it.
            if now >= due.kill {
                drop(guest.kill());
                due.kill = now + PRESS;
            } else if now >= due.press {
                drop(guest.press_power_button());
                due.press = now + PRESS;
            }
        }
    }
}
