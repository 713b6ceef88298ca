//! Requests to the API server for attaching networks: a definition, and the pod's annotation.

use api::multus::NetworkAttachmentDefinition;
use cluster::{Client, JsonPatch, Key, Resource};
use serde::de::IgnoredAny;

use super::STATUS;
use super::reference::Reference;
use crate::error::{Error, Kind, Result};

const DEFINITIONS: Resource = Resource::namespaced("k8s.cni.cncf.io", "v1", "network-attachment-definitions");
const PODS: Resource = Resource::namespaced("", "v1", "pods");

/// A pod's annotation as it was read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Annotated<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) uid: &'a str,
    pub(crate) before: Option<&'a str>,
}

/// The API server, as far as networks need it. Its calls wait, on a thread that may.
pub(crate) trait Objects: Send + Sync + std::fmt::Debug {
    /// The definition; `None`: there is none.
    ///
    /// # Errors
    /// [`Kind::Cluster`].
    fn definition(&self, reference: &Reference) -> Result<Option<NetworkAttachmentDefinition>>;

    /// Writes network-status.
    ///
    /// # Errors
    /// [`Kind::Stale`]: it is not as it was read, or the pod is gone; [`Kind::Cluster`].
    fn annotate(&self, pod: &Annotated<'_>, after: &str) -> Result<()>;
}

/// The real one.
#[derive(Clone, Debug)]
pub(crate) struct Api(pub(crate) Client);

impl Objects for Api {
    fn definition(&self, reference: &Reference) -> Result<Option<NetworkAttachmentDefinition>> {
        let key = Key::new(&reference.namespace, &reference.name);
        let found = tokio::runtime::Handle::current().block_on(self.0.find(DEFINITIONS, &key));
        found.map_err(|error| {
            Error::with(
                Kind::Cluster,
                format!("cannot read the NetworkAttachmentDefinition {reference}"),
                error,
            )
        })
    }

    fn annotate(&self, pod: &Annotated<'_>, after: &str) -> Result<()> {
        let key = Key::new(pod.namespace, pod.name);
        let path = JsonPatch::pointer(["metadata", "annotations", STATUS]);
        let patch = JsonPatch::new().test("/metadata/uid", pod.uid);
        let patch = match pod.before {
            Some(before) => patch.test(path.clone(), before).replace(path, after),
            None => patch.add(path, after),
        };
        // The pod's spec cannot be changed through its status.
        let written = self.0.json_patch::<IgnoredAny>(PODS.sub("status"), &key, &patch);
        tokio::runtime::Handle::current().block_on(written).map(drop).map_err(|error| {
            let stale = matches!(error.kind(), cluster::Kind::Conflict | cluster::Kind::NotFound);
            let kind = if stale { Kind::Stale } else { Kind::Cluster };
            Error::with(kind, format!("cannot write the networks of pod {key}"), error)
        })
    }
}
