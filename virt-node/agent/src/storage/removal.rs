//! Deletes the volume of a PV that was released, then the PV; and a volume that never got a PV, when its claim is gone.

use cluster::{Delete, JsonPatch, Key, Outcome};
use csi::DeleteVolumeRequest;
use serde::de::IgnoredAny;

use super::claims::rpc_error;
use super::controller::Controller;
use super::objects::{CLAIMS, Claim, FINALIZER, VOLUMES, Volume};
use super::request::name_by_uid;

impl Controller {
    /// Deletes a volume, its PV, and the finalizer that held the PV.
    pub(super) async fn remove(&self, volume: &Volume) -> Outcome {
        let Some(csi) = &volume.spec.csi else { return Outcome::Done };
        let request = DeleteVolumeRequest { volume_id: csi.volume_handle.clone(), ..Default::default() };
        if let Err(status) = self.driver.controller().delete_volume(request).await {
            self.report_volume(volume, "VolumeFailedDelete", &rpc_error(&status));
            tracing::warn!(
                volume = volume.metadata.name,
                error = rpc_error(&status),
                "cannot delete the volume"
            );
            return Outcome::Retry;
        }
        self.changed.notify_one();
        let key = Key::cluster(&volume.metadata.name);
        let delete = Delete::default().uid(&volume.metadata.uid);
        match self.client.delete(VOLUMES, &key, &delete).await {
            Ok(_) => {}
            // A write at the same time, or another PV of this name, which the next look leaves alone.
            Err(error) if error.is_conflict() => return Outcome::Retry,
            Err(error) => {
                tracing::warn!(volume = %key, error = error.chain(), "cannot delete the PV");
                return Outcome::Retry;
            }
        }
        tracing::info!(volume = %key, "volume deleted");
        self.set_finalizer(volume, false).await
    }

    /// Deletes the volume that was begun for a claim, where the claim is gone and there is no PV, which would see to that.
    pub(super) async fn abandon(&self, claim: &Key, uid: &str) -> Outcome {
        let name = name_by_uid(uid);
        match self.is_left(claim, uid, &name).await {
            Ok(true) => {}
            Ok(false) => return Outcome::Done,
            Err(error) => {
                tracing::warn!(
                    volume = name,
                    error = error.chain(),
                    "cannot look for the claim and PV of a volume"
                );
                return Outcome::Retry;
            }
        }
        let request = DeleteVolumeRequest { volume_id: name.clone(), ..Default::default() };
        if let Err(status) = self.driver.controller().delete_volume(request).await {
            tracing::warn!(
                volume = name,
                error = rpc_error(&status),
                "cannot delete the volume of a claim that is gone"
            );
            return Outcome::Retry;
        }
        self.changed.notify_one();
        tracing::info!(volume = name, %claim, "the claim was deleted while its volume was made: volume deleted");
        Outcome::Done
    }

    /// Whether a volume has neither its claim nor a PV. The claim first: without it no PV is made.
    async fn is_left(&self, claim: &Key, uid: &str, name: &str) -> cluster::Result<bool> {
        let there = self.client.find::<Claim>(CLAIMS, claim).await?;
        if there.is_some_and(|there| there.metadata.uid == uid) {
            return Ok(false);
        }
        Ok(self.client.find::<IgnoredAny>(VOLUMES, &Key::cluster(name)).await?.is_none())
    }

    /// Puts our finalizer on a PV, or takes it off.
    pub(super) async fn set_finalizer(&self, volume: &Volume, wanted: bool) -> Outcome {
        let key = Key::cluster(&volume.metadata.name);
        // The list is replaced as it is now: others have finalizers there, too.
        let now = match self.client.find::<Volume>(VOLUMES, &key).await {
            Ok(Some(now)) if now.metadata.uid == volume.metadata.uid => now,
            Ok(_) => return Outcome::Done,
            Err(error) => {
                tracing::warn!(volume = %key, error = error.chain(), "cannot read the PV");
                return Outcome::Retry;
            }
        };
        let mut finalizers = now.metadata.finalizers.clone();
        finalizers.retain(|name| name != FINALIZER);
        if wanted {
            finalizers.push(FINALIZER.to_owned());
        }
        if finalizers == now.metadata.finalizers {
            return Outcome::Done;
        }
        let patch = JsonPatch::new()
            .test("/metadata/uid", &volume.metadata.uid)
            .test("/metadata/resourceVersion", &now.metadata.resource_version)
            .add("/metadata/finalizers", finalizers);
        match self.client.json_patch::<IgnoredAny>(VOLUMES, &key, &patch).await {
            Ok(_) => Outcome::Done,
            Err(error) if error.is_not_found() => Outcome::Done,
            Err(error) => {
                tracing::warn!(volume = %key, error = error.chain(), "cannot change the PV's finalizers");
                Outcome::Retry
            }
        }
    }
}
