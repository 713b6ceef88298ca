//! The first step: the way is chosen, and written down before anything is made. Pure.

use std::collections::BTreeMap;

use super::advance::advance;
use super::make::node_of_source;
use super::source::given;
use super::step::{From, Observed, Plan, annotate, finalize, has_finalizer, warning};
use crate::storage::action::Action;
use crate::storage::clone::authorize::Origin;
use crate::storage::clone::choose::{self, CloneSource, CloneTarget};
use crate::storage::names;
use crate::storage::populate::plan::{POPULATING, usage};
use crate::storage::profile::CloneStrategy;

/// Chooses the way, and writes it down before anything is made.
pub(super) fn begin(o: &Observed<'_>) -> Plan {
    let target = o.target;
    let given = match given(o) {
        Ok(given) => given,
        Err(plan) => return plan.before(waiting(o)),
    };
    let (Some(class), Some(profile)) = (o.class, o.profile) else {
        let named = target.class.as_deref().unwrap_or_default();
        return Plan::troubled(
            "StorageClassMissing",
            format!("StorageClass {named:?} does not exist: create it"),
        );
    };
    let annotation = |name| target.meta.annotation(name).is_some();
    if class.waits_for_consumer && !annotation(names::SELECTED_NODE) && !annotation(names::IMMEDIATE) {
        return Plan::default();
    }
    let wanted = CloneTarget {
        driver: class.provisioner.clone(),
        block: target.block,
        size: target.size,
        expands: class.expands,
        strategy: profile.clone,
        has_snapshot_class: !profile.snapshot_class.is_empty(),
    };
    let (way, fallback) = choose::choose(&given, &wanted, o.forced);
    // Without a node for it the driver would not begin. The pods of a copy are given one.
    let nowhere =
        class.waits_for_consumer && !annotation(names::SELECTED_NODE) && node_of_source(o).is_none();
    let way = if nowhere { CloneStrategy::Copy } else { way };
    if way == CloneStrategy::Copy
        && let Some(plan) = not_copied(o, &given)
    {
        return plan.before(waiting(o));
    }
    let mut actions: Vec<Action> = guard(o).into_iter().collect();
    let mut changes = vec![
        (names::CLONE_PHASE, first_phase(o, way)),
        (names::CLONE_TYPE, way.word()),
        (names::RUNNING, "true"),
        (names::RUNNING_REASON, POPULATING),
        (names::RUNNING_MESSAGE, ""),
    ];
    changes.extend(far(o));
    changes.extend(fallback.map(|fallback| (names::CLONE_FALLBACK, fallback.reason())));
    actions.push(annotate(target, &changes, content_labels(o)));
    advance(o, way).before(actions)
}

/// Writes down that the clone waits for its source.
fn waiting(o: &Observed<'_>) -> Vec<Action> {
    let pending = (names::CLONE_PHASE, "Pending");
    match o.target.meta.says(pending.0, pending.1) {
        true => Vec::new(),
        false => vec![annotate(o.target, &[pending], BTreeMap::new())],
    }
}

/// Why the source cannot be copied now.
pub(super) fn not_copied(o: &Observed<'_>, given: &CloneSource) -> Option<Plan> {
    match o.from {
        From::Claim(_, _, Some(pod)) => Some(in_use(o, pod)),
        From::Snapshot(..) if o.restores.is_none() => Some(not_restored(o, &given.driver)),
        From::Snapshot(..) | From::Claim(..) | From::Missing => None,
    }
}

/// A pod writes to the source of a copy.
fn in_use(o: &Observed<'_>, pod: &str) -> Plan {
    let Origin { namespace, name, .. } = o.origin;
    let message = usage((namespace, name), pod);
    let event = warning(o, "CloneSourceInUse", &message);
    Plan::troubled("CloneSourceInUse", format!("{message}: the clone waits until it ends"))
        .before(vec![event])
}

/// Nothing can be read from a snapshot before it is restored.
fn not_restored(o: &Observed<'_>, driver: &str) -> Plan {
    let message = format!(
        "VolumeSnapshot {} is copied from a claim into which it is restored, and no StorageClass has its driver {driver:?}: \
         create one",
        o.origin.name
    );
    Plan::troubled("CloneNotSupported", message)
}

/// The annotation with the source's namespace, when it is another one: what helps there is found without the source.
pub(super) fn far<'a>(o: &Observed<'a>) -> Option<(&'static str, &'a str)> {
    let namespace = o.origin.namespace.as_str();
    (namespace != o.target.meta.namespace).then_some((names::SOURCE_NAMESPACE, namespace))
}

/// The finalizer of a target with helpers in another namespace.
pub(super) fn guard(o: &Observed<'_>) -> Option<Action> {
    let target = o.target;
    (o.origin.namespace != target.meta.namespace && !has_finalizer(target)).then(|| {
        let mut finalizers = target.meta.finalizers.clone();
        finalizers.push(names::CLONE_FINALIZER.to_owned());
        finalize(target, finalizers)
    })
}

fn first_phase(o: &Observed<'_>, way: CloneStrategy) -> &'static str {
    match (way, o.from) {
        (CloneStrategy::CsiClone, _) => "CSIClone",
        (CloneStrategy::Snapshot | CloneStrategy::Copy, From::Snapshot(..)) => "SnapshotClone",
        (CloneStrategy::Snapshot, _) => "Snapshot",
        (CloneStrategy::Copy, _) => "HostClone",
    }
}

/// Labels that follow the content from source to target.
pub(super) fn content_labels(o: &Observed<'_>) -> BTreeMap<String, String> {
    let labels = match o.from {
        From::Claim(claim, ..) => &claim.meta.labels,
        From::Snapshot(snapshot, _) => &snapshot.meta.labels,
        From::Missing => return BTreeMap::new(),
    };
    let following = labels.iter().filter(|(name, _)| names::follows_content(name));
    following
        .filter(|(name, _)| !o.target.meta.labels.contains_key(*name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}
