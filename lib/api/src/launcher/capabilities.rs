//! What guests can have on a node, as libvirt reports it: `virt-launcher capabilities` writes it into its cache, the node
//! agent reads it.
//!
//! Not here: libvirt's own cache, which lies next to it.

use serde::{Deserialize, Serialize};

/// The file in the cache.
pub const CAPABILITIES: &str = "node.json";

/// What guests can have on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Capabilities {
    /// Machine types, aliases such as `q35` included.
    pub machines: Vec<String>,
    /// The time stamp counter, where guests can use it.
    pub tsc: Option<Tsc>,
    /// With KVM; `None`: it does not work for the guests' user.
    pub kvm: Option<Processors>,
    /// With emulation.
    pub emulation: Option<Processors>,
}

/// A time stamp counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tsc {
    /// Hertz.
    pub frequency: u64,
    /// Whether a guest can have another frequency.
    pub scalable: bool,
}

/// Processors that guests can have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Processors {
    /// Models that can be used as they are.
    pub models: Vec<String>,
    /// The model of `host-model`.
    pub host_model: Option<String>,
    /// Its vendor.
    pub vendor: Option<String>,
    /// Features that `host-model` adds to that model.
    pub required: Vec<String>,
    /// All features of `host-model`.
    pub features: Vec<String>,
    /// Hyper-V enlightenments.
    pub hyperv: Vec<String>,
    /// Kinds of encryption of guests' memory: `sev`, `sev-es`, `tdx`.
    pub encryption: Vec<String>,
}
