//! StorageClass.

use std::collections::BTreeMap;

use serde_json::Value;

use super::meta::{Meta, map, text};

/// Annotation of Kubernetes' default class.
const DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";
/// Annotation of the default class for disks of virtual machines.
const VIRT_DEFAULT: &str = "storageclass.kubevirt.io/is-default-virt-class";

/// The fields read from a storage class.
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
    /// The keys of its allowedTopologies.
    pub topology_keys: Vec<String>,
}

impl Class {
    /// Whether it is Kubernetes' default.
    pub fn is_default(&self) -> bool {
        self.meta.says(DEFAULT, "true")
    }

    /// Of a class of Ceph RBD that the kernel maps: whether the map options have `rxbounce`. A guest may change pages
    /// while they are sent; without it, that looks like damage on the way, and is sent again. Nothing of other classes.
    pub fn bounces(&self) -> Option<bool> {
        let parameter = |name: &str| self.parameters.get(name).map(String::as_str).unwrap_or_default();
        let mapped = self.provisioner.ends_with("rbd.csi.ceph.com") && parameter("mounter") != "rbd-nbd";
        // Such as "krbd:rxbounce;nbd:timeout=60", or "rxbounce,lock_on_read" for the kernel alone.
        let mut options = parameter("mapOptions").split(';').flat_map(|one| {
            let (mapper, options) = one.split_once(':').unwrap_or(("krbd", one));
            options.split(',').filter(move |_| mapper.trim() == "krbd")
        });
        mapped.then(|| options.any(|one| one.trim() == "rxbounce"))
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
            topology_keys: topology_keys(&object["allowedTopologies"]),
        }
    }
}

fn topology_keys(terms: &Value) -> Vec<String> {
    let terms = terms.as_array().into_iter().flatten();
    let all = terms.flat_map(|term| term["matchLabelExpressions"].as_array().into_iter().flatten());
    all.map(|one| text(&one["key"])).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_of_all_terms_of_a_topology_are_read() {
        let term = |key: &str| json!({"matchLabelExpressions": [{"key": key, "values": ["a"]}]});
        let class = json!({"provisioner": "x", "allowedTopologies": [term("zone"), term("node")]});
        assert_eq!(Class::from(&class).topology_keys, ["zone", "node"]);
        assert!(Class::from(&json!({"provisioner": "x"})).topology_keys.is_empty());
    }

    #[test]
    fn classes_of_the_kernels_rbd_client_bounce_by_their_option() {
        let class = |provisioner: &str, parameters: &[(&str, &str)]| Class {
            provisioner: provisioner.into(),
            parameters: parameters.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect(),
            ..Class::default()
        };
        for (provisioner, parameters, expected) in [
            ("kubevirt.io.hostpath-provisioner", &[][..], None),
            ("rbd.csi.ceph.com", &[], Some(false)),
            ("openshift-storage.rbd.csi.ceph.com", &[("mapOptions", "krbd:rxbounce")], Some(true)),
            ("rbd.csi.ceph.com", &[("mapOptions", "rxbounce,lock_on_read")], Some(true)),
            ("rbd.csi.ceph.com", &[("mapOptions", "nbd:timeout=60;krbd:lock_on_read,rxbounce")], Some(true)),
            ("rbd.csi.ceph.com", &[("mapOptions", "nbd:rxbounce")], Some(false)),
            ("rbd.csi.ceph.com", &[("mounter", "rbd-nbd")], None),
        ] {
            assert_eq!(class(provisioner, parameters).bounces(), expected, "{provisioner} {parameters:?}");
        }
    }
}
