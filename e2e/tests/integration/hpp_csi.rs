//! The CSI driver on a real node, installed by its own manifests, with the stock provisioner, snapshotter, resizer and
//! snapshot-controller, on a pool of XFS. Each point of the driver's table is a test; bytes are judged from the host.
//!
//! The agent and the operator run here, too, and make volumes and snapshots where the driver's pods have no sidecar for that
//! ([`modes`]), without snapshot-controller: with `FERROVIRT_PROVISIONER=agent` in all tests.
//!
//! One cluster for all tests; each has its own namespace, which enforces the restricted Pod Security.

mod capacity;
mod devices;
#[expect(dead_code, reason = "the client's own tests use the rest")]
#[path = "../../../lib/cluster/tests/api_server/faulty.rs"]
mod faulty;
mod hollow;
mod import;
mod loss;
mod modes;
mod pods;
mod restart;
mod snapshots;
mod sources;
mod space;
mod suite;
mod undistributed;

use std::sync::{LazyLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use e2e::{Cluster, programs, storage};

const MIB: u64 = 1 << 20;
/// Bytes of the pool; it takes what is written.
const POOL: u64 = 20 << 30;
/// The StorageClass and VolumeSnapshotClass of the manifests.
const CLASS: &str = "hostpath-csi";

/// The program that makes the volumes: stock sidecars, or with FERROVIRT_PROVISIONER=agent the agent and the operator.
fn provisioner() -> storage::Provisioner {
    match std::env::var("FERROVIRT_PROVISIONER").as_deref() {
        Ok("agent") => storage::Provisioner::Agent,
        _ => storage::Provisioner::Sidecars,
    }
}

/// The cluster of these tests, with the driver in it. It ends with the process.
static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| {
    let image = programs::image().unwrap();
    let cluster = Cluster::start().unwrap();
    cluster.import_images(&image).unwrap();
    // Both work in every cluster of these tests; the agent only while the driver's pods have no sidecar.
    modes::serve(&cluster);
    storage::install(&cluster, POOL, provisioner()).unwrap();
    cluster
});

/// Held by a test that needs the driver, alone by one that restarts it or measures.
static DRIVER: RwLock<()> = RwLock::new(());

fn together() -> RwLockReadGuard<'static, ()> {
    DRIVER.read().unwrap_or_else(PoisonError::into_inner)
}

fn alone() -> RwLockWriteGuard<'static, ()> {
    DRIVER.write().unwrap_or_else(PoisonError::into_inner)
}
