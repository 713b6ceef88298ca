//! Labels and annotations of the platform on Node objects, written by the node agents and the operator. Not here: which a
//! node has (virt-agent).

/// Whether launcher pods may be scheduled there.
pub const SCHEDULABLE: &str = "kubevirt.io/schedulable";
/// When the agent was last alive; older than five minutes, the operator takes the node for dead.
pub const HEARTBEAT: &str = "kubevirt.io/heartbeat";
/// Labels that begin so, and no others, are the processor's and are removed when they are not true any more.
pub const PROCESSOR: [&str; 12] = [
    "cpu-feature.node.kubevirt.io/",
    "cpu-model.node.kubevirt.io/",
    "cpu-model-migration.node.kubevirt.io/",
    "cpu-timer.node.kubevirt.io/",
    "cpu-vendor.node.kubevirt.io/",
    "host-model-cpu.node.kubevirt.io/",
    "host-model-required-features.node.kubevirt.io/",
    "hyperv.node.kubevirt.io/",
    "kubevirt.io/realtime",
    // `sev-es`, too.
    "kubevirt.io/sev",
    "kubevirt.io/tdx",
    "machine-type.node.kubevirt.io/",
];
/// Whether the kubelet gives processors to pods alone: upstream's label before and now.
pub const CPU_MANAGER: [&str; 2] = ["cpumanager", "kubevirt.io/cpumanager"];
/// Whether the kernel merges equal pages.
pub const MERGED_PAGES: &str = "kubevirt.io/ksm-enabled";
