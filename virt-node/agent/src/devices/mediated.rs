//! Mediated devices of the node that guests may have: those of `permittedHostDevices` that exist. A driver of the host, such as
//! that of virtual GPUs, makes them of a device of its own.
//!
//! Not here: their plugins ([`super::permitted`]), making them ([`super::mediated_types`]), resources of other device plugins
//! (`externalResourceProvider`).

use std::collections::BTreeMap;
use std::path::Path;

use api::kubevirt::PermittedMediatedDevice;
use api::launch::is_uuid;

use super::{Units, linked};

/// A name of a type as it is compared: with _ for blanks, as upstream.
pub(super) fn plain(name: &str) -> String {
    name.trim().replace(' ', "_")
}

/// The name of a device's type, or that of the type's directory where its driver gives none.
fn kind(devices: &Path, uuid: &str) -> Option<String> {
    let kind = devices.join(uuid).join("mdev_type");
    let name = std::fs::read_to_string(kind.join("name")).ok().or_else(|| linked(&kind))?;
    Some(plain(&name))
}

/// The group of devices that a device is isolated with.
pub(super) fn group(devices: &Path, uuid: &str) -> Option<String> {
    is_uuid(uuid).then(|| linked(&devices.join(uuid).join("iommu_group")))?
}

/// All devices that can be given to guests, by their UUIDs, with the names of their types.
fn all(devices: &Path) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(devices).into_iter().flatten().flatten();
    let uuids = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let isolated = uuids.filter(|uuid| group(devices, uuid).is_some());
    isolated.filter_map(|uuid| Some((uuid.clone(), kind(devices, &uuid)?))).collect()
}

/// The node's devices of each resource that is permitted and not another plugin's, found in the kernel's list `devices`.
pub(super) fn offered(permitted: &[PermittedMediatedDevice], devices: &Path) -> BTreeMap<String, Units> {
    let found = if permitted.is_empty() { BTreeMap::new() } else { all(devices) };
    let mut resources: BTreeMap<String, Units> = BTreeMap::new();
    for one in permitted.iter().filter(|one| one.external_resource_provider != Some(true)) {
        let selector = plain(&one.mdev_name_selector);
        let units = resources.entry(one.resource_name.clone()).or_default();
        let of_kind = found.iter().filter(|(_, kind)| **kind == selector);
        units.extend(of_kind.map(|(uuid, _)| (uuid.clone(), true)));
    }
    resources
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use serde_json::json;

    use super::*;
    use crate::devices::Bus;

    const FIRST: &str = "6b4f2c1e-0000-4000-8000-000000000001";
    const SECOND: &str = "6b4f2c1e-0000-4000-8000-000000000002";
    const UNNAMED: &str = "6b4f2c1e-0000-4000-8000-000000000003";
    const SHARED: &str = "6b4f2c1e-0000-4000-8000-000000000004";

    /// Two devices of a type, one of a type without a name, one that is not isolated, and what is no device.
    fn node() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let types = directory.path().join("types");
        for (kind, name) in [("nvidia-222", Some("GRID T4-1Q\n")), ("i915-4", None)] {
            std::fs::create_dir_all(types.join(kind)).unwrap();
            if let Some(name) = name {
                std::fs::write(types.join(kind).join("name"), name).unwrap();
            }
        }
        for (name, kind, group) in [
            (FIRST, "nvidia-222", Some("20")),
            (SECOND, "nvidia-222", Some("21")),
            (UNNAMED, "i915-4", Some("22")),
            (SHARED, "nvidia-222", None),
            ("not-a-uuid", "nvidia-222", Some("23")),
        ] {
            let device = directory.path().join(name);
            std::fs::create_dir(&device).unwrap();
            symlink(types.join(kind), device.join("mdev_type")).unwrap();
            if let Some(group) = group {
                symlink(format!("../../../kernel/iommu_groups/{group}"), device.join("iommu_group")).unwrap();
            }
        }
        directory
    }

    #[test]
    fn devices_of_permitted_types_are_offered() {
        let node = node();
        let device = |selector: &str, external: bool| json!({"mdevNameSelector": selector, "resourceName": "a/b", "externalResourceProvider": external});
        for (permitted, wanted) in [
            (vec![], None),
            (vec![device("GRID T4-1Q", false)], Some(vec![FIRST, SECOND])),
            (vec![device("GRID_T4-1Q", false)], Some(vec![FIRST, SECOND])),
            (vec![device("GRID T4-1Q", true)], None),
            (vec![device("i915-4", false), device("GRID T4-1Q", false)], Some(vec![FIRST, SECOND, UNNAMED])),
            (vec![device("GRID T4-2Q", false)], Some(vec![])),
        ] {
            let permitted: Vec<PermittedMediatedDevice> =
                permitted.into_iter().map(|one| serde_json::from_value(one).unwrap()).collect();
            let mut found = offered(&permitted, node.path());
            let units = found.remove("a/b").map(|units| units.into_keys().collect::<Vec<_>>());
            let wanted = wanted.map(|all| all.into_iter().map(str::to_owned).collect::<Vec<_>>());
            assert!(units == wanted && found.is_empty(), "{permitted:?}: {units:?}");
        }
    }

    #[test]
    fn a_container_gets_the_nodes_of_its_devices_and_their_uuids() {
        let node = node();
        let ids = [FIRST.to_owned(), SECOND.to_owned()];
        let answer = Bus::Mediated.allocate(node.path(), "nvidia.com/GRID_T4-1Q", &ids).unwrap();
        let nodes: Vec<&str> = answer.devices.iter().map(|one| one.host_path.as_str()).collect();
        assert_eq!(nodes, ["/dev/vfio/20", "/dev/vfio/21", "/dev/vfio/vfio"]);
        let name = "MDEV_PCI_RESOURCE_NVIDIA_COM_GRID_T4-1Q";
        assert_eq!(answer.envs.get(name), Some(&ids.join(",")));
        for id in [SHARED, "6b4f2c1e-0000-4000-8000-00000000ffff", "../..", "not-a-uuid"] {
            let refused = Bus::Mediated.allocate(node.path(), "a/b", &[id.to_owned()]).unwrap_err();
            assert!(refused.contains(id), "{refused}");
        }
    }
}
