//! Makes the driver's changed blocks findable: the definition of SnapshotMetadataService, if it is absent, and the driver's
//! object with the authorities of the agents' certificate.

use std::collections::BTreeMap;

use cluster::{Delete, Key, Resource, Result};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::apply::{Controller, MANAGER};
use crate::install::{hostpath, metadata};

const DEFINITIONS: Resource = Resource::cluster("apiextensions.k8s.io", "v1", "customresourcedefinitions");
const CONFIG_MAPS: Resource = Resource::namespaced("", "v1", "configmaps");
/// ConfigMap with the authorities of the agents' certificate, and its entry.
const AUTHORITIES: (&str, &str) = ("kubevirt-ca", "ca-bundle");

#[derive(Default, Deserialize)]
#[serde(default)]
struct Definition {
    spec: Spec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    versions: Vec<Version>,
}

#[derive(Deserialize)]
struct Version {
    name: String,
    served: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ConfigMap {
    data: BTreeMap<String, String>,
}

/// The kind in a version.
fn services(version: &'static str) -> Resource {
    Resource::cluster(metadata::GROUP, version, metadata::PLURAL)
}

impl Controller {
    /// Writes the driver's SnapshotMetadataService; gives what is missing for it.
    pub(super) async fn offer_metadata(&self, owner: &Value) -> Result<Option<String>> {
        let Some(version) = self.served_version().await? else {
            self.client.create::<IgnoredAny>(DEFINITIONS, "", &metadata::definition()).await?;
            return Ok(Some("the definition of SnapshotMetadataService is being established".to_owned()));
        };
        let key = Key::new(&self.settings.namespace, AUTHORITIES.0);
        let found = self.client.find::<ConfigMap>(CONFIG_MAPS, &key).await?.unwrap_or_default();
        let Some(authorities) = found.data.get(AUTHORITIES.1) else {
            return Ok(Some(format!("ConfigMap {key} has no {} yet", AUTHORITIES.1)));
        };
        let mut object = metadata::service(&self.settings, version, authorities);
        object["metadata"]["ownerReferences"] = owner.clone();
        let key = Key::cluster(hostpath::DRIVER);
        match self.client.apply::<IgnoredAny>(services(version), &key, &object, MANAGER).await {
            Err(error) if error.is_not_found() => {
                Ok(Some("the definition of SnapshotMetadataService is not established yet".to_owned()))
            }
            other => other.map(|_| None),
        }
    }

    /// Removes the driver's SnapshotMetadataService. The definition stays: other drivers may use it.
    pub(super) async fn withdraw_metadata(&self) -> Result<()> {
        if let Some(version) = self.served_version().await? {
            let key = Key::cluster(hostpath::DRIVER);
            self.client.delete(services(version), &key, &Delete::default()).await?;
        }
        Ok(())
    }

    /// The best version of the kind that the cluster serves; `None`: it has no definition.
    async fn served_version(&self) -> Result<Option<&'static str>> {
        let key = Key::cluster(&metadata::definition_name());
        let found = self.client.find::<Definition>(DEFINITIONS, &key).await?;
        Ok(found.map(|definition| {
            let served =
                |name: &&str| definition.spec.versions.iter().any(|one| one.served && one.name == **name);
            metadata::VERSIONS.into_iter().find(|name| served(name)).unwrap_or(metadata::VERSIONS[0])
        }))
    }
}
