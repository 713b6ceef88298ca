//! Claims and DataVolumes: observed, reconciled, and their volumes made, filled, expanded and removed.
//!
//! ```text
//! DataVolume ─► PersistentVolumeClaim ─► volume made (a clone has its blocks then) ─► filled ─► Succeeded
//! ```
//!
//! Not here: the decisions ([`super::reconcile`]), the steps of an expansion ([`super::expansion`]).

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Sender;

use api::cdi::DataVolume;
use api::core::PersistentVolumeClaim;
use api::kubevirt::VirtualMachineInstance;
use dir::Owner;

use super::claim::{self, Filled, is_bound, is_upload, size};
use super::controller::{Controller, Message, Outcome, Work};
use super::csi_client::{POOL, Volume};
use super::ids::{self, Transfer};
use super::import::{self, Origin};
use super::reconcile::claim::{End, Source};
use super::reconcile::{self, Shown};
use super::store::Stored;
use super::{expansion, upload};
use crate::error::Error;
use virt::resolve::claim_of;
use virt::run::LauncherState;

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
        let claim = self.store.get::<PersistentVolumeClaim>(namespace, name);
        let is_busy = claim.as_ref().is_some_and(|claim| self.is_busy(claim.uid()));
        claim::filled(claim.as_ref(), source.as_ref(), is_busy)
    }

    /// Whether a run that is not over uses a claim.
    fn is_used(&self, claim: &PersistentVolumeClaim) -> bool {
        let namespace = claim.metadata.namespace.as_deref();
        self.store
            .users::<VirtualMachineInstance>(namespace.unwrap_or_default(), &claim.metadata.name)
            .any(|run| self.state.run(run.uid()).exists() || self.is_busy(run.uid()))
    }

    /// Brings a claim towards its spec.
    pub(super) fn claim(&mut self, claim: &PersistentVolumeClaim) -> Result<(), Error> {
        let observed = reconcile::claim::Observed {
            claim,
            used: claim.is_deleting() && self.is_used(claim),
            source: if is_bound(claim) { None } else { self.clone_source(claim) },
            shown: if claim::is_wanted(claim) { self.disks_shown(claim) } else { None },
            attempt: self.attempt(claim.uid()),
        };
        let actions = reconcile::claim::reconcile(&observed);
        self.execute(claim, actions)
    }

    /// The source of a claim that is a clone.
    fn clone_source(&self, claim: &PersistentVolumeClaim) -> Option<Source> {
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let volume = self.store.get::<DataVolume>(namespace, &claim.metadata.name)?;
        let source = volume.spec.source?.pvc?;
        let namespace = source.namespace.as_deref().unwrap_or(namespace);
        let from = self.store.get::<PersistentVolumeClaim>(namespace, &source.name);
        Some(Source {
            name: format!("{namespace}/{}", source.name),
            uid: from.as_ref().map(|from| from.uid().to_owned()),
            filled: self.filled(namespace, &source.name),
            used: from.is_some_and(|from| self.is_used(&from)),
        })
    }

    /// The disks of guests that are up and have a claim; `None`: one of their runs has a job.
    fn disks_shown(&mut self, claim: &PersistentVolumeClaim) -> Option<Vec<Shown>> {
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let users = self.store.users::<VirtualMachineInstance>(namespace, &claim.metadata.name);
        let mut shown = Vec::new();
        for run in users.collect::<Vec<_>>() {
            let named = |volume: &&api::kubevirt::Volume| claim_of(volume) == Some(&claim.metadata.name);
            let folder = self.state.run(run.uid());
            for volume in run.spec.volumes.iter().filter(named).filter(|_| folder.exists()) {
                if self.is_busy(run.uid()) || self.is_busy(&format!("{}/{}", run.uid(), volume.name)) {
                    return None;
                }
                if matches!(self.launcher_state(run.uid()), LauncherState::Guest(_)) {
                    shown.push(Shown { run: run.uid().to_owned(), disk: volume.name.clone() });
                }
            }
        }
        Some(shown)
    }

    /// Brings a DataVolume towards its spec.
    pub(super) fn data_volume(&mut self, volume: &DataVolume) -> Result<(), Error> {
        let key = volume.key();
        let claim = self.store.get::<PersistentVolumeClaim>(&key.namespace, &key.name);
        let attempt = self.attempt(volume.uid());
        let target = claim.as_ref().map(|claim| self.volume(claim));
        let is_filled_now = reconcile::data_volume::is_to_be_filled(volume, claim.as_ref());
        let observed = reconcile::data_volume::Observed {
            volume,
            claim: claim.as_ref(),
            source_size: self.source_size(volume),
            is_served: is_filled_now
                && is_upload(volume)
                && target.as_ref().is_some_and(|target| upload::door(&target.folder).is_some()),
            origin: target.filter(|_| is_filled_now && !attempt.busy).map(|target| {
                import::from(&volume.spec, volume.uid(), target.size, &self.objects(&key.namespace))
            }),
            attempt,
        };
        let actions = reconcile::data_volume::reconcile(&observed);
        self.execute(volume, actions)
    }

    /// Bytes that the claim asks for which a DataVolume is a clone of.
    fn source_size(&self, volume: &DataVolume) -> Option<u64> {
        let source = volume.spec.source.as_ref()?.pvc.as_ref()?;
        let own = volume.metadata.namespace.as_deref().unwrap_or_default();
        let namespace = source.namespace.as_deref().unwrap_or(own);
        let from = self.store.get::<PersistentVolumeClaim>(namespace, &source.name)?;
        size(&from.spec.resources)
    }

    /// Has the volume of a claim made, with the blocks of another claim's.
    pub(super) fn make_volume(&mut self, claim: &PersistentVolumeClaim, source: Option<String>) {
        let (driver, volume) = (self.driver.clone(), self.volume(claim));
        self.job(claim.uid(), Work::Make, move |_, _| {
            driver.make(&volume, source.as_deref(), POOL).map(Outcome::Made)
        });
    }

    /// Has the volume of a claim removed.
    pub(super) fn remove_volume_of(&mut self, claim: &PersistentVolumeClaim) {
        let (driver, volume) = (self.driver.clone(), self.volume(claim));
        let state = Arc::clone(&self.state);
        self.job(claim.uid(), Work::Remove, move |_, _| {
            driver.remove(&volume)?;
            state.ids().free(&ids::claim(&volume.uid))?;
            state.ids().free(&ids::readers(&volume.uid))?;
            Ok(Outcome::Done)
        });
    }

    /// Has the volume of a claim expanded, and the disks of guests that have it.
    pub(super) fn grow_volume(&mut self, claim: &PersistentVolumeClaim, shown: Vec<Shown>) {
        let (driver, volume) = (self.driver.clone(), self.volume(claim));
        let shown: Vec<_> =
            shown.into_iter().map(|Shown { run, disk }| (self.state.run(&run), disk)).collect();
        self.job(claim.uid(), Work::Grow, move |_, _| {
            expansion::grow(&driver, &volume, &shown).map(Outcome::Made)
        });
    }

    /// Has the volume of a DataVolume's claim filled.
    pub(super) fn fill_volume(&mut self, volume: &DataVolume, origin: Origin) {
        let key = volume.key();
        let claim = self.store.get::<PersistentVolumeClaim>(&key.namespace, &key.name);
        let Some(target) = claim.map(|claim| self.volume(&claim)) else { return };
        let (driver, state, uid) = (self.driver.clone(), Arc::clone(&self.state), volume.uid().to_owned());
        let archive = volume.spec.content_type.as_deref() == Some("archive");
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

    /// Stores the result of a volume's job.
    pub(super) fn volume_ended(
        &mut self,
        uid: &str,
        work: Work,
        outcome: Result<Outcome, Error>,
    ) -> Result<(), Error> {
        let outcome = outcome.map_err(|error| error.chain());
        if let Some(volume) = self.store.called::<DataVolume>(uid) {
            let problem = outcome.as_ref().err().map(String::as_str);
            let actions = reconcile::data_volume::ended(&volume, problem);
            return self.execute(&volume, actions);
        }
        let Some(claim) = self.store.called::<PersistentVolumeClaim>(uid) else { return Ok(()) };
        let grows = work == Work::Grow;
        let end = match &outcome {
            Err(problem) if grows => End::NotGrown(problem),
            Err(problem) => End::Failed(problem),
            Ok(Outcome::Made(size)) if grows => End::Grown(*size),
            Ok(Outcome::Made(size)) => End::Made(*size),
            Ok(_) => End::Removed,
        };
        let actions = reconcile::claim::ended(&claim, end);
        self.execute(&claim, actions)
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
