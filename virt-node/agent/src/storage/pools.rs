//! Events about the node for states of its pools that an administrator should know: the limits are those of the alerts.
//! Warnings are repeated once an hour, as long as the API server keeps events; other states are reported once.
//!
//! Not here: how the driver finds out about its pools, and metrics.

use std::collections::BTreeMap;
use std::time::Duration;

use cluster::event::{Reference, Type};
use csi::pools::{ListRequest, Pool};
use tokio::time::Instant;

use super::controller::Controller;

/// Time between two looks.
const POLL_INTERVAL: Duration = Duration::from_secs(30);
/// Time until a warning is repeated.
const REMIND: Duration = Duration::from_secs(3600);
/// Volumes that an event names.
const NAMED: usize = 3;

/// A state of a pool that deserves an event.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    kind: Type,
    reason: &'static str,
    message: String,
}

/// Reported findings by pool and reason, and when.
type Reported = BTreeMap<(String, &'static str), Instant>;

/// The node in events, as the kubelet names it, and `kubectl describe node` looks for it.
pub(super) fn about_node(name: &str) -> Reference {
    Reference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        namespace: String::new(),
        name: name.to_owned(),
        uid: name.to_owned(),
    }
}

/// Some of the volumes, and the number of the others.
pub(super) fn named(volumes: &[String]) -> String {
    let (named, rest) = volumes.split_at(volumes.len().min(NAMED));
    let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
    format!("{}{more}", named.join(", "))
}

/// Reports until dropped.
pub(super) async fn watch(controller: &Controller) {
    let about = about_node(&controller.node);
    let mut reported = Reported::new();
    loop {
        match controller.driver.pools().list(ListRequest {}).await {
            Ok(answer) => {
                for finding in due(&mut reported, &answer.into_inner().pools, Instant::now()) {
                    controller.events.publish(&about, finding.kind, finding.reason, &finding.message);
                }
            }
            Err(status) => tracing::debug!(%status, "the driver reports no states of pools"),
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// The findings that are reported now; those of the past that ended are forgotten.
fn due(reported: &mut Reported, pools: &[Pool], now: Instant) -> Vec<Finding> {
    let mut next = Reported::new();
    let mut all = Vec::new();
    for pool in pools {
        for finding in findings(pool) {
            let key = (pool.name.clone(), finding.reason);
            let last = reported.get(&key).copied();
            let again = |at: Instant| finding.kind == Type::Warning && now.duration_since(at) >= REMIND;
            let is_due = last.is_none_or(again);
            next.insert(key, if is_due { now } else { last.unwrap_or(now) });
            if is_due {
                all.push(finding);
            }
        }
    }
    *reported = next;
    all
}

/// The findings about a pool, by the limits of the alerts.
fn findings(pool: &Pool) -> Vec<Finding> {
    let name = &pool.name;
    let finding = |kind, reason, message| Finding { kind, reason, message };
    if !pool.ready {
        let message = format!("the filesystem of storage pool {name} is not mounted");
        return vec![finding(Type::Warning, "StoragePoolNotReady", message)];
    }
    let mut all = Vec::new();
    if pool.read_only {
        let message = format!("storage pool {name} accepts no writes");
        all.push(finding(Type::Warning, "StoragePoolReadOnly", message));
    }
    if pool.free_bytes < pool.size_bytes / 10 {
        let message = format!("less than a tenth of storage pool {name} is free");
        all.push(finding(Type::Warning, "StoragePoolNearlyFull", message));
    }
    if u128::from(pool.reserved_bytes) * 10 > u128::from(pool.limit_bytes) * 9 {
        let message = format!("more than 90 % of storage pool {name} is reserved");
        all.push(finding(Type::Warning, "StoragePoolMostlyReserved", message));
    }
    if !pool.enforced {
        let message = format!("the capacity of volumes is not enforced in storage pool {name}");
        all.push(finding(Type::Normal, "StoragePoolNotEnforced", message));
    }
    if !pool.buffered_volumes.is_empty() {
        let volumes = named(&pool.buffered_volumes);
        let message = format!("loop devices in storage pool {name} use the page cache: {volumes}");
        all.push(finding(Type::Normal, "StoragePoolLoopBuffered", message));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn healthy() -> Pool {
        Pool {
            name: "fast".to_owned(),
            ready: true,
            enforced: true,
            size_bytes: 1000,
            free_bytes: 500,
            reserved_bytes: 100,
            limit_bytes: 900,
            ..Pool::default()
        }
    }

    #[test]
    fn states_of_pools_become_events_by_the_limits_of_the_alerts() {
        let reasons = |pool: Pool| findings(&pool).into_iter().map(|one| one.reason).collect::<Vec<_>>();
        for (pool, expected) in [
            (healthy(), &[][..]),
            (Pool { name: "fast".to_owned(), ..Pool::default() }, &["StoragePoolNotReady"]),
            (Pool { free_bytes: 100, ..healthy() }, &[]),
            (Pool { free_bytes: 99, ..healthy() }, &["StoragePoolNearlyFull"]),
            (Pool { reserved_bytes: 810, ..healthy() }, &[]),
            (Pool { reserved_bytes: 811, ..healthy() }, &["StoragePoolMostlyReserved"]),
            (Pool { reserved_bytes: u64::MAX, ..healthy() }, &["StoragePoolMostlyReserved"]),
            (Pool { read_only: true, ..healthy() }, &["StoragePoolReadOnly"]),
            (Pool { enforced: false, ..healthy() }, &["StoragePoolNotEnforced"]),
            (Pool { buffered_volumes: vec!["a".to_owned()], ..healthy() }, &["StoragePoolLoopBuffered"]),
        ] {
            assert_eq!(reasons(pool.clone()), expected, "{pool:?}");
        }
        let volumes = ["a", "b", "c", "d", "e"].map(str::to_owned).to_vec();
        let all = findings(&Pool { buffered_volumes: volumes, ..healthy() });
        let expected = "loop devices in storage pool fast use the page cache: a, b, c and 2 more";
        assert_eq!(all.first().unwrap().message, expected);
    }

    #[test]
    fn events_are_written_when_a_state_begins_and_warnings_once_an_hour() {
        let (mut reported, start) = (Reported::new(), Instant::now());
        let bad = [Pool { enforced: false, free_bytes: 1, ..healthy() }];
        let mut reasons = |pools: &[Pool], seconds: u64| {
            let all = due(&mut reported, pools, start + Duration::from_secs(seconds));
            all.into_iter().map(|one| one.reason).collect::<Vec<_>>()
        };
        let both = ["StoragePoolNearlyFull", "StoragePoolNotEnforced"];
        assert_eq!(reasons(&bad, 0), both);
        assert!(reasons(&bad, 3599).is_empty());
        assert_eq!(reasons(&bad, 3600), ["StoragePoolNearlyFull"]);
        assert!(reasons(&bad, 3630).is_empty());
        assert!(reasons(&[healthy()], 3660).is_empty());
        assert_eq!(reasons(&bad, 3690), both);
    }
}
