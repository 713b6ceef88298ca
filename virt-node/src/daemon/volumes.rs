//! Claims and DataVolumes: volumes are made, filled, and taken away again.
//!
//! ```text
//! DataVolume ─► PersistentVolumeClaim ─► volume made (a clone has its blocks then) ─► filled ─► Succeeded
//! ```

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Sender;

use api::cdi::{DataVolume, DataVolumeStatus, StorageSpec};
use api::core::{ClaimResources, ClaimSpec, PersistentVolumeClaim};
use api::kind::Kind;
use api::kubevirt::VirtualMachineInstance;
use api::resource::{ObjectMeta, Other, Quantity};
use dir::Owner;
use serde_json::json;

use super::controller::{Controller, Message, Outcome, Work};
use super::csi_client::{POOL, Volume};
use super::ids::Transfer;
use super::import::{self, Origin};
use super::store::Stored;
use super::{expansion, ids, state, upload};
use crate::error::{Error, Kind as ErrorKind};
use virt::status;
use virt::time;

/// The owner of an object, as objects name it.
pub(super) fn owner(of: &impl Stored) -> Other {
    let reference = json!({
        "apiVersion": of.key().kind.api_version(),
        "kind": of.key().kind.name(),
        "name": of.metadata().name,
        "uid": of.uid(),
        "controller": true,
    });
    reference.as_object().cloned().unwrap_or_default()
}

/// Whether `uid` owns an object.
pub(super) fn is_owned(metadata: &ObjectMeta, uid: &str) -> bool {
    metadata.owner_references.iter().any(|owner| owner.get("uid").and_then(|uid| uid.as_str()) == Some(uid))
}

/// Metadata of a new object.
pub(super) fn made(metadata: &ObjectMeta, namespace: &str) -> Result<ObjectMeta, Error> {
    let uid = state::uuid().map_err(|error| Error::with(ErrorKind::System, "no UUID", error))?;
    Ok(ObjectMeta {
        name: metadata.name.clone(),
        namespace: Some(namespace.to_owned()),
        labels: metadata.labels.clone(),
        annotations: metadata.annotations.clone(),
        uid: Some(uid),
        generation: Some(1),
        creation_timestamp: Some(time::text(time::now())),
        other: metadata.other.clone(),
        ..ObjectMeta::default()
    })
}

/// A claim's phase: `Bound` when its volume is there.
fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.other.get("status").and_then(|status| status["phase"].as_str()) == Some("Bound")
}

pub(super) fn size(resources: &ClaimResources) -> Option<u64> {
    resources.requests.get("storage").and_then(|size| size.bytes().ok())
}

/// Whether a volume is filled with what a client sends.
pub(super) fn is_upload(volume: &DataVolume) -> bool {
    volume.spec.source.as_ref().is_some_and(|source| source.upload.is_some())
}

/// How a claim's volume stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filled {
    /// There is no such claim.
    Missing,
    /// It is being made or filled.
    NotYet,
    /// It could not be, and is tried again.
    Broken,
    Ready,
}

impl Controller {
    /// The volume of a claim.
    pub(super) fn volume(&self, claim: &PersistentVolumeClaim) -> Volume {
        Volume {
            uid: claim.uid().to_owned(),
            folder: self.state.claim(claim.uid()),
            block: claim.spec.volume_mode.as_deref() == Some("Block"),
            size: size(&claim.spec.resources).unwrap_or(0),
        }
    }

    /// How the volume of a claim stands.
    pub(super) fn filled(&self, namespace: &str, name: &str) -> Filled {
        let source = self.store.get::<DataVolume>(namespace, name);
        let Some(claim) = self.store.get::<PersistentVolumeClaim>(namespace, name) else {
            return if source.is_some() { Filled::NotYet } else { Filled::Missing };
        };
        let phase = source.as_ref().map(|volume| {
            let status = volume.status.clone().unwrap_or_default();
            (status.phase.unwrap_or_default(), status.restart_count.unwrap_or(0))
        });
        match (is_bound(&claim) && !claim.is_deleting(), phase) {
            // A disk that grows is in nobody's hands, unless in a guest's that runs.
            (true, _) if self.is_busy(claim.uid()) => Filled::NotYet,
            (true, None) => Filled::Ready,
            (true, Some((phase, _))) if phase == "Succeeded" => Filled::Ready,
            (_, Some((_, restarts))) if restarts > 0 => Filled::Broken,
            (_, _) => Filled::NotYet,
        }
    }

    /// Whether a run that is not over uses a claim.
    fn is_used(&self, claim: &PersistentVolumeClaim) -> bool {
        let namespace = claim.metadata.namespace.as_deref();
        self.store
            .users::<VirtualMachineInstance>(namespace.unwrap_or_default(), &claim.metadata.name)
            .any(|run| self.state.run(run.uid()).exists() || self.is_busy(run.uid()))
    }

    pub(super) fn claim(&mut self, claim: &PersistentVolumeClaim) {
        let uid = claim.uid().to_owned();
        if claim.is_deleting() {
            self.cancel(&uid);
            if !self.is_used(claim) && !self.is_busy(&uid) && self.may_try(&uid) {
                let (driver, volume) = (self.driver.clone(), self.volume(claim));
                let state = Arc::clone(&self.state);
                self.job(&uid, Work::Remove, move |_, _| {
                    driver.remove(&volume)?;
                    state.ids().free(&ids::claim(&volume.uid))?;
                    state.ids().free(&ids::readers(&volume.uid))?;
                    Ok(Outcome::Done)
                });
            }
        } else if !is_bound(claim) && !self.is_busy(&uid) && self.may_try(&uid) {
            self.make(claim);
        } else if expansion::is_wanted(claim) && !self.is_busy(&uid) && self.may_try(&uid) {
            self.grow(claim);
        }
    }

    /// Has the volume of a claim made.
    fn make(&mut self, claim: &PersistentVolumeClaim) {
        let namespace = claim.metadata.namespace.clone().unwrap_or_default();
        let source = match self.clone_source(&namespace, claim) {
            Ok(source) => source,
            Err(problem) => {
                self.events.add(&claim.key(), true, "ClonePending", &problem);
                return;
            }
        };
        let pool = claim.spec.storage_class_name.clone().unwrap_or_else(|| POOL.to_owned());
        if pool != POOL {
            let text = format!("there is no pool {pool:?}; the one there is is called {POOL:?}, or left out");
            self.events.add(&claim.key(), true, "ProvisioningFailed", &text);
            return;
        }
        let (driver, volume) = (self.driver.clone(), self.volume(claim));
        self.job(claim.uid(), Work::Make, move |_, _| {
            driver.make(&volume, source.as_deref(), &pool).map(Outcome::Made)
        });
    }

    /// UID of the source claim of a clone.
    fn clone_source(&self, namespace: &str, claim: &PersistentVolumeClaim) -> Result<Option<String>, String> {
        let Some(volume) = self.store.get::<DataVolume>(namespace, &claim.metadata.name) else {
            return Ok(None);
        };
        let Some(source) = volume.spec.source.and_then(|source| source.pvc) else { return Ok(None) };
        let namespace = source.namespace.as_deref().unwrap_or(namespace);
        let from = self.store.get::<PersistentVolumeClaim>(namespace, &source.name);
        let from = from.ok_or_else(|| format!("there is no claim {namespace}/{}", source.name))?;
        match self.filled(namespace, &source.name) {
            Filled::Ready if self.is_used(&from) => Err(format!(
                "{namespace}/{} is in use by a guest; the clone waits until it ends",
                source.name
            )),
            Filled::Ready => Ok(Some(from.uid().to_owned())),
            Filled::Missing | Filled::NotYet | Filled::Broken => {
                Err(format!("{namespace}/{} is not filled yet", source.name))
            }
        }
    }

    pub(super) fn data_volume(&mut self, mut volume: DataVolume) -> Result<(), Error> {
        let key = volume.key();
        let claim = self.store.get::<PersistentVolumeClaim>(&key.namespace, &key.name);
        let owned = claim.filter(|claim| is_owned(&claim.metadata, volume.uid()));
        if volume.is_deleting() {
            self.cancel(volume.uid());
            return match owned {
                Some(mut claim) if !claim.is_deleting() && !self.is_busy(volume.uid()) => {
                    claim.metadata.deletion_timestamp = Some(time::text(time::now()));
                    self.store.put(&claim)
                }
                Some(_) => Ok(()),
                None => {
                    self.memory.remove(volume.uid());
                    self.store.remove(&key)
                }
            };
        }
        let Some(claim) = owned else { return self.claim_for(&volume) };
        let mut status = volume.status.clone().unwrap_or_default();
        let clone = volume.spec.source.as_ref().is_some_and(|source| source.pvc.is_some());
        let phase = match (status.phase.as_deref(), is_bound(&claim), clone) {
            (Some("Succeeded"), _, _) => return Ok(()),
            (_, false, true) => "CloneInProgress",
            (_, false, false) => "Pending",
            (_, true, _) if !is_upload(&volume) => "ImportInProgress",
            (_, true, _) if upload::door(&self.volume(&claim).folder).is_some() => "UploadReady",
            (_, true, _) => {
                // No message reports that its server is there.
                self.look_at(time::now() + 1);
                "UploadScheduled"
            }
        };
        status.phase = Some(phase.to_owned());
        status.claim_name = Some(key.name.clone());
        let bound = if is_bound(&claim) { ("Bound", "PVC Bound") } else { ("Pending", "PVC Pending") };
        status::condition(&mut status.conditions, "Bound", is_bound(&claim), bound.0, bound.1);
        if is_bound(&claim) {
            self.fill(&volume, &claim, &mut status);
        }
        volume.status = Some(status);
        self.store.put(&volume)
    }

    /// Makes the claim of a DataVolume.
    fn claim_for(&mut self, volume: &DataVolume) -> Result<(), Error> {
        let key = volume.key();
        if self.store.get::<PersistentVolumeClaim>(&key.namespace, &key.name).is_some() {
            let text = "a PersistentVolumeClaim of this name is there, and is not this DataVolume's";
            self.events.add(&key, true, "ErrClaimNotValid", text);
            return Ok(());
        }
        let wanted: StorageSpec =
            volume.spec.pvc.clone().or_else(|| volume.spec.storage.clone()).unwrap_or_default();
        let mut resources = wanted.resources.unwrap_or_default();
        if size(&resources).is_none() {
            // A clone without a size gets its source's size.
            let source = volume.spec.source.as_ref().and_then(|source| source.pvc.as_ref());
            let from = source.and_then(|source| {
                let namespace = source.namespace.as_deref().unwrap_or(&key.namespace);
                self.store.get::<PersistentVolumeClaim>(namespace, &source.name)
            });
            let Some(size) = from.and_then(|from| size(&from.spec.resources)) else {
                self.events.add(&key, true, "ClonePending", "the claim that is cloned is not there yet");
                return Ok(());
            };
            resources.requests.insert("storage".to_owned(), Quantity(size.to_string()));
        }
        let claim = PersistentVolumeClaim {
            api_version: Kind::PersistentVolumeClaim.api_version().to_owned(),
            kind: Kind::PersistentVolumeClaim.name().to_owned(),
            metadata: ObjectMeta {
                owner_references: vec![owner(volume)],
                ..made(&volume.metadata, &key.namespace)?
            },
            spec: ClaimSpec {
                // The pool's access modes by default.
                access_modes: if wanted.access_modes.is_empty() {
                    vec!["ReadWriteOnce".to_owned()]
                } else {
                    wanted.access_modes
                },
                resources,
                storage_class_name: wanted.storage_class_name,
                volume_mode: wanted.volume_mode,
                ..ClaimSpec::default()
            },
            ..PersistentVolumeClaim::default()
        };
        self.store.put(&claim)
    }

    /// Has a volume filled.
    fn fill(&mut self, volume: &DataVolume, claim: &PersistentVolumeClaim, status: &mut DataVolumeStatus) {
        let uid = volume.uid().to_owned();
        if self.is_busy(&uid) || !self.may_try(&uid) {
            return;
        }
        let key = volume.key();
        let target = self.volume(claim);
        let objects = self.objects(&key.namespace);
        let origin = match import::from(&volume.spec, &uid, target.size, &objects) {
            Ok(origin) => origin,
            Err(problem) => {
                self.events.add(&key, true, "ImportFailed", &problem);
                self.failed(&uid);
                return;
            }
        };
        status::condition(&mut status.conditions, "Running", true, "Pod is running", "");
        if is_upload(volume) {
            let text =
                format!("virt-node image-upload dv {} --no-create --image-path FILE fills it", key.name);
            self.events.add(&key, false, "UploadScheduled", &text);
        } else {
            self.events.add(&key, false, "ImportInProgress", &format!("filling {}", key.name));
        }
        let driver = self.driver.clone();
        let archive = volume.spec.content_type.as_deref() == Some("archive");
        let state = Arc::clone(&self.state);
        let work = if is_upload(volume) { Work::Receive } else { Work::Fill };
        self.job(&uid.clone(), work, move |stop, sender| {
            driver.publish(&target)?;
            let transfer = state.ids().transfer(&ids::claim(&target.uid))?;
            let user = transfer.user;
            if !matches!(origin, Origin::Claim(_)) {
                target.open_to(if import::runs_as_user(&origin) { user } else { Owner::ROOT })?;
                fill(&target, &origin, &uid, transfer, stop, sender)?;
            }
            target.close()?;
            if !archive {
                target.finish(user)?;
            }
            Ok(Outcome::Done)
        });
    }

    /// Notes what became of a volume's job.
    pub(super) fn volume_ended(
        &mut self,
        uid: &str,
        work: Work,
        outcome: Result<Outcome, Error>,
    ) -> Result<(), Error> {
        let problem = outcome.as_ref().err().map(Error::chain);
        match &problem {
            Some(_) => self.failed(uid),
            None => (self.memory(uid).failures, self.memory(uid).retry) = (0, None),
        }
        if let Some(mut volume) = self.store.called::<DataVolume>(uid) {
            let key = volume.key();
            let mut status = volume.status.clone().unwrap_or_default();
            match problem {
                None => {
                    status.phase = Some("Succeeded".to_owned());
                    status.progress = Some("100.0%".to_owned());
                    status::condition(
                        &mut status.conditions,
                        "Running",
                        false,
                        "Completed",
                        "Import Complete",
                    );
                    status::condition(&mut status.conditions, "Ready", true, "", "");
                    self.events.add(&key, false, "ImportSucceeded", &format!("{} is filled", key.name));
                }
                Some(problem) if !volume.is_deleting() => {
                    status.restart_count = Some(status.restart_count.unwrap_or(0) + 1);
                    status::condition(&mut status.conditions, "Running", false, "Error", &problem);
                    self.events.add(&key, true, "ImportFailed", &problem);
                }
                Some(_) => {}
            }
            volume.status = Some(status);
            return self.store.put(&volume);
        }
        let claim = self.store.called::<PersistentVolumeClaim>(uid);
        let Some(mut claim) = claim else { return Ok(()) };
        match (outcome, work) {
            (Ok(Outcome::Made(size)), Work::Grow) => self.grown(claim, size),
            (Ok(Outcome::Made(size)), _) => {
                let status = json!({
                    "phase": "Bound",
                    "capacity": {"storage": size.to_string()},
                    "accessModes": claim.spec.access_modes,
                });
                claim.other.insert("status".to_owned(), status);
                self.store.put(&claim)
            }
            (Ok(_), Work::Remove) => {
                self.memory.remove(uid);
                self.store.remove(&claim.key())
            }
            (Ok(_), _) => Ok(()),
            (Err(error), work) => {
                let reason = if work == Work::Grow { "VolumeResizeFailed" } else { "ProvisioningFailed" };
                self.events.add(&claim.key(), true, reason, &error.chain());
                Ok(())
            }
        }
    }

    /// Notes how far a volume is.
    pub(super) fn volume_progress(&mut self, uid: &str, percent: f64) -> Result<(), Error> {
        let before = self.memory(uid).progress.replace(percent);
        // A write of the object for each per cent is enough.
        if before.is_some_and(|before| before.floor() >= percent.floor()) {
            return Ok(());
        }
        let volume = self.store.called::<DataVolume>(uid);
        let Some(mut volume) = volume.filter(|volume| !volume.is_deleting()) else { return Ok(()) };
        let mut status = volume.status.take().unwrap_or_default();
        status.progress = Some(format!("{percent:.1}%"));
        volume.status = Some(status);
        self.store.put(&volume)
    }
}

/// Fills a volume that was shown.
fn fill(
    target: &Volume,
    origin: &Origin,
    uid: &str,
    transfer: Transfer<'_>,
    stop: &Arc<AtomicBool>,
    sender: &Sender<Message>,
) -> Result<(), Error> {
    let told = |percent| {
        // The receiver is gone when the daemon ends.
        drop(sender.send(Message::Progress(uid.to_owned(), percent)));
    };
    import::fill(&target.folder, origin, Some(target.size), transfer, stop, told)
}
