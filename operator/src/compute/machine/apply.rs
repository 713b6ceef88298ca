//! Does the steps of a VirtualMachine and writes its status. Every step can be repeated; what was done shows in the caches
//! and leads to the next reconciliation.

use std::time::Duration;

use api::kubevirt::{ControllerRevisionReference, FlavorStatus};
use cluster::{Delete, JsonPatch, Key, Outcome};
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use virt::instancetype::Which;

use super::live::{expanded, flavored, unusable};
use super::plan::{FINALIZER, Failure, Observed, Step, plan};
use super::status;
use super::{authorize, dump, event, live, render, without_effect};
use crate::compute::caches::{CLAIMS, DATA_VOLUMES, INSTANCES, MACHINES, REVISIONS};
use crate::compute::context::Context;
use crate::flavor;
use crate::storage::clone::cloned::needs_no_source;
use crate::view::{Instance, Machine, Meta, Revision, condition};

const API_VERSION: &str = "kubevirt.io/v1";
const KIND: &str = "VirtualMachine";

/// Reconciles one VM.
pub(in crate::compute) async fn reconcile(context: &Context, key: &Key) -> Outcome {
    let caches = &context.caches;
    let Some(machine) = caches.machines.get(key) else {
        context.remember(key, None);
        return Outcome::Done;
    };
    let instance = caches.instances.get(key);
    let storage = caches.storage(key.namespace(), &machine.spec.template.spec.volumes);
    let templates = machine.spec.data_volume_templates.iter().map(|one| (one.metadata.name.as_str(), true));
    let templates = caches.storage_of(key.namespace(), templates);
    let observed = Observed {
        machine: &machine,
        instance: instance.as_deref(),
        volumes: storage.volumes(),
        templates: templates.volumes(),
        snapshot_classes: caches.classes_with_snapshots(),
        expand_all: context.settings().expand_all,
        now: Context::now(),
    };
    let mut planned = plan(&observed);
    planned.steps.extend(dump::step(&observed));
    for event in event::imports(&observed) {
        context.record(API_VERSION, KIND, &machine.metadata, &event);
    }
    let mut outcome = status::Outcome { failure: planned.failure, ..status::Outcome::default() };
    let (mut acted, mut failed, mut wait) = (false, false, None);
    for step in &planned.steps {
        if let Step::Wait(time) = step {
            wait = Some(time.saturating_sub(observed.now));
            continue;
        }
        outcome.queue_start |= *step == Step::QueueStart;
        match act(context, &observed, step, &outcome).await {
            Ok(()) => {
                acted = true;
                if let Some(event) = event::done(step, &observed) {
                    context.record(API_VERSION, KIND, &machine.metadata, &event);
                }
            }
            // The caches are behind; their next change leads here again.
            Err(error) if error.is_conflict() => return Outcome::Retry,
            // Deleted in between. A create that finds no such kind or namespace is a failure like others.
            Err(error) if error.is_not_found() && !creates(step) => return Outcome::Retry,
            Err(error) => {
                let text = error.status().map_or_else(|| error.chain(), |status| status.message.clone());
                tracing::warn!(vm = %key, ?step, error = error.chain(), "cannot reconcile the VirtualMachine; retrying");
                let denied = error.kind() == cluster::Kind::Forbidden && error.status().is_none();
                let (failure, event) = event::failed(step, &text, denied);
                if let Some(event) = event.filter(|_| !already_says(&machine, &failure)) {
                    context.record(API_VERSION, KIND, &machine.metadata, &event);
                }
                outcome.failure = Some(failure);
                failed = true;
                break;
            }
        }
    }
    // The effect of a step is observed with the next change; a status from before it would only be written twice.
    if acted && !failed {
        return Outcome::Done;
    }
    outcome.restart_required = live::follow(context, &observed, key).await;
    if let Err(error) = write_status(context, &observed, &outcome).await {
        tracing::debug!(vm = %key, error = error.chain(), "cannot write the VirtualMachine's status; retrying");
        return Outcome::Retry;
    }
    match (failed, wait) {
        (true, _) => Outcome::Retry,
        (false, Some(seconds)) => Outcome::After(Duration::from_secs(seconds)),
        (false, None) => Outcome::Done,
    }
}

fn creates(step: &Step) -> bool {
    matches!(step, Step::CreateInstance { .. } | Step::CreateDataVolume(_))
}

fn already_says(machine: &Machine, failure: &Failure) -> bool {
    let before = condition(&machine.status.conditions, "Failure");
    before.is_some_and(|before| before.message.as_deref() == Some(failure.message.as_str()))
}

async fn act(
    context: &Context,
    observed: &Observed<'_>,
    step: &Step,
    outcome: &status::Outcome,
) -> cluster::Result<()> {
    let meta = &observed.machine.metadata;
    let client = &context.client;
    let key = Key::new(&meta.namespace, &meta.name);
    match step {
        Step::AddFinalizer => {
            let finalizers: Vec<&str> =
                meta.finalizers.iter().map(String::as_str).chain([FINALIZER]).collect();
            let patch =
                json!({"metadata": {"resourceVersion": meta.resource_version, "finalizers": finalizers}});
            client.merge_patch::<IgnoredAny>(MACHINES, &key, &patch).await?;
        }
        Step::RemoveFinalizer => {
            client.merge_patch::<IgnoredAny>(MACHINES, &key, &without_finalizer(meta)).await?;
        }
        Step::DropRevision(name) => {
            client.delete(REVISIONS, &Key::new(&meta.namespace, name), &Delete::default()).await?;
        }
        Step::ReleaseInstance => {
            if let Some(instance) = observed.own_instance() {
                let patch = without_finalizer(&instance.metadata);
                client.merge_patch::<IgnoredAny>(INSTANCES, &key, &patch).await?;
            }
        }
        Step::CreateDataVolume(name) => {
            let Some(whole) = context.whole(MACHINES, meta).await? else { return Err(behind()) };
            let flavored = flavored(context, &whole).await?;
            let Some(mut volume) = render::data_volume(&flavored, name) else { return Err(behind()) };
            let origin = authorize::origin(context, &volume).await?;
            if let Some(origin) = &origin {
                let usable = needs_no_source(&volume) || context.caches.claim_exists(&origin.key());
                if let Some(event) = event::without_source(origin, usable, name) {
                    context.record(API_VERSION, KIND, meta, &event);
                }
                authorize::grant(context, &whole, &mut volume, origin).await?;
            }
            existing_is_fine(client.create::<IgnoredAny>(DATA_VOLUMES, &meta.namespace, &volume).await)?;
        }
        Step::KeepFlavor(which) => keep_flavor(context, observed, *which).await?,
        Step::Expand => {
            let Some(whole) = context.whole(MACHINES, meta).await? else { return Err(behind()) };
            let expanded = expanded(context, &whole).await?;
            client.replace::<IgnoredAny>(MACHINES, &key, &expanded).await?;
        }
        Step::CreateInstance { paused } => {
            let Some(whole) = context.whole(MACHINES, meta).await? else { return Err(behind()) };
            let revision = render::revision(&whole);
            existing_is_fine(client.create::<IgnoredAny>(REVISIONS, &meta.namespace, &revision).await)?;
            let flavored = flavored(context, &whole).await?;
            let mut instance = render::instance(&flavored, *paused);
            let conditions = without_effect::conditions(&whole, &flavored);
            if !conditions.is_empty() {
                instance["status"]["conditions"] = json!(conditions);
            }
            existing_is_fine(client.create::<IgnoredAny>(INSTANCES, &meta.namespace, &instance).await)?;
        }
        Step::DeleteInstance => {
            if let Some(instance) = observed.own_instance() {
                client.delete(INSTANCES, &key, &Delete::default().uid(&instance.metadata.uid)).await?;
            }
        }
        Step::RunAlways => {
            let spec = json!({"runStrategy": "Always", "running": null});
            let patch = json!({"metadata": {"resourceVersion": meta.resource_version}, "spec": spec});
            client.merge_patch::<IgnoredAny>(MACHINES, &key, &patch).await?;
        }
        Step::AttachDump(claim) => {
            if let Some(instance) = observed.own_instance() {
                change_dumps(context, instance, |volumes| {
                    match volumes.iter().any(|one| one["name"] == *claim) {
                        true => false,
                        false => {
                            let of = virt::live::dump::TYPE;
                            volumes.push(json!({"name": claim, "claimName": claim, "type": of}));
                            true
                        }
                    }
                })
                .await?;
            }
        }
        Step::DetachDump { claim, note } => {
            if let Some(note) = note {
                let patch = json!({"metadata": {"annotations": {dump::ANNOTATION: note}}});
                let key = Key::new(&meta.namespace, claim);
                match client.merge_patch::<IgnoredAny>(CLAIMS, &key, &patch).await {
                    // Deleted: there is nothing to write on.
                    Err(error) if !error.is_not_found() => return Err(error),
                    Ok(_) | Err(_) => {}
                }
            }
            if let Some(instance) = observed.own_instance() {
                change_dumps(context, instance, |volumes| {
                    let before = volumes.len();
                    volumes.retain(|one| one["name"] != *claim);
                    volumes.len() != before
                })
                .await?;
            }
        }
        Step::QueueStart => write_status(context, observed, outcome).await?,
        Step::Wait(_) => {}
    }
    Ok(())
}

/// Stores what a VM refers to in a revision, and names that in its status in place of the one before, which is deleted. A
/// VM that names a revision itself keeps that.
async fn keep_flavor(context: &Context, observed: &Observed<'_>, which: Which) -> cluster::Result<()> {
    let machine = observed.machine;
    let meta = &machine.metadata;
    let Some(reference) = machine.flavor(which).0 else { return Ok(()) };
    if let Some((_, text)) = virt::instancetype::malformed(which, reference) {
        return Err(cluster::Error::new(cluster::Kind::Input, text));
    }
    let name = match reference.revision_name.clone().filter(|name| !name.is_empty()) {
        Some(name) => {
            let found: Option<Value> =
                context.client.find(REVISIONS, &Key::new(&meta.namespace, &name)).await?;
            if found.is_none() {
                let text = format!("controllerrevisions.apps {name:?} not found");
                return Err(cluster::Error::new(cluster::Kind::Input, text));
            }
            name
        }
        None => {
            let object = flavor::object(&context.client, &meta.namespace, which, reference).await;
            let object = object.map_err(unusable)?;
            let owner =
                json!({"metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid}});
            let revision = virt::instancetype::revision(&owner, &object);
            let created =
                context.client.create::<IgnoredAny>(REVISIONS, &meta.namespace, &revision.object).await;
            existing_is_fine(created)?;
            revision.name
        }
    };
    let kept = FlavorStatus {
        name: reference.name.clone(),
        kind: reference.kind.clone(),
        controller_revision_ref: Some(ControllerRevisionReference { name: Some(name.clone()) }),
        ..FlavorStatus::default()
    };
    let field = format!("{}Ref", which.field());
    let patch = json!({"metadata": {"resourceVersion": meta.resource_version}, "status": {field: kept}});
    let key = Key::new(&meta.namespace, &meta.name);
    context.client.merge_patch::<IgnoredAny>(MACHINES.sub("status"), &key, &patch).await?;
    let before =
        machine.flavor(which).1.and_then(|kept| kept.controller_revision_ref.as_ref()?.name.as_deref());
    if let Some(before) = before.filter(|before| *before != name)
        && let Err(error) = drop_flavor(context, meta, before).await
    {
        // The step is done, and is not repeated for this.
        tracing::debug!(vm = %key, revision = before, error = error.chain(), "cannot delete the replaced revision");
    }
    Ok(())
}

/// Deletes a revision that the VM owns; one that a user made, or that another VM names, stays.
async fn drop_flavor(context: &Context, meta: &Meta, name: &str) -> cluster::Result<()> {
    let shared = context.caches.machines.all().into_iter().any(|(other, machine)| {
        other.namespace() == meta.namespace && other.name() != meta.name && machine.names_revision(name)
    });
    if shared {
        return Ok(());
    }
    let key = Key::new(&meta.namespace, name);
    let found: Option<Revision> = context.client.find(REVISIONS, &key).await?;
    let own = |found: &Revision| found.metadata.controller().is_some_and(|owner| owner.uid == meta.uid);
    if let Some(found) = found.filter(own) {
        context.client.delete(REVISIONS, &key, &Delete::default().uid(&found.metadata.uid)).await?;
    }
    Ok(())
}

/// Changes the utility volumes of an instance, unless `change` finds them as they are to be.
async fn change_dumps(
    context: &Context,
    instance: &Instance,
    change: impl FnOnce(&mut Vec<Value>) -> bool,
) -> cluster::Result<()> {
    let meta = &instance.metadata;
    let key = Key::new(&meta.namespace, &meta.name);
    let Some(whole) = context.client.find::<Value>(INSTANCES, &key).await? else { return Err(behind()) };
    let before = whole["spec"].get("utilityVolumes");
    let mut volumes = before.and_then(Value::as_array).cloned().unwrap_or_default();
    if !change(&mut volumes) {
        return Ok(());
    }
    let path = "/spec/utilityVolumes";
    let patch = JsonPatch::new().test("/metadata/uid", &meta.uid).test(path, before).add(path, volumes);
    context.client.json_patch::<IgnoredAny>(INSTANCES, &key, &patch).await?;
    Ok(())
}

/// The object is not the one that was decided on.
fn behind() -> cluster::Error {
    cluster::Error::new(cluster::Kind::Conflict, "the VirtualMachine changed since it was observed")
}

/// Names are deterministic: what exists is what was to be created, or shows in the caches as what it is.
fn existing_is_fine<T>(created: cluster::Result<T>) -> cluster::Result<()> {
    match created {
        Err(error) if !error.is_already_exists() => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

fn without_finalizer(meta: &Meta) -> Value {
    let finalizers: Vec<&String> = meta.finalizers.iter().filter(|name| *name != FINALIZER).collect();
    json!({"metadata": {"resourceVersion": meta.resource_version, "finalizers": finalizers}})
}

async fn write_status(
    context: &Context,
    observed: &Observed<'_>,
    outcome: &status::Outcome,
) -> cluster::Result<()> {
    let machine = observed.machine;
    let after = status::status(observed, outcome);
    // Nothing is written for an object that only waits for the removal of its last finalizer.
    if after == machine.status || (machine.metadata.deleting() && !machine.metadata.has_finalizer(FINALIZER))
    {
        return Ok(());
    }
    let meta = &machine.metadata;
    let patch = json!({"metadata": {"resourceVersion": meta.resource_version}, "status": after});
    let key = Key::new(&meta.namespace, &meta.name);
    context.client.merge_patch::<IgnoredAny>(MACHINES.sub("status"), &key, &patch).await?;
    Ok(())
}
