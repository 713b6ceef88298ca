//! The platform on a real cluster, as it is installed: operator, node agent, MAC pool and CSI driver as pods, guests in
//! launcher pods, by software emulation. All of it runs in the cluster.
//!
//! One cluster for all tests; each has its own namespace, which enforces the restricted Pod Security.

mod bridged;
mod bundle;
mod client;
mod clones;
mod compute;
pub(crate) mod console;
mod crowds;
mod disks;
mod ends;
mod groups;
pub(crate) mod guest;
mod hollow;
mod hostpath;
pub(crate) mod hyperconverged;
mod images;
mod imports;
mod life;
mod logs;
mod loss;
pub(crate) mod machines;
mod manifests;
mod monitoring;
mod mutants;
pub(crate) mod networks;
pub(crate) mod place;
mod pools;
mod rotation;
mod scale;
pub(crate) mod shell;
pub(crate) mod speed;
mod streams;
pub(crate) mod transfers;
mod untrusted;
pub(crate) mod webhooks;
