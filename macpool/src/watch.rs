//! Watches: machines, instances, pods, namespaces, the webhook's configuration, the range. Not here: their effect (`state`).

use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use cluster::follow::{News, follow};
use cluster::{Client, Resource, Scope};
use serde_json::{Value, json};

use crate::collision::Collision;
use crate::config::{
    CONFIGURATION, Config, EVENTS, HOOKS, INSTANCES, MACHINES, MAPS, NAMESPACES, PODS, RANGE_MAP, WEBHOOKS,
};
use crate::partial_object::PartialObject;
use crate::state::{Part, State};
use api::net::pool::{Owner, View};
use api::net::{Mac, Range};

/// Interval of checks for collisions.
const PAUSE: Duration = Duration::from_secs(1);
/// Objects with an event about their collisions; more are counted only.
const TOLD_MAX: usize = 4096;
/// Objects that one event names.
const NAMED_MAX: usize = 8;

/// Follows everything until the process ends. Machines, instances and pods each on a task of their own: reading many of
/// them delays no other.
pub(crate) async fn all(client: &Client, config: &Config, state: &Arc<State>) {
    let (all, of_webhook, of_range) =
        (Scope::all(), Scope::all().name(CONFIGURATION), config.scope(RANGE_MAP));
    let mut objects = tokio::task::JoinSet::new();
    for (resource, view, part) in [
        (MACHINES, View::Machine, Part::Machines),
        (INSTANCES, View::Instance, Part::Instances),
        (PODS, View::Pod, Part::Pods),
    ] {
        objects.spawn(follow_objects(client.clone(), state.clone(), resource, view, part));
    }
    let never = tokio::select! {
        never = follow::<Value>(client, NAMESPACES, &all, |news| {
            state.lock().hear_of_namespaces(news, state.now());
            state.count_shared();
        }) => never,
        never = follow::<Value>(client, WEBHOOKS, &of_webhook, |news| {
            if let News::Present(_, object) = news {
                state.lock().selectors = HOOKS.map(|hook| selector(&object, hook));
            }
        }) => never,
        never = follow::<Value>(client, MAPS, &of_range, |news| {
            if let News::Present(_, object) = news {
                range(state, &object);
            }
        }) => never,
    };
    match never {}
}

async fn follow_objects(client: Client, state: Arc<State>, resource: Resource, view: View, part: Part) {
    // Without the text of one object, a list does not show which known objects are gone.
    let mut readable = true;
    let never = follow::<PartialObject>(&client, resource, &Scope::all(), |news| match news {
        News::Begin => {
            readable = true;
            let mut known = state.lock();
            known.pool.begin_listing(view);
            known.running.begin_listing(view);
        }
        News::Present(_, PartialObject(object)) => state.observe(view, &object),
        News::Unreadable(meta, error) => {
            readable = false;
            let (line, column, kind) = (error.line(), error.column(), resource.plural);
            tracing::warn!(kind, object = %meta.key, line, column, "the MAC addresses of an object cannot be read and are not reserved");
        }
        News::Gone(_, Some(PartialObject(object))) => state.forget(view, &object),
        News::Gone(meta, None) => {
            let owner = Owner::new(view, meta.key.namespace(), meta.key.name());
            let mut known = state.lock();
            known.pool.forget(&owner, None);
            known.running.set(&owner, None);
        }
        News::End => {
            let mut known = state.lock();
            if readable {
                known.pool.end_listing(view);
                known.running.end_listing(view);
            }
            known.set_loaded(part, state.now());
            drop(known);
            state.count_shared();
        }
        News::Lost(_) => state.lock().set_lost(part),
        News::Watching => state.lock().set_watched(part, state.now()),
    })
    .await;
    match never {}
}

fn selector(object: &Value, hook: &str) -> Option<crate::namespaces::Selector> {
    let selector = crate::namespaces::Selector::of_webhook(object, hook);
    if let Err(error) = &selector {
        tracing::warn!(%error, "cannot read the webhook's namespaceSelector; MAC addresses of all namespaces are managed");
    }
    selector.ok()
}

/// Takes the range of the ConfigMap. A wrong one changes nothing.
fn range(state: &State, map: &Value) {
    let value = |key: &str| map.pointer(&format!("/data/{key}")).and_then(Value::as_str).unwrap_or_default();
    match Range::parse(value("RANGE_START"), value("RANGE_END")) {
        Ok(range) if range != state.lock().pool.range() => {
            tracing::info!(%range, size = range.size(), "the range has changed");
            state.lock().pool.set_range(range);
        }
        Ok(_) => {}
        Err(error) => {
            tracing::error!(%error, "the ConfigMap {RANGE_MAP} has an invalid range; the previous range stays in use");
            let mut known = state.lock();
            known.complaint = Some(format!("{error}; the range {} stays in use", known.pool.range()));
        }
    }
}

/// Writes an event for each running object with another's address, once for each object that joins, as long as it runs; and
/// one for this replica's pod about an invalid range.
pub(crate) async fn report_collisions(client: &Client, config: &Config, state: &State) {
    // The uids of those who shared an address with an object when it was last told so.
    let mut told: HashMap<(Mac, Box<str>), HashSet<Box<str>>> = HashMap::new();
    loop {
        tokio::time::sleep(PAUSE).await;
        report_range_problem(client, config, state).await;
        let collisions = state.lock().collisions();
        let mut now = HashMap::new();
        // Where one event cannot be written (such as in a namespace that ends), others cannot either.
        let mut failing: HashSet<Box<str>> = HashSet::new();
        for collision in collisions {
            let members: HashSet<Box<str>> = collision.between.iter().map(|(_, uid)| uid.clone()).collect();
            for (place, (owner, uid)) in collision.between.iter().enumerate() {
                let who = (collision.mac, uid.clone());
                let known = told.remove(&who).filter(|known| members.is_subset(known));
                if let Some(known) = known {
                    now.insert(who, known);
                    continue;
                }
                if now.len() >= TOLD_MAX || failing.contains(&owner.namespace) {
                    continue;
                }
                if !report_collision(client, &collision, place, &event_name(&collision, place)).await {
                    failing.insert(owner.namespace.clone());
                    continue;
                }
                now.insert(who, members.clone());
            }
        }
        told = now;
    }
}

/// The event's name: the same from each replica, so that one of them writes it; another one when an object joins.
fn event_name(collision: &Collision, place: usize) -> String {
    let mut hasher = std::hash::DefaultHasher::new();
    (collision.mac, place).hash(&mut hasher);
    for (owner, uid) in &collision.between {
        (&owner.namespace, &owner.name, uid).hash(&mut hasher);
    }
    format!("kubemacpool-{:016x}", hasher.finish())
}

/// Writes the event of one of a collision's objects; gives whether it is there now.
async fn report_collision(client: &Client, collision: &Collision, place: usize, name: &str) -> bool {
    let Some((owner, uid)) = collision.between.get(place) else { return true };
    let key = |owner: &Owner| {
        let kind = if owner.view == View::Pod { "pod" } else { "vmi" };
        format!("{kind}/{}/{}", owner.namespace, owner.name)
    };
    let mut names: Vec<String> =
        collision.between.iter().take(NAMED_MAX).map(|(owner, _)| key(owner)).collect();
    if let Some(more) = collision.between.len().checked_sub(NAMED_MAX).filter(|more| *more > 0) {
        names.push(format!("{more} more"));
    }
    let message = format!("MAC {}: Collision between {}", collision.mac, names.join(", "));
    let (version, kind) = match owner.view {
        View::Pod => ("v1", "Pod"),
        View::Machine | View::Instance => ("kubevirt.io/v1", "VirtualMachineInstance"),
    };
    let about = json!({
        "apiVersion": version,
        "kind": kind,
        "namespace": owner.namespace,
        "name": owner.name,
        "uid": uid,
    });
    match event(client, name, &owner.namespace, &about, "MACCollision", &message).await {
        Ok(true) => {
            tracing::warn!(mac = %collision.mac, object = %owner, "two running objects have the same MAC address; change one");
            true
        }
        Ok(false) => true,
        Err(error) => {
            tracing::warn!(error = error.chain(), "cannot write the event about a MAC collision; retrying");
            false
        }
    }
}

/// Writes an event about the range's problem for this replica's pod; if that fails, it is tried again.
async fn report_range_problem(client: &Client, config: &Config, state: &State) {
    let Some(complaint) = state.lock().complaint.take() else { return };
    let told = async {
        // A list, as its rules do not let it get pods.
        let pods: Vec<Value> = client.list(PODS, &config.scope(&config.name)).await?;
        let uid = pods.first().and_then(|pod| pod.pointer("/metadata/uid")).cloned().unwrap_or_default();
        let about = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": config.namespace,
            "name": config.name,
            "uid": uid,
        });
        let mut hasher = std::hash::DefaultHasher::new();
        (&config.name, &complaint).hash(&mut hasher);
        let name = format!("kubemacpool-{:016x}", hasher.finish());
        event(client, &name, &config.namespace, &about, "InvalidRange", &complaint).await
    };
    let told = told.await;
    if let Err(error) = told {
        tracing::warn!(error = error.chain(), "cannot write the event about an invalid range; retrying");
        state.lock().complaint.get_or_insert(complaint);
    }
}

/// Writes a warning of this name; returns whether it is new: not written by another replica, nor by this one before a
/// restart.
async fn event(
    client: &Client,
    name: &str,
    namespace: &str,
    about: &Value,
    reason: &str,
    message: &str,
) -> cluster::Result<bool> {
    let now = cluster::time::seconds();
    let event = json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": about,
        "type": "Warning",
        "reason": reason,
        "message": message,
        "source": {"component": "kubemacpool"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    });
    match client.create::<serde::de::IgnoredAny>(EVENTS, namespace, &event).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_already_exists() => Ok(false),
        Err(error) => Err(error),
    }
}
