//! Volumes that come to a guest that runs, and go: those that its machine's template calls `hotpluggable` are brought to
//! the run, and from there to the guest.
//!
//! ```text
//! addvolume, or a changed document ─► template ─ followed ─► run's spec ─ moves ─► launcher ─► volumeStatus
//! ```
//!
//! A volume is in the run's `volumeStatus` from before it is attached until the guest has let go of it, and its claim in
//! use for as long. Every move can be cut short anywhere: the launcher is asked again, and changes nothing where it is done.

use std::collections::BTreeMap;

use api::cdi::DataVolume;
use api::core::PersistentVolumeClaim;
use api::kind::Kind;
use api::kubevirt::{
    ClaimInfo, ClaimVolume, DataVolumeReference, Disk, HotplugVolumeStatus, VirtualMachine,
    VirtualMachineInstance, VirtualMachineInstanceSpec, Volume, VolumeStatus,
};
use serde::Serialize;

use super::apply::{self, claim_of};
use super::controller::{Controller, Outcome, Work};
use super::requests::Refused;
use super::runs::{OVER, phase};
use super::size;
use super::store::{Key, Stored};
use super::volumes::Filled;
use crate::error::Error;
use crate::protocol::{Answer, RefusedKind};
use crate::{time, validate};

/// Seconds after which a guest that has not let go of a volume is asked again.
const AGAIN: u64 = 5;

/// Whether a volume may come and go while the guest runs.
fn is_hotpluggable(volume: &Volume) -> bool {
    let claim = volume.persistent_volume_claim.as_ref().and_then(|claim| claim.hotpluggable);
    claim.or(volume.data_volume.as_ref().and_then(|volume| volume.hotpluggable)).unwrap_or(false)
}

fn volume<'a>(spec: &'a VirtualMachineInstanceSpec, name: &str) -> Option<&'a Volume> {
    spec.volumes.iter().find(|volume| volume.name == name)
}

fn disk<'a>(spec: &'a VirtualMachineInstanceSpec, name: &str) -> Option<&'a Disk> {
    spec.domain.devices.disks.iter().find(|disk| disk.name == name)
}

/// Takes a volume and its disk out of a spec.
fn take_out(spec: &mut VirtualMachineInstanceSpec, name: &str) {
    spec.volumes.retain(|volume| volume.name != name);
    spec.domain.devices.disks.retain(|disk| disk.name != name);
}

/// A run's spec with the hotpluggable volumes of its machine's template. One that is another volume now goes first, and
/// comes when nothing of it is there any more.
fn followed(
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
        if let (false, Some(disk)) = (here, disk(template, &wanted.name)) {
            spec.volumes.push(wanted.clone());
            spec.domain.devices.disks.push(disk.clone());
        }
    }
    spec
}

/// Whether a run is of another template than its machine has now, apart from volumes that come and go by themselves, and
/// from processors and memory that come.
pub(super) fn needs_restart(template: &VirtualMachineInstanceSpec, run: &VirtualMachineInstanceSpec) -> bool {
    let parts = |spec: &VirtualMachineInstanceSpec| {
        let mut rest = spec.clone();
        let mut moving = BTreeMap::new();
        for volume in spec.volumes.iter().filter(|volume| is_hotpluggable(volume)) {
            take_out(&mut rest, &volume.name);
            moving.insert(volume.name.clone(), (volume.clone(), disk(spec, &volume.name).cloned()));
        }
        (rest, moving)
    };
    let ((mut wanted, moving), (rest, there)) = (parts(template), parts(&size::followed(template, run)));
    wanted.start_strategy.clone_from(&rest.start_strategy);
    size::give_room(&mut wanted, &rest);
    let changed = moving.iter().any(|(name, (volume, disk))| {
        there.get(name).is_some_and(|(before, of)| before == volume && of != disk)
    });
    wanted != rest || changed
}

/// What is to be done for a volume of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Move {
    Attach(String),
    Detach(String),
}

/// What is to be done for the volumes of a run that has a guest.
fn moves(spec: &VirtualMachineInstanceSpec, there: &[VolumeStatus]) -> Vec<Move> {
    let is_ready = |name: &str| {
        there.iter().any(|status| status.name == name && status.phase.as_deref() == Some("Ready"))
    };
    let coming = spec.volumes.iter().filter(|volume| is_hotpluggable(volume) && !is_ready(&volume.name));
    let going = there.iter().filter(|status| {
        status.hotplug_volume.is_some() && volume(spec, &status.name).is_none_or(|one| !is_hotpluggable(one))
    });
    let going = going.map(|status| Move::Detach(status.name.clone()));
    going.chain(coming.map(|volume| Move::Attach(volume.name.clone()))).collect()
}

/// What is said of a volume that is a claim.
fn status_of(volume: &Volume, phase: &str) -> Option<VolumeStatus> {
    let info = ClaimInfo { claim_name: Some(claim_of(volume)?.to_owned()), ..ClaimInfo::default() };
    Some(VolumeStatus {
        name: volume.name.clone(),
        phase: Some(phase.to_owned()),
        persistent_volume_claim_info: Some(info),
        hotplug_volume: is_hotpluggable(volume).then(HotplugVolumeStatus::default),
        ..VolumeStatus::default()
    })
}

/// What is said of the volumes of a guest that was started just now.
pub(super) fn attached(spec: &VirtualMachineInstanceSpec) -> Vec<VolumeStatus> {
    let named = |volume: &Volume| VolumeStatus { name: volume.name.clone(), ..VolumeStatus::default() };
    spec.volumes.iter().map(|volume| status_of(volume, "Ready").unwrap_or_else(|| named(volume))).collect()
}

/// Claims of volumes that are attached to a run.
pub(super) fn claims_there(run: &VirtualMachineInstance) -> impl Iterator<Item = &str> {
    let there = run.status.iter().flat_map(|status| &status.volume_status);
    there.filter_map(|one| one.persistent_volume_claim_info.as_ref()?.claim_name.as_deref())
}

impl Controller {
    /// Brings the hotpluggable volumes of a machine's template to its run.
    pub(super) fn follow_volumes(
        &mut self,
        machine: &VirtualMachine,
        run: &VirtualMachineInstance,
    ) -> Result<(), Error> {
        if run.is_deleting() || phase(run) != "Running" {
            return Ok(());
        }
        let there = run.status.as_ref().map_or(&[][..], |status| &status.volume_status);
        let spec = followed(&machine.spec.template.spec, &run.spec, there);
        if spec == run.spec {
            return Ok(());
        }
        self.store.put(&VirtualMachineInstance { spec, ..run.clone() })
    }

    /// Whether a volume of a run is being attached or detached.
    pub(super) fn is_moving(&self, uid: &str) -> bool {
        self.memory
            .iter()
            .any(|(other, one)| one.job.is_some() && other.split_once('/').is_some_and(|(of, _)| of == uid))
    }

    /// Has the next volume of a run attached or detached, while none is.
    pub(super) fn move_volumes(&mut self, run: &VirtualMachineInstance) -> Result<(), Error> {
        let there = run.status.as_ref().map_or(&[][..], |status| &status.volume_status);
        let moves = moves(&run.spec, there);
        let key = |name: &str| format!("{}/{name}", run.uid());
        for one in moves {
            let (Move::Attach(name) | Move::Detach(name)) = &one;
            if !self.may_try(&key(name)) {
                continue;
            }
            let host = self.host()?;
            match &one {
                Move::Attach(name) => {
                    let Some(volume) = volume(&run.spec, name).cloned() else { continue };
                    if !self.may_attach(run, &volume)? {
                        continue;
                    }
                    let (start, name) = (self.start_of(run, host, false), name.clone());
                    self.job(&key(&name.clone()), Work::Attach, move |_, _| {
                        apply::attach(&start, &name).map(|()| Outcome::Done)
                    });
                }
                Move::Detach(name) => {
                    self.note_volume(run, name, |status| status.phase = Some("Detaching".to_owned()))?;
                    let (start, name) = (self.start_of(run, host, false), name.clone());
                    self.job(&key(&name.clone()), Work::Detach, move |_, _| {
                        apply::detach(&start, &name).map(|gone| Outcome::Detached { gone })
                    });
                }
            }
            return Ok(());
        }
        Ok(())
    }

    /// Whether a volume's claim is filled; says so in the run's status, in which the volume is from now on.
    fn may_attach(&mut self, run: &VirtualMachineInstance, volume: &Volume) -> Result<bool, Error> {
        let namespace = run.metadata.namespace.clone().unwrap_or_default();
        let claim = claim_of(volume).unwrap_or_default();
        let (phase, message) = match self.filled(&namespace, claim) {
            Filled::Ready => ("AttachedToNode", None),
            Filled::Missing => ("Pending", Some(format!("there is no claim {claim:?}"))),
            Filled::NotYet | Filled::Broken => ("Pending", Some(format!("{claim:?} is not filled yet"))),
        };
        let Some(new) = status_of(volume, phase) else { return Ok(false) };
        let mut run = run.clone();
        let there = &mut run.status.get_or_insert_default().volume_status;
        there.retain(|status| status.name != volume.name);
        there.push(VolumeStatus { message, ..new });
        self.store.put(&run)?;
        Ok(phase == "AttachedToNode")
    }

    /// Changes what is said of a run's volume.
    fn note_volume(
        &mut self,
        run: &VirtualMachineInstance,
        name: &str,
        change: impl FnOnce(&mut VolumeStatus),
    ) -> Result<(), Error> {
        let mut run = run.clone();
        let there = &mut run.status.get_or_insert_default().volume_status;
        if let Some(status) = there.iter_mut().find(|status| status.name == name) {
            change(status);
        }
        self.store.put(&run)
    }

    /// Notes what became of a volume's move; `of` is the run's UID and the volume's name.
    pub(super) fn volume_moved(
        &mut self,
        of: &str,
        work: Work,
        outcome: Result<Outcome, Error>,
    ) -> Result<(), Error> {
        let Some((uid, name)) = of.split_once('/') else { return Ok(()) };
        let run = self.store.all::<VirtualMachineInstance>().into_iter().find(|one| one.uid() == uid);
        // What comes of a run that is over is gone with it.
        let Some(run) = run.filter(|run| !OVER.contains(&phase(run))) else {
            self.memory.remove(of);
            return Ok(());
        };
        let key = run.key();
        match outcome {
            Ok(Outcome::Detached { gone: false }) => {
                let memory = self.memory(of);
                memory.retry = Some(time::now() + AGAIN);
                Ok(())
            }
            Ok(_) if work == Work::Detach => {
                self.memory.remove(of);
                self.events.add(
                    &key,
                    false,
                    "VolumeDetached",
                    &format!("volume {name} is gone from the guest"),
                );
                let mut run = run;
                let there = &mut run.status.get_or_insert_default().volume_status;
                there.retain(|status| status.name != name);
                self.store.put(&run)
            }
            Ok(_) => {
                self.memory.remove(of);
                self.events.add(
                    &key,
                    false,
                    "VolumeReady",
                    &format!("volume {name} is attached to the guest"),
                );
                self.note_volume(&run, name, |status| {
                    (status.phase, status.message) = (Some("Ready".to_owned()), None);
                })
            }
            Err(error) => {
                self.failed(of);
                let text = error.chain();
                self.events.add(&key, true, "VolumeFailed", &format!("volume {name}: {text}"));
                self.note_volume(&run, name, |status| status.message = Some(text))
            }
        }
    }

    /// Notes that a guest has let go of a device.
    pub(super) fn device_gone(&mut self, run: &VirtualMachineInstance, device: &str) {
        if let Some(name) = device.strip_prefix("disk-") {
            self.memory(&format!("{}/{name}", run.uid())).retry = None;
        }
    }

    /// Adds a claim or DataVolume to a machine, or to a run that is nobody's, as the volume that `disk` is named by.
    pub(super) fn add_volume(
        &mut self,
        of: (&str, &str),
        claim: &str,
        disk: Disk,
        dry: bool,
    ) -> Result<Answer, Refused> {
        let mut volume = Volume { name: disk.name.clone(), ..Volume::default() };
        if self.store.get::<DataVolume>(of.0, claim).is_some() {
            volume.data_volume = Some(DataVolumeReference {
                name: claim.to_owned(),
                hotpluggable: Some(true),
                ..DataVolumeReference::default()
            });
        } else if self.store.get::<PersistentVolumeClaim>(of.0, claim).is_some() {
            volume.persistent_volume_claim = Some(ClaimVolume {
                claim_name: claim.to_owned(),
                hotpluggable: Some(true),
                ..ClaimVolume::default()
            });
        } else {
            let text = format!("Volume {claim} is not a DataVolume or PersistentVolumeClaim");
            return Err((RefusedKind::Missing, text));
        }
        self.change_volumes(of, dry, move |spec| {
            if spec.volumes.iter().any(|other| other.name == volume.name)
                || spec.domain.devices.disks.iter().any(|other| other.name == disk.name)
            {
                let name = &volume.name;
                return Err(format!("Unable to add volume [{name}] because it already exists"));
            }
            spec.volumes.push(volume);
            spec.domain.devices.disks.push(disk);
            Ok(())
        })
    }

    /// Takes a volume that may go from a machine, or from a run that is nobody's.
    pub(super) fn remove_volume(
        &mut self,
        of: (&str, &str),
        name: &str,
        dry: bool,
    ) -> Result<Answer, Refused> {
        self.change_volumes(of, dry, |spec| match volume(spec, name) {
            None => Err(format!("Unable to remove volume [{name}] because it does not exist")),
            Some(one) if !is_hotpluggable(one) => {
                Err(format!("Unable to remove volume [{name}] because it is not hotpluggable"))
            }
            Some(_) => {
                take_out(spec, name);
                Ok(())
            }
        })
    }

    fn change_volumes(
        &mut self,
        (namespace, name): (&str, &str),
        dry: bool,
        change: impl FnOnce(&mut VirtualMachineInstanceSpec) -> Result<(), String>,
    ) -> Result<Answer, Refused> {
        let state = |text: String| (RefusedKind::State, text);
        if let Some(mut machine) = self.store.get::<VirtualMachine>(namespace, name) {
            change(&mut machine.spec.template.spec).map_err(state)?;
            machine.metadata.generation = Some(machine.metadata.generation.unwrap_or(1) + 1);
            return self.keep_if(&machine, dry);
        }
        let Some(mut run) = self.store.get::<VirtualMachineInstance>(namespace, name) else {
            let key = Key::new(Kind::VirtualMachine, namespace, name);
            return Err((RefusedKind::Missing, format!("there is no {key}")));
        };
        if phase(&run) != "Running" || run.is_deleting() {
            return Err(state(format!("{namespace}/{name}: VMI is not running")));
        }
        change(&mut run.spec).map_err(state)?;
        self.keep_if(&run, dry)
    }

    /// Keeps an object if all of its fields can be, and it is not only tried.
    fn keep_if<T: Stored + Serialize>(&mut self, object: &T, dry: bool) -> Result<Answer, Refused> {
        let failed = |error: Error| (RefusedKind::Failed, error.chain());
        let text = serde_json::to_vec(object).map_err(|error| (RefusedKind::Failed, error.to_string()))?;
        let report = validate::validate(&[(object.key().to_string(), text)]);
        if !report.is_valid() {
            return Err((RefusedKind::Invalid, report.text(false)));
        }
        if !dry {
            self.store.put(object).map_err(failed)?;
        }
        Ok(Answer::Done)
    }
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
    fn what_comes_and_goes_needs_no_restart() {
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
