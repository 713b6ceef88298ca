//! Requests of the proxy and its client to the API server: claims, the authorities of upload servers, tokens. The trait
//! [`Lookup`] stands between, for tests. Not here: what the answers mean.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use api::upload::POPULATOR_KIND;
use api::upload::request::{self, UploadTokenRequest};
use api::upload::token::Target;
use cluster::{Client, Config, Key, Resource};
use serde::Deserialize;
use serve::failure::{Error, Kind, Result};

use crate::readiness::Claim;

const CLAIMS: Resource = Resource::namespaced("", "v1", "persistentvolumeclaims");
const MAPS: Resource = Resource::namespaced("", "v1", "configmaps");
const CONFIGS: Resource = Resource::cluster("cdi.kubevirt.io", "v1beta1", "cdiconfigs");
/// Longest time for an answer of the API server.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Entry of the ConfigMap with the authorities.
const BUNDLE: &str = "ca-bundle.crt";

/// Requests of the proxy to the API server.
pub(crate) trait Lookup: Send + Sync + 'static {
    /// A claim; `None` if it does not exist.
    fn claim(&self, target: &Target) -> impl Future<Output = Result<Option<Claim>>> + Send;
    /// Authorities of upload servers' certificates, PEM.
    fn authorities(&self) -> impl Future<Output = Result<String>> + Send;
}

/// The way to the cluster.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    /// A file that describes it, in place of the usual ones.
    pub(crate) kubeconfig: Option<PathBuf>,
    /// URL of the API server, in place of the configured one.
    pub(crate) server: Option<String>,
}

impl Reach {
    fn config(&self) -> Result<Config> {
        let found = Config::load(self.kubeconfig.as_deref(), None);
        let mut config = match (found, &self.server) {
            (Ok(config), None) => config,
            (Ok(mut config), Some(url)) => {
                config.server.clone_from(url);
                config
            }
            (Err(_), Some(url)) if self.kubeconfig.is_none() => Config::new(url),
            (Err(error), _) => return Err(unusable(error)),
        };
        config.timeout = TIMEOUT;
        Ok(config)
    }
}

fn unusable(error: cluster::Error) -> Error {
    Error::with(Kind::Usage, "the API server's address or credentials cannot be used", error)
}

/// Kubernetes.
#[derive(Clone)]
pub(crate) struct Kubernetes {
    client: Client,
    /// Name of the ConfigMap with the authorities.
    bundle: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ClaimObject {
    metadata: Metadata,
    spec: ClaimSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    annotations: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ClaimSpec {
    data_source_ref: Option<Reference>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Reference {
    kind: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct BundleObject {
    data: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CdiConfig {
    spec: CdiConfigPart,
    status: CdiConfigPart,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CdiConfigPart {
    #[serde(rename = "uploadProxyURLOverride")]
    override_url: Option<String>,
    #[serde(rename = "uploadProxyURL")]
    url: Option<String>,
}

impl Kubernetes {
    /// A client of the cluster that `reach` describes; nothing is sent yet.
    ///
    /// # Errors
    /// [`Kind::Usage`] without a usable address or credentials.
    pub(crate) fn new(reach: &Reach, bundle: &str) -> Result<Self> {
        let client = Client::new(&reach.config()?, "uploadproxy").map_err(unusable)?;
        Ok(Self { client, bundle: bundle.to_owned() })
    }

    /// A token for an upload, by the rights of the client's user.
    pub(crate) async fn token(&self, target: &Target) -> Result<String> {
        let path =
            format!("/apis/{}/namespaces/{}/{}", request::API_VERSION, target.namespace(), request::PLURAL);
        let answer: UploadTokenRequest =
            self.client.post(&path, &UploadTokenRequest::of(target.name())).await.map_err(|error| {
                Error::with(
                    Kind::Cluster,
                    format!("the API server issues no upload token for the claim {}", target.name()),
                    error,
                )
            })?;
        let token = answer.status.and_then(|status| status.token).map(|token| token.0);
        token.ok_or_else(|| {
            Error::new(Kind::Cluster, "the API server's answer to an UploadTokenRequest has no status.token")
        })
    }

    /// The URL of the proxy in CDI's configuration; mostly a host without a scheme.
    pub(crate) async fn proxy_url(&self) -> Result<String> {
        let config: Option<CdiConfig> =
            self.client.find(CONFIGS, &Key::cluster("config")).await.map_err(unanswered)?;
        let config = config.ok_or_else(|| {
            Error::new(Kind::Cluster, "the cluster has no CDIConfig \"config\": name the proxy with --url")
        })?;
        let url = config.spec.override_url.or(config.status.url).filter(|url| !url.is_empty());
        url.ok_or_else(|| {
            Error::new(
                Kind::Cluster,
                "the CDIConfig \"config\" has no status.uploadProxyURL: name the proxy with --url",
            )
        })
    }
}

fn unanswered(error: cluster::Error) -> Error {
    Error::with(Kind::Cluster, "the API server did not return the object", error)
}

impl Lookup for Kubernetes {
    async fn claim(&self, target: &Target) -> Result<Option<Claim>> {
        let key = Key::new(target.namespace(), target.name());
        let object: Option<ClaimObject> = self.client.find(CLAIMS, &key).await.map_err(unanswered)?;
        Ok(object.map(|object| Claim {
            annotations: object.metadata.annotations,
            populated: object.spec.data_source_ref.is_some_and(|reference| reference.kind == POPULATOR_KIND),
        }))
    }

    async fn authorities(&self) -> Result<String> {
        let key = Key::new(self.client.namespace(), &self.bundle);
        let object: Option<BundleObject> = self.client.find(MAPS, &key).await.map_err(unanswered)?;
        let bundle = object.and_then(|mut object| object.data.remove(BUNDLE));
        bundle
            .ok_or_else(|| Error::new(Kind::Cluster, format!("the ConfigMap {key} with {BUNDLE} is missing")))
    }
}
