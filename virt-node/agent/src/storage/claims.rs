//! Makes a claim's volume and its PV. Every step is found done when it comes again: the volume by its name, the PV by its.

use std::collections::BTreeMap;

use api::hostpath::PROVISION_ON_NODE;
use cluster::event::Type;
use cluster::{JsonPatch, Key, Outcome};
use csi::volume_content_source::{SnapshotSource, Type as Source, VolumeSource};
use csi::{CreateVolumeRequest, VolumeContentSource};
use serde::de::IgnoredAny;
use serde_json::Value;
use tonic::{Code, Status};

use super::controller::Controller;
use super::objects::{
    ATTRIBUTES, AttributesClass, CLAIMS, CONTENTS, Claim, Class, NODE_LABEL, SELECTED_NODE, SNAPSHOTS,
    VOLUMES, Volume,
};
use super::request::{self, Place};
use super::volume;
use crate::error::{Error, Kind, Result};

/// Annotation of a VolumeSnapshotContent: its snapshot may become a volume of another mode.
const MODE_CHANGE: &str = "snapshot.storage.kubernetes.io/allow-volume-mode-change";

impl Controller {
    /// Makes the volume and the PV of a claim.
    pub(super) async fn provision(&self, claim: &Claim, class: &Class) -> Outcome {
        let name = request::name(claim);
        let (namespace, of) = (&claim.metadata.namespace, &claim.metadata.name);
        let key = Key::new(namespace, of);
        // A PV of that name is the claim's: binding it is Kubernetes' part.
        match self.client.find::<IgnoredAny>(VOLUMES, &Key::cluster(&name)).await {
            Ok(None) => {}
            Ok(Some(_)) => {
                self.unfinished.end(&key);
                return Outcome::Done;
            }
            Err(error) => {
                tracing::warn!(claim = %of, namespace, error = error.chain(), "cannot look for the claim's PV");
                return Outcome::Retry;
            }
        }
        let begun = format!("External provisioner is provisioning volume for claim \"{namespace}/{of}\"");
        self.report(claim, Type::Normal, "Provisioning", &begun);
        let request = match self.request(claim, class).await {
            Ok(request) => request,
            Err(error) => return self.failed(claim, class, &error.chain()),
        };
        // A volume that is to outlive its claim is not deleted without a PV either.
        if class.reclaim_policy.as_deref().unwrap_or("Delete") == "Delete" {
            self.unfinished.begin(&key, &claim.metadata.uid);
        }
        let made = self.driver.controller().create_volume(request).await;
        if made.as_ref().is_err_and(is_final) {
            self.unfinished.end(&key);
        }
        let made = match made {
            Ok(made) => made.into_inner().volume.unwrap_or_default(),
            Err(status) if status.code() == Code::ResourceExhausted => {
                // The next node is chosen by the room that this one has now.
                self.changed.notify_one();
                if claim.is_pinned() {
                    let why = format!(
                        "{}; the annotation {PROVISION_ON_NODE} names this node: remove it to have another one chosen",
                        rpc_error(&status)
                    );
                    return self.failed(claim, class, &why);
                }
                self.report_failure(claim, class, &rpc_error(&status));
                return self.reschedule(claim).await;
            }
            Err(status) => return self.failed(claim, class, &rpc_error(&status)),
        };
        self.changed.notify_one();
        let object = volume::object(claim, class, &made, self.driver.name(), &self.identity, &self.node);
        match self.client.create::<IgnoredAny>(VOLUMES, "", &object).await {
            Ok(_) => {}
            Err(error) if error.is_already_exists() => {}
            Err(error) => {
                tracing::warn!(volume = name, error = error.chain(), "cannot write the claim's PV");
                return Outcome::Retry;
            }
        }
        self.unfinished.end(&key);
        self.report(
            claim,
            Type::Normal,
            "ProvisioningSucceeded",
            &format!("Successfully provisioned volume {name}"),
        );
        tracing::info!(volume = name, claim = %of, namespace, "volume provisioned");
        Outcome::Done
    }

    fn failed(&self, claim: &Claim, class: &Class, why: &str) -> Outcome {
        self.report_failure(claim, class, why);
        Outcome::Retry
    }

    fn report_failure(&self, claim: &Claim, class: &Class, why: &str) {
        let message =
            format!("failed to provision volume with StorageClass {:?}: {why}", class.metadata.name);
        self.report(claim, Type::Warning, "ProvisioningFailed", &message);
        tracing::warn!(
            claim = claim.metadata.name,
            namespace = claim.metadata.namespace,
            why,
            "cannot provision a volume; retrying"
        );
    }

    async fn request(&self, claim: &Claim, class: &Class) -> Result<CreateVolumeRequest> {
        let attributes = match &claim.spec.volume_attributes_class_name {
            Some(name) => self.attributes(name).await?,
            None => BTreeMap::new(),
        };
        let source = self.source_of(claim).await?;
        let place =
            Place { topology: self.driver.topology(), several_writers: self.driver.several_writers() };
        Ok(request::create(claim, class, &place, source, &attributes))
    }

    async fn attributes(&self, name: &str) -> Result<BTreeMap<String, String>> {
        let class: AttributesClass =
            self.client.get(ATTRIBUTES, &Key::cluster(name)).await.map_err(lookup_failed)?;
        class.parameters_of(name, self.driver.name())
    }

    /// The source of the claim's volume, by the driver's names.
    async fn source_of(&self, claim: &Claim) -> Result<Option<VolumeContentSource>> {
        let Some(source) = claim.source() else { return Ok(None) };
        let key = Key::new(&claim.metadata.namespace, &source.name);
        let r#type = if source.kind == "VolumeSnapshot" {
            Source::Snapshot(SnapshotSource { snapshot_id: self.snapshot(claim, &key).await? })
        } else {
            Source::Volume(VolumeSource { volume_id: self.source_claim(claim, &key).await? })
        };
        Ok(Some(VolumeContentSource { r#type: Some(r#type) }))
    }

    /// Handle of the volume of the claim that another one is a clone of.
    async fn source_claim(&self, claim: &Claim, key: &Key) -> Result<String> {
        let refuse = |text: String| Error::new(Kind::Content, text);
        let source: Claim = self.client.get(CLAIMS, key).await.map_err(lookup_failed)?;
        if source.metadata.deletion_timestamp.is_some() {
            return Err(refuse(format!("the source claim {key} is being deleted")));
        }
        if source.status.phase != "Bound" {
            return Err(refuse(format!("the source claim {key} is not bound")));
        }
        if source.is_block() != claim.is_block() {
            return Err(refuse(format!("the source claim {key} has another volumeMode: give both the same")));
        }
        if source.requested() > claim.requested() {
            return Err(refuse(format!(
                "the claim is smaller than its source {key}: request at least its size"
            )));
        }
        let of = &source.spec.volume_name;
        let volume: Volume = self.client.get(VOLUMES, &Key::cluster(of)).await.map_err(lookup_failed)?;
        match volume.spec.csi {
            Some(csi) if csi.driver == self.driver.name() => Ok(csi.volume_handle),
            _ => Err(refuse(format!("the source claim {key} belongs to another CSI driver"))),
        }
    }

    /// Handle of a snapshot that is ready.
    async fn snapshot(&self, claim: &Claim, key: &Key) -> Result<String> {
        let refuse = |text: String| Error::new(Kind::Content, text);
        let snapshot: Value = self.client.get(SNAPSHOTS, key).await.map_err(lookup_failed)?;
        let text =
            |object: &Value, path: &str| object.pointer(path).and_then(Value::as_str).map(str::to_owned);
        if snapshot.pointer("/metadata/deletionTimestamp").is_some() {
            return Err(refuse(format!("the snapshot {key} is being deleted")));
        }
        if snapshot.pointer("/status/readyToUse") != Some(&Value::Bool(true)) {
            return Err(refuse(format!("the snapshot {key} is not ready")));
        }
        let content = text(&snapshot, "/status/boundVolumeSnapshotContentName")
            .ok_or_else(|| refuse(format!("the snapshot {key} is not bound")))?;
        let content: Value =
            self.client.get(CONTENTS, &Key::cluster(&content)).await.map_err(lookup_failed)?;
        if text(&content, "/spec/driver").as_deref() != Some(self.driver.name()) {
            return Err(refuse(format!("the snapshot {key} belongs to another CSI driver")));
        }
        let size = content.pointer("/status/restoreSize").and_then(Value::as_u64);
        if size > claim.requested() {
            return Err(refuse(format!(
                "the claim is smaller than the snapshot {key}: request at least its size"
            )));
        }
        let allowed = content
            .pointer("/metadata/annotations")
            .and_then(|all| all.get(MODE_CHANGE))
            .is_some_and(|value| value == "true");
        let mode = text(&content, "/spec/sourceVolumeMode");
        if !allowed && mode.is_some_and(|mode| (mode == "Block") != claim.is_block()) {
            return Err(refuse(format!("the snapshot {key} is of a volume with another volume mode")));
        }
        text(&content, "/status/snapshotHandle")
            .ok_or_else(|| refuse(format!("the snapshot {key} has no handle")))
    }

    /// Gives a claim back that has no room here, to the scheduler or the operator, which chooses another node.
    async fn reschedule(&self, claim: &Claim) -> Outcome {
        let key = Key::new(&claim.metadata.namespace, &claim.metadata.name);
        let pointer = |parts: [&str; 3]| JsonPatch::pointer(parts);
        let patch = JsonPatch::new()
            .test("/metadata/uid", &claim.metadata.uid)
            .test(pointer(["metadata", "annotations", SELECTED_NODE]), &self.node)
            .remove(pointer(["metadata", "annotations", SELECTED_NODE]))
            .remove(pointer(["metadata", "labels", NODE_LABEL]));
        match self.client.json_patch::<IgnoredAny>(CLAIMS, &key, &patch).await {
            Ok(_) => {
                tracing::info!(claim = %key, "no room on this node: the claim is scheduled again");
                Outcome::Done
            }
            // A claim that was given back already is not looked at again: it has left the node.
            Err(error) if error.is_conflict() => Outcome::Retry,
            Err(error) if error.is_not_found() => Outcome::Done,
            Err(error) => {
                tracing::warn!(claim = %key, error = error.chain(), "cannot return the claim to the scheduler");
                Outcome::Retry
            }
        }
    }
}

/// A call of the API server that failed.
pub(super) fn lookup_failed(error: cluster::Error) -> Error {
    Error::with(Kind::Cluster, "cannot read the claim's class or source", error)
}

/// Whether no call can still run after this answer.
pub(super) fn is_final(status: &Status) -> bool {
    !matches!(status.code(), Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::Aborted)
}

/// A status of the driver as the sidecars print it.
pub(super) fn rpc_error(status: &Status) -> String {
    format!("rpc error: code = {:?} desc = {}", status.code(), status.message())
}
