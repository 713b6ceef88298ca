//! Mediated devices that the platform makes of cards of the node: of the types that `mediatedDevicesConfiguration` names, as
//! many as a card has room for, and one type of each card. Those that it made are removed when their type is named no more.
//!
//! ```text
//! KubeVirt object, labels of the node ─► wanted types ┐
//! /sys/class/mdev_bus ────────────────────────────────┴─► plan ─► remove, create ─► note of the devices that are its own
//! ```
//!
//! Not here: which devices guests may have ([`super::mediated`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cluster::{Cache, Client};

use super::mediated::{group, plain};
use super::{noted, write_note};
use crate::error::{Error, Result};
use crate::node::report;
use crate::settings::{Settings, current};

/// How often the cards and the node's labels are looked at.
const INTERVAL: Duration = Duration::from_secs(60);
/// Directory of VFIO's nodes.
const VFIO: &str = "/dev/vfio";

/// The types that a node with these labels is to have; `None`: devices are neither made nor removed.
fn wanted(settings: &Settings, labels: &BTreeMap<String, String>) -> Option<Vec<String>> {
    let configuration = &settings.mediated_types;
    if settings.keeps_mediated_types || configuration.enabled == Some(false) {
        return None;
    }
    // The deprecated field has the value of older objects.
    let either = |types: &[String], deprecated: &[String]| -> Vec<String> {
        if types.is_empty() { deprecated.to_vec() } else { types.to_vec() }
    };
    let nodes = configuration.node_mediated_device_types.iter();
    let selected =
        nodes.filter(|one| one.node_selector.iter().all(|(name, value)| labels.get(name) == Some(value)));
    let own: Vec<String> =
        selected.flat_map(|one| either(&one.mediated_device_types, &one.mediated_devices_types)).collect();
    Some(match own.is_empty() {
        true => either(&configuration.mediated_device_types, &configuration.mediated_devices_types),
        false => own,
    })
}

/// A type of devices that a card has.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Offer {
    /// Its directory.
    id: String,
    /// Its name, as it is compared.
    name: String,
    /// How many more can be made.
    available: usize,
    /// UUIDs of its devices.
    devices: Vec<String>,
}

impl Offer {
    /// The place of its name or directory in a list of types.
    fn place(&self, wanted: &[String]) -> Option<usize> {
        // Some drivers give their types no names.
        let is_own = |one: String| !one.is_empty() && (one == self.name || one == self.id);
        wanted.iter().map(|one| plain(one)).position(is_own)
    }
}

/// Types of each card.
type Cards = BTreeMap<String, Vec<Offer>>;

/// Names in a directory, in order; none if it is not there.
fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

/// The cards of the kernel's list `bus`.
fn cards(bus: &Path) -> Cards {
    let offer = |types: &Path, id: String| {
        let directory = types.join(&id);
        let text = |file: &str| std::fs::read_to_string(directory.join(file)).unwrap_or_default();
        Offer {
            name: plain(&text("name")),
            available: text("available_instances").trim().parse().unwrap_or(0),
            devices: names(&directory.join("devices")),
            id,
        }
    };
    let types = |card: &str| bus.join(card).join("mdev_supported_types");
    let offers =
        |card: &str| names(&types(card)).into_iter().map(|id| offer(&types(card), id)).collect::<Vec<_>>();
    names(bus).into_iter().map(|card| (card.clone(), offers(&card))).collect()
}

/// Devices to remove: own ones of types that are not wanted.
fn superfluous(cards: &Cards, own: &BTreeSet<String>, wanted: &[String]) -> Vec<String> {
    let unwanted = cards.values().flatten().filter(|offer| offer.place(wanted).is_none());
    unwanted.flat_map(|offer| &offer.devices).filter(|uuid| own.contains(*uuid)).cloned().collect()
}

/// The type of which a card gets more devices: it has room for them, and all its devices are own ones of this wanted type.
fn begun<'a>(offers: &'a [Offer], own: &BTreeSet<String>, wanted: &[String]) -> Option<&'a Offer> {
    let mut made = offers.iter().filter(|offer| !offer.devices.is_empty());
    let (first, second) = (made.next()?, made.next());
    let is_own = first.devices.iter().all(|uuid| own.contains(uuid));
    (second.is_none() && is_own && first.available > 0 && first.place(wanted).is_some()).then_some(first)
}

/// Devices to make: card, type, count. A card that was filled in part gets the rest; another one that has devices is left
/// alone. Of the wanted types that a card offers it gets the one that the fewest cards have.
fn missing(cards: &Cards, own: &BTreeSet<String>, wanted: &[String]) -> Vec<(String, String, usize)> {
    let mut used = vec![0_usize; wanted.len()];
    let has_devices = |offers: &[Offer]| offers.iter().any(|offer| !offer.devices.is_empty());
    for offer in cards.values().flatten().filter(|offer| !offer.devices.is_empty()) {
        if let Some(count) = offer.place(wanted).and_then(|place| used.get_mut(place)) {
            *count += 1;
        }
    }
    let mut missing = Vec::new();
    for (card, offers) in cards {
        if let Some(offer) = begun(offers, own, wanted) {
            missing.push((card.clone(), offer.id.clone(), offer.available));
        }
        if has_devices(offers) {
            continue;
        }
        let possible = offers.iter().filter(|offer| offer.available > 0);
        let possible = possible.filter_map(|offer| Some((offer.place(wanted)?, offer)));
        let fewest = possible.min_by_key(|(place, _)| (used.get(*place).copied(), *place));
        let Some((place, offer)) = fewest else { continue };
        if let Some(count) = used.get_mut(place) {
            *count += 1;
        }
        missing.push((card.clone(), offer.id.clone(), offer.available));
    }
    missing
}

/// Gives the kernel a text through a file that is there.
fn give(file: &Path, text: &str) -> Result<()> {
    let written = OpenOptions::new()
        .write(true)
        .open(file)
        .and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes()));
    written.map_err(|error| Error::system(format!("cannot write {text} to {}", file.display()), error))
}

/// Opens the group of a device, which one process at a time can: no guest gets the device until it is closed. `None`: there is
/// no group by which a guest could have it.
///
/// # Errors
/// The system's error: EBUSY while a guest has the device.
fn hold(sys: &Path, nodes: &Path, uuid: &str) -> io::Result<Option<File>> {
    let Some(group) = group(&sys.join("bus/mdev/devices"), uuid) else { return Ok(None) };
    match OpenOptions::new().read(true).write(true).open(nodes.join(group)) {
        Ok(held) => Ok(Some(held)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes and makes devices of the system's directory `sys`, until they are those of the wanted types. `nodes` has the nodes of
/// their groups. A device that a guest has is removed later.
///
/// # Errors
/// The note cannot be read or written. A device that cannot be made or removed is logged, and tried again.
fn follow(sys: &Path, nodes: &Path, note: &Path, wanted: &[String]) -> Result<()> {
    let bus = sys.join("class/mdev_bus");
    let before: BTreeSet<String> = noted(note)?;
    for uuid in superfluous(&cards(&bus), &before, wanted) {
        // The kernel lets the removal wait for the guest that has the device, and no signal ends that.
        let _held = match hold(sys, nodes, &uuid) {
            Ok(held) => held,
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                tracing::info!(uuid, "a guest has a mediated device that is to be removed; retrying");
                continue;
            }
            Err(error) => {
                tracing::warn!(uuid, %error, "cannot open the group of a mediated device; retrying");
                continue;
            }
        };
        match give(&sys.join("bus/mdev/devices").join(&uuid).join("remove"), "1") {
            Ok(()) => tracing::info!(uuid, "mediated device removed"),
            Err(error) => tracing::warn!(error = error.chain(), "cannot remove a mediated device; retrying"),
        }
    }
    let cards = cards(&bus);
    let there: BTreeSet<&String> = cards.values().flatten().flat_map(|offer| &offer.devices).collect();
    let mut own: BTreeSet<String> = before.iter().filter(|uuid| there.contains(uuid)).cloned().collect();
    let mut written = before;
    for (card, kind, count) in missing(&cards, &own, wanted) {
        let create = bus.join(&card).join("mdev_supported_types").join(&kind).join("create");
        for _ in 0..count {
            let uuid = std::fs::read_to_string("/proc/sys/kernel/random/uuid")
                .map_err(|error| Error::system("cannot make a UUID", error))?;
            let uuid = uuid.trim().to_owned();
            // Before the device is there: one that no note names would never be removed.
            own.insert(uuid.clone());
            write_note(note, &own)?;
            written.clone_from(&own);
            if let Err(error) = give(&create, &uuid) {
                own.remove(&uuid);
                tracing::warn!(error = error.chain(), "cannot make a mediated device; retrying");
                break;
            }
            tracing::info!(uuid, card, kind, "mediated device made");
        }
    }
    if own == written { Ok(()) } else { write_note(note, &own) }
}

/// Keeps the devices true as long as the process runs. `note` is the file of those that are its own.
pub(crate) async fn keep(client: Client, settings: Cache<Settings>, node: String, note: PathBuf) {
    settings.synced().await;
    let mut changes = settings.changes();
    loop {
        let now = current(&settings);
        match labels(&client, &now, &node).await {
            Ok(labels) => {
                if let Some(types) = wanted(&now, &labels) {
                    let note = note.clone();
                    let work = move || follow(Path::new("/sys"), Path::new(VFIO), &note, &types);
                    // The driver of a card may take seconds for a device.
                    match tokio::task::spawn_blocking(work).await {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => {
                            tracing::warn!(
                                error = error.chain(),
                                "cannot follow mediatedDevicesConfiguration"
                            );
                        }
                        Err(error) => tracing::warn!(%error, "cannot follow mediatedDevicesConfiguration"),
                    }
                }
            }
            Err(error) => tracing::warn!(error = error.chain(), "cannot read the node's labels; retrying"),
        }
        tokio::select! {
            _ = changes.next() => {}
            () = tokio::time::sleep(INTERVAL) => {}
        }
    }
}

/// The node's labels, where the configuration asks for them.
async fn labels(client: &Client, settings: &Settings, node: &str) -> Result<BTreeMap<String, String>> {
    if settings.mediated_types.node_mediated_device_types.is_empty() {
        return Ok(BTreeMap::new());
    }
    report::labels(client, node).await
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    fn settings(configuration: &serde_json::Value, gates: &[&str]) -> Settings {
        let object = json!({"spec": {"configuration": {
            "mediatedDevicesConfiguration": configuration, "developerConfiguration": {"featureGates": gates}}}});
        Settings::from(&serde_json::from_value::<api::kubevirt::KubeVirt>(object).unwrap())
    }

    #[test]
    fn wanted_types_are_those_of_the_node_or_else_of_all_nodes() {
        let nodes = json!([
            {"nodeSelector": {"zone": "a"}, "mediatedDeviceTypes": ["nvidia-222"]},
            {"nodeSelector": {"zone": "a", "size": "l"}, "mediatedDevicesTypes": ["nvidia-231"]},
        ]);
        let all = json!({"mediatedDeviceTypes": ["i915-4"], "nodeMediatedDeviceTypes": nodes});
        for (configuration, gates, labels, wanted_types) in [
            (json!(null), &[][..], &[][..], Some(vec![])),
            (json!({"mediatedDevicesTypes": ["old"]}), &[], &[], Some(vec!["old"])),
            (
                json!({"mediatedDevicesTypes": ["old"], "mediatedDeviceTypes": ["new"]}),
                &[],
                &[],
                Some(vec!["new"]),
            ),
            (all.clone(), &[], &[("zone", "b")], Some(vec!["i915-4"])),
            (all.clone(), &[], &[("zone", "a")], Some(vec!["nvidia-222"])),
            (all.clone(), &[], &[("zone", "a"), ("size", "l")], Some(vec!["nvidia-222", "nvidia-231"])),
            (all, &["DisableMDEVConfiguration"], &[("zone", "a")], None),
            (json!({"mediatedDeviceTypes": ["new"], "enabled": false}), &[], &[], None),
        ] {
            let labels =
                labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let found = wanted(&settings(&configuration, gates), &labels);
            let wanted_types = wanted_types.map(|all| all.into_iter().map(str::to_owned).collect::<Vec<_>>());
            assert_eq!(found, wanted_types, "{configuration} {gates:?} {labels:?}");
        }
    }

    fn offer(id: &str, name: &str, available: usize, devices: &[&str]) -> Offer {
        let devices = devices.iter().map(|uuid| (*uuid).to_owned()).collect();
        Offer { id: id.to_owned(), name: name.to_owned(), available, devices }
    }

    #[test]
    fn wanted_types_are_spread_over_cards_without_devices() {
        let card = |name: &str, offers: Vec<Offer>| (name.to_owned(), offers);
        let both =
            || vec![offer("nvidia-222", "GRID_T4-1Q", 16, &[]), offer("nvidia-223", "GRID_T4-2Q", 8, &[])];
        let busy =
            || vec![offer("nvidia-222", "GRID_T4-1Q", 15, &["u"]), offer("nvidia-223", "GRID_T4-2Q", 0, &[])];
        let own = BTreeSet::from(["one".to_owned(), "two".to_owned()]);
        let part = |devices: &[&str]| {
            vec![offer("nvidia-222", "GRID_T4-1Q", 14, devices), offer("nvidia-223", "GRID_T4-2Q", 0, &[])]
        };
        let types = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let made = |card: &str, kind: &str, count: usize| (card.to_owned(), kind.to_owned(), count);
        for (cards, names, devices) in [
            (vec![card("a", both())], types(&[]), vec![]),
            (vec![card("a", both())], types(&["GRID T4-2Q"]), vec![made("a", "nvidia-223", 8)]),
            (
                vec![card("a", both()), card("b", both()), card("c", both())],
                types(&["nvidia-222", "nvidia-223"]),
                vec![made("a", "nvidia-222", 16), made("b", "nvidia-223", 8), made("c", "nvidia-222", 16)],
            ),
            // A card with devices counts, and is left alone.
            (
                vec![card("a", busy()), card("b", both())],
                types(&["nvidia-222", "nvidia-223"]),
                vec![made("b", "nvidia-223", 8)],
            ),
            (vec![card("a", vec![offer("i915-4", "", 0, &[])])], types(&["i915-4"]), vec![]),
            (vec![card("a", both())], types(&["other"]), vec![]),
            // Two of 16 were made. With a device of another maker, or of a type that is not wanted, the card is left alone.
            (
                vec![card("a", part(&["one", "two"]))],
                types(&["nvidia-222"]),
                vec![made("a", "nvidia-222", 14)],
            ),
            (vec![card("a", part(&["one", "u"]))], types(&["nvidia-222"]), vec![]),
            (vec![card("a", part(&["one", "two"]))], types(&["nvidia-223"]), vec![]),
        ] {
            assert_eq!(missing(&cards.into_iter().collect(), &own, &names), devices, "{names:?}");
        }
    }

    #[test]
    fn own_devices_of_other_types_are_removed() {
        let cards = Cards::from([(
            "a".to_owned(),
            vec![
                offer("nvidia-222", "GRID_T4-1Q", 0, &["one", "two"]),
                offer("nvidia-223", "x", 0, &["three"]),
            ],
        )]);
        let own = BTreeSet::from(["one".to_owned(), "three".to_owned(), "gone".to_owned()]);
        for (wanted, removed) in [
            (&["nvidia-222"][..], vec!["three"]),
            (&[], vec!["one", "three"]),
            (&["GRID T4-1Q", "nvidia-223"], vec![]),
        ] {
            let wanted: Vec<String> = wanted.iter().map(|one| (*one).to_owned()).collect();
            assert_eq!(superfluous(&cards, &own, &wanted), removed, "{wanted:?}");
        }
    }

    /// A directory in place of /sys, with a card of one type that has room for two devices.
    fn sys() -> (tempfile::TempDir, PathBuf) {
        let sys = tempfile::tempdir().unwrap();
        let kind = sys.path().join("class/mdev_bus/0000:65:00.0/mdev_supported_types/nvidia-222");
        fs::create_dir_all(kind.join("devices")).unwrap();
        fs::create_dir_all(sys.path().join("bus/mdev/devices")).unwrap();
        for (file, text) in [("name", "GRID T4-1Q\n"), ("available_instances", "2\n"), ("create", "")] {
            fs::write(kind.join(file), text).unwrap();
        }
        (sys, kind)
    }

    /// The devices that a note names.
    fn own_devices(note: &Path) -> BTreeSet<String> {
        noted(note).unwrap()
    }

    #[test]
    fn devices_are_made_noted_and_removed_by_the_note() {
        let (sys, kind) = sys();
        let note = sys.path().join("note.json");
        let wanted = ["GRID T4-1Q".to_owned()];
        follow(sys.path(), sys.path(), &note, &wanted).unwrap();
        let own: Vec<String> = own_devices(&note).into_iter().collect();
        let written = fs::read_to_string(kind.join("create")).unwrap();
        assert!(own.len() == 2 && own.contains(&written), "{own:?} {written}");
        // As the kernel would have it, with a device of another maker.
        let foreign = "6b4f2c1e-0000-4000-8000-000000000001".to_owned();
        for uuid in own.iter().chain([&foreign]) {
            fs::create_dir(kind.join("devices").join(uuid)).unwrap();
            let device = sys.path().join("bus/mdev/devices").join(uuid);
            fs::create_dir(&device).unwrap();
            fs::write(device.join("remove"), "").unwrap();
        }
        let removed = |uuid: &String| {
            let file = sys.path().join("bus/mdev/devices").join(uuid).join("remove");
            fs::read_to_string(file).unwrap() == "1"
        };
        follow(sys.path(), sys.path(), &note, &wanted).unwrap();
        assert!(!own.iter().any(removed) && own_devices(&note).len() == 2, "nothing changes");
        // After a restart of the agent only the note knows them.
        follow(sys.path(), sys.path(), &note, &[]).unwrap();
        assert!(own.iter().all(removed) && !removed(&foreign));
        assert_eq!(own_devices(&note).len(), 2, "they are its own until they are gone");
        own.iter().for_each(|uuid| fs::remove_dir(kind.join("devices").join(uuid)).unwrap());
        follow(sys.path(), sys.path(), &note, &[]).unwrap();
        assert_eq!(own_devices(&note), BTreeSet::new());
    }

    #[test]
    fn a_device_stays_while_its_group_cannot_be_held() {
        const UUID: &str = "6b4f2c1e-0000-4000-8000-000000000001";
        let (sys, kind) = sys();
        let (note, nodes) = (sys.path().join("note.json"), sys.path().join("vfio"));
        write_note(&note, &BTreeSet::from([UUID.to_owned()])).unwrap();
        fs::create_dir(kind.join("devices").join(UUID)).unwrap();
        let device = sys.path().join("bus/mdev/devices").join(UUID);
        fs::create_dir(&device).unwrap();
        fs::write(device.join("remove"), "").unwrap();
        std::os::unix::fs::symlink("../../kernel/iommu_groups/20", device.join("iommu_group")).unwrap();
        // A directory cannot be opened for writing.
        fs::create_dir_all(nodes.join("20")).unwrap();
        follow(sys.path(), &nodes, &note, &[]).unwrap();
        assert_eq!(fs::read_to_string(device.join("remove")).unwrap(), "");
        assert_eq!(own_devices(&note).len(), 1, "it is removed later");
        fs::remove_dir(nodes.join("20")).unwrap();
        fs::write(nodes.join("20"), "").unwrap();
        follow(sys.path(), &nodes, &note, &[]).unwrap();
        assert_eq!(fs::read_to_string(device.join("remove")).unwrap(), "1");
    }

    #[test]
    fn a_device_that_cannot_be_made_is_not_noted() {
        let (sys, kind) = sys();
        let note = sys.path().join("note.json");
        fs::remove_file(kind.join("create")).unwrap();
        follow(sys.path(), sys.path(), &note, &["nvidia-222".to_owned()]).unwrap();
        assert_eq!(own_devices(&note), BTreeSet::new());
    }
}
