//! The importer in pods exactly as CDI's controller makes them, on a real node, from real servers.
//!
//! One cluster for all tests; each has its own namespace, which enforces the restricted Pod Security. Bytes are judged
//! from the host. `FERROVIRT_SOAK=1` imports larger disks.

mod disks;
mod failures;
mod memory;
mod metrics;
mod pod;
mod poller;
mod profiles;
mod size_detection;
mod sources;

use std::sync::LazyLock;

use e2e::{Cluster, programs};

const MIB: u64 = 1 << 20;

/// The cluster of these tests, with the product's image in it. It ends with the process.
static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| {
    let image = programs::image().unwrap();
    let cluster = Cluster::start().unwrap();
    cluster.import_images(&image).unwrap();
    profiles::prepare(&cluster);
    cluster
});

/// The small number by default, the large one with `FERROVIRT_SOAK=1`; same code, same seeds.
fn count(small: u64, full: u64) -> u64 {
    if std::env::var_os("FERROVIRT_SOAK").is_some_and(|value| value == "1") { full } else { small }
}

/// A namespace for one test.
fn namespace(name: &str) -> &str {
    CLUSTER.create_namespace(name, "restricted").unwrap();
    name
}
