//! `KubeVirt` configuration of networks and bindings.

use std::collections::BTreeMap;

use crate::core::ResourceAmounts;
use crate::resource::resource;

resource! {
    /// Networks and bindings.
    pub struct NetworkConfiguration {
        /// Network binding plugins, by name.
        pub binding: BTreeMap<String, BindingPlugin>,
        /// `bridge` or `masquerade`: binding of VMs that define no interface. Default: `masquerade`.
        pub default_network_interface: Option<String>,
        /// Whether the bridge binding is allowed on the pod network. Default: true.
        pub permit_bridge_interface_on_pod_network: Option<bool>,
        /// Ignored: the slirp binding does not exist any more.
        pub permit_slirp_interface: Option<bool>,
    }

    /// Network binding plugin.
    pub struct BindingPlugin {
        /// Additional resources of the container `compute`.
        pub compute_resource_overhead: Option<ResourceAmounts>,
        /// `tap` or `managedTap`: form of the interface in the libvirt domain.
        pub domain_attachment_type: Option<String>,
        /// `device-info`: information that the sidecar gets.
        #[serde(rename = "downwardAPI")]
        pub downward_api: Option<String>,
        /// Live migration of interfaces with this binding.
        pub migration: Option<BindingMigration>,
        /// `NAME` or `NAMESPACE/NAME` of the network attachment for launcher pods.
        pub network_attachment_definition: Option<String>,
        /// Image of the sidecar container.
        pub sidecar_image: Option<String>,
    }

    /// Live migration of interfaces with a binding plugin.
    pub struct BindingMigration {
        /// `link-refresh`: the guest sees the link go down and up.
        pub method: Option<String>,
    }
}
