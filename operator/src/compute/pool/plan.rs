//! Steps of a VirtualMachinePool. Pure; each step can be repeated.

use std::collections::BTreeSet;

use api::core::NodeSelectorRequirement;
use api::kubevirt::{PoolSelectors, ScaleInStrategy, SelectionPolicy};
use api::resource::IntOrString;
use serde_json::Value;

use crate::compute::clock;
use crate::compute::members::{BURST, Failure, free};
use crate::view::{self, Instance, Machine, Meta, Pool};

/// VMs where the spec gives no number.
const REPLICAS: u32 = 1;
/// Label of VMs and instances: the revision of the pool's template that they have.
pub(super) const REVISION: &str = "kubevirt.io/vm-pool-revision-name";
/// Failed starts in a row before a VM is replaced, where the spec asks for that without a number.
const FAILED_STARTS: i32 = 3;
/// Seconds for which a VM fails to start before it is replaced, where the spec gives none.
const FAILING_SECONDS: u64 = 300;

/// A VM of the pool and its instance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member<'a> {
    pub(super) machine: &'a Machine,
    pub(super) instance: Option<&'a Instance>,
}

/// A step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Create the VM of this number.
    Create(u64),
    /// Give this VM the template.
    Update(String),
    /// Delete the instance of this name and uid, so that its VM starts it with the template.
    Restart(String, String),
    /// Take the VM of this name and uid out of the owners of its DataVolumes, so that they stay.
    Keep(String, String),
    /// Delete the VM of this name and uid.
    Delete(String, String),
}

/// Names of the VMs that the selectors of the pool's strategies select; `None`: all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Selected {
    pub(super) scale_in: Option<BTreeSet<String>>,
    pub(super) update: Option<BTreeSet<String>>,
}

/// Steps, and why there are not more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    pub(super) failure: Option<Failure>,
}

impl Plan {
    /// Whether it has steps that give VMs the current template: they name the revision that keeps it.
    pub(super) fn gives_template(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Create(_) | Step::Update(_)))
    }

    /// Whether it has steps for VMs that selectors choose among.
    pub(super) fn chooses(&self) -> bool {
        self.steps.iter().any(|step| !matches!(step, Step::Create(_)))
    }
}

/// Selectors of the strategies for scale-in and for updates.
pub(super) fn selectors(pool: &Pool) -> (Option<&PoolSelectors>, Option<&PoolSelectors>) {
    let scale_in = pool.spec.scale_in_strategy.as_ref().and_then(|one| one.proactive.as_ref());
    let update = pool.spec.update_strategy.as_ref().and_then(|one| one.proactive.as_ref());
    let scale_in = scale_in.and_then(|one| one.selection_policy.as_ref()?.selectors.as_ref());
    let update = update.and_then(|one| one.selection_policy.as_ref()?.selectors.as_ref());
    (scale_in, update)
}

/// Whether selectors select a VM, by the labels of its template and its `nodeSelector`.
pub(super) fn are_met(selectors: &PoolSelectors, machine: &Value) -> bool {
    let template = &machine["spec"]["template"];
    let labels = &template["metadata"]["labels"];
    let nodes = &template["spec"]["nodeSelector"];
    let by_label = selectors.label_selector.as_ref();
    by_label.is_none_or(|selector| view::selects(selector, |name| labels[name].as_str()))
        && selectors.node_selector_requirement_matcher.iter().all(|one| meets(one, nodes[&one.key].as_str()))
}

/// Whether the value that a `nodeSelector` has for a label meets a requirement.
fn meets(one: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let number = |text: &str| text.parse::<i64>().ok();
    let pair = || Some((number(value?)?, number(one.values.first()?)?));
    match one.operator.as_str() {
        "Gt" => pair().is_some_and(|(value, bound)| value > bound),
        "Lt" => pair().is_some_and(|(value, bound)| value < bound),
        operator => view::meets(operator, &one.values, value),
    }
}

/// Number of a VM of the pool, from its name.
pub(super) fn number(pool: &str, name: &str) -> Option<u64> {
    let digits = name.strip_prefix(pool)?.strip_prefix('-')?;
    let number = digits.parse().ok()?;
    (name == format!("{pool}-{number}")).then_some(number)
}

/// Name of the revision of a pool's template.
pub(super) fn revision(pool: &Pool) -> String {
    format!("{}-{}", pool.metadata.name, pool.metadata.generation)
}

/// Names of the revisions that VMs and their instances have, other than the current one.
pub(super) fn older<'a>(pool: &Pool, members: &[Member<'a>]) -> BTreeSet<&'a str> {
    let current = revision(pool);
    let labels = members.iter().flat_map(|member| {
        let instance = member.instance.and_then(|one| one.metadata.label(REVISION));
        [member.machine.metadata.label(REVISION), instance]
    });
    labels.flatten().filter(|name| *name != current).collect()
}

/// Uid and generation of the pool and of its VMs: while they are the same, selectors select the same VMs.
pub(super) fn generations(pool: &Pool, members: &[Member<'_>]) -> Vec<(String, u64)> {
    let members = members.iter().map(|member| &member.machine.metadata);
    [&pool.metadata].into_iter().chain(members).map(|meta| (meta.uid.clone(), meta.generation)).collect()
}

/// Whether an object is a revision of the pool that is neither the current one nor a member's.
pub(super) fn is_unused(pool: &Pool, members: &[Member<'_>], kept: &Meta) -> bool {
    kept.controller().is_some_and(|owner| owner.uid == pool.metadata.uid)
        && kept.name != revision(pool)
        && !older(pool, members).contains(kept.name.as_str())
}

/// VMs that count, and those of them that are ready.
pub(super) fn counts(members: &[Member<'_>]) -> (usize, usize) {
    let active = members.iter().filter(|member| !member.machine.metadata.deleting());
    (active.clone().count(), active.filter(|member| member.machine.status.ready).count())
}

/// The steps of a pool. `templates`: names of revisions that hold the same template as the current one. `removing`:
/// workloads are removed with the platform, so that there are no steps.
pub(super) fn plan(
    pool: &Pool,
    members: &[Member<'_>],
    templates: &[String],
    selected: &Selected,
    now: u64,
    removing: bool,
) -> Plan {
    if pool.metadata.deleting() || pool.spec.paused || removing {
        return Plan::default();
    }
    let mut active: Vec<Member<'_>> =
        members.iter().copied().filter(|member| !member.machine.metadata.deleting()).collect();
    let wanted = usize::try_from(pool.spec.replicas.unwrap_or(REPLICAS)).unwrap_or(usize::MAX);
    let keep = keeps_disks(pool);
    let mut plan = Plan::default();
    if active.len() < wanted {
        let taken: Vec<u64> = members
            .iter()
            .filter_map(|member| number(&pool.metadata.name, &member.machine.metadata.name))
            .collect();
        let missing = free(&taken, (wanted - active.len()).min(BURST));
        plan.steps.extend(missing.into_iter().map(Step::Create));
    } else if active.len() > wanted {
        let surplus = active.len() - wanted;
        let names = leaving(pool, &active, selected.scale_in.as_ref(), surplus);
        if selected.scale_in.is_some() && names.len() < surplus {
            let message = format!(
                "{surplus} VMs are to go; the selectors of spec.scaleInStrategy.proactive select {} of them",
                names.len()
            );
            plan.failure = Some(Failure { reason: "FailedScaleIn", message });
        }
        active.retain(|member| !names.contains(&member.machine.metadata.name.as_str()));
        let of = |name: &&str| members.iter().find(|one| one.machine.metadata.name == **name);
        let gone = names.iter().filter_map(of).take(BURST);
        plan.steps.extend(gone.flat_map(|member| delete(member, keep)));
    }
    if let Some(healing) = &pool.spec.autohealing {
        let most = healing.start_up_failure_threshold.unwrap_or(FAILED_STARTS);
        let seconds = healing.min_failing_to_start_duration.as_deref();
        let seconds = seconds.and_then(seconds_of).unwrap_or(FAILING_SECONDS);
        let sick = active.iter().filter(|member| fails(member.machine, most, seconds, now));
        plan.steps.extend(sick.take(BURST).flat_map(|member| delete(member, keep)));
    }
    plan.steps.extend(updates(pool, &active, templates, selected.update.as_ref()));
    plan
}

/// The steps that delete a VM.
fn delete(member: &Member<'_>, keep: bool) -> Vec<Step> {
    let meta = &member.machine.metadata;
    let kept = keep.then(|| Step::Keep(meta.name.clone(), meta.uid.clone()));
    kept.into_iter().chain([Step::Delete(meta.name.clone(), meta.uid.clone())]).collect()
}

/// Whether DataVolumes of a deleted VM stay, for the next VM of its number: by `Offline` and `Online` alike, as upstream.
fn keeps_disks(pool: &Pool) -> bool {
    let Some(ScaleInStrategy { opportunistic, proactive, .. }) = &pool.spec.scale_in_strategy else {
        return false;
    };
    let words = [
        opportunistic.as_ref().and_then(|one| one.state_preservation.as_deref()),
        proactive.as_ref().and_then(|one| one.state_preservation.as_deref()),
    ];
    words.into_iter().flatten().any(|word| word != "Disabled")
}

/// Whether a VM fails to start again and again.
fn fails(machine: &Machine, most: i32, seconds: u64, now: u64) -> bool {
    let Some(failure) = &machine.status.start_failure else { return false };
    let created = machine.metadata.creation_timestamp.as_deref().and_then(clock::seconds);
    let old = created.is_some_and(|created| created.saturating_add(seconds) <= now);
    old && failure.consecutive_fail_count >= u32::try_from(most).unwrap_or(0)
}

/// Seconds of a duration as objects write it, such as `5m`.
fn seconds_of(text: &str) -> Option<u64> {
    u64::try_from(text.parse::<jiff::SignedDuration>().ok()?.as_secs()).ok()
}

/// Whether a VM may be chosen.
fn may_be_chosen(member: &Member<'_>, selected: Option<&BTreeSet<String>>) -> bool {
    selected.is_none_or(|names| names.contains(&member.machine.metadata.name))
}

/// Names of the VMs that go when the pool shrinks by `count`.
fn leaving<'a>(
    pool: &Pool,
    active: &[Member<'a>],
    selected: Option<&BTreeSet<String>>,
    count: usize,
) -> Vec<&'a str> {
    let strategy = pool.spec.scale_in_strategy.clone().unwrap_or_default();
    let ScaleInStrategy { opportunistic, proactive, unmanaged } = &strategy;
    if unmanaged.is_some() {
        return Vec::new();
    }
    let policy = proactive.as_ref().and_then(|one| one.selection_policy.as_ref());
    let mut candidates = active.to_vec();
    candidates.retain(|member| may_be_chosen(member, selected));
    if opportunistic.is_some() {
        candidates.retain(|member| member.instance.is_none());
    }
    sort(pool, &mut candidates, policy);
    candidates.iter().take(count).map(|member| member.machine.metadata.name.as_str()).collect()
}

/// Sorts VMs by a policy; the first come first.
fn sort(pool: &Pool, members: &mut [Member<'_>], policy: Option<&SelectionPolicy>) {
    let index = |member: &Member<'_>| number(&pool.metadata.name, &member.machine.metadata.name);
    let created = |member: &Member<'_>| member.machine.metadata.creation_timestamp.clone();
    match policy.and_then(|policy| policy.sort_policy.as_deref()) {
        Some("AscendingOrder") => members.sort_by_key(index),
        Some("DescendingOrder") => members.sort_by_key(|member| std::cmp::Reverse(index(member))),
        Some("Newest") => members.sort_by_key(|member| std::cmp::Reverse(created(member))),
        Some("Oldest") => members.sort_by_key(created),
        // Uids are random, and the same in every reconciliation.
        _ => members.sort_by(|a, b| a.machine.metadata.uid.cmp(&b.machine.metadata.uid)),
    }
}

/// VMs that get the template, and instances that are restarted for it.
fn updates(
    pool: &Pool,
    active: &[Member<'_>],
    templates: &[String],
    selected: Option<&BTreeSet<String>>,
) -> Vec<Step> {
    let strategy = pool.spec.update_strategy.clone().unwrap_or_default();
    if strategy.unmanaged.is_some() {
        return Vec::new();
    }
    let current = revision(pool);
    let has = |label: Option<&str>| {
        label.is_some_and(|label| label == current || templates.iter().any(|one| one == label))
    };
    let chosen = || active.iter().filter(|member| may_be_chosen(member, selected));
    let old = chosen().filter(|member| !has(member.machine.metadata.label(REVISION)));
    let mut steps: Vec<Step> =
        old.take(BURST).map(|member| Step::Update(member.machine.metadata.name.clone())).collect();
    if strategy.opportunistic.is_some() {
        return steps;
    }
    let mut behind: Vec<Member<'_>> = chosen()
        .copied()
        .filter(|member| {
            let own = member.machine.metadata.label(REVISION);
            let instance = member.instance.filter(|one| !one.metadata.deleting() && !one.is_final());
            has(own) && instance.is_some_and(|one| !has(one.metadata.label(REVISION)))
        })
        .collect();
    let policy = strategy.proactive.as_ref().and_then(|one| one.selection_policy.as_ref());
    sort(pool, &mut behind, policy);
    let unready = active.iter().filter(|member| {
        member.instance.is_some_and(|one| one.metadata.deleting()) || !member.machine.status.ready
    });
    let room = unavailable(pool, active.len()).saturating_sub(unready.count());
    let restarts = behind.iter().filter_map(|member| member.instance).take(room.min(BURST));
    steps.extend(restarts.map(|one| Step::Restart(one.metadata.name.clone(), one.metadata.uid.clone())));
    steps
}

/// VMs that may be unavailable at once.
fn unavailable(pool: &Pool, members: usize) -> usize {
    match &pool.spec.max_unavailable {
        None => members,
        Some(IntOrString::Int(count)) => usize::try_from(*count).unwrap_or(0),
        Some(IntOrString::String(text)) => {
            let percent = text.strip_suffix('%').and_then(|percent| percent.parse::<usize>().ok());
            percent.map_or(0, |percent| members.saturating_mul(percent).div_ceil(100))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pool(spec: Value) -> Pool {
        let mut object = json!({"metadata": {"name": "p", "uid": "u", "generation": 2}});
        object["spec"] = spec;
        serde_json::from_value(object).unwrap()
    }

    fn machine(index: u64, revision: &str, ready: bool) -> Machine {
        serde_json::from_value(json!({
            "metadata": {"name": format!("p-{index}"), "uid": format!("m{index}"), "labels": {REVISION: revision},
                "creationTimestamp": format!("2026-01-0{}T00:00:00Z", 9 - index)},
            "status": {"ready": ready},
        }))
        .unwrap()
    }

    fn instance(index: u64, revision: &str) -> Instance {
        serde_json::from_value(json!({
            "metadata": {"name": format!("p-{index}"), "uid": format!("i{index}"), "labels": {REVISION: revision}},
            "status": {"phase": "Running"},
        }))
        .unwrap()
    }

    fn decided(pool: &Pool, machines: &[Machine], instances: &[Instance]) -> Vec<String> {
        decided_among(pool, machines, instances, &Selected::default())
    }

    fn decided_among(
        pool: &Pool,
        machines: &[Machine],
        instances: &[Instance],
        selected: &Selected,
    ) -> Vec<String> {
        let members: Vec<Member<'_>> = machines
            .iter()
            .map(|machine| Member {
                machine,
                instance: instances.iter().find(|one| one.metadata.name == machine.metadata.name),
            })
            .collect();
        let show = |step: &Step| match step {
            Step::Create(index) => format!("+{index}"),
            Step::Update(name) => format!("~{name}"),
            Step::Restart(name, _) => format!("!{name}"),
            Step::Keep(name, _) => format!("={name}"),
            Step::Delete(name, _) => format!("-{name}"),
        };
        let planned = plan(pool, &members, &[], selected, 1_800_000_000, false);
        let mut shown: Vec<String> = planned.steps.iter().map(show).collect();
        shown.extend(planned.failure.map(|failure| failure.reason.to_owned()));
        shown
    }

    #[test]
    fn lowest_free_numbers_are_filled() {
        let there = [machine(0, "p-2", true), machine(2, "p-2", true)];
        assert_eq!(decided(&pool(json!({"replicas": 5})), &there, &[]), ["+1", "+3", "+4"]);
        assert_eq!(decided(&pool(json!({})), &[], &[]), ["+0"]);
        let mut going = machine(0, "p-2", true);
        going.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".into());
        assert_eq!(decided(&pool(json!({"replicas": 1})), &[going], &[]), ["+1"], "its name is still taken");
        assert_eq!(decided(&pool(json!({"replicas": 9, "paused": true})), &[], &[]), Vec::<String>::new());
        assert_eq!(number("p", "p-01"), None);
        assert_eq!(number("p", "p-x"), None);
    }

    #[test]
    fn shrinking_follows_the_policy() {
        let there: Vec<Machine> = (0..4).map(|index| machine(index, "p-2", true)).collect();
        let running = [instance(0, "p-2"), instance(1, "p-2")];
        let by = |policy: &str| json!({"replicas": 3, "scaleInStrategy": {"proactive": {"selectionPolicy": {"sortPolicy": policy}}}});
        for (spec, expected) in [
            (by("AscendingOrder"), "-p-0"),
            (by("DescendingOrder"), "-p-3"),
            (by("Oldest"), "-p-3"),
            (by("Newest"), "-p-0"),
            (json!({"replicas": 3, "scaleInStrategy": {"opportunistic": {}}}), "-p-2"),
        ] {
            assert_eq!(decided(&pool(spec.clone()), &there, &running), [expected], "{spec}");
        }
        for (strategy, word) in
            [("proactive", "Offline"), ("proactive", "Online"), ("opportunistic", "Offline")]
        {
            let strategy = json!({strategy: {"statePreservation": word}});
            let pool = pool(json!({"replicas": 3, "scaleInStrategy": strategy}));
            assert_eq!(decided(&pool, &there, &[]), ["=p-0", "-p-0"], "{strategy}");
        }
        let unmanaged = pool(json!({"replicas": 0, "scaleInStrategy": {"unmanaged": {}}}));
        assert_eq!(decided(&unmanaged, &there, &running), Vec::<String>::new());
        assert_eq!(decided(&pool(json!({"replicas": 2})), &there, &running).len(), 2, "default: any order");
    }

    #[test]
    fn running_machines_are_restarted_for_a_new_template_a_few_at_a_time() {
        let machines: Vec<Machine> = (0..4).map(|index| machine(index, "p-1", true)).collect();
        let instances: Vec<Instance> = (0..4).map(|index| instance(index, "p-1")).collect();
        let spec = |update: Value| json!({"replicas": 4, "maxUnavailable": "50%", "updateStrategy": update});
        let first = ["~p-0", "~p-1", "~p-2", "~p-3"];
        assert_eq!(decided(&pool(spec(json!({}))), &machines, &instances), first);
        let updated: Vec<Machine> = (0..4).map(|index| machine(index, "p-2", true)).collect();
        assert_eq!(decided(&pool(spec(json!({}))), &updated, &instances), ["!p-0", "!p-1"]);
        let mut one_down = updated.clone();
        one_down[3].status.ready = false;
        assert_eq!(decided(&pool(spec(json!({}))), &one_down, &instances), ["!p-0"]);
        assert_eq!(decided(&pool(spec(json!({"opportunistic": {}}))), &machines, &instances), first);
        assert_eq!(
            decided(&pool(spec(json!({"opportunistic": {}}))), &updated, &instances),
            Vec::<String>::new()
        );
        assert_eq!(
            decided(&pool(spec(json!({"unmanaged": {}}))), &machines, &instances),
            Vec::<String>::new()
        );
        let some = Selected { update: Some(["p-1".to_owned(), "p-3".to_owned()].into()), scale_in: None };
        let plain = pool(spec(json!({})));
        assert_eq!(decided_among(&plain, &machines, &instances, &some), ["~p-1", "~p-3"]);
        assert_eq!(decided_among(&plain, &updated, &instances, &some), ["!p-1", "!p-3"]);
    }

    #[test]
    fn shrinking_leaves_what_selectors_do_not_select() {
        let there: Vec<Machine> = (0..4).map(|index| machine(index, "p-2", true)).collect();
        let some = Selected { scale_in: Some(["p-1".to_owned(), "p-2".to_owned()].into()), update: None };
        let policy = json!({"proactive": {"selectionPolicy": {"sortPolicy": "DescendingOrder"}}});
        for (replicas, expected) in
            [(4, &[][..]), (3, &["-p-2"]), (2, &["-p-2", "-p-1"]), (1, &["-p-2", "-p-1", "FailedScaleIn"])]
        {
            let pool = pool(json!({"replicas": replicas, "scaleInStrategy": policy}));
            assert_eq!(decided_among(&pool, &there, &[], &some), expected, "{replicas}");
        }
    }

    #[test]
    fn vms_are_selected_again_when_the_pool_or_a_vm_changes() {
        let of = |pool: &Pool, machines: &[Machine]| {
            let members: Vec<Member<'_>> =
                machines.iter().map(|machine| Member { machine, instance: None }).collect();
            generations(pool, &members)
        };
        let (same, there) = (pool(json!({})), [machine(0, "p-2", true), machine(1, "p-2", true)]);
        let before = of(&same, &there);
        let mut unready = there.clone();
        unready[0].status.ready = false;
        assert_eq!(of(&same, &unready), before, "a status alone selects no other");
        let (mut scaled, mut edited, mut replaced) = (same.clone(), there.clone(), there.clone());
        scaled.metadata.generation += 1;
        edited[1].metadata.generation += 1;
        replaced[1].metadata.uid = "another".to_owned();
        for after in [of(&scaled, &there), of(&same, &edited), of(&same, &replaced), of(&same, &there[..1])] {
            assert_ne!(after, before);
        }
    }

    #[test]
    fn selectors_are_about_the_template_of_a_vm() {
        let machine = json!({"metadata": {"labels": {"app": "other"}}, "spec": {"template": {
            "metadata": {"labels": {"app": "web"}}, "spec": {"nodeSelector": {"zone": "a", "rack": "7"}}}}});
        let on = |key: &str, operator: &str, values: &[&str]| {
            let requirement = json!({"key": key, "operator": operator, "values": values});
            json!({"nodeSelectorRequirementMatcher": [requirement]})
        };
        for (selectors, expected) in [
            (json!({}), true),
            (json!({"labelSelector": {"matchLabels": {"app": "web"}}}), true),
            (json!({"labelSelector": {"matchLabels": {"app": "other"}}}), false),
            (on("zone", "In", &["a", "b"]), true),
            (on("zone", "NotIn", &["a"]), false),
            (on("disk", "NotIn", &["a"]), true),
            (on("disk", "Exists", &[]), false),
            (on("rack", "Gt", &["6"]), true),
            (on("rack", "Lt", &["7"]), false),
            (on("zone", "Gt", &["6"]), false),
            (
                json!({"labelSelector": {"matchLabels": {"app": "web"}},
                    "nodeSelectorRequirementMatcher": [{"key": "disk", "operator": "Exists"}]}),
                false,
            ),
        ] {
            let parsed: PoolSelectors = serde_json::from_value(selectors.clone()).unwrap();
            assert_eq!(are_met(&parsed, &machine), expected, "{selectors}");
        }
    }

    #[test]
    fn a_template_of_an_older_generation_that_is_the_same_needs_no_update() {
        let machine = machine(0, "p-1", true);
        let members = [Member { machine: &machine, instance: None }];
        let scaled = pool(json!({"replicas": 1}));
        let decided = |pool: &Pool| plan(pool, &members, &["p-1".to_owned()], &Selected::default(), 0, false);
        assert_eq!(decided(&scaled), Plan::default());
        assert!(!decided(&scaled).gives_template());
        // A VM that is created names the current revision, which is stored for it.
        assert!(decided(&pool(json!({"replicas": 2}))).gives_template());
    }

    #[test]
    fn revisions_that_no_member_has_are_unused() {
        let (machine, instance) = (machine(0, "p-1", true), instance(0, "p-0"));
        let members = [Member { machine: &machine, instance: Some(&instance) }];
        let pool = pool(json!({"replicas": 1}));
        assert_eq!(older(&pool, &members), BTreeSet::from(["p-0", "p-1"]));
        let unused = |name: &str, owner: &str| {
            let owner = json!({"kind": "VirtualMachinePool", "name": "p", "uid": owner, "controller": true});
            let kept: Meta =
                serde_json::from_value(json!({"name": name, "ownerReferences": [owner]})).unwrap();
            is_unused(&pool, &members, &kept)
        };
        for (name, owner, expected) in [
            ("p-7", "u", true),
            ("p-7", "another", false),
            ("p-0", "u", false),
            ("p-1", "u", false),
            ("p-2", "u", false),
        ] {
            assert_eq!(unused(name, owner), expected, "{name} of {owner}");
        }
    }

    #[test]
    fn nothing_is_made_again_while_workloads_are_removed() {
        let pool = pool(json!({"replicas": 3}));
        let planned = |removing| plan(&pool, &[], &[], &Selected::default(), 0, removing);
        assert_eq!((planned(true), planned(false).steps.len()), (Plan::default(), 3));
    }

    #[test]
    fn machines_that_do_not_start_are_replaced() {
        let mut machine = machine(0, "p-2", false);
        machine.status.start_failure = Some(crate::view::StartFailure {
            consecutive_fail_count: 3,
            ..crate::view::StartFailure::default()
        });
        let healing = |count: u32| pool(json!({"autohealing": {"startUpFailureThreshold": count}}));
        assert_eq!(decided(&healing(3), std::slice::from_ref(&machine), &[]), ["-p-0"]);
        assert_eq!(decided(&healing(4), std::slice::from_ref(&machine), &[]), Vec::<String>::new());
        assert_eq!(decided(&pool(json!({})), &[machine], &[]), Vec::<String>::new());
        assert_eq!((seconds_of("5m"), seconds_of("1h30m"), seconds_of("x")), (Some(300), Some(5400), None));
    }
}
