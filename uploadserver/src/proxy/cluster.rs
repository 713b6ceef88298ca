//! What the proxy and its client ask of the cluster, behind a trait: claims and the authorities of upload servers; and
//! Kubernetes as it is asked. Not here: what the answers mean.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use api::upload::POPULATOR_KIND;
use api::upload::request::{self, UploadTokenRequest};
use api::upload::token::Target;
use http::Request;
use http::header::CONTENT_TYPE;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::error::{Error, Kind, Result};
use super::target::Claim;

/// How long the API server may take to connect and to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Entry of the ConfigMap with the authorities.
const BUNDLE: &str = "ca-bundle.crt";

/// What a proxy asks.
pub(crate) trait Lookup: Send + Sync + 'static {
    /// A claim; `None` when there is none.
    fn claim(&self, target: &Target) -> impl Future<Output = Result<Option<Claim>>> + Send;
    /// Certificates of who signs upload servers', PEM.
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
    async fn config(&self) -> Result<Config> {
        let unknown = "no way to the cluster is configured";
        let server = self.server.as_deref().map(str::parse::<http::Uri>).transpose();
        let server = server.map_err(|e| Error::with(Kind::Usage, "--server is no URL", e))?;
        let options = KubeConfigOptions::default();
        let found = match &self.kubeconfig {
            Some(file) => {
                let file = Kubeconfig::read_from(file).map_err(|e| Error::with(Kind::Usage, unknown, e))?;
                let config = Config::from_custom_kubeconfig(file, &options).await;
                config.map_err(|e| Error::with(Kind::Usage, unknown, e))
            }
            None => Config::infer().await.map_err(|e| Error::with(Kind::Usage, unknown, e)),
        };
        let mut config = match (found, server) {
            (Ok(config), None) => config,
            (Ok(mut config), Some(url)) => {
                config.cluster_url = url;
                config
            }
            (Err(_), Some(url)) if self.kubeconfig.is_none() => Config::new(url),
            (Err(error), _) => return Err(error),
        };
        config.connect_timeout = Some(PATIENCE);
        config.read_timeout = Some(PATIENCE);
        config.reset_reader_on_write = true;
        Ok(config)
    }
}

/// Kubernetes.
#[derive(Clone)]
pub(crate) struct Kubernetes {
    client: Client,
    /// Our own namespace.
    namespace: String,
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
    /// A client of the cluster that is reached so.
    ///
    /// # Errors
    /// [`Kind::Usage`] when no way is configured.
    pub(crate) async fn new(reach: &Reach, bundle: &str) -> Result<Self> {
        let config = reach.config().await?;
        let namespace = config.default_namespace.clone();
        let client = Client::try_from(config)
            .map_err(|e| Error::with(Kind::Usage, "the way to the cluster makes no sense", e))?;
        Ok(Self { client, namespace, bundle: bundle.to_owned() })
    }

    /// An object; `None` when there is none.
    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>> {
        let request = Request::get(path).body(Vec::new());
        let request = request.map_err(|e| Error::with(Kind::Process, "a request makes no sense", e))?;
        match self.client.request(request).await {
            Ok(object) => Ok(Some(object)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(Error::with(Kind::Cluster, "the cluster cannot be asked", error)),
        }
    }

    /// A token for an upload, by the rights of who asks.
    pub(crate) async fn token(&self, target: &Target) -> Result<String> {
        let path =
            format!("/apis/{}/namespaces/{}/{}", request::API_VERSION, target.namespace(), request::PLURAL);
        let body = serde_json::to_vec(&UploadTokenRequest::of(target.name()))
            .map_err(|e| Error::with(Kind::Process, "a request makes no sense", e))?;
        let request = Request::post(path).header(CONTENT_TYPE, "application/json").body(body);
        let request = request.map_err(|e| Error::with(Kind::Process, "a request makes no sense", e))?;
        let answer: UploadTokenRequest = self
            .client
            .request(request)
            .await
            .map_err(|e| Error::with(Kind::Cluster, "the cluster gives no token for an upload", e))?;
        let token = answer.status.and_then(|status| status.token).map(|token| token.0);
        token.ok_or_else(|| Error::new(Kind::Cluster, "the cluster's answer holds no token"))
    }

    /// The URL of the proxy, as CDI's configuration says; mostly a host without a scheme.
    pub(crate) async fn proxy_url(&self) -> Result<String> {
        let config: CdiConfig = self
            .get("/apis/cdi.kubevirt.io/v1beta1/cdiconfigs/config")
            .await?
            .ok_or_else(|| Error::new(Kind::Cluster, "there is no CDIConfig; give --url"))?;
        let url = config.spec.override_url.or(config.status.url).filter(|url| !url.is_empty());
        url.ok_or_else(|| Error::new(Kind::Cluster, "the CDIConfig names no proxy; give --url"))
    }
}

impl Lookup for Kubernetes {
    async fn claim(&self, target: &Target) -> Result<Option<Claim>> {
        let path =
            format!("/api/v1/namespaces/{}/persistentvolumeclaims/{}", target.namespace(), target.name());
        let object: Option<ClaimObject> = self.get(&path).await?;
        Ok(object.map(|object| Claim {
            annotations: object.metadata.annotations,
            populated: object.spec.data_source_ref.is_some_and(|reference| reference.kind == POPULATOR_KIND),
        }))
    }

    async fn authorities(&self) -> Result<String> {
        let path = format!("/api/v1/namespaces/{}/configmaps/{}", self.namespace, self.bundle);
        let object: Option<BundleObject> = self.get(&path).await?;
        let bundle = object.and_then(|mut object| object.data.remove(BUNDLE));
        bundle.ok_or_else(|| {
            let what = format!("there is no ConfigMap {}/{} with {BUNDLE}", self.namespace, self.bundle);
            Error::new(Kind::Cluster, what)
        })
    }
}
