//! Does the steps of a VirtualMachineInstanceReplicaSet and writes its status.

use cluster::{Delete, Key, Outcome};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::plan::{self, Step, plan};
use crate::compute::caches::{INSTANCES, REPLICA_SETS};
use crate::compute::context::Context;
use crate::compute::event::Event;
use crate::compute::members::{self, Failure};
use crate::view::{Instance, ReplicaSet};

const API_VERSION: &str = "kubevirt.io/v1";
const KIND: &str = "VirtualMachineInstanceReplicaSet";

/// Reconciles one set.
pub(in crate::compute) async fn reconcile(context: &Context, key: &Key) -> Outcome {
    let Some(set) = context.caches.replica_sets.get(key) else { return Outcome::Done };
    let members = context.caches.instances_of(&set.metadata.uid);
    let members: Vec<&Instance> = members.iter().map(AsRef::as_ref).collect();
    let steps = plan(&set, &members, context.settings().removing);
    let mut failure = None;
    let mut whole = None;
    for step in &steps {
        match act(context, &set, step, &mut whole).await {
            Ok(()) => {
                let (reason, message) = match step {
                    Step::Create(name) => (
                        "SuccessfulCreate",
                        format!(
                            "Started the virtual machine by creating the new virtual machine instance {name}"
                        ),
                    ),
                    Step::Delete(name, _) => (
                        "SuccessfulDelete",
                        format!(
                            "Stopped the virtual machine by deleting the virtual machine instance {name}"
                        ),
                    ),
                };
                context.record(API_VERSION, KIND, &set.metadata, &Event::normal(reason, message));
            }
            Err(error) if error.is_conflict() => return Outcome::Retry,
            Err(error) => {
                let text = error.status().map_or_else(|| error.chain(), |status| status.message.clone());
                let reason = match step {
                    Step::Create(_) => "FailedCreate",
                    Step::Delete(..) => "FailedDelete",
                };
                let found = Failure { reason, message: text };
                if !members::already_says(&set.status, &found) {
                    let event = Event::warning(reason, found.message.clone());
                    context.record(API_VERSION, KIND, &set.metadata, &event);
                }
                failure = Some(found);
                break;
            }
        }
    }
    let failed = failure.is_some();
    if let Err(error) = write_status(context, key, &set, &members, failure.as_ref()).await {
        tracing::debug!(set = %key, error = error.chain(), "cannot write the replica set's status; retrying");
        return Outcome::Retry;
    }
    if failed { Outcome::Retry } else { Outcome::Done }
}

async fn act(
    context: &Context,
    set: &ReplicaSet,
    step: &Step,
    whole: &mut Option<Value>,
) -> cluster::Result<()> {
    let meta = &set.metadata;
    match step {
        Step::Create(name) => {
            if whole.is_none() {
                *whole = context.whole(REPLICA_SETS, meta).await?;
            }
            let Some(object) = whole.as_ref() else {
                return Err(cluster::Error::new(
                    cluster::Kind::Conflict,
                    "the set changed since it was observed",
                ));
            };
            let instance = plan::instance(object, name);
            match context.client.create::<IgnoredAny>(INSTANCES, &meta.namespace, &instance).await {
                Err(error) if !error.is_already_exists() => Err(error),
                Ok(_) | Err(_) => Ok(()),
            }
        }
        Step::Delete(name, uid) => {
            let key = Key::new(&meta.namespace, name);
            context.client.delete(INSTANCES, &key, &Delete::default().uid(uid)).await?;
            Ok(())
        }
    }
}

async fn write_status(
    context: &Context,
    key: &Key,
    set: &ReplicaSet,
    members: &[&Instance],
    failure: Option<&Failure>,
) -> cluster::Result<()> {
    let paused = set.spec.paused;
    let counts = plan::counts(members);
    let after = members::status(&set.status, &set.spec.selector, counts, paused, failure, Context::now());
    if after == set.status || set.metadata.deleting() {
        return Ok(());
    }
    if let Some((reason, message)) = members::pause_event(&set.status, paused) {
        let event = Event::normal(reason, message.to_owned());
        context.record(API_VERSION, KIND, &set.metadata, &event);
    }
    let patch = json!({"metadata": {"resourceVersion": set.metadata.resource_version}, "status": after});
    context.client.merge_patch::<IgnoredAny>(REPLICA_SETS.sub("status"), key, &patch).await?;
    Ok(())
}
