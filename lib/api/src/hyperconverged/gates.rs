//! Feature gates of `HyperConverged`: names, stages, defaults.

use serde_json::{Map, Value, json};

/// How mature the feature of a gate is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Off by default.
    Alpha,
    /// On by default.
    Beta,
    /// Always on; the gate is accepted and has no effect.
    Stable,
    /// Replaced by a field of the spec; off by default.
    Deprecated,
    /// Accepted; has no effect.
    Removed,
}

/// A known feature gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// Name, as v1beta1 writes it.
    pub name: &'static str,
    /// Stage.
    pub stage: Stage,
    /// Whether the API server fills the default in v1beta1 in.
    filled: bool,
    /// Whether v1beta1 has a field for the gate.
    in_beta: bool,
}

const fn gate(name: &'static str, stage: Stage) -> Gate {
    let filled = matches!(stage, Stage::Alpha | Stage::Beta);
    Gate { name, stage, filled, in_beta: true }
}

impl Gate {
    /// All known gates.
    pub const ALL: [Self; 24] = [
        gate("alignCPUs", Stage::Alpha),
        gate("autoResourceLimits", Stage::Stable),
        gate("containerPathVolumes", Stage::Alpha),
        gate("decentralizedLiveMigration", Stage::Beta),
        gate("declarativeHotplugVolumes", Stage::Beta),
        gate("deployKubeSecondaryDNS", Stage::Alpha),
        gate("deployKubevirtIpamController", Stage::Stable),
        Self { in_beta: false, ..gate("deployObservabilityController", Stage::Alpha) },
        gate("deployTektonTaskResources", Stage::Removed),
        gate("deployVmConsoleProxy", Stage::Removed),
        gate("disableMDevConfiguration", Stage::Deprecated),
        gate("downwardMetrics", Stage::Alpha),
        gate("enableApplicationAwareQuota", Stage::Removed),
        gate("enableCommonBootImageImport", Stage::Removed),
        gate("enableManagedTenantQuota", Stage::Removed),
        gate("enableMultiArchBootImageImport", Stage::Deprecated),
        gate("incrementalBackup", Stage::Alpha),
        gate("nonRoot", Stage::Stable),
        gate("objectGraph", Stage::Alpha),
        gate("persistentReservation", Stage::Deprecated),
        gate("primaryUserDefinedNetworkBinding", Stage::Stable),
        Self { in_beta: false, ..gate("template", Stage::Beta) },
        gate("videoConfig", Stage::Stable),
        gate("withHostPassthroughCPU", Stage::Stable),
    ];

    /// The gate of a name, whose case is ignored.
    pub fn find(name: &str) -> Option<&'static Self> {
        static ALL: [Gate; 24] = Gate::ALL;
        ALL.iter().find(|gate| gate.name.eq_ignore_ascii_case(name))
    }

    /// Whether the feature is on without an entry.
    pub fn default(&self) -> bool {
        matches!(self.stage, Stage::Beta | Stage::Stable)
    }

    /// Whether the feature is on, given `spec.featureGates` of v1.
    pub fn enabled(&self, list: &[super::v1::FeatureGate]) -> bool {
        if self.stage == Stage::Stable {
            return true;
        }
        let entry = list.iter().find(|one| one.name.eq_ignore_ascii_case(self.name));
        entry.map_or(self.default(), |one| one.state.as_deref() != Some("Disabled"))
    }
}

/// The v1beta1 object that is equivalent to the list of v1. Gates that v1beta1 lacks are left out.
pub(super) fn to_object(list: &[Value]) -> Map<String, Value> {
    let mut object = Map::new();
    for gate in Gate::ALL.iter().filter(|gate| gate.in_beta) {
        let entry = list.iter().find(|entry| is(entry, gate.name)).map(is_on);
        let value = entry.or(gate.filled.then_some(gate.stage == Stage::Beta));
        object.extend(value.map(|on| (gate.name.to_owned(), json!(on))));
    }
    object
}

/// The v1 list that is equivalent to the object of v1beta1. Entries of an earlier list that still hold stay as they are.
pub(super) fn to_list(object: &Map<String, Value>, earlier: &[Value]) -> Vec<Value> {
    let known = |entry: &Value| Gate::ALL.iter().find(|gate| gate.in_beta && is(entry, gate.name));
    let value = |gate: &Gate| object.get(gate.name).and_then(Value::as_bool);
    let mut list: Vec<Value> = Vec::new();
    for entry in earlier {
        match known(entry).map(value) {
            None => list.push(entry.clone()),
            Some(Some(on)) if on == is_on(entry) => list.push(entry.clone()),
            Some(Some(on)) => list.push(entry_of(entry["name"].as_str().unwrap_or_default(), on)),
            Some(None) => {}
        }
    }
    for gate in Gate::ALL.iter().filter(|gate| gate.in_beta) {
        let present = list.iter().any(|entry| is(entry, gate.name));
        if let Some(on) = value(gate).filter(|_| !present)
            && !(gate.filled && on == (gate.stage == Stage::Beta))
        {
            list.push(entry_of(gate.name, on));
        }
    }
    list
}

fn entry_of(name: &str, on: bool) -> Value {
    json!({"name": name, "state": if on { "Enabled" } else { "Disabled" }})
}

fn is(entry: &Value, name: &str) -> bool {
    entry["name"].as_str().is_some_and(|one| one.eq_ignore_ascii_case(name))
}

fn is_on(entry: &Value) -> bool {
    entry["state"] != "Disabled"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hyperconverged::v1::FeatureGate;

    #[test]
    fn gates_have_their_defaults_and_stable_ones_cannot_be_switched_off() {
        let on = |name: &str, list: &[FeatureGate]| Gate::find(name).unwrap().enabled(list);
        assert!(on("template", &[]) && !on("downwardMetrics", &[]) && on("nonRoot", &[]));
        let list = |name: &str, state: Option<&str>| {
            vec![FeatureGate { name: name.to_owned(), state: state.map(str::to_owned) }]
        };
        assert!(!on("template", &list("TEMPLATE", Some("Disabled"))));
        assert!(on("downwardMetrics", &list("downwardmetrics", None)));
        assert!(on("nonRoot", &list("nonRoot", Some("Disabled"))));
        assert!(Gate::find("unheardOf").is_none());
    }
}
