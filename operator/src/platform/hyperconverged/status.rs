//! Status of `HyperConverged`, folded from its children. Pure.
//!
//! Upstream reports one failing child per condition; here the message names all of them.

use api::hyperconverged::v1::HyperConverged;
use api::hyperconverged::{
    Condition, HyperConvergedStatus, NodeInfo, RelatedObject, SourceStatus, SourceTemplateStatus, Version,
};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::effect;
use super::patch;
use super::read::Facts;
use super::render::Child;
use crate::platform::{status, without};

/// A child, as it was last seen.
#[derive(Clone, Debug, PartialEq)]
pub struct ChildState {
    /// Which one.
    pub child: Child,
    /// The object; nothing if it does not exist.
    pub object: Option<Value>,
}

/// The inputs of a status.
#[derive(Clone, Debug)]
pub struct Situation<'a> {
    /// The object.
    pub owner: &'a HyperConverged,
    /// The cluster.
    pub facts: &'a Facts,
    /// Its children.
    pub children: &'a [ChildState],
    /// Boot image imports in effect.
    pub sources: Vec<SourceTemplateStatus>,
    /// Objects of the platform besides the children.
    pub related: Vec<RelatedObject>,
    /// Why children could not be written: reason and text.
    pub failure: Option<(&'static str, String)>,
    /// Point in time (RFC 3339).
    pub now: &'a str,
}

const COMPLETED: (&str, &str) = ("ReconcileCompleted", "Reconcile completed successfully");

/// A condition: type, value, reason, message.
type Fact = (&'static str, bool, String, String);

/// The status.
pub fn status(situation: &Situation<'_>) -> HyperConvergedStatus {
    let Situation { owner, facts, children, sources, related: others, failure, now } = situation;
    let before = owner.status.clone().unwrap_or_default();
    let upgraded =
        children.iter().all(|one| of(one, "Available") == Some(true) && is_current(one, &facts.version));
    let installed = before.versions.iter().find(|one| one.name.as_deref() == Some("operator"));
    let installed = installed.and_then(|one| one.version.clone());
    let upgrading = installed.as_deref().is_some_and(|version| version != facts.version) && !upgraded;
    let facts_of = conditions(owner, children, failure.as_ref(), upgrading);
    let generation = owner.metadata.generation.and_then(|one| i64::try_from(one).ok());
    let conditions: Vec<Condition> = facts_of
        .into_iter()
        .map(|(kind, value, reason, message)| {
            let status = if value { "True" } else { "False" };
            let same = before.conditions.iter().find(|one| one.kind == kind && one.status == status);
            Condition {
                kind: kind.to_owned(),
                status: status.to_owned(),
                reason,
                message,
                observed_generation: generation,
                last_transition_time: same
                    .map_or_else(|| (*now).to_owned(), |one| one.last_transition_time.clone()),
            }
        })
        .collect();
    let version = if upgraded { Some(facts.version.clone()) } else { installed };
    HyperConvergedStatus {
        system_health_status: Some(health(&conditions).to_owned()),
        conditions,
        data_import_cron_templates: sources.clone(),
        data_import_schedule: Some(before.data_import_schedule.unwrap_or_else(|| schedule(owner))),
        infrastructure_highly_available: Some(facts.highly_available()),
        node_info: Some(NodeInfo {
            control_plane_architectures: facts.control_plane_architectures.iter().cloned().collect(),
            default_workload_architecture: facts.worker_architectures.first().cloned(),
            workloads_architectures: facts.worker_architectures.iter().cloned().collect(),
        }),
        observed_generation: generation,
        related_objects: children
            .iter()
            .filter_map(|one| one.object.as_ref())
            .map(related)
            .chain(others.iter().cloned())
            .collect(),
        versions: version
            .map(|version| Version { name: Some("operator".to_owned()), version: Some(version) })
            .into_iter()
            .collect(),
    }
}

/// Boot image imports in effect, as the status lists them.
pub fn sources(
    list: Vec<(api::hyperconverged::TemplateMeta, api::hyperconverged::ImportCron)>,
) -> Vec<SourceTemplateStatus> {
    list.into_iter()
        .map(|(metadata, spec)| SourceTemplateStatus {
            metadata: Some(metadata),
            spec: Some(spec),
            status: Some(SourceStatus { common_template: Some(false), ..SourceStatus::default() }),
        })
        .collect()
}

fn conditions(
    owner: &HyperConverged,
    children: &[ChildState],
    failure: Option<&(&'static str, String)>,
    upgrading: bool,
) -> Vec<Fact> {
    let completed = || (COMPLETED.0.to_owned(), COMPLETED.1.to_owned());
    let mut all = Vec::new();
    let (reason, message) =
        failure.map_or_else(completed, |(reason, text)| ((*reason).to_owned(), text.clone()));
    all.push(("ReconcileComplete", failure.is_none(), reason, message));
    let fold = |kind: &'static str, good: bool, word: &str| {
        let failing: Vec<&ChildState> = children.iter().filter(|one| of(one, kind) != Some(good)).collect();
        let first = failing.first()?;
        let reason = match of(first, kind) {
            None => format!("{}Conditions", first.child.kind()),
            Some(_) => format!("{}{word}", first.child.kind()),
        };
        let texts: Vec<String> = failing.iter().map(|one| explain(one, kind, word)).collect();
        Some((reason, texts.join("; ")))
    };
    let available = fold("Available", true, "NotAvailable");
    let progressing = fold("Progressing", false, "Progressing");
    let degraded = fold("Degraded", false, "Degraded");
    let push = |all: &mut Vec<Fact>, kind, value: bool, found: Option<(String, String)>| {
        let (reason, message) = found.unwrap_or_else(completed);
        all.push((kind, value, reason, message));
    };
    push(&mut all, "Available", available.is_none(), available);
    let upgrade = ("HCOUpgrading".to_owned(), "The components are being upgraded".to_owned());
    let progress = if upgrading { Some(upgrade) } else { progressing };
    push(&mut all, "Progressing", progress.is_some(), progress.clone());
    push(&mut all, "Degraded", degraded.is_some(), degraded);
    push(&mut all, "Upgradeable", progress.is_none(), progress);
    if patch::ANNOTATIONS.iter().any(|name| owner.metadata.annotations.contains_key(*name)) {
        let text = "Unsupported feature was activated via an HCO annotation".to_owned();
        all.push(("TaintedConfiguration", true, "UnsupportedFeatureAnnotation".to_owned(), text));
    }
    all.extend(settings(owner, children));
    all
}

/// Conditions of settings: those of the object itself, and those that its children report of what they got from it.
fn settings(owner: &HyperConverged, children: &[ChildState]) -> impl Iterator<Item = Fact> {
    let ignored = effect::ignored(owner);
    let own = (!ignored.is_empty()).then(|| format!("these settings have no effect: {}", ignored.join(", ")));
    let mut facts = [(without::CONDITION, without::REASON, own), (status::RAISED, status::TOO_SHORT, None)];
    for (kind, _, text) in &mut facts {
        let reported = children.iter().filter(|one| of(one, kind) == Some(true)).filter_map(|one| {
            let message = condition(one, kind)?["message"].as_str()?;
            Some(format!("{}: {message}", one.child.kind()))
        });
        let all: Vec<String> = text.take().into_iter().chain(reported).collect();
        *text = (!all.is_empty()).then(|| all.join("; "));
    }
    facts.into_iter().filter_map(|(kind, reason, text)| Some((kind, true, reason.to_owned(), text?)))
}

fn health(conditions: &[Condition]) -> &'static str {
    let is = |kind: &str, value: &str| conditions.iter().any(|one| one.kind == kind && one.status == value);
    if is("Available", "False") || is("Degraded", "True") {
        "error"
    } else if is("ReconcileComplete", "False") || is("Progressing", "True") {
        "warning"
    } else {
        "healthy"
    }
}

fn condition<'a>(child: &'a ChildState, kind: &str) -> Option<&'a Value> {
    let conditions = child.object.as_ref()?["status"]["conditions"].as_array()?;
    conditions.iter().find(|one| one["type"] == kind)
}

/// The value of a child's condition; nothing if it has none.
fn of(child: &ChildState, kind: &str) -> Option<bool> {
    condition(child, kind).map(|one| one["status"] == "True")
}

fn explain(child: &ChildState, kind: &str, word: &str) -> String {
    let name = child.child.kind();
    match (condition(child, kind), &child.object) {
        (Some(one), _) => {
            let text = one["message"].as_str().or(one["reason"].as_str()).unwrap_or("no message");
            format!("{name} {}: {text}", phrase(word))
        }
        (None, Some(_)) => format!("{name} reports no condition {kind}"),
        (None, None) => format!("{name} does not exist yet"),
    }
}

fn phrase(word: &str) -> &'static str {
    match word {
        "NotAvailable" => "is not available",
        "Progressing" => "is progressing",
        _ => "is degraded",
    }
}

fn is_current(child: &ChildState, version: &str) -> bool {
    let status = child.object.as_ref().map(|object| &object["status"]);
    let observed = |field: &str| status.is_some_and(|status| status[field] == version);
    match child.child {
        Child::KubeVirt => observed("observedKubeVirtVersion"),
        Child::Cdi | Child::Network | Child::Ssp => observed("observedVersion"),
    }
}

/// Whether the status lists a child: it existed when the status was written.
pub(super) fn lists(status: Option<&HyperConvergedStatus>, child: Child) -> bool {
    let listed = |one: &RelatedObject| {
        one.kind.as_deref() == Some(child.kind()) && one.name.as_deref() == Some(child.name())
    };
    status.is_some_and(|status| status.related_objects.iter().any(listed))
}

/// The schedule of boot image imports, twice a day: minute and hour follow from the object's uid, so that not all clusters
/// ask the registries at once.
fn schedule(owner: &HyperConverged) -> String {
    let hash = Sha256::digest(owner.metadata.uid.as_deref().unwrap_or_default());
    format!("{} {}/12 * * *", hash[0] % 60, hash[1] % 12)
}

/// A reference to an object.
pub(super) fn related(object: &Value) -> RelatedObject {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let metadata = &object["metadata"];
    RelatedObject {
        api_version: text(&object["apiVersion"]),
        field_path: None,
        kind: text(&object["kind"]),
        name: text(&metadata["name"]),
        namespace: text(&metadata["namespace"]),
        resource_version: text(&metadata["resourceVersion"]),
        uid: text(&metadata["uid"]),
    }
}

/// The condition of an object that is not the one in effect.
pub fn misplaced(namespace: &str, now: &str, owner: &HyperConverged) -> HyperConvergedStatus {
    let name = api::hyperconverged::NAME;
    let message = format!("Request does not match expected name ({name}) and namespace ({namespace})");
    let before = owner.status.as_ref().and_then(|status| status.conditions.first());
    let time = before.filter(|one| one.message == message).map(|one| one.last_transition_time.clone());
    HyperConvergedStatus {
        conditions: vec![Condition {
            kind: "ReconcileComplete".to_owned(),
            status: "False".to_owned(),
            reason: "InvalidRequest".to_owned(),
            message,
            observed_generation: owner.metadata.generation.and_then(|one| i64::try_from(one).ok()),
            last_transition_time: time.unwrap_or_else(|| now.to_owned()),
        }],
        ..HyperConvergedStatus::default()
    }
}
