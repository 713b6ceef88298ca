//! Pods of pools on claims, one for each pool and node: which are made, how one that is not wanted leaves, and what is
//! reported of them. Pure.
//!
//! ```text
//!  not wanted: Deployment scaled to 0 ─► its pod is gone ─► job unmounts ─► job succeeded ─► Deployment and job deleted
//! ```
//!
//! The Deployment is deleted last: while it exists the volume may be mounted. Claims stay, as upstream, and are used again.

use std::collections::{BTreeMap, BTreeSet};

use api::hostpath::{PoolClaim, StoragePool, StoragePoolStatus};

use crate::install::pools::Member;

/// The objects that exist.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// Deployments of pools.
    pub members: Vec<PoolDeployment>,
    /// Jobs of pools by name, and whether each has succeeded.
    pub jobs: BTreeMap<String, bool>,
    /// Claims of pools by name, each with its pool's label.
    pub claims: Vec<(String, PoolClaim)>,
    /// Nodes with a pod of the driver.
    pub nodes: BTreeSet<String>,
    /// Whether the driver has all its pods: then other nodes have none.
    pub complete: bool,
    /// Nodes of members that do not exist any more.
    pub gone: BTreeSet<String>,
}

/// A Deployment of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolDeployment {
    /// The member that it is.
    pub member: Member,
    /// Pods that it asks for.
    pub replicas: u32,
    /// Whether its pod is ready, in the present version.
    pub ready: bool,
    /// Pods that exist, those that end included.
    pub pods: usize,
}

/// The next step for a member that is not wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Its Deployment is scaled to 0.
    Stop,
    /// It waits for this.
    Wait(String),
    /// The job that unmounts is made.
    Unmount,
    /// Deployment and job are deleted.
    Forget,
}

impl Observed {
    /// Members that should exist, for the pools of these names and paths.
    pub fn wanted(&self, pools: &[(String, String)]) -> Vec<Member> {
        let mut all = Vec::new();
        for (pool, path) in pools {
            let existing = self.members.iter().filter(|seen| seen.member.pool == *pool);
            // A pod of the driver that is replaced is no reason to unmount.
            let staying = existing.map(|seen| &seen.member.node).filter(|_| !self.complete);
            let nodes: BTreeSet<&String> = self.nodes.iter().chain(staying).collect();
            let here = nodes.into_iter().filter(|node| !self.gone.contains(*node));
            all.extend(here.map(|node| Member {
                pool: pool.clone(),
                path: path.clone(),
                node: node.clone(),
            }));
        }
        all
    }

    /// Members that are not wanted, each with its next step.
    pub fn leaving(&self, wanted: &[Member]) -> Vec<(Member, Step)> {
        let unwanted = self.members.iter().filter(|seen| !wanted.contains(&seen.member));
        unwanted.map(|seen| (seen.member.clone(), self.step(seen))).collect()
    }

    fn step(&self, seen: &PoolDeployment) -> Step {
        let Member { pool, node, .. } = &seen.member;
        if self.gone.contains(node) {
            return Step::Forget;
        }
        if seen.replicas > 0 {
            return Step::Stop;
        }
        if seen.pods > 0 {
            return Step::Wait(format!("the pod of pool {pool} on node {node} ends"));
        }
        let job = seen.member.job();
        match self.jobs.get(&job) {
            None => Step::Unmount,
            Some(true) => Step::Forget,
            Some(false) => Step::Wait(format!("Job {job} unmounts pool {pool} on node {node}")),
        }
    }

    /// The status of a pool of the object with these members, and what it lacks.
    pub fn status(
        &self,
        pool: &StoragePool,
        label: &str,
        wanted: &[Member],
    ) -> (StoragePoolStatus, Option<String>) {
        let mut status = StoragePoolStatus {
            name: pool.name.clone(),
            phase: "Ready".to_owned(),
            ..StoragePoolStatus::default()
        };
        if pool.pvc_template.is_none() {
            return (status, None);
        }
        let members: Vec<&Member> = wanted.iter().filter(|one| one.pool == pool.name).collect();
        let ready = self.members.iter().filter(|seen| seen.ready && members.contains(&&seen.member)).count();
        let claims = self.claims.iter().filter(|(of, _)| of == label).map(|(_, claim)| claim.clone());
        status.claim_statuses = claims.collect();
        status.desired_ready = i64::try_from(members.len()).unwrap_or(0);
        status.current_ready = i64::try_from(ready).unwrap_or(0);
        if members.is_empty() && !self.complete {
            "Preparing".clone_into(&mut status.phase);
            return (status, Some(format!("pool {}: no pod of the driver runs yet", pool.name)));
        }
        if ready == members.len() {
            return (status, None);
        }
        let unbound =
            status.claim_statuses.iter().find(|claim| claim.status.phase.as_deref() != Some("Bound"));
        let text = match unbound {
            Some(claim) => format!(
                "pool {}: claim {} is {}",
                pool.name,
                claim.name,
                claim.status.phase.as_deref().unwrap_or("Pending")
            ),
            None if status.claim_statuses.is_empty() => format!("pool {}: its claims are made", pool.name),
            None => format!("pool {} is mounted on {ready} of {} nodes", pool.name, members.len()),
        };
        let phase =
            if unbound.is_some() || status.claim_statuses.is_empty() { "Preparing" } else { "Mounting" };
        phase.clone_into(&mut status.phase);
        (status, Some(text))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn member(node: &str) -> Member {
        Member { pool: "disk".to_owned(), path: "/disk".to_owned(), node: node.to_owned() }
    }

    fn deployment(node: &str) -> PoolDeployment {
        PoolDeployment { member: member(node), replicas: 1, ready: true, pods: 1 }
    }

    fn nodes(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn members_are_on_the_nodes_of_the_driver() {
        let pools = [("disk".to_owned(), "/disk".to_owned())];
        let observed =
            Observed { members: vec![deployment("b")], nodes: nodes(&["a"]), ..Observed::default() };
        assert_eq!(
            observed.wanted(&pools),
            [member("a"), member("b")],
            "the driver's pod of b may come back"
        );
        let complete = Observed { complete: true, ..observed.clone() };
        assert_eq!(complete.wanted(&pools), [member("a")]);
        let gone = Observed { gone: nodes(&["b"]), ..observed };
        assert_eq!(gone.wanted(&pools), [member("a")]);
    }

    #[test]
    fn a_member_leaves_in_steps() {
        let stopped = PoolDeployment { replicas: 0, pods: 0, ready: false, ..deployment("a") };
        let job = |done| BTreeMap::from([(member("a").job(), done)]);
        for (seen, jobs, gone, expected) in [
            (deployment("a"), BTreeMap::new(), nodes(&[]), "Stop"),
            (deployment("a"), job(true), nodes(&[]), "Stop"),
            (PoolDeployment { pods: 1, ..stopped.clone() }, BTreeMap::new(), nodes(&[]), "Wait"),
            (stopped.clone(), BTreeMap::new(), nodes(&[]), "Unmount"),
            (stopped.clone(), job(false), nodes(&[]), "Wait"),
            (stopped.clone(), job(true), nodes(&[]), "Forget"),
            (deployment("a"), BTreeMap::new(), nodes(&["a"]), "Forget"),
        ] {
            let observed = Observed { members: vec![seen.clone()], jobs, gone, ..Observed::default() };
            let steps = observed.leaving(&[]);
            assert!(format!("{:?}", steps[0].1).starts_with(expected), "{steps:?}");
        }
        let observed = Observed { members: vec![deployment("a")], ..Observed::default() };
        assert!(observed.leaving(&[member("a")]).is_empty());
        let moved = Member { path: "/elsewhere".to_owned(), ..member("a") };
        assert_eq!(observed.leaving(&[moved])[0].1, Step::Stop);
    }

    #[test]
    fn the_status_follows_claims_and_pods() {
        let pool: StoragePool = serde_json::from_value(json!({
            "name": "disk", "path": "/disk", "pvcTemplate": {"accessModes": ["ReadWriteOnce"]},
        }))
        .unwrap();
        let claim = |phase: &str| {
            let one = json!({"name": "hpp-pool-disk-a", "status": {"phase": phase}});
            ("disk-hpp".to_owned(), serde_json::from_value::<PoolClaim>(one).unwrap())
        };
        let mut observed = Observed { nodes: nodes(&["a"]), ..Observed::default() };
        for (claims, members, phase, current) in [
            (vec![], vec![], "Preparing", 0),
            (
                vec![claim("Pending")],
                vec![PoolDeployment { ready: false, ..deployment("a") }],
                "Preparing",
                0,
            ),
            (vec![claim("Bound")], vec![PoolDeployment { ready: false, ..deployment("a") }], "Mounting", 0),
            (vec![claim("Bound")], vec![deployment("a"), deployment("b")], "Ready", 1),
        ] {
            (observed.claims, observed.members) = (claims, members);
            let (status, missing) = observed.status(&pool, "disk-hpp", &[member("a")]);
            assert_eq!(
                (status.phase.as_str(), status.desired_ready, status.current_ready),
                (phase, 1, current)
            );
            assert_eq!(missing.is_none(), phase == "Ready", "{missing:?}");
            assert_eq!(status.claim_statuses.len(), observed.claims.len());
        }
        let (status, missing) = observed.status(&pool, "disk-hpp", &[]);
        assert_eq!(
            (status.phase.as_str(), missing.is_some()),
            ("Preparing", true),
            "the driver's pods are replaced"
        );
        let none = Observed { complete: true, ..observed.clone() };
        assert_eq!(none.status(&pool, "disk-hpp", &[]).0.phase, "Ready", "no node has storage");
        let path = StoragePool { pvc_template: None, ..pool };
        let (status, missing) = observed.status(&path, "disk-hpp", &[]);
        assert_eq!((status.phase.as_str(), status.desired_ready, missing), ("Ready", 0, None));
    }
}
