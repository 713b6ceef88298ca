//! Services of the platform that have a ready endpoint: a webhook without one refuses every request that it should see.

use std::collections::{BTreeMap, BTreeSet};

use cluster::{Cache, Client, Resource, Result, Scope};
use serde::Deserialize;

const SLICES: Resource = Resource::namespaced("discovery.k8s.io", "v1", "endpointslices");
/// Label with the name of a slice's Service.
const SERVICE: &str = "kubernetes.io/service-name";

/// An EndpointSlice, as it is read.
#[derive(Deserialize)]
struct Slice {
    metadata: Metadata,
    #[serde(default)]
    endpoints: Option<Vec<Endpoint>>,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Endpoint {
    #[serde(default)]
    conditions: Conditions,
}

#[derive(Default, Deserialize)]
struct Conditions {
    /// Missing: unknown, which counts as ready.
    ready: Option<bool>,
}

/// The Service of a slice, and whether one of the slice's endpoints is ready.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ServiceSlice {
    service: String,
    ready: bool,
}

impl From<&Slice> for ServiceSlice {
    fn from(slice: &Slice) -> Self {
        let endpoints = slice.endpoints.iter().flatten();
        Self {
            service: slice.metadata.labels.get(SERVICE).cloned().unwrap_or_default(),
            ready: endpoints.map(|one| one.conditions.ready).any(|ready| ready != Some(false)),
        }
    }
}

/// Names of the Services in a scope that have a ready endpoint now.
pub(crate) async fn ready(client: &Client, scope: &Scope) -> Result<BTreeSet<String>> {
    let slices: Vec<Slice> = client.list(SLICES, scope).await?;
    let ready = slices.iter().map(ServiceSlice::from).filter(|slice| slice.ready);
    Ok(ready.map(|slice| slice.service).collect())
}

/// The EndpointSlices of a namespace.
#[derive(Clone, Debug)]
pub(super) struct Endpoints(Cache<ServiceSlice>);

impl Endpoints {
    /// Starts to follow them; `on_change` is called when a Service gains or loses its ready endpoints.
    pub(super) fn start(
        client: &Client,
        namespace: &str,
        on_change: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let cache = Cache::<ServiceSlice>::builder().on_change(move |_| on_change());
        Self(cache.start::<Slice>(client, SLICES, &Scope::all().namespace(namespace)))
    }

    /// Waits until all are known.
    pub(super) async fn synced(&self) {
        self.0.synced().await;
    }

    /// Names of the Services that have a ready endpoint.
    pub(super) fn ready(&self) -> BTreeSet<String> {
        let ready = self.0.all().into_iter().filter(|(_, slice)| slice.ready);
        ready.map(|(_, slice)| slice.service.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_slice_is_ready_when_one_endpoint_is() {
        let seen = |endpoints: Value| {
            let slice = json!({"metadata": {"labels": {SERVICE: "virt-api"}}, "endpoints": endpoints});
            ServiceSlice::from(&serde_json::from_value::<Slice>(slice).unwrap())
        };
        let ending = json!({"conditions": {"ready": false, "serving": true, "terminating": true}});
        for (endpoints, ready) in [
            (json!(null), false),
            (json!([]), false),
            (json!([ending]), false),
            (json!([ending, {"conditions": {"ready": true}}]), true),
            (json!([{}]), true),
        ] {
            let wanted = ServiceSlice { service: "virt-api".to_owned(), ready };
            assert_eq!(seen(endpoints.clone()), wanted, "{endpoints}");
        }
    }
}
