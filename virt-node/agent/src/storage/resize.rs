//! Makes the volume of a bound claim larger: both halves of csi-resizer's work of resizing, on the volume's own node.
//!
//! ```text
//! claim: ControllerResizeInProgress ─► ControllerExpandVolume ─► PV: capacity
//!   ─► a directory: claim.status.capacity, done
//!   ─► a file: NodeResizePending; the kubelet grows the filesystem in use and finishes
//! ```

use cluster::event::Type;
use cluster::{Key, Outcome};
use csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use csi::{CapacityRange, ControllerExpandVolumeRequest, VolumeCapability};
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tonic::{Code, Status};

use super::claims::rpc_error;
use super::conditions::{self, condition};
use super::controller::Controller;
use super::objects::{CLAIMS, Claim, VOLUMES, Volume};
use super::request;

/// Annotation of a PV: its capacity before, while the kubelet still has to grow it.
const BEFORE: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";
/// Annotation of a claim: the kubelet has nothing to grow.
const NODE_NOT_REQUIRED: &str = "volume.kubernetes.io/node-expansion-not-required";

impl Controller {
    /// Makes the volume of a claim as large as `bytes`.
    pub(super) async fn expand(&self, claim: &Claim, volume: &Volume, bytes: u64) -> Outcome {
        let Some(csi) = &volume.spec.csi else { return Outcome::Done };
        let wanted = api::quantity::text(bytes);
        // The status of an earlier try stays as it is: each write of the status makes the claim be looked at again.
        if !is_begun(claim, &wanted) {
            let condition = condition("Resizing", "", "");
            let begun = status(claim, &wanted, Some("ControllerResizeInProgress"), Some(condition));
            if let Err(outcome) = self.write(claim, &begun).await {
                return outcome;
            }
        }
        let name = &volume.metadata.name;
        self.report(claim, Type::Normal, "Resizing", &format!("External resizer is resizing volume {name}"));
        let request = ControllerExpandVolumeRequest {
            volume_id: csi.volume_handle.clone(),
            capacity_range: Some(CapacityRange {
                required_bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
                limit_bytes: 0,
            }),
            volume_capability: capability(claim, &csi.fs_type, self.driver.several_writers()),
            ..ControllerExpandVolumeRequest::default()
        };
        let grown = match self.driver.controller().controller_expand_volume(request).await {
            Ok(grown) => grown.into_inner(),
            Err(refused) => return self.not_expanded(claim, &wanted, &refused).await,
        };
        self.changed.notify_one();
        let size = u64::try_from(grown.capacity_bytes).unwrap_or(bytes).max(bytes);
        let has = volume.spec.capacity.get("storage").cloned().unwrap_or_default();
        if let Err(outcome) =
            self.grow_object(volume, size, grown.node_expansion_required.then_some(has)).await
        {
            return outcome;
        }
        if grown.node_expansion_required {
            let text = "Waiting for user to (re-)start a pod to finish file system resize of volume on node.";
            let pending = status(
                claim,
                &wanted,
                Some("NodeResizePending"),
                Some(condition("FileSystemResizePending", "", text)),
            );
            if let Err(outcome) = self.write(claim, &pending).await {
                return outcome;
            }
            self.report(
                claim,
                Type::Normal,
                "FileSystemResizeRequired",
                "Require file system resize of volume on node",
            );
            return Outcome::Done;
        }
        let key = Key::new(&claim.metadata.namespace, &claim.metadata.name);
        let note = json!({"metadata": {"annotations": {NODE_NOT_REQUIRED: "true"}}});
        if let Err(error) = self.client.merge_patch::<IgnoredAny>(CLAIMS, &key, &note).await {
            tracing::warn!(claim = %key, error = error.chain(), "cannot annotate the claim");
            return Outcome::Retry;
        }
        let mut done = status(claim, &wanted, None, None);
        merge(&mut done, "capacity", json!({"storage": api::quantity::text(size)}));
        if let Err(outcome) = self.write(claim, &done).await {
            return outcome;
        }
        self.report(claim, Type::Normal, "VolumeResizeSuccessful", "Resize volume succeeded");
        tracing::info!(volume = %name, bytes = size, "volume expanded");
        Outcome::Done
    }

    async fn not_expanded(&self, claim: &Claim, wanted: &str, refused: &Status) -> Outcome {
        let why = rpc_error(refused);
        self.report(claim, Type::Warning, "VolumeResizeFailed", &format!("resize volume failed: {why}"));
        tracing::warn!(
            claim = claim.metadata.name,
            namespace = claim.metadata.namespace,
            error = why,
            "cannot expand a volume; retrying"
        );
        // Any other error may mean that the driver still works on it.
        let infeasible = matches!(refused.code(), Code::InvalidArgument | Code::OutOfRange | Code::NotFound);
        if !infeasible {
            return Outcome::Retry;
        }
        let failed = status(
            claim,
            wanted,
            Some("ControllerResizeInfeasible"),
            Some(condition("ControllerResizeError", "", &why)),
        );
        self.write(claim, &failed).await.err().unwrap_or(Outcome::Done)
    }

    async fn grow_object(&self, volume: &Volume, bytes: u64, before: Option<String>) -> Result<(), Outcome> {
        let key = Key::cluster(&volume.metadata.name);
        let patch = json!({
            "metadata": {"annotations": {BEFORE: before}},
            "spec": {"capacity": {"storage": api::quantity::text(bytes)}},
        });
        self.client.merge_patch::<IgnoredAny>(VOLUMES, &key, &patch).await.map(drop).map_err(|error| {
            tracing::warn!(volume = %key, error = error.chain(), "cannot write the PV's capacity");
            Outcome::Retry
        })
    }
}

/// Whether an expansion to this size was recorded in the claim's status.
fn is_begun(claim: &Claim, wanted: &str) -> bool {
    let storage = |map: &std::collections::BTreeMap<String, String>| map.get("storage").cloned();
    storage(&claim.status.allocated_resource_statuses).as_deref() == Some("ControllerResizeInProgress")
        && storage(&claim.status.allocated_resources).as_deref() == Some(wanted)
}

/// A patch of a claim's status: the size that is being allocated, how far that is, and its condition. Without
/// a state the resize is done.
fn status(claim: &Claim, allocated: &str, state: Option<&str>, ours: Option<Value>) -> Value {
    json!({"status": {
        "allocatedResources": {"storage": allocated},
        "allocatedResourceStatuses": {"storage": state},
        "conditions": conditions::with(claim, &conditions::SIZE, ours),
    }})
}

fn merge(patch: &mut Value, key: &str, value: Value) {
    if let Some(status) = patch.get_mut("status").and_then(Value::as_object_mut) {
        status.insert(key.to_owned(), value);
    }
}

/// The volume's capability as the resizer sends it.
fn capability(claim: &Claim, filesystem: &str, several_writers: bool) -> Option<VolumeCapability> {
    let mode = claim.spec.access_modes.first().map(|mode| request::mode(mode, several_writers))?;
    let access_type = if claim.is_block() {
        AccessType::Block(BlockVolume {})
    } else {
        AccessType::Mount(MountVolume { fs_type: filesystem.to_owned(), ..MountVolume::default() })
    };
    Some(VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(access_type),
    })
}
