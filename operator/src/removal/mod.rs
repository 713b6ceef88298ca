//! `operator uninstall`: removes the platform from a cluster, in an order that leaves nothing behind.
//!
//! ```text
//!  HyperConverged, HostPathProvisioner, KubeVirt, … ─► gone? ─► APIServices ─► webhooks ─► definitions ─► the rest ─► namespace
//!     refused or waiting while workloads exist        each group when the one before is gone
//! ```
//! Interrupted anywhere, a second run continues: what is gone already is passed over.
//!
//! Not here: removing virtual machines and DataVolumes, which the operator does if the uninstall strategy says so.

mod plan;

use std::io::Write;
use std::time::Duration;

use cluster::{Client, Config, Delete, Key, Propagation, Resource, Scope};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::time::Instant;

use crate::args::Uninstall;
use crate::error::{Error, Kind, Result};
use crate::install::{Settings, manifests};
use plan::{Group, Target};

pub(crate) use plan::SWITCHES;

/// Time between two looks at what is being removed.
const PERIOD: Duration = Duration::from_millis(500);

/// Removes the platform.
///
/// # Errors
/// [`Kind::Cluster`] if the cluster cannot be reached, an object is kept (with the API server's reason), or something is
/// not gone in time.
pub(crate) fn run(arguments: &Uninstall) -> Result<()> {
    let settings = Settings { namespace: arguments.namespace.clone(), ..Settings::default() };
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
    let removal = Removal { client, until: Instant::now() + Duration::from_secs(arguments.timeout) };
    runtime.block_on(async {
        for (kind, resource) in SWITCHES {
            removal.remove(&removal.existing(kind, resource).await?).await?;
        }
        if !arguments.only_custom_resources {
            for group in &groups {
                removal.remove(group).await?;
            }
        }
        Ok(())
    })
}

struct Removal {
    client: Client,
    until: Instant,
}

impl Removal {
    /// All objects of a kind; none if the kind does not exist.
    async fn existing(&self, kind: &str, resource: Resource) -> Result<Group> {
        #[derive(Deserialize)]
        struct Named {
            metadata: api::resource::ObjectMeta,
        }
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
        for target in group {
            self.delete(target).await?;
        }
        for target in group {
            self.until_gone(target).await?;
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
