//! The kinds of resources that are known here: their names and their schemas.

#[cfg(feature = "crd")]
use serde_json::Value;

use crate::{cdi, core, kubevirt, multus};

/// The kinds that are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// kubevirt.io/v1.
    VirtualMachine,
    /// kubevirt.io/v1.
    VirtualMachineInstance,
    /// cdi.kubevirt.io/v1beta1.
    DataVolume,
    /// k8s.cni.cncf.io/v1.
    NetworkAttachmentDefinition,
    /// v1.
    PersistentVolumeClaim,
    /// v1.
    Secret,
    /// v1.
    ConfigMap,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::VirtualMachine,
        Self::VirtualMachineInstance,
        Self::DataVolume,
        Self::NetworkAttachmentDefinition,
        Self::PersistentVolumeClaim,
        Self::Secret,
        Self::ConfigMap,
    ];

    /// As objects write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::VirtualMachine => "VirtualMachine",
            Self::VirtualMachineInstance => "VirtualMachineInstance",
            Self::DataVolume => "DataVolume",
            Self::NetworkAttachmentDefinition => "NetworkAttachmentDefinition",
            Self::PersistentVolumeClaim => "PersistentVolumeClaim",
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
        }
    }

    /// Group and version as objects write them.
    pub fn api_version(self) -> &'static str {
        match self {
            Self::VirtualMachine | Self::VirtualMachineInstance => kubevirt::API_VERSION,
            Self::DataVolume => cdi::API_VERSION,
            Self::NetworkAttachmentDefinition => multus::API_VERSION,
            Self::PersistentVolumeClaim | Self::Secret | Self::ConfigMap => core::API_VERSION,
        }
    }

    /// The schema of its objects, for [`crate::schema::mismatches`].
    #[cfg(feature = "crd")]
    pub fn schema(self) -> Value {
        match self {
            Self::VirtualMachine => crate::schema::of::<kubevirt::VirtualMachine>(),
            Self::VirtualMachineInstance => crate::schema::of::<kubevirt::VirtualMachineInstance>(),
            Self::DataVolume => crate::schema::of::<cdi::DataVolume>(),
            Self::NetworkAttachmentDefinition => crate::schema::of::<multus::NetworkAttachmentDefinition>(),
            Self::PersistentVolumeClaim => crate::schema::of::<core::PersistentVolumeClaim>(),
            Self::Secret => crate::schema::of::<core::Secret>(),
            Self::ConfigMap => crate::schema::of::<core::ConfigMap>(),
        }
    }
}
