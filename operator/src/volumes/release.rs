//! Writes what [`super::loss`] decides: the condition and events of claims, and the end of PVs of a node that is given up.
//! Also the event of a claim for which no node has room.

use std::time::Instant;

use cluster::event::{Reference, Type};
use cluster::{Delete, Key, Outcome, Result};
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use virt::time;

use super::control::Controller;
use super::loss::{self, Loss, Step};
use super::seen::{CLAIMS, Claim, UNAVAILABLE, VOLUMES, Volume};

impl Controller {
    /// Reports that no node has room for a claim, and why; not at the first look: capacities are written soon after a
    /// class or a node is new.
    pub(super) fn report_no_room(&self, key: &Key, claim: &Claim, why: &str) {
        if self.reports.begin(key, &claim.uid, Instant::now()).is_ok_and(|before| before > 0) {
            let claim = about("PersistentVolumeClaim", key, &claim.uid);
            self.events.publish(&claim, Type::Warning, "NoNodeWithRoom", why);
        }
    }

    /// Shows on a claim whether its volume can be reached.
    pub(super) async fn report_loss(&self, key: &Key, claim: &Claim, loss: Option<&Loss>) -> Outcome {
        let shown = loss.map(|loss| (loss.reason, loss.message.as_str()));
        let known = claim.unavailable.as_ref().map(|(reason, message)| (reason.as_str(), message.as_str()));
        if shown == known || !claim.ours {
            return Outcome::Done;
        }
        let written = self.condition(key, claim, shown).await;
        if matches!(written, Ok(true)) {
            let has_node = claim.volume.is_some() || claim.selected.is_some();
            let claim = about("PersistentVolumeClaim", key, &claim.uid);
            match loss {
                Some(loss) => self.events.publish(&claim, Type::Warning, loss.reason, &loss.message),
                None if has_node => {
                    self.events.publish(
                        &claim,
                        Type::Normal,
                        "NodeReady",
                        "the volume's node is ready again",
                    );
                }
                // Its node was chosen, and is not any more.
                None => {}
            }
        }
        outcome(written.map(drop), "PersistentVolumeClaim", key)
    }

    /// Writes the condition; whether the claim is still the one that was looked at.
    async fn condition(&self, key: &Key, claim: &Claim, shown: Option<(&str, &str)>) -> Result<bool> {
        let Some(now) = self.client.find::<Value>(CLAIMS, key).await? else { return Ok(false) };
        if now["metadata"]["uid"] != *claim.uid {
            return Ok(false);
        }
        let all = now["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let patch = json!({
            "metadata": {"resourceVersion": now["metadata"]["resourceVersion"]},
            "status": {"conditions": conditions(all, shown, &time::text(time::now()))},
        });
        self.client.merge_patch::<IgnoredAny>(CLAIMS.sub("status"), key, &patch).await?;
        Ok(true)
    }

    /// Ends a PV that its node's agent cannot end, once an administrator has given it up.
    pub(super) async fn release(&self, key: &Key, volume: &Volume, loss: &Loss) -> Outcome {
        let about = about("PersistentVolume", key, &volume.uid);
        let done = match loss::step(volume, loss) {
            Step::Rest => Ok(()),
            Step::Wait => {
                self.events.publish(&about, Type::Warning, loss.reason, &loss.message);
                Ok(())
            }
            Step::Delete => {
                let options = Delete::default().uid(&volume.uid);
                let message = "deleted without its node, as an administrator has given it up";
                self.events.publish(&about, Type::Normal, "VolumeReleased", message);
                self.client.delete(VOLUMES, key, &options).await.map(drop)
            }
            Step::Finalizers(kept) => {
                tracing::info!(volume = %key, "PV released: its node is given up");
                let patch = json!({"metadata": {"uid": volume.uid, "finalizers": kept}});
                self.client.merge_patch::<IgnoredAny>(VOLUMES, key, &patch).await.map(drop)
            }
        };
        outcome(done, "PersistentVolume", key)
    }
}

/// Conditions with ours as it is to be.
fn conditions(mut all: Vec<Value>, shown: Option<(&str, &str)>, now: &str) -> Vec<Value> {
    let old = all.iter().position(|one| one["type"] == UNAVAILABLE).map(|at| all.remove(at));
    if let Some((reason, message)) = shown {
        let since = old.as_ref().and_then(|old| old["lastTransitionTime"].as_str()).unwrap_or(now);
        all.push(json!({
            "type": UNAVAILABLE, "status": "True", "reason": reason, "message": message, "lastTransitionTime": since,
        }));
    }
    all
}

fn outcome(result: Result<()>, what: &str, key: &Key) -> Outcome {
    match result {
        Ok(()) => Outcome::Done,
        Err(error) if error.is_not_found() => Outcome::Done,
        Err(error) => {
            tracing::warn!(what, %key, error = error.chain(), "cannot release a volume of a lost node; retrying");
            Outcome::Retry
        }
    }
}

fn about(kind: &str, key: &Key, uid: &str) -> Reference {
    Reference {
        api_version: "v1".to_owned(),
        kind: kind.to_owned(),
        namespace: key.namespace().to_owned(),
        name: key.name().to_owned(),
        uid: uid.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_condition_is_one_of_several_and_keeps_its_time() {
        let other = json!({"type": "Resizing", "status": "True"});
        let ours = |reason: &str, since: &str| json!({"type": UNAVAILABLE, "status": "True", "reason": reason, "message": "m", "lastTransitionTime": since});
        let first = conditions(vec![other.clone()], Some(("NodeNotReady", "m")), "1");
        assert_eq!(first, [other.clone(), ours("NodeNotReady", "1")]);
        let second = conditions(first, Some(("NodeGone", "m")), "2");
        assert_eq!(second, [other.clone(), ours("NodeGone", "1")]);
        assert_eq!(conditions(second, None, "3"), [other]);
    }
}
