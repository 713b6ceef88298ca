//! Any pod of a namespace, as far as it uses claims. Not here: the state of worker pods ([`super::worker`]).

use serde_json::Value;

use super::Claim;
use super::meta::{Meta, text};
use crate::storage::names;

/// The fields read from a pod that may use a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// Metadata.
    pub meta: Meta,
    /// `status.phase`.
    phase: String,
    /// The claims of its volumes.
    claims: Vec<String>,
    /// Those of them that it does not mount read-only.
    written: Vec<String>,
}

impl From<&Value> for User {
    fn from(object: &Value) -> Self {
        let volumes = object["spec"]["volumes"].as_array().into_iter().flatten();
        let of_claims = volumes.filter_map(|volume| {
            let volume = &volume["persistentVolumeClaim"];
            Some((volume["claimName"].as_str()?.to_owned(), volume["readOnly"] == true))
        });
        let all: Vec<(String, bool)> = of_claims.collect();
        let written = all.iter().filter(|(_, read_only)| !read_only).map(|(name, _)| name.clone()).collect();
        Self {
            meta: Meta::from(object),
            phase: text(&object["status"]["phase"]),
            claims: all.into_iter().map(|(name, _)| name).collect(),
            written,
        }
    }
}

impl User {
    fn is_over(&self) -> bool {
        ["Succeeded", "Failed"].contains(&self.phase.as_str())
    }

    /// Whether it writes to a claim of its namespace, or will. Sending pods of clones read it, also a Block volume.
    pub fn writes(&self, claim: &Claim) -> bool {
        let sends = self.meta.labels.get(names::WORKER).is_some_and(|word| word == names::CLONE_SOURCE_POD);
        self.written.contains(&claim.meta.name) && !self.is_over() && !sends
    }

    /// Whether it uses a claim of its namespace that is to be filled, or will: pods that read the claim count, its content
    /// would change under them. A pending pod counts as well, although it does not run: Kubernetes binds a claim before the
    /// claim's first pod, which may run a moment later. The claim's own workers do not count, nor do the pods that an
    /// instance's claims are bound for: those end without touching a volume.
    pub fn uses(&self, claim: &Claim) -> bool {
        self.claims.contains(&claim.meta.name)
            && !self.is_over()
            && !self.meta.is_controlled_by(&claim.meta.uid)
            && self.meta.annotation(names::PROVISIONS).is_none()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn finished_pods_and_workers_of_the_claim_do_not_use_it() {
        let claim = Claim::from(&json!({"metadata": {"name": "disk", "namespace": "n", "uid": "c"}}));
        let pod = |phase: &str, metadata: Value, volume: Value| {
            User::from(&json!({
                "metadata": metadata, "spec": {"volumes": [{"emptyDir": {}}, {"persistentVolumeClaim": volume}]},
                "status": {"phase": phase},
            }))
        };
        let (plain, disk) = (|| json!({"name": "p"}), || json!({"claimName": "disk"}));
        let owner = |uid: &str| json!({"ownerReferences": [{"kind": "PersistentVolumeClaim", "uid": uid, "controller": true}]});
        let sender = json!({"labels": {names::WORKER: names::CLONE_SOURCE_POD}});
        let provisioner = json!({"annotations": {names::PROVISIONS: "true"}});
        for (found, uses, writes) in [
            (pod("Running", plain(), disk()), true, true),
            (pod("Pending", plain(), disk()), true, true),
            (pod("", plain(), disk()), true, true),
            (pod("Succeeded", plain(), disk()), false, false),
            (pod("Failed", plain(), disk()), false, false),
            (pod("Running", plain(), json!({"claimName": "other"})), false, false),
            (pod("Running", plain(), json!({"claimName": "disk", "readOnly": true})), true, false),
            (pod("Running", owner("c"), disk()), false, true),
            (pod("Running", owner("x"), disk()), true, true),
            (pod("Running", sender, disk()), true, false),
            (pod("Running", provisioner, disk()), false, true),
        ] {
            assert_eq!((found.uses(&claim), found.writes(&claim)), (uses, writes), "{found:?}");
        }
    }
}
