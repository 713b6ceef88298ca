//! Secondary networks of launcher pods: the agent attaches those that Multus has not attached, before the guest starts.
//!
//! ```text
//! VMI's networks ─► listed in network-status ─────────────────► Multus attached them: left alone
//!                └► definition (object or node's file) ─► ADD on the node, in the pod's namespace ─► network-status
//! guest or pod over ─► sweep ─► DEL of what was kept below STATE/network
//! ```
//!
//! | file | what it is for |
//! |---|---|
//! | `reference` | which NetworkAttachmentDefinition a network means, and whether the guest's namespace may use it; pure |
//! | `definition` | from the object to a CNI configuration; pure |
//! | `listed` | the annotation network-status, read and written; pure |
//! | `node` | work in the node's own network and mount namespaces, where plugins run |
//! | `attach` | ADD and DEL, noted on disk before they begin |
//! | `objects` | what is asked of the API server |
//!
//! Records are files of root below the agent's directory on the node: they outlive the agent, the pod and a reboot, and
//! every attachment that they name gets its DEL once its guest or pod is over. CNI's GC is not used: it would know this agent's
//! attachments only, and other runtimes attach pods to the same networks.
//!
//! Not here: wiring between the pod's interface and the guest (lib/guest), networks of ordinary pods (Multus).

mod attach;
mod definition;
mod listed;
mod node;
mod objects;
mod reference;

pub(crate) use attach::{Attached, Networks, RequestedNetwork, Target};
pub(crate) use node::Node;
pub(crate) use objects::Api;
#[cfg(test)]
pub(crate) use objects::{Annotated, Objects};
#[cfg(test)]
pub(crate) use reference::Reference;

/// Longest annotation network-status that is read, in bytes.
pub(crate) const STATUS_MAX: usize = 64 << 10;
/// The annotation.
pub(crate) const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";
