//! DataVolumes: the claim, then the status.

use std::sync::Arc;

use cluster::{Key, Outcome, Result, Scope};
use serde_json::{Value, json};
use virt::time;

use super::{CATCH_UP, Controller, RETRY, refused};
use crate::storage::action::Action;
use crate::storage::apply::Done;
use crate::storage::clone::authorize::Origin;
use crate::storage::clone::token::{self, Target};
use crate::storage::datavolume::claim::{self, ClusterStorage};
use crate::storage::datavolume::phase::Work;
use crate::storage::datavolume::{self, Obstacle, reserved};
use crate::storage::populate::plan as filling;
use crate::storage::profile::Profile;
use crate::storage::resources::{DATA_VOLUMES, VOLUMES};
use crate::storage::seen::{Claim, DataVolume, Snapshot, Volume};
use crate::storage::settings::Settings;
use crate::storage::written::Collection;
use crate::storage::{keys, names, signers};

/// Size of the disk in a snapshot: that of a Filesystem volume fills what the filesystem leaves. `claim`: the snapshot's.
/// A snapshot of an unknown volume mode counts as one of a Block volume, so that the disk fits in any case.
fn disk_of(snapshot: &Snapshot, claim: Option<&Claim>, settings: &Settings) -> u64 {
    match snapshot.block.or_else(|| claim.map(|claim| claim.block)).unwrap_or(true) {
        true => snapshot.size,
        false => {
            settings.overhead_of(claim.and_then(|claim| claim.class.as_deref()), false).disk_in(snapshot.size)
        }
    }
}

impl Controller {
    /// A DataVolume: its claim, then its status.
    pub(super) async fn volume(&self, key: &Key) -> Result<Outcome> {
        let Some(volume) = self.caches.volumes.get(key) else { return Ok(Outcome::Done) };
        let version = self.caches.volumes.version(key);
        let seen = self.applier.written.is_seen(Collection::Volumes, key, version, volume.meta.deleting);
        if !seen || !self.is_current(key, None) {
            return Ok(Outcome::After(CATCH_UP));
        }
        if volume.meta.deleting {
            return Ok(Outcome::Done);
        }
        let (classes, settings) = (self.classes(), self.settings());
        let profiles: Vec<Profile> = classes.classes.iter().map(|class| self.profile(class)).collect();
        let offer = ClusterStorage { classes: &classes, profiles: &profiles, settings: &settings };
        let mut claim = self.caches.claims.get(key);
        let (mut granted, mut size) = (None, None);
        let reserved = match claim.is_none() && reserved::is_checked(&volume) {
            true => reserved::claim(&volume, offer, &self.persistent_volumes().await?),
            false => None,
        };
        if claim.is_none() && reserved.is_none() && Work::of(&volume.source) == Work::Clone {
            match self.before_clone(&volume, &settings).await? {
                Ok((volume, found)) => (granted, size) = (volume, found),
                Err(trouble) => {
                    self.report(&volume, None, offer, Some(&trouble)).await?;
                    return Ok(Outcome::After(RETRY));
                }
            }
        }
        let asking = granted.as_ref().unwrap_or(&*volume);
        let listed = claim.as_deref().filter(|claim| {
            claim.waits_for_reserved()
                && !claim.meta.deleting
                && claim.meta.is_controlled_by(&volume.meta.uid)
        });
        let mut plan = match (reserved, listed) {
            (Some(claim), _) => {
                datavolume::plan::Plan { actions: vec![Action::Create(claim)], ..Default::default() }
            }
            (None, Some(claim)) => {
                let named = match claim.volume.is_empty() {
                    false => self.client.find::<Value>(VOLUMES, &Key::cluster(&claim.volume)).await?,
                    true => None,
                };
                reserved::settle(&volume, claim, named.as_ref().map(Volume::from).as_ref())
            }
            (None, None) => datavolume::plan::plan(asking, claim.as_deref(), offer, size),
        };
        let binds = claim.as_deref().is_some_and(Claim::waits_for_reserved);
        for action in &plan.actions {
            match self.applier.apply(action).await {
                Ok(Done::Written(object)) => claim = Some(Arc::new(Claim::from(&object))),
                Ok(Done::AlreadyThere) => return Ok(Outcome::After(CATCH_UP)),
                Err(error) => {
                    plan.trouble = Some(datavolume::Obstacle::of_refusal(&refused(error)?, claim::NOT_VALID));
                }
            }
        }
        self.report(&volume, claim.as_deref(), offer, plan.trouble.as_ref()).await?;
        Ok(if plan.trouble.is_some() || binds { Outcome::After(RETRY) } else { Outcome::Done })
    }

    async fn persistent_volumes(&self) -> Result<Vec<Volume>> {
        let all: Vec<Value> = self.client.list(VOLUMES, &Scope::all()).await?;
        Ok(all.iter().map(Volume::from).collect())
    }

    /// The inputs of a clone's claim: the DataVolume with the token that its claim gets, when the source is in another
    /// namespace, and the source's size, when the DataVolume gives none.
    async fn before_clone(
        &self,
        volume: &DataVolume,
        settings: &Settings,
    ) -> Result<std::result::Result<(Option<DataVolume>, Option<u64>), Obstacle>> {
        let resolved = match self.resolved(volume).await? {
            Ok(resolved) => resolved,
            // The claim is made, and waits, as soon as its size is known.
            Err(_) if volume.claim.size().is_some() => return Ok(Ok((None, None))),
            Err(trouble) => return Ok(Err(trouble)),
        };
        let namespace = &volume.meta.namespace;
        let Some(origin) = Origin::of(&resolved.source, namespace) else { return Ok(Ok((None, None))) };
        let mut granted = None;
        if origin.namespace != *namespace {
            let target = Target { namespace, name: &volume.meta.name, uid: None };
            let (keys, now) = (keys::read(&self.client, &self.setup.namespace).await?, signers::now());
            let token = volume.meta.annotation(names::CLONE_TOKEN);
            let claims = token.and_then(|token| keys.verify(token, now).ok());
            if !claims.is_some_and(|claims| token::fits(&claims, &origin, target)) {
                let message = format!(
                    "the DataVolume has no valid token for a clone from namespace {}: delete it and create it again",
                    origin.namespace
                );
                return Ok(Err(Obstacle { reason: "CloneNotAuthorized", message }));
            }
            let grant = token::grant(&origin, Target { uid: Some(&volume.meta.uid), ..target });
            let token = keys.extend(&grant, now).map_err(|error| {
                cluster::Error::caused(cluster::Kind::Unreadable, "tokens cannot be signed yet", error)
            })?;
            let mut volume = volume.clone();
            volume.meta.annotations.insert(names::EXTENDED_CLONE_TOKEN.to_owned(), token);
            granted = Some(volume);
        }
        if volume.claim.size().is_some() {
            return Ok(Ok((granted, None)));
        }
        let size = match origin.snapshot {
            true => self.source_snapshot(&origin.key()).await?.map(|snapshot| {
                let claim = Key::new(&origin.namespace, &snapshot.claim);
                disk_of(&snapshot, self.caches.claims.get(&claim).as_deref(), settings)
            }),
            false => self.caches.claims.get(&origin.key()).map(|source| {
                // The disk of a Filesystem volume fills what the filesystem leaves.
                settings.overhead_of(source.class.as_deref(), source.block).disk_in(source.capacity)
            }),
        };
        Ok(match size.filter(|size| *size > 0) {
            Some(size) => Ok((granted, Some(size))),
            None => {
                let message = format!(
                    "the size of {} is not known yet: the clone waits until it exists and is bound, or give \
                     spec.storage.resources.requests.storage",
                    origin.name
                );
                Err(Obstacle { reason: "CloneWithoutSource", message })
            }
        })
    }

    /// Writes a DataVolume's status, one phase after the other.
    async fn report(
        &self,
        volume: &DataVolume,
        claim: Option<&Claim>,
        offer: ClusterStorage<'_>,
        trouble: Option<&Obstacle>,
    ) -> Result<()> {
        if let Some(event) = trouble.and_then(|trouble| datavolume::plan::event(volume, trouble)) {
            self.applier.apply(&Action::Report(event)).await?;
        }
        let claim = claim.filter(|claim| claim.meta.owners.iter().any(|owner| owner.uid == volume.meta.uid));
        let prime = claim.filter(|claim| filling::is_populated(claim));
        let prime = prime.map(|claim| Key::new(&claim.meta.namespace, &names::prime(&claim.meta.uid)));
        let prime = prime.and_then(|prime| self.caches.claims.get(&prime));
        let facts = claim.map(|claim| datavolume::plan::facts(volume, claim, prime.as_deref(), offer));
        let facts = facts.unwrap_or_default();
        let mut volume = volume.clone();
        let key = Key::new(&volume.meta.namespace, &volume.meta.name);
        let progress = self.progress.of(&key);
        let shown = claim.filter(|_| progress.is_some()).cloned().map(|mut claim| {
            claim.meta.annotations.extend(progress.map(|progress| (names::PROGRESS.to_owned(), progress)));
            claim
        });
        let mut shown = shown.or_else(|| claim.cloned());
        let written = if claim.is_some_and(filling::is_populated) { prime.as_deref() } else { claim };
        let starting = claim.and_then(|claim| self.starting(claim, written));
        let waits = self.waits().get(&key).cloned();
        if let Some(claim) = &mut shown
            && claim.meta.annotation(names::RUNNING).is_none()
        {
            match (starting, waits) {
                (Some(annotations), wait) => {
                    claim.meta.annotations.extend(annotations);
                    let hindrance = wait.filter(filling::is_hindrance);
                    claim.meta.annotations.extend(hindrance.iter().flat_map(filling::waiting));
                }
                (None, Some(wait)) => claim.meta.annotations.extend(filling::waiting(&wait)),
                (None, None) => {}
            }
        }
        let claim = shown.as_ref();
        loop {
            let now = time::text(time::now());
            let report = datavolume::status::report(&volume, claim, facts, trouble, &now);
            if !report.differs(&volume) {
                return Ok(());
            }
            let patch = json!({
                "metadata": {"uid": volume.meta.uid},
                "status": datavolume::status::document(&report.status, &now),
            });
            let made: Value = self.client.merge_patch(DATA_VOLUMES.sub("status"), &key, &patch).await?;
            let version = made["metadata"]["resourceVersion"].as_str().unwrap_or_default();
            self.applier.written.object(Collection::Volumes, key.clone(), version);
            for event in report.events {
                self.applier.apply(&Action::Report(event)).await?;
            }
            volume.status = report.status;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_of_a_filesystem_has_room_for_a_smaller_disk() {
        let settings = Settings::from(&json!({
            "spec": {"filesystemOverhead": {"global": "0.06", "storageClass": {"wide": "0.5"}}},
        }));
        let claim = |class: &str, mode: &str| {
            Claim::from(&json!({"spec": {"storageClassName": class, "volumeMode": mode}}))
        };
        let (file, raw, wide) =
            (claim("fast", "Filesystem"), claim("fast", "Block"), claim("wide", "Filesystem"));
        let size = settings.overhead_of(Some("fast"), false).volume_for(1 << 30);
        for (block, claim, expected) in [
            (Some(false), None, 1 << 30),
            (Some(false), Some(&file), 1 << 30),
            (None, Some(&file), 1 << 30),
            (Some(false), Some(&wide), settings.overhead_of(Some("wide"), false).disk_in(size)),
            (Some(true), Some(&file), size),
            (None, Some(&raw), size),
            (None, None, size),
        ] {
            let snapshot = Snapshot { size, block, ..Snapshot::default() };
            assert_eq!(disk_of(&snapshot, claim, &settings), expected, "{block:?} {claim:?}");
        }
    }
}
