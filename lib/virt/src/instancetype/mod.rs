//! Instance types and preferences: what they make of a VirtualMachine's template. Pure.
//!
//! ```text
//! spec.instancetype, spec.preference ─ complete ─► names ─ (read, or a ControllerRevision) ─► Flavor
//!        └─ inferFromVolume ─ infer ─► name            Flavor ─ requirements, apply ─► template of the instance
//! ```
//! An instance type owns the fields that it sets: a template that sets one of them too conflicts with it. A preference
//! only fills fields that the template leaves open.
//!
//! Not here: reading objects; defaults of the platform ([`crate::admission`]), which come last.

mod devices;
mod infer;
mod open;
mod preference;
mod requirements;
mod revision;
mod shipped;
mod size;

use api::instancetype::{VirtualMachineInstancetypeSpec, VirtualMachinePreferenceSpec};
use api::kubevirt::{FlavorReference, VirtualMachine, VirtualMachineInstanceSpec};
use api::resource::ObjectMeta;

pub use infer::{Inference, InferenceError, LOOKUPS_MAX, Lookup, Place, begin, next};
pub use requirements::unmet;
pub use revision::{Revision, read, revision, revision_name};
pub use shipped::{Shipped, shipped};

/// API group of instance types and preferences.
pub const GROUP: &str = "instancetype.kubevirt.io";

/// Which of the two references of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Which {
    /// `spec.instancetype`.
    Instancetype,
    /// `spec.preference`.
    Preference,
}

impl Which {
    /// Both, in the order in which they are applied.
    pub const BOTH: [Self; 2] = [Self::Instancetype, Self::Preference];

    /// Name of the field in the VM's spec; also the word of labels, annotations and messages.
    pub fn field(self) -> &'static str {
        match self {
            Self::Instancetype => "instancetype",
            Self::Preference => "preference",
        }
    }

    /// The reference of a VM.
    pub fn of(self, machine: &VirtualMachine) -> Option<&FlavorReference> {
        match self {
            Self::Instancetype => machine.spec.instancetype.as_ref(),
            Self::Preference => machine.spec.preference.as_ref(),
        }
    }

    /// Kind of the cluster's objects, which a reference without a kind means.
    pub fn cluster_kind(self) -> &'static str {
        match self {
            Self::Instancetype => "VirtualMachineClusterInstancetype",
            Self::Preference => "VirtualMachineClusterPreference",
        }
    }

    /// Resource that a kind of a reference means, and whether it has a namespace; `None`: no such kind. Upstream accepts
    /// the plural as well, in any case.
    pub fn resource(self, kind: &str) -> Option<(&'static str, bool)> {
        let kind = kind.to_ascii_lowercase();
        let (cluster, namespaced) = match self {
            Self::Instancetype => ("virtualmachineclusterinstancetypes", "virtualmachineinstancetypes"),
            Self::Preference => ("virtualmachineclusterpreferences", "virtualmachinepreferences"),
        };
        let is = |plural: &str| kind == plural || Some(kind.as_str()) == plural.strip_suffix('s');
        if kind.is_empty() || is(cluster) {
            Some((cluster, false))
        } else {
            is(namespaced).then_some((namespaced, true))
        }
    }
}

/// Instance type and preference of a VM.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Flavor {
    /// The instance type.
    pub instancetype: Option<VirtualMachineInstancetypeSpec>,
    /// The preference.
    pub preference: Option<VirtualMachinePreferenceSpec>,
}

impl Flavor {
    /// Whether neither is there.
    pub fn is_empty(&self) -> bool {
        self.instancetype.is_none() && self.preference.is_none()
    }
}

/// Fields of a template that its instance type sets as well, as paths below the template such as `spec.domain.cpu.cores`.
pub type Conflicts = Vec<String>;

/// Applies instance type and preference to the template of an instance.
///
/// # Errors
/// The fields in conflict; the template is unchanged then.
pub fn apply(
    flavor: &Flavor,
    metadata: &mut ObjectMeta,
    spec: &mut VirtualMachineInstanceSpec,
) -> Result<(), Conflicts> {
    if let Some(instancetype) = &flavor.instancetype {
        let conflicts = size::conflicts(instancetype, metadata, spec);
        if !conflicts.is_empty() {
            return Err(conflicts);
        }
        size::apply(instancetype, flavor.preference.as_ref(), metadata, spec);
    }
    if let Some(wanted) = &flavor.preference {
        preference::apply(wanted, metadata, spec);
    }
    Ok(())
}

/// Replaces a VM's references by what they mean.
///
/// # Errors
/// The fields in conflict, as paths of the VM; the VM is unchanged then.
pub fn expand(machine: &mut VirtualMachine, flavor: &Flavor) -> Result<(), Conflicts> {
    let template = &mut machine.spec.template;
    apply(flavor, &mut template.metadata, &mut template.spec).map_err(|conflicts| {
        conflicts.iter().map(|path| format!("spec.template.{path}")).collect::<Vec<_>>()
    })?;
    storage_class(machine, flavor);
    machine.spec.instancetype = None;
    machine.spec.preference = None;
    Ok(())
}

/// Gives DataVolume templates without a StorageClass the preferred one.
pub fn storage_class(machine: &mut VirtualMachine, flavor: &Flavor) {
    let volumes = flavor.preference.as_ref().and_then(|preference| preference.volumes.as_ref());
    let Some(class) = volumes.and_then(|volumes| volumes.preferred_storage_class_name.as_ref()) else {
        return;
    };
    for template in &mut machine.spec.data_volume_templates {
        if let Some(claim) = &mut template.spec.pvc {
            claim.storage_class_name.get_or_insert_with(|| class.clone());
        }
        if let Some(storage) = &mut template.spec.storage {
            storage.storage_class_name.get_or_insert_with(|| class.clone());
        }
    }
}

/// Completes the references of a VM: a name without a kind means the cluster's object.
pub fn complete(machine: &mut VirtualMachine) {
    let spec = &mut machine.spec;
    let both = [(&mut spec.instancetype, Which::Instancetype), (&mut spec.preference, Which::Preference)];
    for (reference, which) in both {
        let Some(reference) = reference else { continue };
        let named = reference.name.as_deref().is_some_and(|name| !name.is_empty());
        if named && reference.kind.as_deref().is_none_or(str::is_empty) {
            reference.kind = Some(which.cluster_kind().to_owned());
        }
    }
}

/// Name of the annotation with the instance type or preference of an instance.
pub fn annotation(which: Which, kind: &str) -> String {
    let scope = if which.resource(kind).is_some_and(|(_, namespaced)| namespaced) { "" } else { "cluster-" };
    format!("kubevirt.io/{scope}{}-name", which.field())
}

/// Why a reference is refused as it is written; with the field below `spec`.
pub fn malformed(which: Which, reference: &FlavorReference) -> Option<(String, String)> {
    let field = which.field();
    let name = reference.name.as_deref().unwrap_or_default();
    let volume = reference.infer_from_volume.as_deref().unwrap_or_default();
    let kind = reference.kind.as_deref().unwrap_or_default();
    let policy = reference.infer_from_volume_failure_policy.as_deref();
    if name.is_empty() && volume.is_empty() {
        return Some((field.to_owned(), format!("either name or inferFromVolume of {field} must be set")));
    }
    if !volume.is_empty() && (!name.is_empty() || !kind.is_empty()) {
        let text = "name and kind must not be set together with inferFromVolume";
        return Some((format!("{field}.inferFromVolume"), text.to_owned()));
    }
    if !matches!(policy, None | Some("Reject" | "Ignore")) {
        let text = format!("invalid value {:?}: use Reject or Ignore", policy.unwrap_or_default());
        return Some((format!("{field}.inferFromVolumeFailurePolicy"), text));
    }
    if which.resource(kind).is_none() {
        return Some((format!("{field}.kind"), format!("got unexpected kind in {field} matcher: {kind}")));
    }
    None
}

#[cfg(test)]
mod product;
#[cfg(test)]
mod tests;
