//! Network interfaces, and the networks they are on.

use crate::resource::resource;

resource! {
    /// A network interface on the network of the same name, with one way of binding.
    pub struct Interface {
        /// Its name, and the network's.
        pub name: String,
        /// The guest is behind an address of its own, by nftables. For the pod network.
        pub masquerade: Option<MasqueradeBinding>,
        /// The guest has the address that the network gave.
        pub bridge: Option<BridgeBinding>,
        /// `virtio` (default), `e1000`, `e1000e`, `ne2k_pci`, `pcnet` or `rtl8139`.
        pub model: Option<String>,
        /// Ethernet address, such as `02:00:00:12:34:56`. Default: one that is made up and kept.
        pub mac_address: Option<String>,
        /// Ports that are forwarded with masquerade. Default: all.
        pub ports: Vec<Port>,
        /// Place among the devices that are booted from, from 1; each one once. Default: not booted from.
        pub boot_order: Option<u32>,
        /// Number by which systemd in the guest calls the interface: `eno1`.
        pub acpi_index: Option<u32>,
        /// A word that a config drive tells about the interface.
        pub tag: Option<String>,
        /// `up` (default), `down` or `absent`.
        pub state: Option<String>,
    }

    /// Masquerade; has no options.
    pub struct MasqueradeBinding {
    }

    /// Bridge; has no options.
    pub struct BridgeBinding {
    }

    /// A port that is forwarded.
    pub struct Port {
        /// Its name.
        pub name: Option<String>,
        /// `TCP` (default) or `UDP`.
        pub protocol: Option<String>,
        /// Its number.
        pub port: Option<u16>,
    }

    /// A network: a name, and one of the two.
    pub struct Network {
        /// Its name, a DNS label.
        pub name: String,
        /// The network of pods; standalone, the machine's own.
        pub pod: Option<PodNetwork>,
        /// A NetworkAttachmentDefinition.
        pub multus: Option<MultusNetwork>,
    }

    /// The network of pods.
    pub struct PodNetwork {
        /// IPv4 subnet of a guest behind masquerade. Default: 10.0.2.0/24.
        #[serde(rename = "vmNetworkCIDR")]
        pub vm_network_cidr: Option<String>,
        /// IPv6 subnet of a guest behind masquerade. Default: fd10:0:2::/120.
        #[serde(rename = "vmIPv6NetworkCIDR")]
        pub vm_ipv6_network_cidr: Option<String>,
    }

    /// A NetworkAttachmentDefinition.
    pub struct MultusNetwork {
        /// `NAME` in the same namespace, or `NAMESPACE/NAME`.
        pub network_name: String,
        /// Whether it takes the pod network's place. Default: no.
        #[serde(rename = "default")]
        pub is_default: Option<bool>,
    }
}
