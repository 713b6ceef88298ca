//! DataVolumes on a real node: the operator's storage controllers run outside the cluster, importers in it, volumes come
//! from hpp-csi with its stock sidecars. Bytes are judged from the host.
//!
//! One cluster for all tests; each has its own namespace, which enforces the restricted Pod Security.

pub(crate) mod authorization;
mod claims;
pub(crate) mod clones;
mod combinations;
mod crons;
mod crowd;
mod failures;
mod imports;
mod killed;
mod manifests;
pub(crate) mod platform;
mod profiles;
pub(crate) mod send;
pub(crate) mod setup;
pub(crate) mod sources;
pub(crate) mod space;
pub(crate) mod timeline;
mod uploads;
mod waits;
