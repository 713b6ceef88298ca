//! The node's volumes without sidecars: the agent does the work of csi-provisioner for the claims of its node, through the
//! CSI driver's socket. The driver stays a process without credentials.
//!
//! ```text
//! scheduler ─ selected-node ─► operator (volumes) ─ label ferrovirt.io/node=N ─► claims, PVs of node N
//!                                                                                     │ watch
//! CSI driver ◄─ CreateVolume, DeleteVolume, Controller{Expand,Modify}Volume, GetCapacity ── this module ──► PVs, events,
//!                                                                                        CSIStorageCapacity
//! ```
//!
//! - [`objects`]: claims, classes and PVs as they are read. [`plan`]: what is done about a claim or a PV (pure).
//! - [`request`], [`volume`]: the driver's request and the PV that is written (pure).
//! - [`content`], [`group`]: the same of VolumeSnapshotContents and VolumeGroupSnapshotContents (pure).
//! - [`driver`]: the CSI socket. [`controller`]: the queue, which does what the plans decide. [`claims`], [`removal`],
//!   [`resize`], [`modify`], [`snapshots`], [`groups`]: one file for each kind of work. [`unfinished`]: volumes without PVs.
//!   [`conditions`]: those of claims. [`capacity`]: CSIStorageCapacity objects. [`pools`]: events about the node's pools.
//!   [`strays`]: volumes that no object names. [`sidecars`]: whether stock sidecars do the work on this node. [`metadata`]: changed blocks for clients outside of the
//!   node.
//!
//! The objects are those that stock csi-provisioner, csi-resizer and csi-snapshotter write, field by field, but for the label: a cluster can
//! be switched between both. Not here: which node a claim goes to (the operator's), VolumeSnapshots and
//! groups of them (the snapshot controller's).

mod capacity;
mod claims;
mod conditions;
mod content;
mod controller;
mod driver;
mod group;
mod groups;
pub(crate) mod metadata;
mod modify;
mod objects;
mod plan;
mod pools;
mod removal;
mod request;
mod resize;
mod sidecars;
mod snapshots;
mod strays;
mod unfinished;
mod volume;

use std::path::PathBuf;
use std::sync::Arc;

use cluster::Client;
use controller::Controller;
use driver::Driver;
use sidecars::Sidecars;

pub use objects::NODE_LABEL;

/// Settings of the node's storage.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of the node.
    pub node: String,
    /// The CSI driver's socket.
    pub socket: PathBuf,
    /// Namespace of the CSIStorageCapacity objects: the driver's.
    pub namespace: String,
    /// DaemonSet of the driver there, which owns these objects.
    pub daemon_set: String,
}

/// Serves the claims of a node until `stop`. Waits for the driver: a node without it has nothing to do.
pub async fn run(client: Client, settings: Settings, stop: impl Future<Output = ()>) {
    tokio::select! {
        () = serve(&client, &settings) => {}
        () = stop => {}
    }
}

/// Serves what no sidecar of the driver's pod does: snapshots also where stock csi-provisioner makes the volumes.
async fn serve(client: &Client, settings: &Settings) {
    let sidecars = Sidecars::watch(client, settings);
    sidecars.synced().await;
    let driver = Driver::wait(&settings.socket).await;
    let controller = Controller::start(client, driver, settings, sidecars.clone()).await;
    tokio::join!(
        Arc::clone(&controller).run(),
        provide(&controller, settings, &sidecars),
        pools::watch(&controller),
        strays::report(&controller, &sidecars)
    );
}

/// Keeps capacities, and takes up claims and PVs, whenever stock csi-provisioner does not.
async fn provide(controller: &Arc<Controller>, settings: &Settings, sidecars: &Sidecars) {
    loop {
        sidecars.wait_until_absent().await;
        tracing::info!(
            driver = controller.driver.name(),
            node = settings.node,
            "serving the volumes of the node"
        );
        controller.take_up();
        tokio::select! {
            () = capacity::keep(Arc::clone(controller), settings.clone()) => {}
            () = sidecars.wait_until_present() => {
                tracing::info!(node = settings.node, "the CSI sidecars of the node take over its volumes");
            }
        }
    }
}
