//! `operator support-bundle`: what a bug report needs, in a directory.
//!
//! ```text
//!  plan: collections ─► list ─► redact ─► DIR/namespaces/NS/KIND/NAME.yaml, DIR/cluster/KIND/NAME.yaml
//!        pods of the platform, of guests and of transfers ─► logs ─► DIR/namespaces/NS/pods/NAME/CONTAINER.log
//!        launchers of guests that run ─► exec ─► DIR/namespaces/NS/pods/NAME/virsh-VERB.txt, qemu.log
//!        node agents ─► exec ─► DIR/nodes/NODE/network.json
//! ```
//!
//! Secrets are never read, and fields that often hold passwords are replaced ([`mod@redact`]). What cannot be read is listed
//! in `errors.txt`; the rest is collected all the same.
//!
//! Not here: sending the bundle anywhere.

mod exec;
mod plan;
mod redact;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use cluster::client::Call;
use cluster::{Client, Config, Resource, Scope};
use http::Method;
use serde_json::Value;

use crate::args::SupportBundle;
use crate::error::{Error, Kind, Result};

/// Longest log of a container, from its end.
const LOG_BYTES: u32 = 10 << 20;

/// Collects a bundle.
///
/// # Errors
/// [`Kind::Usage`] if the directory is not empty, [`Kind::Cluster`] if the cluster cannot be reached, [`Kind::System`] if
/// the directory cannot be written.
pub(crate) fn run(arguments: &SupportBundle) -> Result<()> {
    let root = directory(&arguments.output)?;
    let reached = Config::load(arguments.kubeconfig.as_deref(), None);
    let client = reached.and_then(|reach| Client::new(&reach, "support-bundle"));
    let client = client.map_err(|error| {
        Error::with(Kind::Cluster, "cannot read the cluster's address or credentials", error)
    })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::with(Kind::System, "cannot start the runtime", error))?;
    let mut bundle = Bundle { client, root, errors: Vec::new(), objects: 0, logs: 0 };
    runtime.block_on(bundle.collect(&arguments.namespace))?;
    let Bundle { root, errors, objects, logs, .. } = bundle;
    if !errors.is_empty() {
        write(&root.join("errors.txt"), errors.join("\n").as_bytes())?;
    }
    let mut out = std::io::stderr().lock();
    let text = format!("{objects} objects and {logs} logs in {}, {} errors", root.display(), errors.len());
    drop(writeln!(out, "{text}"));
    Ok(())
}

/// Creates the directory, which may exist if it is empty.
fn directory(path: &Path) -> Result<PathBuf> {
    let failed = |error| Error::with(Kind::System, format!("cannot create {}", path.display()), error);
    fs::create_dir_all(path).map_err(failed)?;
    if fs::read_dir(path).map_err(failed)?.next().is_some() {
        return Err(Error::new(
            Kind::Usage,
            format!("--output {}: the directory is not empty; name a new one", path.display()),
        ));
    }
    Ok(path.to_owned())
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    let failed = |error| Error::with(Kind::System, format!("cannot write {}", path.display()), error);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(failed)?;
    }
    fs::write(path, content).map_err(failed)
}

/// A bundle in the making.
struct Bundle {
    client: Client,
    root: PathBuf,
    errors: Vec<String>,
    objects: usize,
    logs: usize,
}

impl Bundle {
    async fn collect(&mut self, namespace: &str) -> Result<()> {
        let version: Value = self
            .client
            .read("/version")
            .await
            .map_err(|error| Error::with(Kind::Cluster, "the API server does not answer", error))?;
        write(&self.root.join("version.json"), version.to_string().as_bytes())?;
        for one in plan::everywhere() {
            self.list(&one, &Scope::all()).await?;
        }
        for one in plan::of_platform() {
            self.list(&one, &Scope::all().namespace(namespace)).await?;
        }
        let pods = Resource::namespaced("", "v1", "pods");
        let workers = plan::WORKERS.map(|labels| Scope::all().labels(labels));
        for scope in std::iter::once(Scope::all().namespace(namespace)).chain(workers) {
            let listed = self.client.list::<Value>(pods, &scope).await;
            match listed {
                Ok(pods) => {
                    for pod in &pods {
                        self.logs_of(pod).await?;
                        self.programs_of(pod).await?;
                    }
                }
                Err(error) => self.errors.push(format!("pods: {}", error.chain())),
            }
        }
        Ok(())
    }

    async fn list(&mut self, what: &plan::Collection, scope: &Scope) -> Result<()> {
        let scope = if what.labels.is_empty() { scope.clone() } else { scope.clone().labels(what.labels) };
        match self.client.list::<Value>(what.resource, &scope).await {
            Ok(objects) => {
                for mut object in objects {
                    redact::redact(&mut object);
                    let path = self.root.join(plan::path(what.name, &object));
                    let text = serde_saphyr::to_string(&object).map_err(|error| {
                        Error::with(Kind::System, "cannot write an object as YAML", error)
                    })?;
                    write(&path, text.as_bytes())?;
                    self.objects += 1;
                }
            }
            // The kind is not installed.
            Err(error) if matches!(error.kind(), cluster::Kind::NotFound) => {}
            Err(error) => self.errors.push(format!("{}: {}", what.name, error.chain())),
        }
        Ok(())
    }

    async fn logs_of(&mut self, pod: &Value) -> Result<()> {
        for (path, file) in plan::logs(pod, LOG_BYTES) {
            match self.client.call(&Call::new(Method::GET, &path)).await {
                Ok(log) => {
                    write(&self.root.join(file), &log)?;
                    self.logs += 1;
                }
                // A container that never ran, or never restarted.
                Err(error) if matches!(error.kind(), cluster::Kind::Invalid | cluster::Kind::NotFound) => {}
                Err(error) if path.contains("previous=true") => drop(error),
                Err(error) => self.errors.push(format!("{path}: {}", error.chain())),
            }
        }
        Ok(())
    }

    /// The output of programs in a pod.
    async fn programs_of(&mut self, pod: &Value) -> Result<()> {
        for (path, file) in plan::domain(pod).into_iter().chain(plan::network(pod)) {
            match exec::output(&self.client, &path).await {
                Ok(text) => write(&self.root.join(file), &text)?,
                // Its user may not run programs in pods, or the guest has ended.
                Err(text) => self.errors.push(format!("{path}: {text}")),
            }
        }
        Ok(())
    }
}
