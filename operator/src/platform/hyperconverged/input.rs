//! Inputs of rendering and the settings that several child objects share. Pure. Not here: the objects ([`super::render`]).

use api::hyperconverged::v1::{Deployment, HyperConverged, HyperConvergedSpec, Security};
use api::hyperconverged::{Certificates, ImportCron, TemplateMeta, TlsProfile};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::storage::names::IMMEDIATE;
use crate::view::WAITS;

use super::read::Facts;

/// Inputs of rendering; missing groups are replaced by empty ones.
pub(super) struct Input<'a> {
    pub(super) owner: &'a HyperConverged,
    pub(super) facts: &'a Facts,
    pub(super) deployment: Deployment,
    pub(super) security: Security,
}

impl<'a> Input<'a> {
    pub(super) fn new(owner: &'a HyperConverged, facts: &'a Facts) -> Self {
        let HyperConvergedSpec { deployment, security, .. } = &owner.spec;
        let deployment = deployment.clone().unwrap_or_default();
        Self { owner, facts, deployment, security: security.clone().unwrap_or_default() }
    }

    pub(super) fn spec(&self) -> &HyperConvergedSpec {
        &self.owner.spec
    }

    /// Whether a feature gate is on.
    pub(super) fn gate(&self, name: &str) -> bool {
        api::hyperconverged::Gate::find(name).is_some_and(|gate| gate.enabled(&self.owner.spec.feature_gates))
    }

    /// Lifetimes of certificates: CA and server, validity and time of renewal.
    pub(super) fn lifetimes(&self) -> [[String; 2]; 2] {
        let Certificates { ca, server } = self.security.cert_config.clone().unwrap_or_default();
        let (ca, server) = (ca.unwrap_or_default(), server.unwrap_or_default());
        let or = |text: Option<String>, default: &str| text.unwrap_or_else(|| default.to_owned());
        [
            [or(ca.duration, "48h0m0s"), or(ca.renew_before, "24h0m0s")],
            [or(server.duration, "24h0m0s"), or(server.renew_before, "12h0m0s")],
        ]
    }

    /// The TLS profile in the form that CDI, NetworkAddonsConfig and SSP share.
    pub(super) fn tls_profile(&self) -> Value {
        let profile = self.security.tls_security_profile.clone().unwrap_or_default();
        let TlsProfile { kind, custom, .. } = profile;
        let kind = kind.unwrap_or_else(|| "Intermediate".to_owned());
        let mut value = json!({"type": kind});
        match kind.as_str() {
            "Custom" => {
                let custom = custom.unwrap_or_default();
                value["custom"] = json!({
                    "ciphers": custom.ciphers,
                    "minTLSVersion": custom.min_tls_version.unwrap_or_else(|| "VersionTLS12".to_owned()),
                });
            }
            other => value[other.to_ascii_lowercase()] = json!({}),
        }
        value
    }

    /// Placement of the control plane and of workloads, where they are given.
    pub(super) fn placements(&self) -> [Option<Value>; 2] {
        let placements = self.deployment.node_placements.clone().unwrap_or_default();
        [placements.infra.as_ref().map(value), placements.workload.as_ref().map(value)]
    }

    /// `BlockUninstallIfWorkloadsExist` or `RemoveWorkloads`.
    pub(super) fn uninstall_strategy(&self) -> String {
        let strategy = self.deployment.uninstall_strategy.clone();
        strategy.unwrap_or_else(|| WAITS.to_owned())
    }

    /// Boot image imports that are switched on, with their defaults.
    pub(super) fn boot_sources(&self) -> Vec<(TemplateMeta, ImportCron)> {
        let sources = self.spec().workload_sources.clone().unwrap_or_default();
        let namespace = sources.common_boot_image_namespace.clone();
        let on = |meta: &TemplateMeta| {
            let enabled = meta.annotations.get("dataimportcrontemplate.kubevirt.io/enable");
            enabled.is_none_or(|text| text.eq_ignore_ascii_case("true"))
        };
        let complete = |template: api::hyperconverged::SourceTemplate| {
            let mut meta = template.metadata.unwrap_or_default();
            let mut spec = template.spec?;
            if !on(&meta) {
                return None;
            }
            bind_at_once(&mut meta);
            meta.namespace = meta.namespace.or_else(|| namespace.clone());
            spec.retention_policy.get_or_insert_with(|| "None".to_owned());
            spec.imports_to_keep.get_or_insert(1);
            Some((meta, spec))
        };
        sources.data_import_cron_templates.into_iter().filter_map(complete).collect()
    }
}

/// Has the claim of an import bound and filled before a pod uses it, unless its annotation has a value.
pub(crate) fn bind_at_once(meta: &mut TemplateMeta) {
    meta.annotations.entry(IMMEDIATE.to_owned()).or_insert_with(|| "true".to_owned());
}

/// A value as JSON. Types of this API always have one.
pub(super) fn value(of: &impl Serialize) -> Value {
    serde_json::to_value(of).unwrap_or_default()
}

/// Adds fields that have a value; empty lists and objects count as none.
pub(super) fn extend(object: &mut Value, fields: impl IntoIterator<Item = (&'static str, Value)>) {
    for (name, field) in fields {
        let empty = match &field {
            Value::Null => true,
            Value::Array(list) => list.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
        };
        if !empty {
            object[name] = field;
        }
    }
}

/// A value without nulls and empty lists: objects that differ only in those are equivalent. An empty object has a meaning:
/// `disableFreePageReporting: {}` switches reporting off.
pub(crate) fn plain(of: &Value) -> Value {
    match of {
        Value::Object(fields) => {
            let kept: Map<String, Value> = fields
                .iter()
                .map(|(name, field)| (name.clone(), plain(field)))
                .filter(|(_, field)| !field.is_null())
                .collect();
            Value::Object(kept)
        }
        Value::Array(list) if list.is_empty() => Value::Null,
        Value::Array(list) => list.iter().map(plain).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => of.clone(),
    }
}
