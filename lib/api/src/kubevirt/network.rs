//! Network interfaces of a guest, and the networks they are attached to.

use crate::resource::{Empty, resource};

resource! {
    /// Network interface on the network of the same name, with one binding.
    pub struct Interface {
        /// Name of the interface and its network.
        pub name: String ["x-required" = true],
        /// Address of its own behind NAT. For the pod network.
        pub masquerade: Option<MasqueradeBinding>,
        /// Address of the network, by a bridge.
        pub bridge: Option<BridgeBinding>,
        /// `virtio` (default), `e1000`, `e1000e`, `ne2k_pci`, `pcnet` or `rtl8139`.
        pub model: Option<String>,
        /// MAC address, such as `02:00:00:12:34:56`. Default: assigned and kept.
        pub mac_address: Option<String>,
        /// Ports that are forwarded with masquerade. Default: all.
        pub ports: Vec<Port>,
        /// Position in the boot order, from 1, unique among disks and interfaces. Default: not booted from.
        pub boot_order: Option<u32>,
        /// ACPI index, from which systemd in the guest derives the name: `eno1` for 1.
        pub acpi_index: Option<u32>,
        /// Tag shown to the guest in the config drive.
        pub tag: Option<String>,
        /// `up` (default), `down` or `absent`.
        pub state: Option<String>,
        /// Binding plugin.
        pub binding: Option<PluginBinding>,
        /// Additional DHCP options.
        pub dhcp_options: Option<DhcpOptions>,
        /// Removed from KubeVirt: use `bridge`.
        pub macvtap: Option<Empty>,
        /// Removed from KubeVirt: use `masquerade`.
        pub passt: Option<Empty>,
        /// Passt, user-mode network of the launcher.
        pub passt_binding: Option<Empty>,
        /// PCI address in the guest, such as `0000:81:01.0`.
        pub pci_address: Option<String>,
        /// Port ranges that are forwarded.
        pub port_ranges: Vec<PortRange>,
        /// Removed from KubeVirt: use `masquerade`.
        pub slirp: Option<Empty>,
        /// SR-IOV virtual function.
        pub sriov: Option<Empty>,
    }

    /// Binding plugin.
    pub struct PluginBinding {
        /// Name of the plugin in the KubeVirt configuration.
        pub name: String ["x-required" = true],
    }

    /// Additional DHCP options.
    pub struct DhcpOptions {
        /// Boot file (option 67).
        pub boot_file_name: Option<String>,
        /// NTP servers (option 42).
        pub ntp_servers: Vec<String>,
        /// Private options.
        pub private_options: Vec<DhcpPrivateOption>,
        /// TFTP server (option 66).
        pub tftp_server_name: Option<String>,
    }

    /// Private DHCP option.
    pub struct DhcpPrivateOption {
        /// Number from 224 to 254.
        pub option: i64 ["x-required" = true],
        /// Value.
        pub value: String ["x-required" = true],
    }

    /// Range of forwarded ports.
    pub struct PortRange {
        /// Last port.
        pub end: i32 ["x-required" = true],
        /// `TCP` or `UDP`.
        pub protocol: String ["x-required" = true],
        /// First port.
        pub start: i32 ["x-required" = true],
    }

    /// Forwarded port.
    pub struct Port {
        /// Name.
        pub name: Option<String>,
        /// `TCP` (default) or `UDP`.
        pub protocol: Option<String>,
        /// Port number.
        pub port: Option<u16> ["x-required" = true],
    }

    /// Network; exactly one source is set.
    pub struct Network {
        /// Name, a DNS label.
        pub name: String ["x-required" = true],
        /// Pod network; on a standalone machine the machine's own network.
        pub pod: Option<PodNetwork>,
        /// NetworkAttachmentDefinition.
        pub multus: Option<MultusNetwork>,
        /// Network device from a resource claim.
        pub resource_claim: Option<NetworkClaim>,
    }

    /// NetworkAttachmentDefinition.
    pub struct MultusNetwork {
        /// `NAME` in the same namespace, or `NAMESPACE/NAME`.
        pub network_name: String ["x-required" = true],
        /// Whether it replaces the pod network. Default: false.
        #[serde(rename = "default")]
        pub is_default: Option<bool>,
    }

    /// Pod network.
    pub struct PodNetwork {
        /// IPv4 network of a guest behind masquerade. Default: 10.0.2.0/24.
        #[serde(rename = "vmNetworkCIDR")]
        pub vm_network_cidr: Option<String>,
        /// IPv6 network of a guest behind masquerade. Default: fd10:0:2::/120.
        #[serde(rename = "vmIPv6NetworkCIDR")]
        pub vm_ipv6_network_cidr: Option<String>,
    }

    /// Network device from a resource claim.
    pub struct NetworkClaim {
        /// Entry of `resourceClaims`.
        pub claim_name: Option<String>,
        /// Request within the claim.
        pub request_name: Option<String>,
    }

    /// Masquerade binding (no fields).
    pub struct MasqueradeBinding {
    }

    /// Bridge binding (no fields).
    pub struct BridgeBinding {
    }
}
