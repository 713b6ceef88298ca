//! Deletes released volumes of upstream's provisioner without CSI: a job on the node removes the directory, then the
//! PersistentVolume goes. Not here: which ones ([`super::legacy`]).

use cluster::event::{Reference, Type};
use cluster::{Delete, Key, Propagation, Resource, Result};
use serde::Deserialize;
use serde_json::Value;

use super::apply::Controller;
use super::legacy::{Legacy, Step};
use super::volumes::VOLUMES;
use crate::install::hostpath::Driver;
use crate::install::pools;

const JOBS: Resource = Resource::namespaced("batch", "v1", "jobs");

#[derive(Default, Deserialize)]
#[serde(default)]
struct Job {
    status: JobStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct JobStatus {
    succeeded: u32,
}

impl Controller {
    /// Deletes those that are released; gives how many are on their way.
    pub(super) async fn delete_legacy(&self, driver: &Driver, volumes: &[Legacy]) -> Result<usize> {
        let roots: Vec<String> = driver.pools.iter().map(|pool| pool.path.clone()).collect();
        let mut pending = 0;
        for volume in volumes {
            match volume.step(&roots) {
                Step::Nothing => {}
                Step::Refuse(why) => {
                    let text = format!("{why}; remove the directory and the PersistentVolume by hand");
                    self.events.publish(&reference(volume), Type::Warning, "VolumeFailedDelete", &text);
                }
                Step::Remove { parent, name, host } => {
                    let job = pools::removal(&self.settings, driver, &volume.name, &parent, &name, &host);
                    pending += usize::from(!self.removed(volume, &job).await?);
                }
            }
        }
        Ok(pending)
    }

    /// Makes the job that removes a volume's directory; when it has succeeded the object goes. Whether it did.
    async fn removed(&self, volume: &Legacy, job: &Value) -> Result<bool> {
        let namespace = &self.settings.namespace;
        let key = Key::new(namespace, &pools::removal_name(&volume.name));
        match self.client.find::<Job>(JOBS, &key).await? {
            None => match self.client.create::<Value>(JOBS, namespace, job).await {
                Err(error) if !error.is_already_exists() => Err(error),
                _ => Ok(false),
            },
            Some(job) if job.status.succeeded == 0 => Ok(false),
            Some(_) => {
                let delete = Delete::default().uid(&volume.uid);
                self.client.delete(VOLUMES, &Key::cluster(&volume.name), &delete).await?;
                let delete = Delete::default().propagation(Propagation::Background);
                self.client.delete(JOBS, &key, &delete).await?;
                tracing::info!(volume = volume.name, path = volume.path, "volume deleted");
                Ok(true)
            }
        }
    }
}

fn reference(volume: &Legacy) -> Reference {
    Reference {
        api_version: "v1".to_owned(),
        kind: "PersistentVolume".to_owned(),
        namespace: String::new(),
        name: volume.name.clone(),
        uid: volume.uid.clone(),
    }
}
