//! The device plugins of `permittedHostDevices`: one for each resource that the node has devices of.
//!
//! ```text
//! KubeVirt object (watch) ───────────┐
//! /sys/bus/{pci,mdev,usb}/devices ───┴─► units by resource ─► note of USB sets ─► plugins started, updated, stopped
//! ```
//!
//! Not here: which devices there are ([`super::pci`], [`super::mediated`], [`super::usb`]).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cluster::Cache;
use tokio::sync::watch;

use super::{Bus, Give, Offer, Running, Units, noted, start, write_note};
use crate::error::Result;
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

/// The same, with its USB sets in the file `note` before the kubelet learns of them: guests keep their sets while the agent is
/// restarted, and the next one has to know which devices are together.
///
/// # Errors
/// The note cannot be read or written.
fn offered_and_noted(
    settings: &Settings,
    buses: &Path,
    note: &Path,
) -> Result<BTreeMap<String, (Give, Units)>> {
    let before: BTreeMap<String, Units> = noted(note)?;
    let offered = offered(settings, buses, &before);
    let of_usb = offered.iter().filter(|(_, (give, _))| matches!(give, Give::Found(Bus::Usb, _)));
    let sets: BTreeMap<String, Units> =
        of_usb.map(|(resource, (_, units))| (resource.clone(), units.clone())).collect();
    if sets != before {
        write_note(note, &sets)?;
    }
    Ok(offered)
}

/// Starts, updates and stops plugins: afterwards each offered resource has one.
fn follow(plugins: &mut BTreeMap<String, Kept>, offered: BTreeMap<String, (Give, Units)>, directory: &Path) {
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
                let kept = Kept { give, tell, _running: start(offer, directory) };
                plugins.insert(resource, kept);
            }
        }
    }
}

/// Keeps the plugins true as long as the process runs. `directory` is the kubelet's, `note` the file of the USB sets.
pub(crate) async fn keep(settings: Cache<Settings>, directory: PathBuf, note: PathBuf) {
    settings.synced().await;
    let mut changes = settings.changes();
    let mut plugins: BTreeMap<String, Kept> = BTreeMap::new();
    loop {
        let permitted = current(&settings);
        let idle = permitted.pci_devices.is_empty()
            && permitted.mediated_devices.is_empty()
            && permitted.usb_devices.is_empty();
        let note = note.clone();
        let work = move || offered_and_noted(&permitted, Path::new(BUSES), &note);
        let failed = match tokio::task::spawn_blocking(work).await {
            Ok(Ok(offered)) => {
                follow(&mut plugins, offered, &directory);
                false
            }
            Ok(Err(error)) => {
                tracing::warn!(error = error.chain(), "cannot offer the node's devices to pods; retrying");
                true
            }
            Err(error) => {
                tracing::warn!(%error, "cannot offer the node's devices to pods; retrying");
                true
            }
        };
        tokio::select! {
            _ = changes.next() => {}
            () = tokio::time::sleep(INTERVAL), if failed || !idle => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn sets_of_usb_devices_are_kept_for_the_next_agent() {
        let node = tempfile::tempdir().unwrap();
        let note = node.path().join("usb-sets.json");
        let plug = |name: &str, address: &str, product: &str| {
            let device = node.path().join("usb/devices").join(name);
            std::fs::create_dir_all(&device).unwrap();
            for (file, text) in
                [("busnum", "2"), ("devnum", address), ("idVendor", "046d"), ("idProduct", product)]
            {
                std::fs::write(device.join(file), text).unwrap();
            }
        };
        let object = r#"{"spec": {"configuration": {"permittedHostDevices": {"usb": [{"resourceName": "a/desk",
            "selectors": [{"vendor": "046d", "product": "c31c"}, {"vendor": "046d", "product": "c077"}]}]}}}}"#;
        let settings = Settings::from(&serde_json::from_str::<api::kubevirt::KubeVirt>(object).unwrap());
        let sets = |settings: &Settings| -> Vec<String> {
            let found = offered_and_noted(settings, node.path(), &note).unwrap();
            found.into_values().flat_map(|(_, units)| units.into_keys()).collect()
        };
        assert_eq!(sets(&Settings::default()), [""; 0]);
        assert!(!note.exists(), "without sets there is nothing to note");
        plug("2-2", "5", "c31c");
        plug("2-3", "4", "c077");
        assert_eq!(sets(&settings), ["2:5,2:4"]);
        // A keyboard with a lower address, which comes before the other in a new set.
        plug("2-1", "3", "c31c");
        assert_eq!(sets(&settings), ["2:5,2:4"]);
        std::fs::remove_file(&note).unwrap();
        assert_eq!(sets(&settings), ["2:3,2:4"]);
        // Nothing is offered of which the next agent would not know.
        std::fs::write(&note, "cut short").unwrap();
        assert!(offered_and_noted(&settings, node.path(), &note).is_err());
    }

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
