//! The one daemon of a machine: it owns the state directory, stores objects, and reconciles the machine with them.
//!
//! ```text
//!  commands ──socket──► controller ─► plan (pure) ─► apply ─► virt-launcher (one per guest) ─► QEMU
//!                          │ store                     ├────► importer (one per volume that is filled)
//!                          └ state folder              └────► hpp-csi
//! ```
//!
//! It is started again at any time: everything that runs goes on without it and is found again by the state folder. Ending
//! it ends no guest, unless the whole machine is being shut down.
//!
//! Not here: what commands print ([`crate::command`]), what a guest is made of ([`virt::resolve`], package virt-launcher).

mod addresses;
mod agent;
mod apply;
mod claim;
mod controller;
mod cpu_memory_hotplug;
mod csi_client;
mod disk;
mod events;
mod execute;
mod expansion;
mod findings;
mod host;
mod hotplug;
pub(crate) mod ids;
mod images;
mod import;
mod interfaces;
mod job_results;
mod jobs;
mod keep;
mod kept;
mod members;
mod metadata;
mod networks;
mod object;
mod process;
mod reconcile;
mod registry;
mod relations;
mod requests;
mod rows;
mod run;
mod socket;
mod start_request;
mod state;
mod store;
mod upload;
mod vm;
mod vmi;
mod volumes;
mod watch;
mod work;

use std::path::{Path, PathBuf};

use api::launch::Accelerator;

pub(crate) use members::GROUP;
pub(crate) use state::{DEFAULT, TAKEN, socket as socket_of};

use crate::error::{Error, Kind};
use crate::network::PodNetwork;
use addresses::Addresses;
use controller::{Controller, Message};
use csi_client::Driver;
use events::Events;
use state::State;
use store::Store;

/// Settings of the user for all guests.
#[derive(Clone, Debug, Default)]
pub(crate) struct UserSettings {
    /// Directories of files that guests may have as `hostDisk`.
    pub(crate) host_disks: Vec<PathBuf>,
    /// The accelerator of guests; `None`: KVM where it works, else TCG.
    pub(crate) accelerator: Option<Accelerator>,
    /// The network of guests that name none.
    pub(crate) pod: PodNetwork,
}

/// Serves until it is asked to end.
///
/// # Errors
/// Another daemon has the state folder, or a file in it cannot be read.
pub(crate) fn serve(folder: &Path, given: UserSettings) -> Result<(), Error> {
    let failed = |what: String| move |error: std::io::Error| Error::with(Kind::System, what, error);
    if !rustix::process::geteuid().is_root() {
        return Err(Error::new(
            Kind::Usage,
            "serve needs root: guests' networks, volumes and users are made by it",
        ));
    }
    let state = State::open(folder)?;
    let store = Store::open(&state.path("objects"))?;
    let addresses = Addresses::open(&state, &store)?;
    let log = state.path("events");
    let events =
        Events::open(&log).map_err(failed(format!("cannot open the event log {}", log.display())))?;
    let driver = Driver::new(&state.path(""));
    let (path, runs) = (state.socket(), state.path("run"));
    let controller = Controller::new(state, store, addresses, events, driver.clone(), given);
    let sender = controller.sender();
    // By handlers: what is blocked would be blocked in every process that is started, too.
    serve::signals::watch(move |_| drop(sender.send(Message::Stop)))
        .map_err(failed("signals cannot be waited for".to_owned()))?;
    socket::listen(&path, controller.sender())?;
    controller.run()?;
    if host::is_stopping() {
        apply::end_all(&runs);
    }
    driver.stop();
    // The socket serves no client any more.
    drop(std::fs::remove_file(&path));
    Ok(())
}
