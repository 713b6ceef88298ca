//! Writes the result of a poll to the DataImportCron. Not here: what is written (`plan`).
//!
//! The whole object is replaced, by its resource version: the ServiceAccount of CDI's CronJobs may get, list and update
//! DataImportCrons, but not patch them.

use std::time::Duration;

use cluster::{Client, Key, Resource};
use serde_json::Value;

use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::plan::{self, Change};

const CRONS: Resource = Resource::namespaced("cdi.kubevirt.io", "v1beta1", "dataimportcrons");
/// Tries, when other writers change the object at the same time.
const TRIES: u32 = 5;
/// Wait between two tries.
const PAUSE: Duration = Duration::from_millis(200);

/// A client of the cluster that the configuration names.
///
/// # Errors
/// [`Kind::Usage`] when there is none.
pub(crate) fn client(config: &Config) -> Result<Client> {
    let unusable = |e| Error::with(Kind::Usage, "the API server's address or credentials cannot be used", e);
    let found = match (cluster::Config::load(config.kubeconfig.as_deref(), None), &config.server) {
        (Ok(found), Some(url)) => cluster::Config { server: url.clone(), ..found },
        (Err(_), Some(url)) if config.kubeconfig.is_none() => cluster::Config::new(url),
        (found, _) => found.map_err(unusable)?,
    };
    Client::new(&found, "cdi-source-update-poller").map_err(unusable)
}

/// Writes a digest and the time of this poll.
///
/// # Errors
/// [`Kind::Cluster`].
pub(crate) async fn write(client: &Client, cron: &Key, digest: &str) -> Result<Change> {
    let failed =
        |what: &str, e| Error::with(Kind::Cluster, format!("cannot {what} DataImportCron {cron}"), e);
    let mut tries = 1;
    loop {
        let mut object: Value = client.get(CRONS, cron).await.map_err(|e| failed("read", e))?;
        let change = plan::polled(&mut object, digest, &cluster::time::seconds());
        let change = change.ok_or_else(|| {
            Error::new(
                Kind::Cluster,
                format!("the API server's answer for DataImportCron {cron} is no object"),
            )
        })?;
        match client.replace::<Value>(CRONS, cron, &object).await {
            Ok(_) => return Ok(change),
            Err(error) if error.kind() == cluster::Kind::Conflict && tries < TRIES => {
                tracing::debug!(%cron, tries, "the DataImportCron has changed since it was read");
                tries += 1;
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => return Err(failed("update", error)),
        }
    }
}
