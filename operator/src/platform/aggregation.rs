//! Whether the roles `kubevirt.io:view`, `edit` and `admin` are part of the cluster's roles `view`, `edit` and `admin`, as
//! KubeVirt's `roleAggregationStrategy` asks for it. Not here: the rules of the roles ([`crate::install`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cluster::{Client, Key, Resource, Result};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::install::{AGGREGATE, COMPUTE_ROLES};

const ROLES: Resource = Resource::cluster("rbac.authorization.k8s.io", "v1", "clusterroles");
/// Value of the label of a role that `Manual` took out: a role that was installed without the label stays out.
const TAKEN_OUT: &str = "manual";
/// Time until labels are read again while `Manual` is chosen: a manifest that is applied again sets them.
pub(super) const AGAIN: Duration = Duration::from_secs(60);

/// The value that a role's label is to get; `None`: it stays.
fn wanted(manual: bool, label: Option<&str>) -> Option<&'static str> {
    match (manual, label) {
        (true, Some("true")) => Some(TAKEN_OUT),
        (false, Some(TAKEN_OUT)) => Some("true"),
        (true | false, _) => None,
    }
}

/// Keeps the labels.
#[derive(Clone, Debug, Default)]
pub(super) struct Aggregation {
    /// No role was taken out when the labels were last read.
    complete: Arc<AtomicBool>,
}

impl Aggregation {
    /// Sets the labels as the strategy wants them.
    pub(super) async fn follow(&self, client: &Client, manual: bool) -> Result<()> {
        if !manual && self.complete.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.complete.store(false, Ordering::Relaxed);
        for (name, to) in COMPUTE_ROLES {
            let (key, label) = (Key::cluster(name), format!("{AGGREGATE}{to}"));
            let Some(role) = client.find::<Value>(ROLES, &key).await? else { continue };
            if let Some(value) = wanted(manual, role["metadata"]["labels"][&label].as_str()) {
                tracing::info!(role = name, label, value, "the aggregation of a role changes");
                // A concurrent change, as by a manifest that is applied again, is a conflict.
                let version = &role["metadata"]["resourceVersion"];
                let patch = json!({"metadata": {"resourceVersion": version, "labels": {label: value}}});
                client.merge_patch::<IgnoredAny>(ROLES, &key, &patch).await?;
            }
        }
        self.complete.store(!manual, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_roles_that_were_aggregated_are_taken_out_and_return() {
        for (manual, label, value) in [
            (true, Some("true"), Some("manual")),
            (true, Some("manual"), None),
            (true, Some("false"), None),
            (true, None, None),
            (false, Some("manual"), Some("true")),
            (false, Some("true"), None),
            (false, Some("false"), None),
            (false, None, None),
        ] {
            assert_eq!(wanted(manual, label), value, "{manual} {label:?}");
        }
    }
}
