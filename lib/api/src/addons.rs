//! The group networkaddonsoperator.network.kubevirt.io: `NetworkAddonsConfig`, the network components of the platform, in
//! its versions v1 and v1alpha1, which have one form.
//!
//! Not here: what the settings do.

use crate::core::NodePlacement;
use crate::hyperconverged::TlsProfile;
use crate::resource::{Condition, Empty, ObjectMeta, resource};

/// Group and version as objects write them.
pub const API_VERSION: &str = "networkaddonsoperator.network.kubevirt.io/v1";
/// Group.
pub const GROUP: &str = "networkaddonsoperator.network.kubevirt.io";
/// Name of the one object that has an effect.
pub const NAME: &str = "cluster";

resource! {
    /// Network components of the platform. Only the object `cluster` has an effect.
    pub struct NetworkAddonsConfig {
        /// `networkaddonsoperator.network.kubevirt.io/v1`.
        pub api_version: String,
        /// `NetworkAddonsConfig`.
        pub kind: String,
        /// Name.
        pub metadata: ObjectMeta,
        /// Components and their settings.
        pub spec: NetworkAddonsSpec,
        /// Conditions, versions and containers.
        pub status: Option<NetworkAddonsStatus>,
    }

    /// Components, each present if it is deployed, and settings of all.
    pub struct NetworkAddonsSpec {
        /// `Always`, `IfNotPresent` or `Never`; `IfNotPresent` by default.
        pub image_pull_policy: Option<String>,
        /// MAC address pool.
        pub kube_mac_pool: Option<MacPool>,
        /// DNS server for secondary networks.
        #[serde(rename = "kubeSecondaryDNS")]
        pub kube_secondary_dns: Option<SecondaryDns>,
        /// Addresses of primary networks that users define.
        pub kubevirt_ipam_controller: Option<IpamController>,
        /// Bridge plugin and marks of bridges on nodes (no fields).
        pub linux_bridge: Option<Empty>,
        /// Device plugin for macvtap.
        pub macvtap: Option<Macvtap>,
        /// Attachment to several networks (no fields).
        pub multus: Option<Empty>,
        /// Attachment of running pods to further networks (no fields).
        pub multus_dynamic_networks: Option<Empty>,
        /// Open vSwitch plugin and marks of its bridges (no fields).
        pub ovs: Option<Empty>,
        /// Nodes of the pods.
        pub placement_configuration: Option<PlacementConfiguration>,
        /// Lifetime of the certificates.
        pub self_sign_configuration: Option<SelfSigned>,
        /// TLS versions and ciphers of the servers.
        pub tls_security_profile: Option<TlsProfile>,
    }

    /// MAC address pool: both ends are set, or none.
    pub struct MacPool {
        /// Last address.
        pub range_end: Option<String>,
        /// First address.
        pub range_start: Option<String>,
    }

    /// DNS server for secondary networks.
    pub struct SecondaryDns {
        /// Domain of the names.
        pub domain: Option<String>,
        /// Address of the server.
        #[serde(rename = "nameServerIP")]
        pub name_server_ip: Option<String>,
    }

    /// Addresses of primary networks that users define.
    pub struct IpamController {
        /// Namespace of the default NetworkAttachmentDefinition.
        #[serde(rename = "defaultNetworkNADNamespace")]
        pub default_network_nad_namespace: Option<String>,
    }

    /// Device plugin for macvtap.
    pub struct Macvtap {
        /// Name of the ConfigMap with its resources.
        pub device_plugin_config: Option<String>,
    }

    /// Nodes of the pods.
    pub struct PlacementConfiguration {
        /// Pods of the control plane.
        pub infra: Option<NodePlacement>,
        /// Pods of every node.
        pub workloads: Option<NodePlacement>,
    }

    /// Lifetime of the certificates; all are set, or none.
    pub struct SelfSigned {
        /// Time for which an old CA is trusted.
        pub ca_overlap_interval: Option<String>,
        /// Age at which a CA is renewed.
        pub ca_rotate_interval: Option<String>,
        /// Time for which an old certificate is valid.
        pub cert_overlap_interval: Option<String>,
        /// Age at which a certificate is renewed.
        pub cert_rotate_interval: Option<String>,
    }

    /// State of the network components.
    pub struct NetworkAddonsStatus {
        /// Conditions `Available`, `Progressing` and `Degraded`.
        pub conditions: Vec<Condition> ["x-omit" = ["lastProbeTime"]],
        /// Containers of the components.
        pub containers: Vec<ComponentContainer>,
        /// Installed version.
        pub observed_version: Option<String>,
        /// Version of the operator.
        pub operator_version: Option<String>,
        /// Version that is being installed.
        pub target_version: Option<String>,
    }

    /// Container of a component.
    pub struct ComponentContainer {
        /// Image.
        pub image: String ["x-required" = true],
        /// Name of the container.
        pub name: String ["x-required" = true],
        /// `Deployment` or `DaemonSet`.
        pub parent_kind: String ["x-required" = true],
        /// Name of the Deployment or DaemonSet.
        pub parent_name: String ["x-required" = true],
    }
}
