//! Uploads and clones on a real node: upload servers in pods exactly as CDI's controller makes them, the proxy as a
//! Deployment by its own manifests, reached through its Service; what virtctl and the OpenShift console do, step by step;
//! volumes that are cloned.
//!
//! One cluster for all tests; each has its own namespace, which enforces the restricted Pod Security. What is not ours is
//! stood in for: CDI's controller (`controller`), its API of tokens (`tokens`).

mod clone;
mod console;
mod controller;
mod disks;
mod objects;
mod site;
mod tokens;
mod virtctl;

use std::sync::LazyLock;

use e2e::{Cluster, programs};

use site::Site;

const MIB: u64 = 1 << 20;

/// The cluster of these tests, with the product's image in it. It ends with the process.
static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| {
    let image = programs::image().unwrap();
    let cluster = Cluster::start().unwrap();
    cluster.import_images(&image).unwrap();
    cluster
});

/// The stand-ins for CDI in it, and the proxy.
static SITE: LazyLock<Site> = LazyLock::new(|| Site::install(&CLUSTER));

/// A namespace for one test.
fn namespace(name: &'static str) -> &'static str {
    CLUSTER.create_namespace(name, "restricted").unwrap();
    name
}
