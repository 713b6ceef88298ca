//! `VirtualMachineInstancePreset`: deprecated settings for matching instances.

use super::Domain;
use crate::core::LabelSelector;
use crate::resource::{ObjectMeta, resource};

resource! {
    /// Deprecated. Settings merged into new VirtualMachineInstances with matching labels; use instance types.
    pub struct VirtualMachineInstancePreset {
        /// `kubevirt.io/v1`.
        pub api_version: String,
        /// `VirtualMachineInstancePreset`.
        pub kind: String,
        /// Name and namespace.
        pub metadata: ObjectMeta,
        /// Settings and labels.
        pub spec: Option<VirtualMachineInstancePresetSpec>,
    }

    /// Settings of a preset.
    pub struct VirtualMachineInstancePresetSpec {
        /// Virtual hardware that is merged.
        pub domain: Option<Domain>,
        /// Labels of the instances.
        pub selector: LabelSelector ["x-required" = true],
    }
}
