//! `operator uninstall`: removes the platform from a cluster, in an order that leaves nothing behind.
//!
//! ```text
//!  HyperConverged ─► APIServices ─► webhooks ─► gone? ─► HostPathProvisioner, KubeVirt, … ─► definitions
//!     refused while workloads exist        each when the one before is gone      nodes ◄─ namespace ◄─ the rest ◄─┘
//! ```
//! APIServices and webhooks go as soon as the deletion of HyperConverged is accepted. An operator that cannot start would
//! leave APIServices on which the deletion of every namespace waits, and webhooks that refuse: without an operator behind
//! them, they go before that deletion unless workloads exist.
//!
//! Interrupted anywhere, a second run continues: what is gone already is passed over.
//!
//! A definition of another project stays where it belongs to the users, and nodes lose the labels that agents wrote.
//!
//! Not here: removing virtual machines and DataVolumes, which the operator does if the uninstall strategy says so.

mod plan;

use std::io::Write;
use std::time::Duration;

use api::resource::ObjectMeta;
use cluster::{Client, Config, Delete, Key, Propagation, Resource, Scope};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use tokio::time::Instant;

use crate::args::Uninstall;
use crate::error::{Error, Kind, Result};
use crate::install::{Settings, manifests};
use crate::platform;
use plan::{ENTRANCES, Group, Target};

pub(crate) use plan::SWITCHES;

const NODES: Resource = Resource::cluster("", "v1", "nodes");
/// Kinds of objects that webhooks protect from an uninstall.
pub(crate) const WORKLOADS: [Resource; 5] = [
    Resource::namespaced("kubevirt.io", "v1", "virtualmachines"),
    Resource::namespaced("kubevirt.io", "v1", "virtualmachineinstances"),
    Resource::namespaced("kubevirt.io", "v1", "virtualmachineinstancereplicasets"),
    Resource::namespaced("pool.kubevirt.io", "v1beta1", "virtualmachinepools"),
    Resource::namespaced("cdi.kubevirt.io", "v1beta1", "datavolumes"),
];
/// The Service of the webhook that judges HyperConverged.
const WEBHOOKS: &str = "hco-webhook-service";

/// Time between two looks at what is being removed.
const PERIOD: Duration = Duration::from_millis(500);

/// Removes the platform.
///
/// # Errors
/// [`Kind::Cluster`] if the cluster cannot be reached, an object is kept (with the API server's reason), or something is
/// not gone in time.
pub(crate) fn run(arguments: &Uninstall) -> Result<()> {
    // The rights of sidecars may have been installed.
    let settings = Settings { namespace: arguments.namespace.clone(), sidecars: true, ..Settings::default() };
    let groups = plan::groups(&manifests(&settings)).map_err(|kind| {
        Error::new(Kind::System, format!("the kind {kind} is installed and cannot be removed: report this"))
    })?;
    let reached = Config::load(arguments.kubeconfig.as_deref(), None);
    let client = reached.and_then(|reach| Client::new(&reach, "uninstall"));
    let client = client.map_err(|error| {
        Error::with(Kind::Cluster, "cannot read the cluster's address or credentials", error)
    })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::with(Kind::System, "cannot start the runtime", error))?;
    let all = !arguments.only_custom_resources;
    let entrances = if all { groups.get(..ENTRANCES).unwrap_or_default() } else { &[] };
    let removal = Removal {
        client,
        namespace: &arguments.namespace,
        entrances,
        until: Instant::now() + Duration::from_secs(arguments.timeout),
    };
    runtime.block_on(async {
        if arguments.only_nodes {
            return removal.clean_nodes().await;
        }
        if all && removal.is_abandoned().await? {
            removal.close().await?;
        }
        for (kind, resource) in SWITCHES {
            let existing = removal.existing(kind, resource).await?;
            for target in &existing {
                removal.delete(target).await?;
            }
            if kind == "HyperConverged" && !existing.is_empty() {
                removal.close().await?;
            }
            removal.until_all_gone(&existing).await?;
        }
        if all {
            for group in &groups {
                removal.remove(group).await?;
            }
            removal.clean_nodes().await?;
        }
        Ok(())
    })
}

struct Removal<'a> {
    client: Client,
    namespace: &'a str,
    /// APIServices and webhooks, if they are to be removed.
    entrances: &'a [Group],
    until: Instant,
}

/// An object of which only the metadata is read.
#[derive(Deserialize)]
struct Named {
    metadata: ObjectMeta,
}

impl Removal<'_> {
    /// All objects of a kind; none if the kind does not exist.
    async fn existing(&self, kind: &str, resource: Resource) -> Result<Group> {
        let found: Vec<Named> = match self.client.list(resource, &Scope::all()).await {
            Err(error) if error.is_not_found() => Vec::new(),
            found => {
                found.map_err(|error| Error::with(Kind::Cluster, format!("cannot list {kind}"), error))?
            }
        };
        let target = |one: Named| {
            let namespace = one.metadata.namespace.unwrap_or_default();
            let name = one.metadata.name;
            let key = if resource.namespaced { Key::new(&namespace, &name) } else { Key::cluster(&name) };
            Target { kind: kind.to_owned(), resource, key }
        };
        Ok(found.into_iter().map(target).collect())
    }

    /// Removes a group and waits until all of it is gone.
    async fn remove(&self, group: &[Target]) -> Result<()> {
        let mut going = Vec::new();
        for target in group {
            if let Some(why) = self.stays(target).await? {
                progress(&format!("{} {} stays: {why}", target.kind, target.key));
                continue;
            }
            self.delete(target).await?;
            going.push(target);
        }
        self.until_all_gone(going).await
    }

    async fn until_all_gone(&self, group: impl IntoIterator<Item = &Target>) -> Result<()> {
        for target in group {
            self.until_gone(target).await?;
        }
        Ok(())
    }

    /// Why an object stays although it is installed; `None`: it is removed.
    async fn stays(&self, Target { resource, key, .. }: &Target) -> Result<Option<String>> {
        let (name, objects) = plan::FOREIGN;
        if key.name() != name {
            return Ok(None);
        }
        let failed = |error| Error::with(Kind::Cluster, format!("cannot read {name}"), error);
        let found: Option<Named> = self.client.find(*resource, key).await.map_err(failed)?;
        let Some(Named { metadata }) = found else { return Ok(None) };
        Ok(plan::stays(&metadata, self.existing(name, objects).await?.len()))
    }

    /// Removes what stands between users and the API server.
    async fn close(&self) -> Result<()> {
        for group in self.entrances {
            self.remove(group).await?;
        }
        Ok(())
    }

    /// Whether no operator is ready behind the webhooks, and nothing exists that they protect.
    async fn is_abandoned(&self) -> Result<bool> {
        let slices = Scope::all().namespace(self.namespace);
        let failed = |error| Error::with(Kind::Cluster, "cannot list the endpoints of webhooks", error);
        if platform::endpoints::ready(&self.client, &slices).await.map_err(failed)?.contains(WEBHOOKS) {
            return Ok(false);
        }
        for resource in WORKLOADS {
            if !self.existing(resource.plural, resource).await?.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes what agents wrote on nodes.
    async fn clean_nodes(&self) -> Result<()> {
        let failed =
            |error| Error::with(Kind::Cluster, "cannot remove labels and resources from nodes", error);
        let nodes: Vec<Value> = self.client.list(NODES, &Scope::all()).await.map_err(failed)?;
        for node in &nodes {
            let key = Key::cluster(node["metadata"]["name"].as_str().unwrap_or_default());
            let (metadata, status) = plan::cleaned(node);
            for (resource, patch) in [(NODES, metadata), (NODES.sub("status"), status)] {
                let Some(patch) = patch else { continue };
                match self.client.merge_patch::<IgnoredAny>(resource, &key, &patch).await {
                    Err(error) if !error.is_not_found() => return Err(failed(error)),
                    Ok(_) | Err(_) => {}
                }
            }
        }
        Ok(())
    }

    /// Deletes an object; while the API server or a webhook does not answer, again and again.
    async fn delete(&self, Target { kind, resource, key }: &Target) -> Result<()> {
        let options = Delete::default().propagation(Propagation::Foreground);
        let mut waits = false;
        loop {
            match self.client.delete(*resource, key, &options).await {
                Ok(true) => progress(&format!("{kind} {key} is being removed")),
                Ok(false) => {}
                Err(error) if error.is_transient() && Instant::now() < self.until => {
                    if !waits {
                        progress(&format!(
                            "{kind} {key} cannot be removed yet, will retry: {}",
                            error.chain()
                        ));
                        waits = true;
                    }
                    tokio::time::sleep(PERIOD).await;
                    continue;
                }
                Err(error) => {
                    return Err(Error::with(Kind::Cluster, format!("{kind} {key} is not removed"), error));
                }
            }
            return Ok(());
        }
    }

    async fn until_gone(&self, Target { kind, resource, key }: &Target) -> Result<()> {
        loop {
            match self.client.find::<IgnoredAny>(*resource, key).await {
                Ok(None) => return Ok(()),
                Ok(Some(_)) => {}
                Err(error) if error.is_transient() => {}
                Err(error) => {
                    let what = format!("cannot find out whether {kind} {key} is gone");
                    return Err(Error::with(Kind::Cluster, what, error));
                }
            }
            if Instant::now() > self.until {
                let why = format!(
                    "{kind} {key} is still there; its status and events have the reason. Run the command again \
                     to continue"
                );
                return Err(Error::new(Kind::Cluster, why));
            }
            tokio::time::sleep(PERIOD).await;
        }
    }
}

/// Reports progress to the user.
fn progress(line: &str) {
    drop(writeln!(std::io::stderr().lock(), "{line}"));
}
