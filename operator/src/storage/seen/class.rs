//! StorageClass.

use std::collections::BTreeMap;

use serde_json::Value;

use super::meta::{Meta, map, text};

/// Annotation of Kubernetes' default class.
const DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";
/// Annotation of the default class for disks of virtual machines.
const VIRT_DEFAULT: &str = "storageclass.kubevirt.io/is-default-virt-class";

/// What is read of a storage class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// Metadata.
    pub meta: Meta,
    /// The provisioner's name.
    pub provisioner: String,
    /// The provisioner's parameters.
    pub parameters: BTreeMap<String, String>,
    /// Whether volumes are made only when a pod uses the claim (`WaitForFirstConsumer`).
    pub waits_for_consumer: bool,
    /// Whether claims may grow.
    pub expands: bool,
}

impl Class {
    /// Whether it is Kubernetes' default.
    pub fn is_default(&self) -> bool {
        self.meta.says(DEFAULT, "true")
    }

    /// Whether it is the default for disks of virtual machines.
    pub fn is_virt_default(&self) -> bool {
        self.meta.says(VIRT_DEFAULT, "true")
    }
}

impl From<&Value> for Class {
    fn from(object: &Value) -> Self {
        Self {
            meta: Meta::from(object),
            provisioner: text(&object["provisioner"]),
            parameters: map(&object["parameters"]),
            waits_for_consumer: object["volumeBindingMode"] == "WaitForFirstConsumer",
            expands: object["allowVolumeExpansion"] == true,
        }
    }
}
