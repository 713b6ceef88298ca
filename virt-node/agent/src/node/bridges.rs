//! Bridges of the node as resources of its Node object, so that the scheduler finds the nodes that have a network:
//! `bridge.network.kubevirt.io/NAME`, 1000 of each. In place of bridge-marker. The forwarding entries of locked ports follow
//! the VLANs of the ports: a change of these is a link event, too.
//!
//! ```text
//! kernel's link events ─┬─► link::locked
//! Node object (watch) ──┴─► bridges there ─► plan ─► merge patch of the Node's status
//! ```
//!
//! The kubelet sets resources that it did not make to 0 when it starts; the watch brings that, and they are set again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cluster::{Cache, Client, Key, Resource, Scope};
use link::netlink::{Event, Link, Router};
use link::{Namespace, locked};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use crate::error::{Error, Kind, Result};

const NODES: Resource = Resource::cluster("", "v1", "nodes");
/// The prefix of the resources.
const PREFIX: &str = "bridge.network.kubevirt.io/";
/// How many of each there are, as upstream has it: more than pods on a node.
const COUNT: &str = "1000";
/// Most bridges that are shown; resources of a Node object are not without cost.
const BRIDGES_MAX: usize = 256;
/// Timeout of one wait for link events, after which the end of the process is checked.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long changes are gathered: a bridge is often made, configured and renamed in one go.
const GATHER: Duration = Duration::from_millis(200);
/// After a failure.
const AGAIN: Duration = Duration::from_secs(2);

/// The bridges that a Node object shows, with their counts: capacity and allocatable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Shown {
    capacity: BTreeMap<String, String>,
    allocatable: BTreeMap<String, String>,
}

/// A Node object, as far as it is read.
#[derive(Debug, Default, Deserialize)]
struct Node {
    #[serde(default)]
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
struct Status {
    #[serde(default)]
    capacity: BTreeMap<String, String>,
    #[serde(default)]
    allocatable: BTreeMap<String, String>,
}

impl From<&Node> for Shown {
    fn from(node: &Node) -> Self {
        let bridges = |all: &BTreeMap<String, String>| {
            let ours = all.iter().filter(|(name, _)| name.starts_with(PREFIX));
            ours.map(|(name, count)| (name.clone(), count.clone())).collect()
        };
        let Status { capacity, allocatable } = &node.status;
        Self { capacity: bridges(capacity), allocatable: bridges(allocatable) }
    }
}

/// The merge patch after which a Node object shows exactly these bridges; `None`: it does.
fn plan(bridges: &BTreeSet<String>, shown: &Shown) -> Option<Value> {
    let wanted: BTreeSet<String> = bridges
        .iter()
        .filter(|name| is_name(name))
        .take(BRIDGES_MAX)
        .map(|name| format!("{PREFIX}{name}"))
        .collect();
    let changes = |found: &BTreeMap<String, String>| {
        let missing = wanted.iter().filter(|name| !found.get(*name).is_some_and(|count| is_count(count)));
        let mut changes: Map<String, Value> = missing.map(|name| (name.clone(), json!(COUNT))).collect();
        let gone = found.keys().filter(|name| !wanted.contains(*name));
        changes.extend(gone.map(|name| (name.clone(), Value::Null)));
        changes
    };
    let (capacity, allocatable) = (changes(&shown.capacity), changes(&shown.allocatable));
    let mut status = Map::new();
    for (field, changes) in [("capacity", capacity), ("allocatable", allocatable)] {
        if !changes.is_empty() {
            status.insert(field.to_owned(), Value::Object(changes));
        }
    }
    (!status.is_empty()).then(|| json!({ "status": status }))
}

/// Whether a resource has the count: the API server writes a thousand in its own way.
fn is_count(text: &str) -> bool {
    [COUNT, "1k"].contains(&text)
}

/// Whether the API server takes a link's name in the name of a resource.
fn is_name(name: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    name.bytes().all(good)
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.ends_with(|last: char| last.is_ascii_alphanumeric())
}

/// Reports the bridges of a network namespace, and has the entries of its locked ports follow their VLANs, at once and after
/// each change, until the receiver is gone. On a thread of its own, which stays in that namespace.
fn follow(namespace: &Path, tell: &watch::Sender<BTreeSet<String>>) -> Result<()> {
    Namespace::open(namespace)?.enter()?;
    let mut events = Router::open()?;
    events.listen(Event::Link)?;
    let mut router = Router::open()?;
    router.strict()?;
    let mut unfixed = Vec::new();
    while !tell.is_closed() {
        let links = Link::all(&router.ask(Link::list(None))?);
        let bridges = links.iter().filter(|link| link.is_bridge()).map(|link| link.name.clone());
        let bridges: BTreeSet<String> = bridges.collect();
        tell.send_if_modified(|known| {
            let new = *known != bridges;
            *known = bridges;
            new
        });
        // Bridges are reported even so. A lasting reason is logged once.
        let reasons = locked::follow(&links, &mut router).unwrap_or_else(|error| vec![error.chain()]);
        for reason in reasons.iter().filter(|reason| !unfixed.contains(*reason)) {
            tracing::warn!(reason, "the forwarding entries of a locked port do not match its VLANs");
        }
        unfixed = reasons;
        if events.wait(TIMEOUT)? {
            std::thread::sleep(GATHER);
        }
    }
    Ok(())
}

/// Keeps the Node object true as long as the process runs.
pub(crate) async fn keep(client: Client, node: String, namespace: PathBuf) {
    let (tell, mut bridges) = watch::channel(BTreeSet::new());
    let follower = move || {
        while !tell.is_closed() {
            if let Err(error) = follow(&namespace, &tell) {
                tracing::warn!(error = error.chain(), "cannot watch the node's bridges; retrying");
                std::thread::sleep(AGAIN);
            }
        }
    };
    if let Err(error) = std::thread::Builder::new().name("bridges".to_owned()).spawn(follower) {
        tracing::error!(%error, "cannot start the thread that watches the node's bridges; the scheduler does not see them");
        return;
    }
    // Until the first look at the kernel nothing is known, and nothing is removed.
    if bridges.changed().await.is_err() {
        return;
    }
    let cache = Cache::<Shown>::builder().start::<Node>(&client, NODES, &Scope::all().name(&node));
    cache.synced().await;
    let (mut changes, key) = (cache.changes(), Key::cluster(&node));
    loop {
        let now = bridges.borrow_and_update().clone();
        let again = match cache.get(&key).map(|shown| plan(&now, &shown)) {
            Some(Some(patch)) => show(&client, &key, &patch).await,
            Some(None) | None => Ok(()),
        };
        if let Err(error) = &again {
            tracing::warn!(
                error = error.chain(),
                "cannot report the node's bridges to the scheduler; retrying"
            );
        }
        tokio::select! {
            changed = bridges.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            _ = changes.next() => {}
            () = tokio::time::sleep(AGAIN), if again.is_err() => {}
        }
    }
}

async fn show(client: &Client, key: &Key, patch: &Value) -> Result<()> {
    let written = client.merge_patch::<serde::de::IgnoredAny>(NODES.sub("status"), key, patch).await;
    written
        .map(drop)
        .map_err(|error| Error::with(Kind::Cluster, format!("cannot write the status of node {key}"), error))
}

#[cfg(test)]
mod vlan_guest;

#[cfg(test)]
mod tests {
    use super::*;

    fn published(capacity: &[(&str, &str)], allocatable: &[(&str, &str)]) -> Shown {
        let map = |pairs: &[(&str, &str)]| {
            let name = |name: &str| {
                if name.contains('/') || name == "cpu" { name.to_owned() } else { format!("{PREFIX}{name}") }
            };
            pairs.iter().map(|(key, count)| (name(key), (*count).to_owned())).collect()
        };
        let status = Status { capacity: map(capacity), allocatable: map(allocatable) };
        Shown::from(&Node { status })
    }

    #[test]
    fn bridges_are_shown_and_nothing_else_is_touched() {
        let bridges = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let name = |name: &str| format!("{PREFIX}{name}");
        let full = [("br0", COUNT), ("cpu", "2"), ("other.io/x", "1")];
        for (what, there, found, wanted) in [
            ("nothing", bridges(&[]), published(&[("cpu", "2")], &[("cpu", "2")]), None),
            ("as it is", bridges(&["br0"]), published(&full, &full), None),
            (
                "as the API server writes it",
                bridges(&["br0"]),
                published(&[("br0", "1k")], &[("br0", "1k")]),
                None,
            ),
            (
                "new, and one is gone",
                bridges(&["br1"]),
                published(&full, &full),
                Some(json!({"status": {
                    "capacity": {name("br0"): null, name("br1"): COUNT},
                    "allocatable": {name("br0"): null, name("br1"): COUNT},
                }})),
            ),
            (
                "set to 0 by the kubelet",
                bridges(&["br0"]),
                published(&[("br0", "0")], &full),
                Some(json!({"status": {"capacity": {name("br0"): COUNT}}})),
            ),
            ("no name of a resource", bridges(&["br_", "a b", "ü"]), published(&[], &[]), None),
        ] {
            assert_eq!(plan(&there, &found), wanted, "{what}");
        }
    }

    #[test]
    fn changes_of_bridges_are_noticed_within_a_second() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node");
        let (namespace, _) = Namespace::create(&path).unwrap();
        let ip = |words: &str| {
            let run = || {
                let output = std::process::Command::new("ip").args(words.split(' ')).output().unwrap();
                assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
                Ok::<_, Error>(())
            };
            namespace.on_a_thread(run).unwrap();
        };
        let (tell, mut seen) = watch::channel(BTreeSet::new());
        let at = path.clone();
        let follower = std::thread::spawn(move || follow(&at, &tell));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let mut is = |wanted: &[&str]| {
            let wanted: BTreeSet<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
            let same = seen.wait_for(|bridges| *bridges == wanted);
            runtime
                .block_on(async { tokio::time::timeout(Duration::from_secs(5), same).await.map(drop) })
                .unwrap();
        };
        ip("link add br0 type bridge");
        is(&["br0"]);
        ip("link add v0 type veth peer name v1");
        ip("link set br0 name br1");
        is(&["br1"]);
        ip("link del br1");
        is(&[]);
        drop(seen);
        ip("link del v0");
        follower.join().unwrap().unwrap();
        Namespace::remove(&path).unwrap();
    }
}
