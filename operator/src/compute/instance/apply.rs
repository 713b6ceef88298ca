//! Does the steps of a VirtualMachineInstance and writes its status. Every step can be repeated.

use std::time::Duration;

use api::kubevirt::VirtualMachineInstance;
use api::resource::ObjectMeta;
use cluster::{Client, Delete, JsonPatch, Key, Outcome, Resource, Scope};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use virt::status::pod as gate;

use super::event;
use super::hotplug;
use super::networks;
use super::patch::{Patch, patch};
use super::plan::{Observed, Plan, Step, plan};
use super::status::status;
use crate::compute::caches::{CLAIMS, INSTANCES, LAUNCHERS, PODS};
use crate::compute::clock;
use crate::compute::context::Context;
use crate::compute::launcher::{self, Attachment, AutoLimits, Facts, Purpose, State};
use crate::view::{Instance, Pod, condition};

const QUOTAS: Resource = Resource::namespaced("", "v1", "resourcequotas");
const NAMESPACES: Resource = Resource::cluster("", "v1", "namespaces");
const DEFINITIONS: Resource = Resource::namespaced("k8s.cni.cncf.io", "v1", "network-attachment-definitions");
/// Annotation of a definition with the resource that pods on its network need.
const RESOURCE_NAME: &str = "k8s.v1.cni.cncf.io/resourceName";

/// The fields read from a definition.
#[derive(Deserialize)]
struct Definition {
    #[serde(default)]
    metadata: ObjectMeta,
}

/// Seconds until pods that only the API server has are looked at again.
const UNSEEN_PODS: u64 = 10;
const API_VERSION: &str = "kubevirt.io/v1";
const KIND: &str = "VirtualMachineInstance";

/// Reconciles one instance.
pub(in crate::compute) async fn reconcile(context: &Context, key: &Key) -> Outcome {
    let caches = &context.caches;
    let Some(instance) = caches.instances.get(key) else { return Outcome::Done };
    let storage = caches.storage(key.namespace(), &instance.spec.volumes);
    let node = Some(&instance.status.node_name).filter(|name| !name.is_empty());
    let node = node.and_then(|name| caches.nodes.get(&Key::cluster(name)));
    let cached = caches.pods_of(&instance);
    let attachments = caches.attachments_of(&instance);
    let owner = instance.metadata.controller().filter(|owner| owner.kind == "VirtualMachine");
    let owner_exists = owner.is_some_and(|owner| {
        let found = caches.machines.get(&Key::new(key.namespace(), &owner.name));
        found.is_some_and(|machine| machine.metadata.uid == owner.uid)
    });
    let states = caches.state_claims_of(&instance);
    let overhead = |class: Option<&str>| caches.overhead(class);
    let mut observed = Observed {
        instance: &instance,
        pods: own(&instance, cached.iter().map(AsRef::as_ref)),
        attachments: attachments.iter().map(AsRef::as_ref).collect(),
        pods_confirmed: false,
        volumes: storage.volumes(),
        state: launcher::state(&instance, states.iter().map(AsRef::as_ref)),
        overhead: &overhead,
        memory_overhead: instance.spec.overhead.map(|bytes| context.settings().overhead(bytes)),
        owner_exists,
        node: node.as_deref(),
        now: Context::now(),
    };
    let mut planned = plan(&observed);
    let listed;
    if planned.steps.contains(&Step::ConfirmPods) {
        match list(&context.client, &instance).await {
            Ok(pods) => listed = pods,
            Err(error) => {
                tracing::warn!(vmi = %key, error = error.chain(), "cannot list launcher pods; retrying");
                return Outcome::Retry;
            }
        }
        observed.pods = own(&instance, listed.iter());
        observed.pods_confirmed = true;
        planned = plan(&observed);
        if !observed.pods.is_empty() {
            // The cache does not have them, so that no change of them brings the instance back.
            planned.steps.push(Step::Wait(observed.now.saturating_add(UNSEEN_PODS)));
        }
    }
    let volumes = hotplug::extend(&observed, &mut planned);
    planned.steps.extend(networks::step(&observed));
    act(context, key, &observed, &planned, &volumes).await
}

/// Names of the pods of an instance.
fn names(instance: &Instance) -> [String; 2] {
    let meta = &instance.metadata;
    [Purpose::Guest, Purpose::Provision].map(|purpose| launcher::pod_name(&meta.name, &meta.uid, purpose))
}

/// Pods that were created for the instance: by their name, and the owner or the label. Deleting an instance with
/// `--cascade=orphan` takes the owner from its pod while the guest runs.
pub(in crate::compute) fn own<'a>(instance: &Instance, pods: impl Iterator<Item = &'a Pod>) -> Vec<&'a Pod> {
    let uid = instance.metadata.uid.as_str();
    let names = names(instance);
    pods.filter(|pod| {
        let owned = pod.metadata.controller().is_some_and(|owner| owner.uid == uid);
        names.contains(&pod.metadata.name) && (owned || pod.created_by() == Some(uid))
    })
    .collect()
}

/// The pods of an instance at the API server: those with its labels, and those with its pods' names, because labels can be
/// lost and names cannot.
async fn list(client: &Client, instance: &Instance) -> cluster::Result<Vec<Pod>> {
    let meta = &instance.metadata;
    let selector = format!("{LAUNCHERS},kubevirt.io/created-by={}", meta.uid);
    let mut pods: Vec<Pod> =
        client.list(PODS, &Scope::all().namespace(&meta.namespace).labels(&selector)).await?;
    for name in names(instance) {
        if !pods.iter().any(|pod| pod.metadata.name == name) {
            pods.extend(client.find(PODS, &Key::new(&meta.namespace, &name)).await?);
        }
    }
    Ok(pods)
}

async fn act(
    context: &Context,
    key: &Key,
    observed: &Observed<'_>,
    planned: &Plan,
    volumes: &[hotplug::Change],
) -> Outcome {
    let instance = observed.instance;
    let meta = &instance.metadata;
    let (mut wait, mut released, mut refused, mut retry) = (None, Vec::new(), None, false);
    for step in &planned.steps {
        let done = match step {
            Step::Wait(time) => {
                let seconds = time.saturating_sub(observed.now).max(1);
                wait = Some(wait.map_or(seconds, |earlier: u64| earlier.min(seconds)));
                continue;
            }
            Step::Release(finalizers) => {
                released.clone_from(finalizers);
                continue;
            }
            Step::ConfirmPods => continue,
            Step::Gate { pod, uid, place, open } => {
                let key = Key::new(&meta.namespace, pod);
                retry |= is_left(&key, write_gate(&context.client, &key, uid, *place, *open).await);
                continue;
            }
            Step::Networks { pod, uid, before, after } => {
                let key = Key::new(&meta.namespace, pod);
                retry |= is_left(&key, write_networks(&context.client, &key, uid, before, after).await);
                continue;
            }
            Step::CreateState => create_state(context, instance).await,
            Step::CreatePod => create(context, observed, Purpose::Guest).await,
            Step::CreateProvisioner => create(context, observed, Purpose::Provision).await,
            Step::DeletePod { name, uid } | Step::DeleteAttachment { name, uid, .. } => {
                delete(&context.client, &meta.namespace, name, uid).await
            }
            Step::CreateAttachment { volume, claim, pod } => {
                attach(context, observed, volume, claim, pod).await
            }
        };
        match done {
            Ok(true) => {
                if let Some(event) = event::done(step, instance) {
                    context.record(API_VERSION, KIND, meta, &event);
                }
            }
            Ok(false) => {}
            Err(Failed::Behind) => return Outcome::Retry,
            Err(Failed::Refused { message, again }) => {
                let (error, event) = event::refused(step, instance, message);
                tracing::warn!(vmi = %key, ?step, error = error.message, "cannot reconcile the instance; retrying");
                let before = condition(&instance.status.conditions, "Synchronized");
                if before.is_none_or(|before| before.message.as_deref() != Some(error.message.as_str())) {
                    context.record(API_VERSION, KIND, meta, &event);
                }
                refused = Some(error);
                retry |= again;
            }
        }
    }
    let desired = status(observed, planned, refused.as_ref());
    let found = [event::unresponsive(planned, instance), event::not_guaranteed(&desired, instance)];
    for event in found.iter().flatten() {
        context.record(API_VERSION, KIND, meta, event);
    }
    let unplugged = event::unplugged(volumes);
    let volumes = hotplug::patch(volumes, instance);
    let changes = match patch(instance, &desired, &released) {
        Some(Patch::Json(mut changes)) => {
            changes.extend(volumes);
            Some(Patch::Json(changes))
        }
        None if !volumes.is_empty() => Some(Patch::Json(volumes)),
        // Volumes come and go once an agent has the instance.
        other => other,
    };
    let of_volumes = matches!(changes, Some(Patch::Json(_)));
    let written = match changes {
        None => Ok(()),
        Some(Patch::Merge(patch)) => {
            context.client.merge_patch::<IgnoredAny>(INSTANCES, key, &patch).await.map(|_| ())
        }
        Some(Patch::Json(patch)) => {
            context.client.json_patch::<IgnoredAny>(INSTANCES, key, &patch).await.map(|_| ())
        }
    };
    match written {
        Err(error) if !error.is_not_found() => {
            tracing::debug!(vmi = %key, error = error.chain(), "cannot write the instance's status; retrying");
            return Outcome::Retry;
        }
        Ok(()) if of_volumes => {
            for event in &unplugged {
                context.record(API_VERSION, KIND, meta, event);
            }
        }
        Ok(()) | Err(_) => {}
    }
    match (retry, wait) {
        (true, _) => Outcome::Retry,
        (false, Some(seconds)) => Outcome::After(Duration::from_secs(seconds)),
        (false, None) => Outcome::Done,
    }
}

/// Why a step was not done.
enum Failed {
    /// The observation is outdated.
    Behind,
    /// `again`: it may succeed without a change of the instance.
    Refused { message: String, again: bool },
}

impl From<cluster::Error> for Failed {
    fn from(error: cluster::Error) -> Self {
        if error.is_conflict() {
            return Self::Behind;
        }
        let message = error.status().map_or_else(|| error.chain(), |status| status.message.clone());
        Self::Refused { message, again: true }
    }
}

/// Whether a launcher pod is still to be written.
fn is_left(pod: &Key, written: cluster::Result<()>) -> bool {
    match written {
        Err(error) if error.is_not_found() => false,
        Err(error) if is_outdated(&error) => {
            tracing::debug!(%pod, error = error.chain(), "the launcher pod changed in between; retrying");
            true
        }
        Err(error) => {
            tracing::warn!(%pod, error = error.chain(), "cannot write the launcher pod; retrying");
            true
        }
        Ok(()) => false,
    }
}

/// Whether a patch met an object that is not as it was read: a conflict, or a test in the patch failed. The API server answers
/// the latter without the causes that a refused field has.
fn is_outdated(error: &cluster::Error) -> bool {
    let causes = error.status().map(|status| &status.details["causes"]);
    error.is_conflict() || (error.kind() == cluster::Kind::Invalid && causes.is_none_or(Value::is_null))
}

/// Writes the networks of a pod, if they are as they were read.
async fn write_networks(
    client: &Client,
    key: &Key,
    uid: &str,
    before: &str,
    after: &str,
) -> cluster::Result<()> {
    let path = JsonPatch::pointer(["metadata", "annotations", launcher::NETWORKS]);
    let patch = JsonPatch::new().test("/metadata/uid", uid).test(path.clone(), before).replace(path, after);
    // A pod's spec cannot be changed through its status, and no right to change pods is needed.
    client.json_patch::<IgnoredAny>(PODS.sub("status"), key, &patch).await.map(drop)
}

/// Opens or closes the readiness gate of a pod, which has the condition at `place` or not at all.
async fn write_gate(
    client: &Client,
    key: &Key,
    uid: &str,
    place: Option<usize>,
    open: bool,
) -> cluster::Result<()> {
    let (status, reason, message) = match open {
        true => ("True", "NotPaused", "the virtual machine is not paused"),
        false => ("False", "Paused", "the virtual machine is paused"),
    };
    let condition = json!({
        "type": gate::UNPAUSED, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": clock::text(Context::now()),
    });
    let patch = JsonPatch::new().test("/metadata/uid", uid);
    let patch = match place {
        Some(place) => {
            let path = format!("/status/conditions/{place}");
            patch.test(format!("{path}/type"), gate::UNPAUSED).replace(path, condition)
        }
        None => patch.add("/status/conditions/-", condition),
    };
    client.json_patch::<IgnoredAny>(PODS.sub("status"), key, &patch).await.map(drop)
}

/// Creates a pod; returns whether it did not exist.
async fn create(context: &Context, observed: &Observed<'_>, purpose: Purpose) -> Result<bool, Failed> {
    let meta = &observed.instance.metadata;
    let Some(whole) = context.whole(INSTANCES, meta).await? else { return Err(Failed::Behind) };
    let is_block = |claim: &str| context.caches.is_block(&meta.namespace, claim);
    let networks = match purpose {
        Purpose::Guest => networks(&context.client, &whole, &meta.namespace).await?,
        Purpose::Provision => Vec::new(),
    };
    let state = match observed.state {
        State::There(claim) => Some(claim.metadata.name.as_str()),
        State::Unneeded | State::Missing | State::Going => None,
    };
    let limits = limits(context, &meta.namespace).await?;
    let facts = Facts { is_block: &is_block, networks: &networks, state, limits };
    let pod = launcher::pod(&whole, &context.settings(), purpose, &facts)
        .map_err(|error| Failed::Refused { message: error.to_string(), again: false })?;
    match context.client.create::<IgnoredAny>(PODS, &meta.namespace, &pod).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_already_exists() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Creates the claim for what the guest keeps besides its disks.
async fn create_state(context: &Context, instance: &Instance) -> Result<bool, Failed> {
    let class = context.settings().state_class.clone().or_else(|| context.caches.preferred_class());
    let class = class.ok_or_else(|| Failed::Refused {
        message: "the guest keeps TPM or EFI state and no StorageClass is the default: make one the default, or name one \
                  in the KubeVirt's spec.configuration.vmStateStorageClass"
            .to_owned(),
        again: true,
    })?;
    let claim = launcher::state_claim(instance, &class);
    let namespace = &instance.metadata.namespace;
    match context.client.create::<IgnoredAny>(CLAIMS, namespace, &claim).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_already_exists() => {
            // Made a moment ago, or without the label by which it is found.
            let (name, label) = (&claim["metadata"]["name"], virt::state::LABEL);
            let message = format!("the claim {name} exists: wait, delete it, or give it the label {label}");
            Err(Failed::Refused { message, again: true })
        }
        Err(error) => Err(error.into()),
    }
}

/// Creates the attachment pod of a volume; false: it exists.
async fn attach(
    context: &Context,
    observed: &Observed<'_>,
    volume: &str,
    claim: &str,
    pod: &str,
) -> Result<bool, Failed> {
    let meta = &observed.instance.metadata;
    let Some(launcher) = observed.launcher() else { return Err(Failed::Behind) };
    let object = launcher::attachment(
        &Attachment {
            pod,
            volume,
            claim,
            is_block: context.caches.is_block(&meta.namespace, claim),
            node: &launcher.spec.node_name,
            launcher: (&launcher.metadata.name, &launcher.metadata.uid),
            instance: (&meta.name, &meta.namespace, &meta.uid),
        },
        &context.settings(),
    );
    match context.client.create::<IgnoredAny>(PODS, &meta.namespace, &object).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_already_exists() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The limits of pods in a namespace.
async fn limits(context: &Context, namespace: &str) -> cluster::Result<AutoLimits> {
    let client = &context.client;
    let quotas: Vec<launcher::Quota> = client.list(QUOTAS, &Scope::all().namespace(namespace)).await?;
    let settings = context.settings();
    let selector = settings.cpu_limit_namespaces.as_ref();
    let labels = match launcher::needs_namespace(&quotas, selector) {
        true => client.get(NAMESPACES, &Key::cluster(namespace)).await?,
        false => launcher::Namespace::default(),
    };
    Ok(launcher::limits(&quotas, &labels, selector))
}

/// The resources that the definitions of an instance's networks name.
async fn networks(client: &Client, instance: &Value, namespace: &str) -> Result<Vec<String>, Failed> {
    let refused = |message: String, again| Failed::Refused { message, again };
    let object: VirtualMachineInstance =
        serde_json::from_value(instance.clone()).map_err(|error| refused(error.to_string(), false))?;
    let mut names = Vec::new();
    let all = launcher::definitions(&object.spec, namespace);
    if all.len() > launcher::NETWORKS_MAX {
        let count = all.len();
        let message =
            format!("spec.networks: {count} secondary networks; {} is the limit", launcher::NETWORKS_MAX);
        return Err(refused(message, false));
    }
    for (of, name) in all {
        let found: Option<Definition> = client.find(DEFINITIONS, &Key::new(&of, &name)).await?;
        let found = found.ok_or_else(|| {
            refused(format!("the NetworkAttachmentDefinition {of}/{name} does not exist: create it"), true)
        })?;
        names.extend(found.metadata.annotations.get(RESOURCE_NAME).filter(|name| !name.is_empty()).cloned());
    }
    Ok(names)
}

async fn delete(client: &Client, namespace: &str, name: &str, uid: &str) -> Result<bool, Failed> {
    Ok(client.delete(PODS, &Key::new(namespace, name), &Delete::default().uid(uid)).await?)
}

#[cfg(test)]
mod tests {
    use cluster::{Error, Kind};

    use super::*;

    #[test]
    fn a_pod_that_changed_is_not_a_failure() {
        for (kind, outdated) in [
            (Kind::Conflict, true),
            (Kind::Invalid, true),
            (Kind::Forbidden, false),
            (Kind::Server, false),
            (Kind::NotFound, false),
        ] {
            assert_eq!(is_outdated(&Error::new(kind, "no")), outdated, "{kind:?}");
            let left = is_left(&Key::new("n", "pod"), Err(Error::new(kind, "no")));
            assert_eq!(left, kind != Kind::NotFound, "{kind:?}");
        }
    }
}
