//! Objects of kinds that not every cluster has: for Prometheus, and for OpenShift. They are written when they change, and
//! looked at again ten minutes after a kind was missing.
//!
//! Not here: the objects ([`crate::install`]).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::hyperconverged::RelatedObject;
use cluster::{Apply, Client, Delete, Key, Kind, Resource, Result};
use serde_json::Value;

use super::plan::digest;
use super::status::related;
use crate::install::openshift;

/// Time until missing kinds are looked for again.
const ABSENT: Duration = Duration::from_secs(600);
const MANAGER: Apply<'static> = Apply { manager: "ferrovirt-monitoring", force: true };

/// The kinds.
const KINDS: [(&str, Resource); 5] = [
    ("PrometheusRule", Resource::namespaced("monitoring.coreos.com", "v1", "prometheusrules")),
    ("ServiceMonitor", Resource::namespaced("monitoring.coreos.com", "v1", "servicemonitors")),
    (
        "SecurityContextConstraints",
        Resource::cluster("security.openshift.io", "v1", "securitycontextconstraints"),
    ),
    ("Route", Resource::namespaced("route.openshift.io", "v1", "routes")),
    ("ConsoleCLIDownload", Resource::cluster("console.openshift.io", "v1", "consoleclidownloads")),
];

/// Outcome of the last write.
#[derive(Clone, Debug, Default)]
struct Known {
    /// Identifies what was written last; empty before that.
    digest: String,
    /// When a kind was found missing.
    absent: Option<Instant>,
    /// The objects that were written.
    written: Vec<RelatedObject>,
}

/// Writes such objects.
#[derive(Clone)]
pub(super) struct Optional {
    client: Client,
    known: Arc<Mutex<Known>>,
}

impl Optional {
    pub(super) fn new(client: &Client) -> Self {
        Self { client: client.clone(), known: Arc::default() }
    }

    /// Writes the objects, when they changed or ten minutes after a kind was missing; gives those that exist.
    pub(super) async fn write(&self, objects: &[Value]) -> Result<Vec<RelatedObject>> {
        let wanted = digest(&Value::Array(objects.to_vec()));
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if known.digest == wanted && known.absent.is_none_or(|at| at.elapsed() < ABSENT) {
            return Ok(known.written);
        }
        let mut absent = None;
        let mut written = Vec::new();
        for object in objects {
            let Some(live) = self.apply(object).await? else {
                absent = Some(Instant::now());
                continue;
            };
            written.push(related(&live));
            let host = live["spec"]["host"].as_str().filter(|host| !host.is_empty());
            // The router chose a host: the console links to it.
            if live["kind"] == "Route"
                && let Some(host) = host
            {
                written.extend(self.apply(&openshift::links(host)).await?.as_ref().map(related));
            }
        }
        let known = Known { digest: wanted, absent, written: written.clone() };
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = known;
        Ok(written)
    }

    /// The object as it is written; nothing if its kind does not exist.
    async fn apply(&self, object: &Value) -> Result<Option<Value>> {
        let Some((resource, key)) = place(object) else { return Ok(None) };
        match self.client.apply::<Value>(resource, &key, object, MANAGER).await {
            Err(error) if matches!(error.kind(), Kind::NotFound) => Ok(None),
            applied => applied.map(Some),
        }
    }

    /// Removes those that do not go with the platform's namespace.
    pub(super) async fn remove(&self) -> Result<()> {
        let constraints = openshift::CONSTRAINTS.map(|name| ("SecurityContextConstraints", name));
        for (kind, name) in constraints.into_iter().chain([("ConsoleCLIDownload", openshift::LINKS)]) {
            let resource = KINDS.iter().find(|one| one.0 == kind).map(|one| one.1);
            if let Some(resource) = resource {
                self.client.delete(resource, &Key::cluster(name), &Delete::default()).await?;
            }
        }
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Known::default();
        Ok(())
    }
}

fn place(object: &Value) -> Option<(Resource, Key)> {
    let (_, resource) = KINDS.iter().find(|one| object["kind"] == one.0)?;
    let name = object["metadata"]["name"].as_str()?;
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    let key = if resource.namespaced { Key::new(namespace, name) } else { Key::cluster(name) };
    Some((*resource, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_object_has_its_place_and_version() {
        let mut all = openshift::objects("ns");
        all.push(openshift::links("host"));
        all.extend(crate::install::monitoring::objects(
            "ns",
            &crate::install::monitoring::Allowed::default(),
            None,
        ));
        for object in all {
            let (resource, key) = place(&object).unwrap();
            assert_eq!(resource.api_version(), object["apiVersion"]);
            assert_eq!(key.name(), object["metadata"]["name"]);
            assert_eq!(resource.namespaced, object["metadata"]["namespace"].is_string(), "{object}");
        }
    }
}
