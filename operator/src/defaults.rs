//! Defaults of settings that more than one command has.

/// Default namespace of the platform: the one that HyperConverged uses.
pub const NAMESPACE: &str = "kubevirt-hyperconverged";

/// Template of images if no other is given.
pub const IMAGE: &str = "localhost/ferrovirt:{program}";

/// The nodes' directory of network plugins, as container runtimes have it by default.
pub const CNI_DIRECTORY: &str = "/opt/cni/bin";

/// The kubelet's directory on nodes, as it is without `--root-dir`.
pub const KUBELET_DIRECTORY: &str = "/var/lib/kubelet";
