//! The driver's CreateVolume request for a claim, as csi-provisioner v6 with `--extra-create-metadata`,
//! `--strict-topology` and `--default-fstype=xfs` sends it. Pure.

use std::collections::{BTreeMap, HashMap};

use csi::volume_capability::access_mode::Mode;
use csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use csi::{
    CapacityRange, CreateVolumeRequest, Topology, TopologyRequirement, VolumeCapability, VolumeContentSource,
};

use super::objects::{Claim, Class};

/// Keys of a StorageClass that are Kubernetes' and not the driver's.
const RESERVED: &str = "csi.storage.k8s.io/";
const FSTYPE: &str = "csi.storage.k8s.io/fstype";
/// The filesystem of a class that names none: it lets the kubelet apply fsGroup.
const DEFAULT_FSTYPE: &str = "xfs";

/// Facts about the driver and the node.
#[derive(Clone, Debug)]
pub(super) struct Place<'a> {
    /// The node's topology, as the driver reports it.
    pub(super) topology: &'a HashMap<String, String>,
    /// Whether the driver distinguishes one writer on a node from several.
    pub(super) several_writers: bool,
}

/// Name of a claim's volume and PV.
pub(super) fn name(claim: &Claim) -> String {
    name_by_uid(&claim.metadata.uid)
}

/// The same, by the claim's uid.
pub(super) fn name_by_uid(uid: &str) -> String {
    format!("pvc-{uid}")
}

/// The filesystem of a claim's volume; `None` for a block device.
pub(super) fn filesystem<'a>(claim: &Claim, class: &'a Class) -> Option<&'a str> {
    let asked = class.parameters.get(FSTYPE).map(String::as_str).filter(|name| !name.is_empty());
    (!claim.is_block()).then_some(asked.unwrap_or(DEFAULT_FSTYPE))
}

/// A class's parameters for the driver.
pub(super) fn parameters(class: &Class) -> HashMap<String, String> {
    let ours = class.parameters.iter().filter(|(key, _)| !key.starts_with(RESERVED));
    ours.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// The request that makes a claim's volume; `attributes` are those of its VolumeAttributesClass.
pub(super) fn create(
    claim: &Claim,
    class: &Class,
    place: &Place<'_>,
    source: Option<VolumeContentSource>,
    attributes: &BTreeMap<String, String>,
) -> CreateVolumeRequest {
    let mut parameters = parameters(class);
    for (key, value) in [
        ("csi.storage.k8s.io/pvc/name", claim.metadata.name.clone()),
        ("csi.storage.k8s.io/pvc/namespace", claim.metadata.namespace.clone()),
        ("csi.storage.k8s.io/pv/name", name(claim)),
    ] {
        parameters.insert(key.to_owned(), value);
    }
    let topology = vec![Topology { segments: place.topology.clone() }];
    CreateVolumeRequest {
        name: name(claim),
        capacity_range: Some(CapacityRange {
            required_bytes: claim.requested().and_then(|bytes| i64::try_from(bytes).ok()).unwrap_or(0),
            limit_bytes: 0,
        }),
        volume_capabilities: capabilities(claim, class, place.several_writers),
        parameters,
        volume_content_source: source,
        accessibility_requirements: Some(TopologyRequirement {
            requisite: topology.clone(),
            preferred: topology,
        }),
        mutable_parameters: attributes.clone().into_iter().collect(),
        ..CreateVolumeRequest::default()
    }
}

fn capabilities(claim: &Claim, class: &Class, several_writers: bool) -> Vec<VolumeCapability> {
    let access = |mode: Mode| VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(match filesystem(claim, class) {
            None => AccessType::Block(BlockVolume {}),
            Some(filesystem) => AccessType::Mount(MountVolume {
                fs_type: filesystem.to_owned(),
                mount_flags: class.mount_options.clone(),
                volume_mount_group: String::new(),
            }),
        }),
    };
    claim.spec.access_modes.iter().map(|mode| access(self::mode(mode, several_writers))).collect()
}

/// CSI's word for a claim's access mode.
pub(super) fn mode(mode: &str, several_writers: bool) -> Mode {
    match mode {
        "ReadWriteOnce" if several_writers => Mode::SingleNodeMultiWriter,
        "ReadWriteOncePod" if several_writers => Mode::SingleNodeSingleWriter,
        "ReadWriteOnce" | "ReadWriteOncePod" => Mode::SingleNodeWriter,
        "ReadOnlyMany" => Mode::MultiNodeReaderOnly,
        "ReadWriteMany" => Mode::MultiNodeMultiWriter,
        _ => Mode::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_request_has_what_the_sidecar_sends() {
        let claim: Claim = serde_json::from_value(json!({
            "metadata": {"name": "data", "namespace": "shop", "uid": "u1"},
            "spec": {
                "accessModes": ["ReadWriteOnce", "ReadOnlyMany"],
                "resources": {"requests": {"storage": "1500k"}},
            },
        }))
        .unwrap();
        let class: Class = serde_json::from_value(json!({
            "parameters": {"storagePool": "legacy", "csi.storage.k8s.io/fstype": "ext4"},
            "mountOptions": ["noatime"],
        }))
        .unwrap();
        let topology = HashMap::from([("topology.hostpath.csi/node".to_owned(), "node1".to_owned())]);
        let place = Place { topology: &topology, several_writers: true };
        let request = create(&claim, &class, &place, None, &BTreeMap::new());
        assert_eq!(request.name, "pvc-u1");
        assert_eq!(request.capacity_range.unwrap().required_bytes, 1_500_000);
        assert_eq!(request.parameters.len(), 4, "{:?}", request.parameters);
        assert_eq!(request.parameters["csi.storage.k8s.io/pv/name"], "pvc-u1");
        let wanted = request.accessibility_requirements.unwrap();
        assert_eq!((wanted.requisite.len(), wanted.preferred.len()), (1, 1));
        let modes: Vec<i32> = request
            .volume_capabilities
            .iter()
            .map(|capability| capability.access_mode.as_ref().unwrap().mode)
            .collect();
        assert_eq!(modes, [i32::from(Mode::SingleNodeMultiWriter), i32::from(Mode::MultiNodeReaderOnly)]);
        match request.volume_capabilities[0].access_type.as_ref().unwrap() {
            AccessType::Mount(mount) => {
                assert_eq!(
                    (mount.fs_type.as_str(), mount.mount_flags.as_slice()),
                    ("ext4", &["noatime".to_owned()][..])
                );
            }
            AccessType::Block(_) => panic!("a block device"),
        }
    }

    #[test]
    fn access_modes_are_csis() {
        for (mode, several, expected) in [
            ("ReadWriteOnce", true, Mode::SingleNodeMultiWriter),
            ("ReadWriteOnce", false, Mode::SingleNodeWriter),
            ("ReadWriteOncePod", true, Mode::SingleNodeSingleWriter),
            ("ReadOnlyMany", true, Mode::MultiNodeReaderOnly),
            ("ReadWriteMany", false, Mode::MultiNodeMultiWriter),
            ("Other", true, Mode::Unknown),
        ] {
            assert_eq!(super::mode(mode, several), expected, "{mode}");
        }
    }
}
