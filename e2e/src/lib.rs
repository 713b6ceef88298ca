//! A real Kubernetes node for tests and for a first look: etcd, API server, controller manager, scheduler, containerd,
//! kubelet and kube-proxy as plain processes in namespaces of their own. No mock and no fake.
//!
//! - [`Cluster`]: starts one, waits for it and for what is in it, gives clients, stops it.
//! - [`supervisor`]: the process outside of the namespaces that leaves nothing behind, even if the test is killed.
//! - [`node`]: the first process inside.
//! - [`place`]: numbers, addresses and folders; [`pki`]: certificates; [`programs`]: what is run.
//! - [`peer`]: servers outside the cluster that pods connect to; [`volume`]: volumes with contents that a test can inspect.
//! - [`storage`]: the CSI driver with stock sidecars, and a pool.
//! - [`processes`]: of pods, and their memory.
//! - [`platform`]: everything that `operator manifests` prints, installed and available.
//! - [`grants`]: what the platform's accounts may do, and what they did.
//! - [`leftovers`]: changes to the machine that a cluster might leave; `remains`: those to a node that its pods might.
//!
//! Not here: the tests, which are in `tests/`, and what they test.

mod cluster;
pub mod grants;
pub mod leftovers;
pub mod node;
pub mod peer;
pub mod pki;
pub mod place;
pub mod platform;
pub mod processes;
pub mod programs;
mod remains;
pub mod storage;
pub mod supervisor;
pub mod volume;
mod waiting;

pub use cluster::{Cluster, Ended, Second, failures, needs_root, stop_kept};
pub use waiting::bar;
