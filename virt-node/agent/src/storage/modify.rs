//! Gives the volume of a bound claim the attributes of its VolumeAttributesClass: csi-resizer's other work.
//!
//! ```text
//! claim: modifyVolumeStatus InProgress, ModifyingVolume ─► ControllerModifyVolume
//!   ─► PV: volumeAttributesClassName ─► claim: currentVolumeAttributesClassName, conditions gone
//!   ─► no such class: Pending; refused parameters: Infeasible; other errors: InProgress, ModifyVolumeError
//! ```
//!
//! Every try goes for the class that the claim names now: the driver's call sets the attributes absolutely, so an earlier,
//! unfinished one needs no end of its own.

use std::time::Duration;

use cluster::event::Type;
use cluster::{Key, Outcome};
use csi::ControllerModifyVolumeRequest;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tonic::{Code, Status};

use super::claims::rpc_error;
use super::conditions::{self, MODIFY_ERROR, MODIFYING, condition};
use super::controller::Controller;
use super::objects::{ATTRIBUTES, AttributesClass, Claim, VOLUMES, Volume};

/// Until a class is looked for again that does not exist, or whose parameters the driver refuses.
const PAUSE: Duration = Duration::from_secs(30);

impl Controller {
    /// Gives the volume of a claim the attributes of the class `name`.
    pub(super) async fn modify(&self, claim: &Claim, volume: &Volume, name: &str) -> Outcome {
        let Some(csi) = &volume.spec.csi else { return Outcome::Done };
        let class: AttributesClass = match self.client.find(ATTRIBUTES, &Key::cluster(name)).await {
            Ok(Some(class)) => class,
            Ok(None) => return self.no_class(claim, name).await,
            Err(error) => {
                tracing::warn!(class = name, error = error.chain(), "cannot read the VolumeAttributesClass");
                return Outcome::Retry;
            }
        };
        let state = |state: &str| is_recorded(claim, name, state);
        // The record of an earlier try stays as it is: each write of the status makes the claim be looked at again.
        if !state("InProgress") && !state("Infeasible") {
            let message = format!("Modifying volume to {name:?} is in progress.");
            let begun = status(claim, name, "InProgress", vec![condition(MODIFYING, "", &message)]);
            if let Err(outcome) = self.write(claim, &begun).await {
                return outcome;
            }
            let text =
                format!("external resizer is modifying volume {} with vac {name}", claim.metadata.name);
            self.report(claim, Type::Normal, "VolumeModify", &text);
        }
        let parameters = match class.parameters_of(name, self.driver.name()) {
            Ok(parameters) => parameters,
            Err(error) => {
                return self.not_modified(claim, name, &Status::invalid_argument(error.chain())).await;
            }
        };
        let request = ControllerModifyVolumeRequest {
            volume_id: csi.volume_handle.clone(),
            mutable_parameters: parameters.into_iter().collect(),
            ..ControllerModifyVolumeRequest::default()
        };
        if let Err(refused) = self.driver.controller().controller_modify_volume(request).await {
            return self.not_modified(claim, name, &refused).await;
        }
        self.changed.notify_one();
        self.modified(claim, volume, name).await
    }

    async fn modified(&self, claim: &Claim, volume: &Volume, name: &str) -> Outcome {
        let key = Key::cluster(&volume.metadata.name);
        let patch = json!({"spec": {"volumeAttributesClassName": name}});
        if let Err(error) = self.client.merge_patch::<IgnoredAny>(VOLUMES, &key, &patch).await {
            tracing::warn!(volume = %key, error = error.chain(), "cannot write the PV's VolumeAttributesClass");
            return Outcome::Retry;
        }
        let done = json!({"status": {
            "currentVolumeAttributesClassName": name,
            "modifyVolumeStatus": null,
            "conditions": conditions::with(claim, &conditions::ATTRIBUTES, []),
        }});
        if let Err(outcome) = self.write(claim, &done).await {
            return outcome;
        }
        let of = &claim.metadata.name;
        let text = format!("external resizer modified volume {of} with vac {name} successfully");
        self.report(claim, Type::Normal, "VolumeModifySuccessful", &text);
        tracing::info!(volume = %key, class = name, "volume has the attributes of its class");
        Outcome::Done
    }

    async fn no_class(&self, claim: &Claim, name: &str) -> Outcome {
        if !is_recorded(claim, name, "Pending") {
            self.report(claim, Type::Warning, "VolumeModifyFailed", &format!("VAC {name:?} does not exist."));
            let pending = json!({"status": {"modifyVolumeStatus": {
                "status": "Pending", "targetVolumeAttributesClassName": name,
            }}});
            if let Err(outcome) = self.write(claim, &pending).await {
                return outcome;
            }
        }
        Outcome::After(PAUSE)
    }

    async fn not_modified(&self, claim: &Claim, name: &str, refused: &Status) -> Outcome {
        let of = (&claim.metadata.namespace, &claim.metadata.name);
        let why = rpc_error(refused);
        tracing::warn!(
            claim = of.1,
            namespace = of.0,
            class = name,
            error = why,
            "cannot modify a volume; retrying"
        );
        let (infeasible, is_final) = (refused.code() == Code::InvalidArgument, is_final(refused.code()));
        let state = if infeasible { "Infeasible" } else { "InProgress" };
        // The same failure again changes nothing, so it is not written again.
        let known = claim
            .status
            .conditions
            .iter()
            .any(|one| one["type"] == MODIFY_ERROR && one["message"] == refused.message());
        if !(known && is_recorded(claim, name, state)) {
            let message = if is_final {
                format!("Modifying volume to {name:?} failed. Waiting for retry.")
            } else {
                format!("Modifying volume to {name:?} is still in progress.")
            };
            let code = format!("{:?}", refused.code());
            let ours =
                vec![condition(MODIFYING, "", &message), condition(MODIFY_ERROR, &code, refused.message())];
            if let Err(outcome) = self.write(claim, &status(claim, name, state, ours)).await {
                return outcome;
            }
        }
        let still = if is_final { String::new() } else { format!(". Still modifying to VAC {name}") };
        self.report(claim, Type::Warning, "VolumeModifyFailed", &format!("{why}{still}"));
        if infeasible { Outcome::After(PAUSE) } else { Outcome::Retry }
    }

    /// The claim names no class any more: the condition of the change to one goes.
    pub(super) async fn cancel_modification(&self, claim: &Claim) -> Outcome {
        self.report(claim, Type::Normal, "VolumeModifyCanceled", "Cancelled modify.");
        let without = json!({"status": {"conditions": conditions::with(claim, &[MODIFYING], [])}});
        self.write(claim, &without).await.err().unwrap_or(Outcome::Done)
    }
}

/// Whether the claim's status says this of the change to a class.
fn is_recorded(claim: &Claim, name: &str, state: &str) -> bool {
    claim
        .status
        .modify_volume_status
        .as_ref()
        .is_some_and(|is| is.target_volume_attributes_class_name == name && is.status == state)
}

/// A patch of a claim's status: the class that its volume changes to, how far that is, and its conditions.
fn status(claim: &Claim, name: &str, state: &str, ours: Vec<Value>) -> Value {
    json!({"status": {
        "modifyVolumeStatus": {"status": state, "targetVolumeAttributesClassName": name},
        "conditions": conditions::with(claim, &conditions::ATTRIBUTES, ours),
    }})
}

/// Whether an error means that the driver does not work on the call any more.
fn is_final(code: Code) -> bool {
    !matches!(
        code,
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Unavailable
            | Code::ResourceExhausted
            | Code::Aborted
    )
}
