//! Installed objects that the status of `HyperConverged` lists next to its children, as they are now.
//!
//! Not here: objects of kinds that not every cluster has ([`super::optional`]).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::hyperconverged::RelatedObject;
use cluster::{Client, Key, Resource, Result};
use serde_json::Value;

use super::status::related;
use crate::install::RELATED;

/// Time until they are read again.
const PERIOD: Duration = Duration::from_secs(60);

/// When they were read last, and those that were found.
type Known = Option<(Instant, Vec<RelatedObject>)>;

/// Reads them.
#[derive(Clone)]
pub(super) struct Related {
    client: Client,
    namespace: String,
    known: Arc<Mutex<Known>>,
}

impl Related {
    pub(super) fn new(client: &Client, namespace: &str) -> Self {
        Self { client: client.clone(), namespace: namespace.to_owned(), known: Arc::default() }
    }

    /// Those that exist, as they were at most a minute ago.
    pub(super) async fn find(&self) -> Result<Vec<RelatedObject>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((at, found)) = known
            && at.elapsed() < PERIOD
        {
            return Ok(found);
        }
        let mut found = Vec::new();
        for (resource, kind, name) in RELATED {
            let key = if resource.namespaced { Key::new(&self.namespace, name) } else { Key::cluster(name) };
            if let Some(object) = self.read(resource, kind, &key).await? {
                found.push(related(&object));
            }
        }
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), found.clone()));
        Ok(found)
    }

    async fn read(&self, resource: Resource, kind: &str, key: &Key) -> Result<Option<Value>> {
        let mut found: Option<Value> = self.client.find_cached(resource, key).await?;
        if let Some(object) = &mut found {
            object["apiVersion"] = resource.api_version().into();
            object["kind"] = kind.into();
        }
        Ok(found)
    }
}
