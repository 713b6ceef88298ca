//! Makes and removes claims, Deployments and jobs of pools, as [`super::members`] decides.

use std::collections::{BTreeMap, BTreeSet};

use api::cdi::StorageSpec;
use api::hostpath::{ClaimStatus, HostPathProvisioner, PoolClaim, StoragePoolStatus};
use api::resource::{ObjectMeta, Other};
use cluster::{Delete, Key, Propagation, Resource, Result, Scope};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::apply::{Controller, MANAGER};
use super::members::{Observed, PoolDeployment, Step};
use crate::install::hostpath::{self, Driver, LEGACY, Pool};
use crate::install::pools::{self, Member};
use crate::platform::apply::DEPLOYMENTS;

const CLAIMS: Resource = Resource::namespaced("", "v1", "persistentvolumeclaims");
const PODS: Resource = Resource::namespaced("", "v1", "pods");
const NODES: Resource = Resource::cluster("", "v1", "nodes");
const JOBS: Resource = Resource::namespaced("batch", "v1", "jobs");
const CLASSES: Resource = Resource::cluster("storage.k8s.io", "v1", "storageclasses");

/// How far the pools are.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Status of each pool of the object.
    pub(super) statuses: Vec<StoragePoolStatus>,
    /// Reasons why pools of the object are not ready.
    pub(super) missing: Vec<String>,
    /// Reasons why pods of unwanted pools still exist.
    pub(super) leaving: Vec<String>,
}

impl Controller {
    /// Makes what the pools on claims need, and takes away what they do not; `owner` owns what is made.
    pub(super) async fn keep_pools(
        &self,
        object: &HostPathProvisioner,
        driver: &Driver,
        owner: &Value,
    ) -> Result<Progress> {
        let mut progress = Progress::default();
        let claimed: Vec<&Pool> = driver.pools.iter().filter(|pool| pool.claimed).collect();
        let observed = self.observe().await?;
        let places: Vec<(String, String)> =
            claimed.iter().map(|pool| (pool.name.clone(), pool.path.clone())).collect();
        let wanted = observed.wanted(&places);
        let leaving = observed.leaving(&wanted);
        // A pool that moves leaves its old path first.
        let is_free =
            |member: &Member| leaving.iter().all(|(other, _)| other.deployment() != member.deployment());
        for pool in &claimed {
            let of =
                object.spec.storage_pools.iter().find(|one| one.name == pool.name && one.path == pool.path);
            // Of a pool that only its volumes keep, everything exists.
            let Some((spec, template)) = of.and_then(|one| Some((one, one.pvc_template.as_ref()?))) else {
                continue;
            };
            if pool.shared {
                let name = spec.overlay_class_name.as_deref().filter(|name| !name.is_empty());
                self.make(CLASSES, "", pools::overlay_class(pool, name), owner).await?;
            }
            for member in wanted.iter().filter(|member| member.pool == pool.name && is_free(member)) {
                if observed.jobs.contains_key(&member.job()) {
                    // Of an earlier removal that is taken back.
                    self.delete_job(member).await?;
                }
                self.make_member(driver, member, template, owner).await?;
            }
        }
        for (member, step) in leaving {
            progress.leaving.push(self.leave(driver, &member, step).await?);
        }
        if object.spec.path_config.is_some() {
            let legacy = StoragePoolStatus {
                name: LEGACY.to_owned(),
                phase: "Ready".to_owned(),
                ..StoragePoolStatus::default()
            };
            progress.statuses.push(legacy);
        }
        for pool in &object.spec.storage_pools {
            let (status, missing) = observed.status(pool, &pools::label_value(&pool.name), &wanted);
            progress.statuses.push(status);
            progress.missing.extend(missing);
        }
        Ok(progress)
    }

    /// Takes away all pods of pools; gives what is still waited for.
    pub(super) async fn drop_pools(&self, driver: &Driver) -> Result<Vec<String>> {
        let mut waits = Vec::new();
        for (member, step) in self.observe().await?.leaving(&[]) {
            waits.push(self.leave(driver, &member, step).await?);
        }
        Ok(waits)
    }

    async fn make_member(
        &self,
        driver: &Driver,
        member: &Member,
        template: &StorageSpec,
        owner: &Value,
    ) -> Result<()> {
        // The claim outlives the object: it holds data.
        self.make(
            CLAIMS,
            &self.settings.namespace,
            pools::claim(&self.settings, member, template),
            &Value::Null,
        )
        .await?;
        let mut deployment = pools::deployment(&self.settings, driver, member, template);
        deployment["metadata"]["ownerReferences"] = owner.clone();
        let key = Key::new(&self.settings.namespace, &member.deployment());
        self.client.apply::<IgnoredAny>(DEPLOYMENTS, &key, &deployment, MANAGER).await.map(drop)
    }

    /// Creates an object that is left alone afterwards.
    async fn make(
        &self,
        resource: Resource,
        namespace: &str,
        mut object: Value,
        owner: &Value,
    ) -> Result<()> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let key = if namespace.is_empty() { Key::cluster(name) } else { Key::new(namespace, name) };
        if self.client.find::<IgnoredAny>(resource, &key).await?.is_some() {
            return Ok(());
        }
        if !owner.is_null() {
            object["metadata"]["ownerReferences"] = owner.clone();
        }
        match self.client.create::<IgnoredAny>(resource, namespace, &object).await {
            Err(error) if !error.is_already_exists() => Err(error),
            _ => Ok(()),
        }
    }

    /// Does a member's next step; gives what is waited for then.
    async fn leave(&self, driver: &Driver, member: &Member, step: Step) -> Result<String> {
        let namespace = &self.settings.namespace;
        let key = Key::new(namespace, &member.deployment());
        let text = format!("pool {} leaves node {}", member.pool, member.node);
        match step {
            Step::Wait(text) => return Ok(text),
            Step::Stop => {
                let patch = json!({"spec": {"replicas": 0}});
                self.client.merge_patch::<IgnoredAny>(DEPLOYMENTS, &key, &patch).await?;
            }
            Step::Unmount => {
                let job = pools::cleanup(&self.settings, driver, member);
                self.make(JOBS, namespace, job, &Value::Null).await?;
            }
            Step::Forget => {
                self.client.delete(DEPLOYMENTS, &key, &Delete::default()).await?;
                self.delete_job(member).await?;
                tracing::info!(pool = member.pool, node = member.node, "the pool has left the node");
            }
        }
        Ok(text)
    }

    async fn delete_job(&self, member: &Member) -> Result<()> {
        let job = Key::new(&self.settings.namespace, &member.job());
        let options = Delete::default().propagation(Propagation::Background);
        self.client.delete(JOBS, &job, &options).await.map(drop)
    }

    async fn observe(&self) -> Result<Observed> {
        let scope = Scope::all().namespace(&self.settings.namespace).labels(pools::LABEL);
        let deployments: Vec<Deployment> = self.client.list(DEPLOYMENTS, &scope).await?;
        let jobs: Vec<Job> = self.client.list(JOBS, &scope).await?;
        let claims: Vec<Claim> = self.client.list(CLAIMS, &scope).await?;
        let pods: Vec<Pod> = self.client.list(PODS, &scope).await?;
        let mut of: BTreeMap<&str, usize> = BTreeMap::new();
        for pod in &pods {
            if let Some(name) = pod.metadata.labels.get("hpp-pool") {
                *of.entry(name).or_default() += 1;
            }
        }
        let members: Vec<PoolDeployment> = deployments.iter().filter_map(|one| one.observe(&of)).collect();
        let (nodes, complete) = self.nodes().await?;
        let mut observed = Observed {
            jobs: jobs.into_iter().map(|job| (job.metadata.name, job.status.succeeded > 0)).collect(),
            claims: claims.into_iter().map(Claim::labelled).collect(),
            members,
            nodes,
            complete,
            ..Observed::default()
        };
        for seen in &observed.members {
            let node = &seen.member.node;
            if !observed.nodes.contains(node)
                && !observed.gone.contains(node)
                && self.client.find::<IgnoredAny>(NODES, &Key::cluster(node)).await?.is_none()
            {
                observed.gone.insert(node.clone());
            }
        }
        Ok(observed)
    }

    /// Nodes with a pod of the driver, and whether these are all that should have one.
    async fn nodes(&self) -> Result<(BTreeSet<String>, bool)> {
        let set = self.daemon_sets.get(&Key::new(&self.settings.namespace, hostpath::DAEMON_SET));
        let scope = Scope::all().namespace(&self.settings.namespace).labels("k8s-app=hostpath-provisioner");
        let pods: Vec<Pod> = self.client.list(PODS, &scope).await?;
        let pods = pods.into_iter().filter(|pod| {
            pod.metadata.deletion_timestamp.is_none() && pod.is_of("DaemonSet", hostpath::DAEMON_SET)
        });
        let nodes: BTreeSet<String> =
            pods.map(|pod| pod.spec.node_name).filter(|name| !name.is_empty()).collect();
        let complete = set.is_some_and(|set| {
            set.current
                && set.ready == set.desired
                && u32::try_from(nodes.len()).is_ok_and(|count| count >= set.desired)
        });
        Ok((nodes, complete))
    }
}

#[derive(Deserialize)]
struct Deployment {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Replicas,
    #[serde(default)]
    status: Replicas,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Replicas {
    replicas: u32,
    ready_replicas: u32,
    updated_replicas: u32,
    observed_generation: u64,
}

impl Deployment {
    /// The member that it is; `None`: it is not ours.
    fn observe(&self, pods: &BTreeMap<&str, usize>) -> Option<PoolDeployment> {
        let text = |name: &str| self.metadata.annotations.get(name).cloned();
        let member = Member { pool: text(pools::POOL)?, path: text(pools::PATH)?, node: text(pools::NODE)? };
        let status = &self.status;
        let current = Some(status.observed_generation) >= self.metadata.generation;
        Some(PoolDeployment {
            member,
            replicas: self.spec.replicas,
            ready: current && status.updated_replicas.min(status.ready_replicas) > 0,
            pods: pods.get(self.metadata.name.as_str()).copied().unwrap_or(0),
        })
    }
}

#[derive(Deserialize)]
struct Job {
    metadata: ObjectMeta,
    #[serde(default)]
    status: JobStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct JobStatus {
    succeeded: u32,
}

#[derive(Deserialize)]
struct Claim {
    metadata: ObjectMeta,
    #[serde(default)]
    status: ClaimStatus,
}

impl Claim {
    fn labelled(self) -> (String, PoolClaim) {
        let label = self.metadata.labels.get(pools::LABEL).cloned().unwrap_or_default();
        (label, PoolClaim { name: self.metadata.name, status: self.status })
    }
}

#[derive(Deserialize)]
struct Pod {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: PodSpec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSpec {
    node_name: String,
}

impl Pod {
    fn is_of(&self, kind: &str, name: &str) -> bool {
        let is = |owner: &Other| {
            owner.get("kind").is_some_and(|one| one == kind)
                && owner.get("name").is_some_and(|one| one == name)
        };
        self.metadata.owner_references.iter().any(is)
    }
}
