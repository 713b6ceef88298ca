//! Volumes of the node's pools that no object names, reported once after each start: an agent that ends while the driver
//! makes a volume leaves it behind if the claim goes before the next agent has started.
//!
//! Not here: deleting them. Volumes of the reclaim policy Retain are left on purpose, and a pool may be an adopted one.

use std::collections::BTreeSet;
use std::time::Duration;

use cluster::Key;
use cluster::event::Type;
use csi::{ControllerGetVolumeRequest, ListVolumesRequest};
use serde::de::IgnoredAny;
use tonic::Code;

use super::controller::Controller;
use super::objects::VOLUMES;
use super::pools::{about_node, named};
use super::sidecars::Sidecars;
use crate::error::{Error, Kind, Result};

/// How names of volumes of claims begin; the claim's uid follows.
const PREFIX: &str = "pvc-";
/// Time between two looks, while a pool is not ready or the API server does not answer.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// Reports them, once stock csi-provisioner does not make the node's volumes: the claims that it serves need no label.
pub(super) async fn report(controller: &Controller, sidecars: &Sidecars) {
    sidecars.wait_until_absent().await;
    let mut is_first = true;
    let found = loop {
        match find(controller).await {
            Ok(found) => break found,
            Err(error) if is_first => {
                let error = error.chain();
                tracing::info!(error, "cannot compare the node's volumes with their objects yet; retrying");
            }
            Err(error) => {
                let error = error.chain();
                tracing::debug!(error, "cannot compare the node's volumes with their objects; retrying");
            }
        }
        is_first = false;
        tokio::time::sleep(POLL_INTERVAL).await;
    };
    if found.is_empty() {
        return;
    }
    let message = format!(
        "volumes of the node's pools have neither a PersistentVolume nor a claim, and keep their room: {}",
        named(&found)
    );
    tracing::warn!(volumes = named(&found), "volumes have neither a PersistentVolume nor a claim");
    controller.events.publish(
        &about_node(&controller.node),
        Type::Warning,
        "VolumesWithoutObjects",
        &message,
    );
}

/// The volumes of the node that have neither a PV nor a claim.
async fn find(controller: &Controller) -> Result<Vec<String>> {
    // A claim that goes after the list was read has its volume deleted.
    let before = controller.claims.all();
    let listed = list(controller).await?;
    let (volumes, claims) = (controller.volumes.all(), controller.claims.all());
    let handles = volumes.iter().filter_map(|(_, volume)| volume.spec.csi.as_ref());
    let handles: BTreeSet<&str> = handles.map(|csi| csi.volume_handle.as_str()).collect();
    let uids: BTreeSet<&str> =
        before.iter().chain(&claims).map(|(_, claim)| claim.metadata.uid.as_str()).collect();
    let mut found = Vec::new();
    for name in unknown(&listed, &handles, &uids) {
        // It may have no label yet.
        let volume = controller.client.find::<IgnoredAny>(VOLUMES, &Key::cluster(name)).await;
        let volume =
            volume.map_err(|error| Error::with(Kind::Cluster, "cannot read a PersistentVolume", error))?;
        if volume.is_some() {
            continue;
        }
        // A volume is deleted before its PV: one that was on its way is gone by now.
        let request = ControllerGetVolumeRequest { volume_id: name.to_owned() };
        if controller.driver.controller().controller_get_volume(request).await.is_ok() {
            found.push(name.to_owned());
        }
    }
    Ok(found)
}

/// The driver's volumes that only this node has: those of a shared pool have no topology.
async fn list(controller: &Controller) -> Result<Vec<String>> {
    let mut all = Vec::new();
    let mut request = ListVolumesRequest::default();
    loop {
        let page = match controller.driver.controller().list_volumes(request).await {
            Ok(page) => page.into_inner(),
            Err(status) if status.code() == Code::Unimplemented => return Ok(Vec::new()),
            Err(status) => return Err(Error::with(Kind::System, "ListVolumes failed", status)),
        };
        let volumes = page.entries.into_iter().filter_map(|entry| entry.volume);
        all.extend(
            volumes.filter(|volume| !volume.accessible_topology.is_empty()).map(|volume| volume.volume_id),
        );
        if page.next_token.is_empty() {
            return Ok(all);
        }
        request = ListVolumesRequest { starting_token: page.next_token, ..ListVolumesRequest::default() };
    }
}

/// The volumes that are named after claims, and have neither a PV of these handles nor a claim of these uids.
fn unknown<'a>(listed: &'a [String], handles: &BTreeSet<&str>, uids: &BTreeSet<&str>) -> Vec<&'a str> {
    let is_unknown = |name: &&str| {
        name.strip_prefix(PREFIX).is_some_and(|uid| !handles.contains(*name) && !uids.contains(uid))
    };
    listed.iter().map(String::as_str).filter(is_unknown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_without_pv_and_claim_is_unknown() {
        let listed = ["pvc-bound", "pvc-made", "pvc-left", "csi-0123", "image"].map(str::to_owned);
        let (handles, uids) = (BTreeSet::from(["pvc-bound", "other"]), BTreeSet::from(["made", "waits"]));
        assert_eq!(unknown(&listed, &handles, &uids), ["pvc-left"]);
        assert!(unknown(&[], &handles, &uids).is_empty());
    }
}
