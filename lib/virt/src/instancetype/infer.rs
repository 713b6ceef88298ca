//! Inference of instance types and preferences: from the labels of the volume that a reference names, or of what that
//! volume is filled from. Pure: each step names the object to read next.
//!
//! ```text
//! volume ─► claim ──────────────► labels
//!        └► DataVolume (template) ► labels, else source ─► claim, snapshot, DataSource ─► labels, else its source
//! ```

use api::kubevirt::VirtualMachine;
use serde_json::Value;

use super::{GROUP, Which};

/// Most objects that are read for one reference: DataSources may refer to each other.
pub const LOOKUPS_MAX: usize = 8;

/// Kind of an object with inference labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// PersistentVolumeClaim.
    Claim,
    /// DataVolume; where there is none, the claim of its name.
    DataVolume,
    /// DataSource.
    DataSource,
    /// VolumeSnapshot.
    Snapshot,
}

impl Place {
    /// Kind, for messages.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Claim => "PersistentVolumeClaim",
            Self::DataVolume => "DataVolume",
            Self::DataSource => "DataSource",
            Self::Snapshot => "VolumeSnapshot",
        }
    }
}

/// An object to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// Kind.
    pub place: Place,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// Result of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inference {
    /// The object that the labels name.
    Named {
        /// Name.
        name: String,
        /// Kind.
        kind: String,
    },
    /// Read this object and take the next step.
    Look(Lookup),
}

/// Why nothing is inferred.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InferenceError {
    /// For people.
    pub text: String,
    /// Whether the policy `Ignore` tolerates it: labels are missing, or the volume cannot have any.
    pub tolerable: bool,
}

fn fatal<T>(text: String) -> Result<T, InferenceError> {
    Err(InferenceError { text, tolerable: false })
}

fn tolerable<T>(text: String) -> Result<T, InferenceError> {
    Err(InferenceError { text, tolerable: true })
}

/// First step for the volume of this name.
///
/// # Errors
/// The VM has no such volume, or the volume cannot have labels.
pub fn begin(
    machine: &VirtualMachine,
    namespace: &str,
    which: Which,
    volume: &str,
) -> Result<Inference, InferenceError> {
    let found = machine.spec.template.spec.volumes.iter().find(|one| one.name == volume);
    let Some(found) = found else {
        return fatal(format!("unable to find volume {volume} to infer defaults"));
    };
    if let Some(claim) = &found.persistent_volume_claim {
        return Ok(look_up(Place::Claim, namespace, &claim.claim_name));
    }
    let Some(named) = &found.data_volume else {
        return tolerable(format!("unable to infer defaults from volume {volume} as type is not supported"));
    };
    let templates = &machine.spec.data_volume_templates;
    let Some(template) = templates.iter().find(|one| one.metadata.name == named.name) else {
        return Ok(look_up(Place::DataVolume, namespace, &named.name));
    };
    let labels = |name: &str| template.metadata.labels.get(name).cloned();
    if let Some(inferred) = labelled(which, labels) {
        return Ok(inferred);
    }
    let spec = serde_json::to_value(&template.spec).unwrap_or_default();
    filled_from(&spec, namespace)
}

/// Next step, from the object that was looked for; `None`: there is none.
///
/// # Errors
/// The object is missing, or neither has labels nor a source that could have some.
pub fn next(which: Which, lookup: &Lookup, object: Option<&Value>) -> Result<Inference, InferenceError> {
    let Lookup { place, namespace, name } = lookup;
    let Some(object) = object else {
        return match place {
            Place::DataVolume => Ok(look_up(Place::Claim, namespace, name)),
            Place::Claim | Place::DataSource | Place::Snapshot => {
                fatal(format!("unable to infer defaults: {} {namespace}/{name} not found", place.kind()))
            }
        };
    };
    let labels = |label: &str| object["metadata"]["labels"][label].as_str().map(str::to_owned);
    if let Some(inferred) = labelled(which, labels) {
        return Ok(inferred);
    }
    match place {
        Place::DataVolume => filled_from(&object["spec"], namespace),
        Place::DataSource => filled_from(&object["spec"], namespace),
        Place::Claim | Place::Snapshot => tolerable(format!(
            "unable to find required {} label on {} {namespace}/{name}",
            label(which),
            place.kind()
        )),
    }
}

fn label(which: Which) -> String {
    format!("{GROUP}/default-{}", which.field())
}

/// Object that labels name.
fn labelled(which: Which, labels: impl Fn(&str) -> Option<String>) -> Option<Inference> {
    let label = label(which);
    let name = labels(&label).filter(|name| !name.is_empty())?;
    let kind = labels(&format!("{label}-kind")).filter(|kind| !kind.is_empty());
    Some(Inference::Named { name, kind: kind.unwrap_or_else(|| which.cluster_kind().to_owned()) })
}

fn look_up(place: Place, namespace: &str, name: &str) -> Inference {
    Inference::Look(Lookup { place, namespace: namespace.to_owned(), name: name.to_owned() })
}

/// Source in the spec of a DataVolume or DataSource.
fn filled_from(spec: &Value, namespace: &str) -> Result<Inference, InferenceError> {
    let named = |at: &Value, place: Place| {
        let name = at["name"].as_str()?;
        Some(look_up(
            place,
            at["namespace"].as_str().filter(|other| !other.is_empty()).unwrap_or(namespace),
            name,
        ))
    };
    let source = &spec["source"];
    let found = named(&source["pvc"], Place::Claim)
        .or_else(|| named(&source["snapshot"], Place::Snapshot))
        .or_else(|| named(&source["dataSource"], Place::DataSource));
    let reference = &spec["sourceRef"];
    let found = found.or_else(|| {
        if reference["kind"] == "DataSource" { named(reference, Place::DataSource) } else { None }
    });
    let text = "unable to infer defaults from DataVolumeSpec as DataVolumeSource is not supported";
    found.map_or_else(|| tolerable(text.to_owned()), Ok)
}
