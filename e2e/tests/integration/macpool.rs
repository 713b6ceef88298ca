//! The MAC pool on a real API server, with KubeVirt's kinds and without controllers for them. Its manifests are applied, and
//! two replicas run as processes next to the node, with the rights of the manifests' service account.

mod changes;
mod client;
mod damage;
mod later;
mod load;
mod machines;
mod replicas;
mod scale;
mod setup;
