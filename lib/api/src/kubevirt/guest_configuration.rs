//! `KubeVirt` configuration of guests: defaults, limits, SMBIOS strings, confidential computing.

use crate::core::LabelSelector;
use crate::resource::{Empty, Quantity, resource};

resource! {
    /// Settings by guest architecture.
    pub struct ArchitectureConfiguration {
        /// x86-64.
        pub amd64: Option<ArchitectureDefaults>,
        /// ARM64.
        pub arm64: Option<ArchitectureDefaults>,
        /// Architecture of VMs that name none.
        pub default_architecture: Option<String>,
        /// POWER (not supported).
        pub ppc64le: Option<ArchitectureDefaults>,
        /// IBM Z (not supported).
        pub s390x: Option<ArchitectureDefaults>,
    }

    /// Defaults of guests of one architecture.
    pub struct ArchitectureDefaults {
        /// Patterns of supported machine types.
        pub emulated_machines: Vec<String>,
        /// Machine type of VMs that name none.
        pub machine_type: Option<String>,
        /// Directory of the EFI firmware.
        pub ovmf_path: Option<String>,
    }

    /// Labels that enable changed block tracking.
    pub struct ChangedBlockTrackingSelectors {
        /// Labels of namespaces.
        pub namespace_label_selector: Option<LabelSelector>,
        /// Labels of VMs.
        pub virtual_machine_label_selector: Option<LabelSelector>,
    }

    /// Settings of confidential VMs.
    pub struct ConfidentialCompute {
        /// Intel TDX.
        pub tdx: Option<TdxConfiguration>,
    }

    /// Settings of Intel TDX guests.
    pub struct TdxConfiguration {
        /// Attestation.
        pub attestation: Option<TdxAttestation>,
    }

    /// Attestation of Intel TDX guests.
    pub struct TdxAttestation {
        /// Whether a guest needs the quote generation service to start.
        pub enforced: Option<bool> ["x-default" = false],
        /// Socket of the quote generation service on the node.
        pub qgs_socket_path: Option<String> ["x-default" = "/var/run/tdx-qgs/qgs.socket"],
    }

    /// Hypervisor on the nodes.
    pub struct Hypervisor {
        /// Name of the hypervisor.
        pub name: Option<String> ["enum" = ["kvm", "hyperv-direct"]],
    }

    /// Handling of references to instance types and preferences.
    pub struct InstancetypeConfiguration {
        /// `reference` keeps references, `expand` expands them when a VM is created or changed, `expandAll` also expands
        /// existing references.
        pub reference_policy: Option<String> ["enum" = ["reference", "expand", "expandAll"]],
    }

    /// Kernel same-page merging on the nodes.
    pub struct KsmConfiguration {
        /// Labels of the nodes on which it is switched on.
        pub node_label_selector: Option<LabelSelector>,
    }

    /// Limits of CPU and memory hotplug.
    pub struct LiveUpdateConfiguration {
        /// Most sockets of a guest.
        pub max_cpu_sockets: Option<i32>,
        /// Most memory of a guest.
        pub max_guest: Option<Quantity>,
        /// Factor between initial and most CPU sockets and memory. Default: 4.
        pub max_hotplug_ratio: Option<i32>,
    }

    /// SMBIOS system strings of the guests.
    pub struct SmbiosConfiguration {
        /// Family.
        pub family: Option<String>,
        /// Manufacturer.
        pub manufacturer: Option<String>,
        /// Product.
        pub product: Option<String>,
        /// SKU.
        pub sku: Option<String>,
        /// Version.
        pub version: Option<String>,
    }

    /// Defaults of VMs.
    pub struct VirtualMachineOptions {
        /// Present: guests do not report free memory pages.
        pub disable_free_page_reporting: Option<Empty>,
        /// Present: serial consoles are not logged.
        pub disable_serial_console_log: Option<Empty>,
    }
}
