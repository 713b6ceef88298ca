//! The cluster a command talks to: client, namespace, and how another process of this program reaches the same cluster.

use std::ffi::OsString;
use std::path::PathBuf;

use cluster::client::Call;
use cluster::{Client, Config, Key, Resource};
use http::Method;
use serde_json::Value;

use crate::error::{Error, Kind, Result};
use crate::target::{Target, TargetKind};

/// Machines, their runs and their volumes.
pub(crate) const MACHINES: Resource = Resource::namespaced("kubevirt.io", "v1", "virtualmachines");
pub(crate) const INSTANCES: Resource = Resource::namespaced("kubevirt.io", "v1", "virtualmachineinstances");
pub(crate) const CLAIMS: Resource = Resource::namespaced("", "v1", "persistentvolumeclaims");
pub(crate) const VOLUMES: Resource = Resource::namespaced("cdi.kubevirt.io", "v1beta1", "datavolumes");
/// The group of the verbs.
const VERBS_GROUP: &str = "subresources.kubevirt.io";

/// Which cluster; kubectl's flags.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Which {
    /// Kubeconfig file [default: KUBECONFIG, the pod's ServiceAccount, ~/.kube/config]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// Namespace [default: that of the context]
    #[arg(short, long, global = true, value_name = "NAME")]
    pub(crate) namespace: Option<String>,
}

impl Which {
    /// The same cluster as words of a command line, with absolute paths.
    pub(crate) fn words(&self, namespace: &str) -> Result<Vec<OsString>> {
        let mut words: Vec<OsString> = Vec::new();
        if let Some(file) = &self.kubeconfig {
            words.extend(["--kubeconfig".into(), std::path::absolute(file)?.into()]);
        }
        if let Some(context) = &self.context {
            words.extend(["--context".into(), context.into()]);
        }
        words.extend(["--namespace".into(), namespace.into()]);
        Ok(words)
    }
}

/// A cluster.
#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) client: Client,
    /// The namespace of objects that name none.
    pub(crate) namespace: String,
}

impl Site {
    /// Reads the kubeconfig. Nothing is sent yet.
    ///
    /// # Errors
    /// The kubeconfig cannot be used.
    pub(crate) fn open(which: &Which) -> Result<Self> {
        let config = Config::load(which.kubeconfig.as_deref(), which.context.as_deref())?;
        let client = Client::new(&config, "kubectl-virt")?;
        let namespace = which.namespace.clone().unwrap_or(config.namespace);
        Ok(Self { client, namespace })
    }

    /// The namespace of a target.
    pub(crate) fn namespace<'a>(&'a self, target: &'a Target) -> &'a str {
        target.namespace.as_deref().unwrap_or(&self.namespace)
    }

    /// The path of a verb of a machine or a run.
    pub(crate) fn verb(&self, target: &Target, verb: &str) -> cluster::Result<String> {
        let plural = match target.kind {
            TargetKind::Machine => "virtualmachines",
            TargetKind::Instance => "virtualmachineinstances",
        };
        let key = Key::new(self.namespace(target), &target.name);
        let path = Resource::namespaced(VERBS_GROUP, "v1", plural).object(&key)?;
        Ok(format!("{path}/{verb}"))
    }

    /// The path of a verb of the namespace, such as `expand-vm-spec`.
    pub(crate) fn namespaced_verb(&self, verb: &'static str) -> cluster::Result<String> {
        Resource::namespaced(VERBS_GROUP, "v1", verb).collection(&self.namespace)
    }

    /// Sends a PUT with a JSON body, or none.
    ///
    /// # Errors
    /// As every call.
    pub(crate) async fn put(&self, path: &str, body: Option<&Value>) -> cluster::Result<Vec<u8>> {
        let call = Call::new(Method::PUT, path);
        let call = match body {
            Some(body) => call.body("application/json", body.to_string()),
            None => call,
        };
        self.client.call(&call).await
    }

    /// Reads a JSON document.
    pub(crate) async fn read(&self, path: &str) -> cluster::Result<Value> {
        self.client.read(path).await
    }
}

/// A string at a path of an object.
pub(crate) fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

/// A document as the API server sent it.
pub(crate) fn document(bytes: &[u8]) -> Result<Value> {
    serde_json::from_slice(bytes)
        .map_err(|_| Error::new(Kind::System, "the API server's answer is not a JSON document"))
}
