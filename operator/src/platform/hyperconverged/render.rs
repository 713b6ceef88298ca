//! The child objects of a `HyperConverged`: what each should be. Pure.

use api::hyperconverged::v1::HyperConverged;
use api::hyperconverged::{ImportCron, TemplateMeta};
use serde_json::{Value, json};

use super::input::Input;
use super::patch::{self, PatchError};
use super::read::Facts;
use super::{cdi, kubevirt, network, ssp};
use crate::install::monitoring::{self, Allowed};
use crate::install::openshift;

/// A kind of child object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Child {
    /// Compute.
    KubeVirt,
    /// Storage.
    Cdi,
    /// Networks.
    Network,
    /// Boot sources.
    Ssp,
}

impl Child {
    /// All kinds, in the order in which they are created.
    pub const ALL: [Self; 4] = [Self::KubeVirt, Self::Cdi, Self::Network, Self::Ssp];

    /// Kind, as objects write it.
    pub fn kind(self) -> &'static str {
        match self {
            Self::KubeVirt => "KubeVirt",
            Self::Cdi => "CDI",
            Self::Network => "NetworkAddonsConfig",
            Self::Ssp => "SSP",
        }
    }

    /// Name of the object, upstream's.
    pub fn name(self) -> &'static str {
        match self {
            Self::KubeVirt => "kubevirt-kubevirt-hyperconverged",
            Self::Cdi => "cdi-kubevirt-hyperconverged",
            Self::Network => "cluster",
            Self::Ssp => "ssp-kubevirt-hyperconverged",
        }
    }

    /// Whether the object has a namespace.
    pub fn namespaced(self) -> bool {
        matches!(self, Self::KubeVirt | Self::Ssp)
    }

    fn api_version(self) -> &'static str {
        match self {
            Self::KubeVirt => api::kubevirt::API_VERSION,
            Self::Cdi => api::cdi::API_VERSION,
            Self::Network => network::API_VERSION,
            Self::Ssp => api::ssp::API_VERSION,
        }
    }

    fn component(self) -> &'static str {
        match self {
            Self::KubeVirt => "compute",
            Self::Cdi => "storage",
            Self::Network => "network",
            Self::Ssp => "schedule",
        }
    }

    fn annotation(self) -> &'static str {
        match self {
            Self::KubeVirt => patch::KUBEVIRT,
            Self::Cdi => patch::CDI,
            Self::Network => patch::NETWORK,
            Self::Ssp => patch::SSP,
        }
    }
}

/// Label by which the objects of the platform are found.
pub const APP: (&str, &str) = ("app", "kubevirt-hyperconverged");

/// A child object, with its patch applied.
///
/// # Errors
/// When the patch in the annotation does not fit; the annotation's name goes with it.
pub fn child(
    child: Child,
    owner: &HyperConverged,
    facts: &Facts,
) -> Result<Value, (&'static str, PatchError)> {
    let input = Input::new(owner, facts);
    let spec = spec(child, &input);
    let mut object = json!({
        "apiVersion": child.api_version(),
        "kind": child.kind(),
        "metadata": {
            "name": child.name(),
            "labels": {
                APP.0: APP.1,
                "app.kubernetes.io/component": child.component(),
                "app.kubernetes.io/managed-by": "hco-operator",
                "app.kubernetes.io/part-of": "hyperconverged-cluster",
                "app.kubernetes.io/version": facts.version,
            },
        },
        "spec": spec,
    });
    if child.namespaced() {
        object["metadata"]["namespace"] = json!(facts.namespace);
    }
    match child {
        Child::KubeVirt => {
            object["metadata"]["annotations"] =
                json!({"console.openshift.io/disable-operand-delete": "true"});
        }
        Child::Cdi => {
            object["metadata"]["annotations"] = json!({
                "console.openshift.io/disable-operand-delete": "true",
                "cdi.kubevirt.io/configAuthority": "",
            });
        }
        Child::Network | Child::Ssp => {}
    }
    if let Some(text) = owner.metadata.annotations.get(child.annotation()) {
        patch::apply(&mut object, text).map_err(|error| (child.annotation(), error))?;
    }
    Ok(object)
}

fn spec(child: Child, input: &Input<'_>) -> Value {
    match child {
        Child::KubeVirt => kubevirt::spec(input),
        Child::Cdi => cdi::spec(input),
        Child::Network => network::spec(input),
        Child::Ssp => ssp::spec(input),
    }
}

/// Specs of the children of an empty object, in every cluster that decides one of their settings.
pub(in crate::platform) fn usual() -> Vec<(Child, Value)> {
    let owner = HyperConverged::default();
    let mut all = Vec::new();
    for (workers, emulation) in [(1, false), (1, true), (2, false), (2, true)] {
        let facts = Facts { workers, emulation, ..Facts::default() };
        let specs = Child::ALL.map(|one| (one, spec(one, &Input::new(&owner, &facts))));
        all.extend(specs);
    }
    all
}

/// Objects for Prometheus.
pub fn monitoring(owner: &HyperConverged, facts: &Facts) -> Vec<Value> {
    let observability = owner.spec.observability.clone().unwrap_or_default();
    let allowed =
        Allowed { alerts: observability.allowed_alerts, records: observability.allowed_recording_rules };
    monitoring::objects(&facts.namespace, &allowed, facts.runbooks.as_deref())
}

/// Objects of kinds that not every cluster has: for Prometheus and for OpenShift.
pub(super) fn optional(owner: &HyperConverged, facts: &Facts) -> Vec<Value> {
    let mut all = monitoring(owner, facts);
    all.extend(openshift::objects(&facts.namespace));
    all
}

/// Boot image imports that are switched on, with their defaults.
pub fn boot_sources(owner: &HyperConverged, facts: &Facts) -> Vec<(TemplateMeta, ImportCron)> {
    Input::new(owner, facts).boot_sources()
}
