//! Disks that grow with their claims while the guest runs.
//!
//! ```text
//! claim's size in volumeStatus (operator) ─► due ─► length of file or device ─► wanted ─► launcher ─► guest
//! ```
//!
//! QEMU itself enlarges a file, which it has open; a device has grown by then. Not here: growing the volume (the CSI
//! driver), the filesystem in the guest (the guest).

use std::collections::BTreeMap;
use std::sync::Arc;

use api::kubevirt::{ClaimInfo, VirtualMachineInstanceSpec, VolumeStatus};
use api::launcher::Request;
use api::resource::Quantity;
use virt::live::is_hotpluggable;
use virt::resolve::claim_of;
use virt::size;

use super::disks;
use super::talk::Talk;
use crate::error::{Error, Kind, Result};
use crate::pods::PodDirectory;

/// Guests' disks have whole sectors.
const SECTOR: u64 = 512;

/// Sizes of claims, as they are reported, that the guest's disks have been brought to: by volume.
pub(super) type Grown = BTreeMap<String, [Option<Quantity>; 2]>;

/// A disk that may have to grow.
#[derive(Debug, PartialEq)]
pub(super) struct Due {
    /// Of the volume, and of the disk.
    name: String,
    hotpluggable: bool,
    claim: ClaimInfo,
    size: [Option<Quantity>; 2],
}

/// The disks of claims that have a size that was not looked at yet.
pub(super) fn due(spec: &VirtualMachineInstanceSpec, status: &[VolumeStatus], grown: &Grown) -> Vec<Due> {
    let volumes = spec.volumes.iter().filter(|volume| claim_of(volume).is_some());
    let due = volumes.filter_map(|volume| {
        let disk = spec.domain.devices.disks.iter().find(|disk| disk.name == volume.name)?;
        let read_only = disk.disk.as_ref().is_some_and(|disk| disk.readonly == Some(true))
            || volume.persistent_volume_claim.as_ref().is_some_and(|claim| claim.read_only == Some(true));
        let entry = status.iter().find(|one| one.name == volume.name)?;
        let hotpluggable = is_hotpluggable(volume);
        let waits = hotpluggable && entry.phase.as_deref() != Some("Ready");
        if disk.cdrom.is_some() || read_only || waits || entry.memory_dump_volume.is_some() {
            return None;
        }
        let claim = entry.persistent_volume_claim_info.clone()?;
        let size = [&claim.capacity, &claim.requests].map(|sizes| sizes.get("storage").cloned());
        let known = size == [None, None] || grown.get(&volume.name) == Some(&size);
        (!known).then(|| Due { name: volume.name.clone(), hotpluggable, claim, size })
    });
    due.collect()
}

/// The bytes that a disk is to have; `None`: it is as large. A guest is notified of a device's size always: what it knows
/// is not known here.
fn wanted(claim: &ClaimInfo, block: bool, length: u64) -> std::result::Result<Option<u64>, String> {
    if block {
        return Ok(Some(length / SECTOR * SECTOR));
    }
    Ok(size::of_grown_disk(claim)?.filter(|wanted| *wanted > length))
}

/// Grows the disks of a guest that runs, and notes the sizes of their claims. A disk that cannot grow is logged, and looked
/// at again when its claim changes.
///
/// # Errors
/// The launcher does not answer.
pub(super) async fn grow(directory: PodDirectory, instance: &str, due: Vec<Due>) -> Result<Grown> {
    let (mut talk, process) = Talk::open(&Arc::new(directory)).await?;
    let process = Arc::new(process);
    let mut grown = Grown::new();
    for Due { name, hotpluggable, claim, size } in due {
        let (of, process) = (name.clone(), Arc::clone(&process));
        let look = move || -> Result<Option<u64>> {
            let Some((block, length)) = disks::length(&of, hotpluggable, &process)? else { return Ok(None) };
            let invalid = |text| Error::new(Kind::Content, text);
            wanted(&claim, block, length).map_err(invalid)
        };
        let looked = tokio::task::spawn_blocking(look).await;
        let looked = looked.unwrap_or_else(|_| {
            Err(Error::new(Kind::System, "the look at a disk was aborted: see the agent's log"))
        });
        let done = match looked {
            Ok(None) => Ok(()),
            Ok(Some(size)) => talk.call(Request::ResizeDisk { name: name.clone(), size }).await.map(|_| {
                tracing::info!(vmi = instance, disk = name, size, "a disk has the size of its claim");
            }),
            Err(error) => Err(error),
        };
        match done {
            Ok(()) => {}
            Err(error) if error.kind() == Kind::Launcher => return Err(error),
            Err(error) => tracing::warn!(
                vmi = instance,
                disk = name,
                error = error.chain(),
                "cannot grow a disk with its claim; restart the VM, or expand the claim again"
            ),
        }
        grown.insert(name, size);
    }
    Ok(grown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn info(size: &str) -> Value {
        json!({"claimName": "c", "capacity": {"storage": size}, "requests": {"storage": size}, "filesystemOverhead": "0"})
    }

    #[test]
    fn disks_of_claims_with_another_size_are_due() {
        let claim = json!({"name": "a", "persistentVolumeClaim": {"claimName": "c"}});
        let plugged = json!({"name": "a", "dataVolume": {"name": "c", "hotpluggable": true}});
        let locked = json!({"name": "a", "persistentVolumeClaim": {"claimName": "c", "readOnly": true}});
        let overlay = json!({"name": "a", "ephemeral": {"persistentVolumeClaim": {"claimName": "c"}}});
        let disk = json!({"name": "a", "disk": {}});
        let described = json!({"name": "a", "persistentVolumeClaimInfo": info("2Gi")});
        let with = |phase: &str| {
            let mut entry = described.clone();
            entry["phase"] = json!(phase);
            entry
        };
        let dump = {
            let mut entry = with("Ready");
            entry["memoryDumpVolume"] = json!({"claimName": "c"});
            entry
        };
        for (case, volume, disk, entry, before, wanted) in [
            ("first look", &claim, &disk, &described, None, true),
            ("as before", &claim, &disk, &described, Some("2Gi"), false),
            ("grew", &claim, &disk, &described, Some("1Gi"), true),
            ("size is not known", &claim, &disk, &json!({"name": "a"}), None, false),
            ("read-only claim", &locked, &disk, &described, None, false),
            (
                "read-only disk",
                &claim,
                &json!({"name": "a", "disk": {"readonly": true}}),
                &described,
                None,
                false,
            ),
            ("CD drive", &claim, &json!({"name": "a", "cdrom": {}}), &described, None, false),
            ("overlay", &overlay, &disk, &described, None, false),
            ("without a disk", &claim, &json!({"name": "b", "disk": {}}), &described, None, false),
            ("comes", &plugged, &disk, &with("AttachedToNode"), None, false),
            ("came", &plugged, &disk, &with("Ready"), None, true),
            ("dump of memory", &plugged, &disk, &dump, None, false),
        ] {
            let spec = json!({"domain": {"devices": {"disks": [disk]}}, "volumes": [volume]});
            let spec = serde_json::from_value(spec).unwrap();
            let status: VolumeStatus = serde_json::from_value(entry.clone()).unwrap();
            let size = |text: &str| Some(Quantity(text.to_owned()));
            let grown = before.map(|before| ("a".to_owned(), [size(before), size(before)]));
            let found = due(&spec, &[status], &grown.into_iter().collect());
            assert_eq!(found.len(), usize::from(wanted), "{case}: {found:?}");
        }
    }

    #[test]
    fn files_grow_to_the_claim_and_devices_are_reported_whole() {
        const GIB: u64 = 1 << 30;
        let claim: ClaimInfo = serde_json::from_value(info("2Gi")).unwrap();
        for (block, length, size) in [
            (false, GIB, Some(2 * GIB)),
            (false, 2 * GIB, None),
            (false, 3 * GIB, None),
            (true, GIB, Some(GIB)),
            (true, GIB + 7, Some(GIB)),
        ] {
            assert_eq!(wanted(&claim, block, length), Ok(size), "{block} {length}");
        }
        let claim = serde_json::from_value(info("much")).unwrap();
        assert!(wanted(&claim, false, 0).is_err());
    }
}
