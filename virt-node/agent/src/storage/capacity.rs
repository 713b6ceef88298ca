//! CSIStorageCapacity objects: what the scheduler knows of the node's pools, one for each StorageClass of the driver. They
//! are written when the node's own calls changed something, and by a look every few seconds when the difference matters.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use cluster::{Delete, Key, Resource, Scope};
use csi::{GetCapacityRequest, Topology, VolumeCapability};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::controller::Controller;
use super::objects::{CAPACITIES, Class, Metadata};
use super::{Settings, plan, request};
use crate::error::{Error, Kind, Result};

const DAEMON_SETS: Resource = Resource::namespaced("apps", "v1", "daemonsets");
/// Pause after a change, in which more changes are gathered.
const GATHER: Duration = Duration::from_millis(200);
/// Time between two looks, and until every difference is written.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
const REFRESH: Duration = Duration::from_secs(60);
/// A difference that is written at once: this many bytes, and a hundredth of what is left.
const WORTH: u64 = 16 << 20;

/// A CSIStorageCapacity, as far as it is compared.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Written {
    metadata: Metadata,
    storage_class_name: String,
    capacity: Option<String>,
    maximum_volume_size: Option<String>,
}

/// The room that a pool has left for a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Left {
    available: u64,
    largest: Option<u64>,
}

/// The room of each class, as last written.
type Known = BTreeMap<String, Left>;

/// Keeps the node's objects as its pools are.
pub(super) async fn keep(controller: Arc<Controller>, settings: Settings) {
    let mut known = Known::new();
    let mut refreshed: Option<Instant> = None;
    let mut changed = true;
    loop {
        let due = changed || refreshed.is_none_or(|at| at.elapsed() >= REFRESH);
        let result = match measure(&controller).await {
            Ok(now) if due || is_significant(&known, &now) => match write(&controller, &settings, &now).await
            {
                Ok(()) => {
                    known = now;
                    refreshed = Some(Instant::now());
                    Ok(())
                }
                Err(error) => Err(error),
            },
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = result {
            tracing::warn!(error = error.chain(), "cannot write the node's storage capacity");
        }
        changed = tokio::time::timeout(POLL_INTERVAL, controller.changed.notified()).await.is_ok();
        if changed {
            tokio::time::sleep(GATHER).await;
        }
    }
}

/// The room in the node's pools for each class of the driver.
async fn measure(controller: &Controller) -> Result<Known> {
    let mut now = Known::new();
    for (_, class) in controller.classes.all() {
        if plan::serves(controller.driver.name(), &class.provisioner) {
            now.insert(class.metadata.name.clone(), ask(controller, &class).await?);
        }
    }
    Ok(now)
}

/// Whether a difference is worth a write at once; others wait for the next refresh.
fn is_significant(known: &Known, now: &Known) -> bool {
    known.len() != now.len()
        || now.iter().any(|(class, left)| {
            known.get(class).is_none_or(|before| {
                let off = before.available.abs_diff(left.available);
                let emptied = (before.available == 0) != (left.available == 0);
                emptied || off >= WORTH && off >= before.available / 100
            })
        })
}

async fn write(controller: &Controller, settings: &Settings, now: &Known) -> Result<()> {
    let failed = |class: &str, error: cluster::Error| {
        let text = format!("cannot write the CSIStorageCapacity of StorageClass {class}");
        Error::with(Kind::Cluster, text, error)
    };
    let manager = format!("external-provisioner-{}", settings.node);
    let labels = format!(
        "csi.storage.k8s.io/drivername={},csi.storage.k8s.io/managed-by={manager}",
        controller.driver.name()
    );
    let scope = Scope::all().namespace(&settings.namespace).labels(&labels);
    let written: Vec<Written> = controller.client.list(CAPACITIES, &scope).await.map_err(|error| {
        let text = format!("cannot list the CSIStorageCapacity objects of namespace {}", settings.namespace);
        Error::with(Kind::Cluster, text, error)
    })?;
    let mut written: BTreeMap<String, Vec<Written>> =
        written.into_iter().fold(BTreeMap::new(), |mut all, one| {
            all.entry(one.storage_class_name.clone()).or_default().push(one);
            all
        });
    for (class, left) in now {
        let mut found = written.remove(class).unwrap_or_default();
        // Of several, of stock csi-provisioner and ours, one stays.
        let kept = (!found.is_empty()).then(|| found.remove(0));
        for one in found {
            delete(controller, settings, &one).await?;
        }
        match kept {
            Some(one) if !differs(&one, *left) => {}
            Some(one) => {
                let key = Key::new(&settings.namespace, &one.metadata.name);
                let patch = amounts(*left);
                controller
                    .client
                    .merge_patch::<IgnoredAny>(CAPACITIES, &key, &patch)
                    .await
                    .map_err(|error| failed(class, error))?;
            }
            None => {
                let owner = owner(controller, settings).await;
                let object = object(controller, settings, class, *left, owner);
                let namespace = &settings.namespace;
                match controller.client.create::<IgnoredAny>(CAPACITIES, namespace, &object).await {
                    Ok(_) => {}
                    Err(error) if error.is_already_exists() => {}
                    Err(error) => return Err(failed(class, error)),
                }
            }
        }
    }
    for one in written.into_values().flatten() {
        delete(controller, settings, &one).await?;
    }
    Ok(())
}

async fn delete(controller: &Controller, settings: &Settings, one: &Written) -> Result<()> {
    let key = Key::new(&settings.namespace, &one.metadata.name);
    let deleted = controller.client.delete(CAPACITIES, &key, &Delete::default().uid(&one.metadata.uid)).await;
    let failed =
        |error| Error::with(Kind::Cluster, format!("cannot delete the CSIStorageCapacity {key}"), error);
    deleted.map(drop).map_err(failed)
}

async fn ask(controller: &Controller, class: &Class) -> Result<Left> {
    let request = GetCapacityRequest {
        parameters: request::parameters(class),
        accessible_topology: Some(Topology { segments: controller.driver.topology().clone() }),
        volume_capabilities: Vec::<VolumeCapability>::new(),
    };
    let answer = controller.driver.controller().get_capacity(request).await;
    let answer =
        answer.map_err(|status| Error::with(Kind::System, "the driver reports no capacity", status))?;
    let answer = answer.into_inner();
    let bytes = |number: i64| u64::try_from(number).unwrap_or(0);
    Ok(Left { available: bytes(answer.available_capacity), largest: answer.maximum_volume_size.map(bytes) })
}

/// Whether an object has other amounts.
fn differs(written: &Written, left: Left) -> bool {
    let bytes = |text: &Option<String>| text.as_deref().and_then(|text| api::quantity::bytes(text).ok());
    bytes(&written.capacity) != Some(left.available) || bytes(&written.maximum_volume_size) != left.largest
}

fn amounts(left: Left) -> Value {
    json!({
        "capacity": api::quantity::text(left.available),
        "maximumVolumeSize": left.largest.map(api::quantity::text),
    })
}

/// The DaemonSet of the driver: the objects go with it.
async fn owner(controller: &Controller, settings: &Settings) -> Option<Value> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Owner {
        metadata: Metadata,
    }
    let key = Key::new(&settings.namespace, &settings.daemon_set);
    let found = controller.client.find::<Owner>(DAEMON_SETS, &key).await.ok().flatten()?;
    Some(json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "name": settings.daemon_set,
        "uid": found.metadata.uid,
        "controller": true,
    }))
}

fn object(
    controller: &Controller,
    settings: &Settings,
    class: &str,
    left: Left,
    owner: Option<Value>,
) -> Value {
    let mut hasher = DefaultHasher::new();
    (&settings.node, class).hash(&mut hasher);
    let mut object = amounts(left);
    if let Some(fields) = object.as_object_mut() {
        fields.insert("apiVersion".to_owned(), json!("storage.k8s.io/v1"));
        fields.insert("kind".to_owned(), json!("CSIStorageCapacity"));
        fields.insert("storageClassName".to_owned(), json!(class));
        fields.insert("nodeTopology".to_owned(), json!({"matchLabels": controller.driver.topology()}));
        fields.insert(
            "metadata".to_owned(),
            json!({
                "name": format!("csisc-{:x}", hasher.finish()),
                "namespace": settings.namespace,
                "labels": {
                    "csi.storage.k8s.io/drivername": controller.driver.name(),
                    "csi.storage.k8s.io/managed-by": format!("external-provisioner-{}", settings.node),
                },
                "ownerReferences": owner.into_iter().collect::<Vec<_>>(),
            }),
        );
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_that_matters_is_written_at_once() {
        let gib = 1 << 30;
        let known = |available: u64| {
            Known::from([("class".to_owned(), Left { available, largest: Some(available) })])
        };
        for (before, now, expected) in [
            (known(10 * gib), known(10 * gib), false),
            (known(10 * gib), known(10 * gib - 4096), false),
            (known(10 * gib), known(9 * gib), true),
            (known(8 << 20), known(0), true),
            (known(0), known(8 << 20), true),
            (Known::new(), known(0), true),
        ] {
            assert_eq!(is_significant(&before, &now), expected, "{before:?} {now:?}");
        }
    }

    #[test]
    fn an_object_with_other_amounts_is_written() {
        let written = |capacity: Option<&str>, largest: &str| Written {
            capacity: capacity.map(str::to_owned),
            maximum_volume_size: Some(largest.to_owned()),
            ..Written::default()
        };
        let left = Left { available: 1 << 30, largest: Some(1 << 29) };
        assert!(!differs(&written(Some("1Gi"), "512Mi"), left));
        assert!(differs(&written(Some("1Gi"), "1Gi"), left));
        assert!(differs(&written(None, "512Mi"), left));
    }
}
