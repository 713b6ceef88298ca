//! Does the steps of a VirtualMachinePool and writes its status.

use std::collections::BTreeSet;

use cluster::{Delete, Key, Outcome, Scope};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::plan::{self, Member, Plan, Selected, Step, plan};
use super::render;
use crate::compute::caches::{DATA_VOLUMES, INSTANCES, MACHINES, POOLS, REVISIONS};
use crate::compute::context::{Context, Selection};
use crate::compute::event::Event;
use crate::compute::members::{self, Failure};
use crate::view::{Pool, Revision, selector_text};

const API_VERSION: &str = "pool.kubevirt.io/v1beta1";
const KIND: &str = "VirtualMachinePool";

/// Reconciles one pool.
pub(in crate::compute) async fn reconcile(context: &Context, key: &Key) -> Outcome {
    let caches = &context.caches;
    let Some(pool) = caches.pools.get(key) else {
        context.remember_selection(key, None);
        return Outcome::Done;
    };
    let machines = caches.machines_of(&pool.metadata.uid);
    let instances: Vec<_> = machines
        .iter()
        .map(|machine| caches.instances.get(&Key::new(&machine.metadata.namespace, &machine.metadata.name)))
        .collect();
    let members: Vec<Member<'_>> = machines
        .iter()
        .zip(&instances)
        .map(|(machine, instance)| Member { machine, instance: instance.as_deref() })
        .collect();
    let read = templates(context, &pool, &members).await;
    let (whole, templates) = match read {
        Ok(Some(read)) => read,
        Ok(None) => return Outcome::Retry,
        Err(error) => {
            tracing::debug!(pool = %key, error = error.chain(), "cannot read the pool's template");
            return Outcome::Retry;
        }
    };
    let planned = match decide(context, &pool, &members, &templates).await {
        Ok(planned) => planned,
        Err(error) => {
            tracing::debug!(pool = %key, error = error.chain(), "cannot read the pool's VMs; retrying");
            return Outcome::Retry;
        }
    };
    if planned.gives_template()
        && let Err(error) = store(context, &pool, &members, &whole).await
    {
        tracing::debug!(pool = %key, error = error.chain(), "cannot store the pool's template; retrying");
        return Outcome::Retry;
    }
    let mut failure = planned.failure;
    let mut failed = false;
    for step in &planned.steps {
        match act(context, &pool, &whole, step).await {
            Ok(()) => record(context, &pool, step),
            Err(error) if error.is_conflict() => return Outcome::Retry,
            Err(error) => {
                let text = error.status().map_or_else(|| error.chain(), |status| status.message.clone());
                let reason = match step {
                    Step::Create(_) => "FailedScaleOut",
                    Step::Keep(..) | Step::Delete(..) => "FailedScaleIn",
                    Step::Update(_) | Step::Restart(..) => "FailedUpdate",
                };
                failure = Some(Failure { reason, message: text });
                failed = true;
                break;
            }
        }
    }
    if let Some(found) = failure.as_ref().filter(|found| !members::already_says(&pool.status, found)) {
        let event = Event::warning(found.reason, found.message.clone());
        context.record(API_VERSION, KIND, &pool.metadata, &event);
    }
    if let Err(error) = write_status(context, key, &pool, &members, failure.as_ref()).await {
        tracing::debug!(pool = %key, error = error.chain(), "cannot write the pool's status; retrying");
        return Outcome::Retry;
    }
    if failed { Outcome::Retry } else { Outcome::Done }
}

/// The pool's steps. Caches have no labels of users, by which selectors select: where they choose, the VMs are read, once for
/// each generation of the pool and its VMs.
async fn decide(
    context: &Context,
    pool: &Pool,
    members: &[Member<'_>],
    templates: &[String],
) -> cluster::Result<Plan> {
    let now = Context::now();
    let removing = context.settings().removing;
    let planned = plan(pool, members, templates, &Selected::default(), now, removing);
    let (scale_in, update) = plan::selectors(pool);
    if !planned.chooses() || (scale_in.is_none() && update.is_none()) {
        return Ok(planned);
    }
    let key = Key::new(&pool.metadata.namespace, &pool.metadata.name);
    let of = plan::generations(pool, members);
    if let Some(known) = context.selection(&key).filter(|known| known.of == of) {
        let selected = Selected { scale_in: known.scale_in, update: known.update };
        return Ok(plan(pool, members, templates, &selected, now, removing));
    }
    let mut selected =
        Selected { scale_in: scale_in.map(|_| BTreeSet::new()), update: update.map(|_| BTreeSet::new()) };
    let scope = Scope::all().namespace(&pool.metadata.namespace).labels(&selector_text(&pool.spec.selector));
    let hear = |machine: Value| {
        let name = machine["metadata"]["name"].as_str().unwrap_or_default();
        let of_strategies = [(scale_in, &mut selected.scale_in), (update, &mut selected.update)];
        for (selectors, names) in of_strategies {
            if let (Some(selectors), Some(names)) = (selectors, names)
                && plan::are_met(selectors, &machine)
            {
                names.insert(name.to_owned());
            }
        }
    };
    context.client.each(MACHINES, &scope, hear).await?;
    let planned = plan(pool, members, templates, &selected, now, removing);
    let Selected { scale_in, update } = selected;
    context.remember_selection(&key, Some(Selection { of, scale_in, update }));
    Ok(planned)
}

/// The whole pool, and the names of older revisions that its members have with the same template. `None`: the pool changed
/// since it was observed.
async fn templates(
    context: &Context,
    pool: &Pool,
    members: &[Member<'_>],
) -> cluster::Result<Option<(Value, Vec<String>)>> {
    let Some(whole) = context.whole(POOLS, &pool.metadata).await? else { return Ok(None) };
    let mut same = Vec::new();
    if pool.metadata.deleting() {
        return Ok(Some((whole, same)));
    }
    for name in plan::older(pool, members) {
        let key = Key::new(&pool.metadata.namespace, name);
        let revision: Option<Value> = context.client.find_cached(REVISIONS, &key).await?;
        if revision.is_some_and(|revision| render::is_same(&whole, &revision)) {
            same.push(name.to_owned());
        }
    }
    Ok(Some((whole, same)))
}

/// Stores the pool's template in a revision. With a new one, revisions that no member has are deleted.
async fn store(context: &Context, pool: &Pool, members: &[Member<'_>], whole: &Value) -> cluster::Result<()> {
    let (client, namespace) = (&context.client, &pool.metadata.namespace);
    let revision = render::revision(whole, &plan::revision(pool));
    match client.create::<IgnoredAny>(REVISIONS, namespace, &revision).await {
        Ok(_) => {}
        Err(error) if error.is_already_exists() => return Ok(()),
        Err(error) => return Err(error),
    }
    let scope = Scope::all().namespace(namespace).labels(plan::REVISION);
    for kept in client.list::<Revision>(REVISIONS, &scope).await? {
        let meta = &kept.metadata;
        if plan::is_unused(pool, members, meta) && !is_named(context, namespace, &meta.name).await? {
            let key = Key::new(namespace, &meta.name);
            client.delete(REVISIONS, &key, &Delete::default().uid(&meta.uid)).await?;
        }
    }
    Ok(())
}

/// Whether a VM or an instance names a revision, by its label. The API server is asked: the caches may not have a VM yet
/// that was created a moment ago.
async fn is_named(context: &Context, namespace: &str, revision: &str) -> cluster::Result<bool> {
    let scope = Scope::all().namespace(namespace).labels(&format!("{}={revision}", plan::REVISION));
    for resource in [MACHINES, INSTANCES] {
        if !context.client.list::<IgnoredAny>(resource, &scope).await?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn existing_is_fine<T>(created: cluster::Result<T>) -> cluster::Result<()> {
    match created {
        Err(error) if !error.is_already_exists() => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

async fn act(context: &Context, pool: &Pool, whole: &Value, step: &Step) -> cluster::Result<()> {
    let namespace = &pool.metadata.namespace;
    let client = &context.client;
    let revision = plan::revision(pool);
    match step {
        Step::Create(index) => {
            let machine = render::machine(whole, *index, &revision);
            existing_is_fine(client.create::<IgnoredAny>(MACHINES, namespace, &machine).await)
        }
        Step::Update(name) => {
            let Some(index) = plan::number(&pool.metadata.name, name) else { return Ok(()) };
            let key = Key::new(namespace, name);
            let Some(before) = client.find::<Value>(MACHINES, &key).await? else { return Ok(()) };
            let mut after = before.clone();
            after["spec"] = render::spec(whole, index, &revision);
            // Whether it runs, and what identifies it, are the VM's own.
            for field in ["running", "runStrategy"] {
                if let Some(fields) = after["spec"].as_object_mut() {
                    fields.remove(field);
                    if let Some(value) = before["spec"].get(field) {
                        fields.insert(field.to_owned(), value.clone());
                    }
                }
            }
            let firmware = before.pointer("/spec/template/spec/domain/firmware");
            if let Some(firmware) = firmware
                && after.pointer("/spec/template/spec/domain/firmware").is_none()
            {
                after["spec"]["template"]["spec"]["domain"]["firmware"] = firmware.clone();
            }
            after["metadata"]["labels"][plan::REVISION] = json!(revision);
            client.replace::<IgnoredAny>(MACHINES, &key, &after).await?;
            Ok(())
        }
        Step::Restart(name, uid) => {
            client.delete(INSTANCES, &Key::new(namespace, name), &Delete::default().uid(uid)).await?;
            Ok(())
        }
        Step::Keep(name, uid) => keep_disks(context, &Key::new(namespace, name), uid).await,
        Step::Delete(name, uid) => {
            client.delete(MACHINES, &Key::new(namespace, name), &Delete::default().uid(uid)).await?;
            Ok(())
        }
    }
}

/// Takes a VM out of the owners of its DataVolumes.
async fn keep_disks(context: &Context, machine: &Key, uid: &str) -> cluster::Result<()> {
    let Some(observed) = context.caches.machines.get(machine) else { return Ok(()) };
    for template in &observed.spec.data_volume_templates {
        let key = Key::new(machine.namespace(), &template.metadata.name);
        let Some(volume) = context.client.find::<Value>(DATA_VOLUMES, &key).await? else { continue };
        if let Some(patch) = render::without_owner(&volume, uid) {
            context.client.merge_patch::<IgnoredAny>(DATA_VOLUMES, &key, &patch).await?;
        }
    }
    Ok(())
}

fn record(context: &Context, pool: &Pool, step: &Step) {
    let (reason, message) = match step {
        Step::Create(index) => ("SuccessfulCreate", format!("Created VM {}-{index}", pool.metadata.name)),
        Step::Update(name) => ("SuccessfulUpdate", format!("Updated VM {name}")),
        Step::Restart(name, _) => {
            ("SuccessfulUpdate", format!("Restarting VM {name}, which runs an older template"))
        }
        Step::Keep(name, _) => ("SuccessfulUpdate", format!("Keeping the DataVolumes of VM {name}")),
        Step::Delete(name, _) => ("SuccessfulDelete", format!("Deleted VM {name}")),
    };
    context.record(API_VERSION, KIND, &pool.metadata, &Event::normal(reason, message));
}

async fn write_status(
    context: &Context,
    key: &Key,
    pool: &Pool,
    members: &[Member<'_>],
    failure: Option<&Failure>,
) -> cluster::Result<()> {
    let paused = pool.spec.paused;
    let counts = plan::counts(members);
    let after = members::status(&pool.status, &pool.spec.selector, counts, paused, failure, Context::now());
    if after == pool.status || pool.metadata.deleting() {
        return Ok(());
    }
    if let Some((reason, message)) = members::pause_event(&pool.status, paused) {
        let event = Event::normal(reason, message.to_owned());
        context.record(API_VERSION, KIND, &pool.metadata, &event);
    }
    let patch = json!({"metadata": {"resourceVersion": pool.metadata.resource_version}, "status": after});
    context.client.merge_patch::<IgnoredAny>(POOLS.sub("status"), key, &patch).await?;
    Ok(())
}
