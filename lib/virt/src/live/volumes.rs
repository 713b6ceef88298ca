//! Volumes that are attached and detached while the guest runs: those that the template calls `hotpluggable`.
//!
//! A volume is in `volumeStatus` from before it is attached until the guest has released it, and its claim is in use for
//! as long.

use std::collections::BTreeMap;

use api::kubevirt::{
    ClaimInfo, Disk, HotplugVolumeStatus, VirtualMachineInstance, VirtualMachineInstanceSpec, Volume,
    VolumeStatus,
};

use super::size;
use crate::resolve::claim_of;

/// Whether a volume may come and go while the guest runs.
pub fn is_hotpluggable(volume: &Volume) -> bool {
    let claim = volume.persistent_volume_claim.as_ref().and_then(|claim| claim.hotpluggable);
    claim.or(volume.data_volume.as_ref().and_then(|volume| volume.hotpluggable)).unwrap_or(false)
}

/// A volume of a spec, by its name.
pub fn volume<'a>(spec: &'a VirtualMachineInstanceSpec, name: &str) -> Option<&'a Volume> {
    spec.volumes.iter().find(|volume| volume.name == name)
}

fn disk<'a>(spec: &'a VirtualMachineInstanceSpec, name: &str) -> Option<&'a Disk> {
    spec.domain.devices.disks.iter().find(|disk| disk.name == name)
}

/// Whether a volume is in a CD drive, which stays when the volume is taken out.
pub fn is_in_drive(spec: &VirtualMachineInstanceSpec, name: &str) -> bool {
    disk(spec, name).is_some_and(|disk| disk.cdrom.is_some())
}

/// Takes a volume and its disk out of a spec; of a CD drive, what is in it.
pub fn take_out(spec: &mut VirtualMachineInstanceSpec, name: &str) {
    spec.volumes.retain(|volume| volume.name != name);
    spec.domain.devices.disks.retain(|disk| disk.name != name || disk.cdrom.is_some());
}

/// A run's spec with the hotpluggable volumes of its machine's template. One that is another volume now goes first, and
/// comes when nothing of it is there any more.
pub fn followed(
    template: &VirtualMachineInstanceSpec,
    run: &VirtualMachineInstanceSpec,
    there: &[VolumeStatus],
) -> VirtualMachineInstanceSpec {
    let mut spec = run.clone();
    for before in run.volumes.iter().filter(|volume| is_hotpluggable(volume)) {
        if volume(template, &before.name) != Some(before) {
            take_out(&mut spec, &before.name);
        }
    }
    for wanted in template.volumes.iter().filter(|volume| is_hotpluggable(volume)) {
        let here = run.volumes.iter().any(|volume| volume.name == wanted.name)
            || there.iter().any(|status| status.name == wanted.name);
        match (disk(template, &wanted.name), disk(&spec, &wanted.name)) {
            _ if here => {}
            // A drive cannot come to a guest that runs.
            (Some(new), None) if new.cdrom.is_some() => {}
            (Some(new), None) => {
                spec.volumes.push(wanted.clone());
                spec.domain.devices.disks.push(new.clone());
            }
            (Some(new), Some(there)) if new.cdrom.is_some() && there.cdrom.is_some() => {
                spec.volumes.push(wanted.clone());
            }
            (Some(_) | None, _) => {}
        }
    }
    spec
}

/// Whether a run is of another template than its machine has now, apart from volumes that come and go by themselves, and
/// from processors and memory that come.
pub fn needs_restart(template: &VirtualMachineInstanceSpec, run: &VirtualMachineInstanceSpec) -> bool {
    let parts = |spec: &VirtualMachineInstanceSpec| {
        let mut rest = spec.clone();
        let mut moving = BTreeMap::new();
        for volume in spec.volumes.iter().filter(|volume| is_hotpluggable(volume)) {
            take_out(&mut rest, &volume.name);
            let disk = disk(spec, &volume.name).filter(|disk| disk.cdrom.is_none());
            moving.insert(volume.name.clone(), (volume.clone(), disk.cloned()));
        }
        (rest, moving)
    };
    let ((mut wanted, moving), (rest, there)) = (parts(template), parts(&size::followed(template, run)));
    wanted.start_strategy.clone_from(&rest.start_strategy);
    // Where the guest may run is looked at when it moves.
    wanted.node_selector.clone_from(&rest.node_selector);
    wanted.affinity.clone_from(&rest.affinity);
    wanted.tolerations.clone_from(&rest.tolerations);
    size::give_room(&mut wanted, &rest);
    let changed = moving.iter().any(|(name, (volume, disk))| {
        there.get(name).is_some_and(|(before, of)| before == volume && of != disk)
    });
    wanted != rest || changed
}

/// The step for a volume of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Move {
    /// Attach the volume of this name.
    Attach(String),
    /// Detach the volume of this name.
    Detach(String),
}

/// The steps for the volumes of a run that has a guest.
pub fn moves(spec: &VirtualMachineInstanceSpec, there: &[VolumeStatus]) -> Vec<Move> {
    let status_of = |name: &str| there.iter().find(|status| status.name == name);
    let is_other = |status: &VolumeStatus, volume: &Volume| {
        let info = status.persistent_volume_claim_info.as_ref();
        let claim = info.and_then(|info| info.claim_name.as_deref());
        claim.is_some() && claim != claim_of(volume)
    };
    let coming = spec.volumes.iter().filter(|volume| {
        is_hotpluggable(volume)
            && status_of(&volume.name)
                .is_none_or(|status| status.phase.as_deref() != Some("Ready") && !is_other(status, volume))
    });
    let going = there.iter().filter(|status| !is_utility(spec, &status.name)).filter(|status| {
        let wanted = volume(spec, &status.name).filter(|one| is_hotpluggable(one));
        status.hotplug_volume.is_some() && wanted.is_none_or(|wanted| is_other(status, wanted))
    });
    let going = going.map(|status| Move::Detach(status.name.clone()));
    going.chain(coming.map(|volume| Move::Attach(volume.name.clone()))).collect()
}

fn is_utility(spec: &VirtualMachineInstanceSpec, name: &str) -> bool {
    spec.utility_volumes.iter().any(|volume| volume.name == name)
}

/// Phases of a volume that a guest's memory is dumped to.
pub mod dump {
    /// The dump is being written.
    pub const IN_PROGRESS: &str = "MemoryDumpInProgress";
    /// The dump is whole.
    pub const COMPLETED: &str = "MemoryDumpCompleted";
    /// There is no dump.
    pub const FAILED: &str = "MemoryDumpFailed";
    /// All of them.
    pub const PHASES: [&str; 3] = [IN_PROGRESS, COMPLETED, FAILED];
    /// Type of such a utility volume.
    pub const TYPE: &str = "MemoryDump";
}

/// Volumes that are on the node of a run and wait for a dump of its memory.
pub fn dumps(spec: &VirtualMachineInstanceSpec, there: &[VolumeStatus]) -> Vec<String> {
    let waits = |name: &str| {
        let status = there.iter().find(|status| status.name == name);
        let phase = status.and_then(|status| status.phase.as_deref());
        matches!(phase, Some("AttachedToNode" | dump::IN_PROGRESS))
    };
    let volumes = spec.utility_volumes.iter();
    let volumes = volumes.filter(|volume| volume.kind.as_deref() == Some(dump::TYPE) && waits(&volume.name));
    volumes.map(|volume| volume.name.clone()).collect()
}

/// The status of a volume that is a claim.
pub fn status_of(volume: &Volume, phase: &str) -> Option<VolumeStatus> {
    let info = ClaimInfo { claim_name: Some(claim_of(volume)?.to_owned()), ..ClaimInfo::default() };
    Some(VolumeStatus {
        name: volume.name.clone(),
        phase: Some(phase.to_owned()),
        persistent_volume_claim_info: Some(info),
        hotplug_volume: is_hotpluggable(volume).then(HotplugVolumeStatus::default),
        ..VolumeStatus::default()
    })
}

/// The statuses of the volumes of a guest that was started just now.
pub fn attached(spec: &VirtualMachineInstanceSpec) -> Vec<VolumeStatus> {
    let named = |volume: &Volume| VolumeStatus { name: volume.name.clone(), ..VolumeStatus::default() };
    spec.volumes.iter().map(|volume| status_of(volume, "Ready").unwrap_or_else(|| named(volume))).collect()
}

/// Claims of volumes that are attached to a run.
pub fn claims_there(run: &VirtualMachineInstance) -> impl Iterator<Item = &str> {
    let there = run.status.iter().flat_map(|status| &status.volume_status);
    there.filter_map(|one| one.persistent_volume_claim_info.as_ref()?.claim_name.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A spec with a disk that stays, and these that come and go: name and claim.
    fn spec(moving: &[(&str, &str)]) -> VirtualMachineInstanceSpec {
        let volumes = moving.iter().map(|(name, claim)| {
            json!({"name": name, "persistentVolumeClaim": {"claimName": claim, "hotpluggable": true}})
        });
        let root = json!({"name": "root", "dataVolume": {"name": "root"}});
        let volumes: Vec<_> = std::iter::once(root).chain(volumes).collect();
        let disks: Vec<_> = volumes.iter().map(|volume| json!({"name": volume["name"]})).collect();
        serde_json::from_value(json!({
            "domain": {"devices": {"disks": disks}},
            "volumes": volumes,
        }))
        .unwrap()
    }

    fn there(spec: &VirtualMachineInstanceSpec) -> Vec<VolumeStatus> {
        attached(spec)
    }

    #[test]
    fn a_run_follows_the_volumes_that_come_and_go() {
        for (name, template, run, wanted) in [
            ("same", spec(&[("a", "1")]), spec(&[("a", "1")]), spec(&[("a", "1")])),
            ("comes", spec(&[("a", "1"), ("b", "2")]), spec(&[("a", "1")]), spec(&[("a", "1"), ("b", "2")])),
            ("goes", spec(&[("b", "2")]), spec(&[("a", "1"), ("b", "2")]), spec(&[("b", "2")])),
            ("another claim: goes first", spec(&[("a", "2")]), spec(&[("a", "1")]), spec(&[])),
        ] {
            assert_eq!(followed(&template, &run, &there(&run)), wanted, "{name}");
        }
        let (old, new) = (spec(&[("a", "1")]), spec(&[("a", "2")]));
        assert_eq!(followed(&new, &spec(&[]), &there(&old)), spec(&[]), "not gone yet");
        assert_eq!(followed(&new, &spec(&[]), &[]), new);
        let mut fixed = spec(&[]);
        fixed.volumes[0].name = "other".to_owned();
        assert_eq!(followed(&fixed, &spec(&[]), &[]), spec(&[]), "what does not come and go stays");
    }

    #[test]
    fn hotplugged_volumes_need_no_restart() {
        let run = spec(&[("a", "1"), ("b", "2")]);
        assert!(!needs_restart(&run, &run));
        assert!(!needs_restart(&spec(&[("b", "2"), ("a", "1")]), &run), "in another order");
        assert!(!needs_restart(&spec(&[("c", "3")]), &run));
        let mut other = run.clone();
        other.domain.devices.disks[1].serial = Some("x".to_owned());
        assert!(needs_restart(&other, &run));
        let mut other = run.clone();
        other.volumes.remove(0);
        assert!(needs_restart(&other, &run));
        let mut paused = run.clone();
        paused.start_strategy = Some("Paused".to_owned());
        assert!(!needs_restart(&run, &paused));
    }

    #[test]
    fn the_medium_of_a_drive_changes_and_the_drive_stays() {
        let drive = |mut spec: VirtualMachineInstanceSpec, name: &str| {
            spec.domain.devices.disks.retain(|disk| disk.name != name);
            let disk = json!({"name": name, "cdrom": {"bus": "sata"}});
            spec.domain.devices.disks.push(serde_json::from_value(disk).unwrap());
            spec
        };
        let (empty, full) = (drive(spec(&[]), "cd"), drive(spec(&[("cd", "1")]), "cd"));
        let other = drive(spec(&[("cd", "2")]), "cd");
        assert_eq!(followed(&full, &empty, &[]), full, "insert");
        assert_eq!(followed(&empty, &full, &there(&full)), empty, "eject");
        assert_eq!(followed(&other, &full, &there(&full)), empty, "another: eject first");
        assert_eq!(followed(&full, &spec(&[]), &[]), spec(&[]), "a drive comes with the next start");
        assert!(!needs_restart(&full, &empty) && !needs_restart(&empty, &full));
        assert!(needs_restart(&full, &spec(&[])) && needs_restart(&spec(&[]), &empty));
    }

    #[test]
    fn memory_is_dumped_once_to_a_volume_that_is_on_the_node() {
        let mut run = spec(&[]);
        let volume = json!([{"name": "d", "claimName": "d", "type": "MemoryDump"}]);
        run.utility_volumes = serde_json::from_value(volume).unwrap();
        let there = |phase: &str| {
            let hotplug = Some(HotplugVolumeStatus::default());
            let phase = Some(phase.to_owned());
            vec![VolumeStatus { name: "d".into(), phase, hotplug_volume: hotplug, ..VolumeStatus::default() }]
        };
        for (phase, waits) in [
            ("Bound", false),
            ("AttachedToNode", true),
            (dump::IN_PROGRESS, true),
            (dump::COMPLETED, false),
            (dump::FAILED, false),
            ("Detaching", false),
        ] {
            assert_eq!(!dumps(&run, &there(phase)).is_empty(), waits, "{phase}");
            assert_eq!(moves(&run, &there(phase)), [], "it is no disk");
            assert_eq!(moves(&spec(&[]), &there(phase)), [Move::Detach("d".into())], "{phase}");
        }
        run.utility_volumes[0].kind = None;
        assert_eq!(dumps(&run, &there("AttachedToNode")), Vec::<String>::new());
    }

    #[test]
    fn another_claim_of_the_same_name_goes_before_the_new_one_comes() {
        let (old, new) = (spec(&[("a", "1")]), spec(&[("a", "2")]));
        assert_eq!(moves(&new, &there(&old)), [Move::Detach("a".into())]);
    }

    #[test]
    fn volumes_are_moved_until_they_are_where_they_belong() {
        let (none, one) = (spec(&[]), spec(&[("a", "1")]));
        assert_eq!(moves(&one, &there(&one)), []);
        assert_eq!(moves(&one, &there(&none)), [Move::Attach("a".into())]);
        assert_eq!(moves(&none, &there(&one)), [Move::Detach("a".into())]);
        let mut halfway = there(&one);
        halfway[1].phase = Some("AttachedToNode".to_owned());
        assert_eq!(moves(&one, &halfway), [Move::Attach("a".into())]);
        assert_eq!(moves(&none, &halfway), [Move::Detach("a".into())]);
        let claims: Vec<_> = halfway.iter().map(|one| one.persistent_volume_claim_info.clone()).collect();
        assert_eq!(claims[1].as_ref().unwrap().claim_name.as_deref(), Some("1"));
    }
}
