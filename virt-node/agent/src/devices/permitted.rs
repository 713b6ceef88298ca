//! The device plugins of `permittedHostDevices`: one for each resource that the node has devices of.
//!
//! ```text
//! KubeVirt object (watch) ───────────┐
//! /sys/bus/{pci,mdev,usb}/devices ───┴─► units by resource ─► plugins started, updated, stopped
//! ```
//!
//! Not here: which devices there are ([`super::pci`], [`super::mediated`], [`super::usb`]).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cluster::Cache;
use tokio::sync::watch;

use super::{Bus, Give, Offer, Running, Units, start};
use crate::settings::{Settings, current};

/// The kernel's lists of devices, by bus.
const BUSES: &str = "/sys/bus";
/// How often the node's devices are looked at: administrators bind drivers at any time.
const INTERVAL: Duration = Duration::from_secs(10);

/// A plugin of a resource.
struct Kept {
    give: Give,
    tell: watch::Sender<Units>,
    _running: Running,
}

/// What the node has of each permitted resource. One of several buses is that of the first with units. `before`: units that
/// were offered.
fn offered(
    settings: &Settings,
    buses: &Path,
    before: &BTreeMap<String, Units>,
) -> BTreeMap<String, (Give, Units)> {
    let mut all: BTreeMap<String, (Give, Units)> = BTreeMap::new();
    for bus in Bus::ALL {
        let devices = buses.join(bus.list());
        for (resource, units) in bus.offered(settings, &devices, before) {
            if all.get(&resource).is_none_or(|(_, before)| before.is_empty()) {
                all.insert(resource, (Give::Found(bus, devices.clone()), units));
            }
        }
    }
    all
}

/// Keeps the plugins true as long as the process runs. `directory` is the kubelet's.
pub(crate) async fn keep(settings: Cache<Settings>, directory: PathBuf) {
    settings.synced().await;
    let mut changes = settings.changes();
    let mut plugins: BTreeMap<String, Kept> = BTreeMap::new();
    loop {
        let permitted = current(&settings);
        let idle = permitted.pci_devices.is_empty()
            && permitted.mediated_devices.is_empty()
            && permitted.usb_devices.is_empty();
        let units = |(resource, kept): (&String, &Kept)| (resource.clone(), kept.tell.borrow().clone());
        let before = plugins.iter().map(units).collect();
        let offered = offered(&permitted, Path::new(BUSES), &before);
        plugins.retain(|resource, kept| offered.get(resource).is_some_and(|(give, _)| *give == kept.give));
        for (resource, (give, units)) in offered {
            match plugins.get(&resource) {
                Some(kept) => {
                    kept.tell.send_if_modified(|known| {
                        let new = *known != units;
                        *known = units;
                        new
                    });
                }
                None if units.is_empty() => {}
                None => {
                    let (tell, units) = watch::channel(units);
                    let socket = format!("kubevirt-{}.sock", resource.replace('/', "-"));
                    let offer = Offer { resource: resource.clone(), socket, units, give: give.clone() };
                    let kept = Kept { give, tell, _running: start(offer, &directory) };
                    plugins.insert(resource, kept);
                }
            }
        }
        tokio::select! {
            _ = changes.next() => {}
            () = tokio::time::sleep(INTERVAL), if !idle => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_resource_of_several_buses_has_one_plugin() {
        const UUID: &str = "6b4f2c1e-0000-4000-8000-000000000001";
        let buses = tempfile::tempdir().unwrap();
        let device = buses.path().join("mdev/devices").join(UUID);
        std::fs::create_dir_all(&device).unwrap();
        symlink("../types/share", device.join("mdev_type")).unwrap();
        symlink("../../kernel/iommu_groups/20", device.join("iommu_group")).unwrap();
        let object = r#"{"spec": {"configuration": {"permittedHostDevices": {
            "pciHostDevices": [{"pciVendorSelector": "10DE:1EB8", "resourceName": "a/both"},
                {"pciVendorSelector": "10DE:1EB8", "resourceName": "a/card"}],
            "mediatedDevices": [{"mdevNameSelector": "share", "resourceName": "a/both"},
                {"mdevNameSelector": "other", "resourceName": "a/other"}]}}}}"#;
        let settings = Settings::from(&serde_json::from_str::<api::kubevirt::KubeVirt>(object).unwrap());
        let has_units = |all: &BTreeMap<String, (Give, Units)>| -> Vec<(String, bool, usize)> {
            let one = |(resource, (give, units)): (&String, &(Give, Units))| {
                (resource.clone(), matches!(give, Give::Found(Bus::Pci, _)), units.len())
            };
            all.iter().map(one).collect()
        };
        let found = has_units(&offered(&settings, buses.path(), &BTreeMap::new()));
        let wanted = |both: bool| {
            [
                ("a/both".to_owned(), both, 1),
                ("a/card".to_owned(), true, usize::from(both)),
                ("a/other".to_owned(), false, 0),
            ]
        };
        assert_eq!(found, wanted(false), "the node has the mediated device alone");
        let card = buses.path().join("pci/devices/0000:65:00.0");
        std::fs::create_dir_all(&card).unwrap();
        std::fs::write(card.join("vendor"), "0x10de\n").unwrap();
        std::fs::write(card.join("device"), "0x1eb8\n").unwrap();
        symlink("../../drivers/vfio-pci", card.join("driver")).unwrap();
        symlink("../../kernel/iommu_groups/7", card.join("iommu_group")).unwrap();
        assert_eq!(has_units(&offered(&settings, buses.path(), &BTreeMap::new())), wanted(true));
    }
}
