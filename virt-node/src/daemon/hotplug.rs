//! Volumes that come to a guest that runs, and go: those that its machine's template calls `hotpluggable` are brought to
//! the run, and from there to the guest.
//!
//! ```text
//! addvolume, or a changed document ─► template ─ followed ─► run's spec ─ moves ─► launcher ─► volumeStatus
//! ```
//!
//! A volume is in the run's `volumeStatus` from before it is attached until the guest has let go of it, and its claim in
//! use for as long. Every move can be cut short anywhere: the launcher is asked again, and changes nothing where it is done.

use api::cdi::DataVolume;
use api::core::PersistentVolumeClaim;
use api::kind::Kind;
use api::kubevirt::{
    ClaimVolume, DataVolumeReference, Disk, VirtualMachine, VirtualMachineInstance,
    VirtualMachineInstanceSpec, Volume, VolumeStatus,
};
use serde::Serialize;

use super::apply;
use super::claim::Filled;
use super::controller::{Controller, Outcome, Work};
use super::requests::Refused;
use super::store::{Key, Stored};
use crate::error::Error;
use crate::protocol::{Answer, RefusedKind};
use virt::fields::Place;
use virt::live::{self, Move, is_hotpluggable, moves, status_of, take_out};
use virt::machine::{FINAL, phase};
use virt::resolve::claim_of;
use virt::time;
use virt::validate::{Documents, SourceDocument};

/// Seconds after which a guest that has not let go of a volume is asked again.
const AGAIN: u64 = 5;

impl Controller {
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
            match &one {
                Move::Attach(name) => {
                    let Some(volume) = live::volume(&run.spec, name).cloned() else { continue };
                    if !self.may_attach(run, &volume)? {
                        continue;
                    }
                    let (start, name) = (self.start_of(run, false), name.clone());
                    self.job(&key(&name.clone()), Work::Attach, move |_, _| {
                        apply::attach(&start, &name).map(|()| Outcome::Done)
                    });
                }
                Move::Detach(name) => {
                    self.note_volume(run, name, |status| status.phase = Some("Detaching".to_owned()))?;
                    let (start, name) = (self.start_of(run, false), name.clone());
                    self.job(&key(&name.clone()), Work::Detach, move |_, _| {
                        apply::detach(&start, &name).map(|gone| Outcome::Detached { gone })
                    });
                }
            }
            return Ok(());
        }
        Ok(())
    }

    /// Whether a volume's claim is filled; reports it in the run's status, which lists the volume from then on.
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

    /// Changes a volume's entry in a run's status.
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
        let run = self.store.called::<VirtualMachineInstance>(uid);
        // The result of a finished run is discarded with it.
        let Some(run) = run.filter(|run| !FINAL.contains(&phase(run))) else {
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

    /// Adds a claim or DataVolume to a machine, or to a run without one, as the volume that `disk` is named by.
    pub(super) fn add_volume(
        &mut self,
        of: (&str, &str),
        claim: &str,
        disk: Disk,
        dry: bool,
    ) -> Result<Answer, Refused> {
        let mut volume = Volume { name: disk.name.clone(), ..Volume::default() };
        if self.store.get::<DataVolume>(of.0, claim).is_some() {
            volume.data_volume =
                Some(DataVolumeReference { name: claim.to_owned(), hotpluggable: Some(true) });
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

    /// Takes a volume that may go from a machine, or from a run without one.
    pub(super) fn remove_volume(
        &mut self,
        of: (&str, &str),
        name: &str,
        dry: bool,
    ) -> Result<Answer, Refused> {
        self.change_volumes(of, dry, |spec| match live::volume(spec, name) {
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
        let value = serde_json::to_value(object).map_err(|error| (RefusedKind::Failed, error.to_string()))?;
        let given = SourceDocument { source: object.key().to_string(), number: 1, value };
        let report = Documents::of([given]).validate(Place::Machine).report;
        if !report.is_valid() {
            return Err((RefusedKind::Invalid, report.text(false)));
        }
        if !dry {
            self.store.put(object).map_err(failed)?;
        }
        Ok(Answer::Done)
    }
}
