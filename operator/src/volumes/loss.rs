//! Volumes of a node that is gone or not ready: the condition of their claims, also of claims that the node has made no
//! volume for yet, and their release by an administrator. Pure.
//!
//! A volume lives on one node, and its data with it. While the node is away nothing is deleted: it may come back. When an
//! administrator gives up the node, or one PV, its objects can be deleted without the node.

use api::hostpath::PROVISION_ON_NODE;

use super::seen::{NODE_LOST, Node, PROVISIONED, SELECTED_NODE, Volume};

/// Why a volume cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Loss {
    /// For programs.
    pub reason: &'static str,
    /// The cause and the remedy.
    pub message: String,
    /// Whether an administrator has given it up.
    pub given_up: bool,
}

/// A step of a PV of a node that is away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It waits for its node, or for an administrator.
    Wait,
    /// Nothing.
    Rest,
    /// It is deleted: its claim is gone, and its reclaim policy asks for it.
    Delete,
    /// These are its finalizers: that of its node's agent goes.
    Finalizers(Vec<String>),
}

/// Whether a node is away, and it or the object itself is given up.
pub(super) fn is_lost(node: Option<&Node>, given_up: bool) -> bool {
    match node {
        Some(node) => !node.ready && (node.given_up || given_up),
        None => given_up,
    }
}

/// A reason and a text if the node called `home` is away.
fn away(home: &str, node: Option<&Node>) -> Option<(&'static str, String)> {
    match node {
        Some(node) if node.ready => None,
        None => Some(("NodeGone", format!("node {home} does not exist"))),
        Some(node) if node.since.is_empty() => Some(("NodeNotReady", format!("node {home} is not ready"))),
        Some(node) => Some(("NodeNotReady", format!("node {home} is not ready since {}", node.since))),
    }
}

/// Why the volume of a claim is not made, for which the node called `home` was chosen; `None` when that is ready.
/// Another node is not chosen by itself: this one may have made the volume already.
pub(super) fn unmade(home: &str, node: Option<&Node>) -> Option<Loss> {
    let (reason, what) = away(home, node)?;
    let message = format!(
        "the volume is not made: {what}; bring the node back, or remove the claim's annotation that names it \
         ({SELECTED_NODE}, or {PROVISION_ON_NODE}), and another one is chosen"
    );
    Some(Loss { reason, message, given_up: false })
}

/// Why a volume called `name` cannot be reached; `None` when its node is ready, or it has none. `node` is `None` when
/// the cluster has no such node.
pub(super) fn loss(name: &str, volume: &Volume, node: Option<&Node>) -> Option<Loss> {
    let home = volume.node.as_deref()?;
    let (reason, what) = away(home, node)?;
    let given_up = is_lost(node, volume.given_up);
    let place = if node.is_some() { format!("node {home}") } else { format!("pv {name}") };
    let todo = if given_up {
        "an administrator has given it up: delete the claim, and what makes it again gets an empty volume on another node"
            .to_owned()
    } else {
        format!(
            "bring the node back, or, if it is lost for good, give up its data with \"kubectl annotate {place} \
             {NODE_LOST}=true\" and delete the claim"
        )
    };
    let message = format!("volume {name} cannot be reached: {what}; {todo}");
    Some(Loss { reason, message, given_up })
}

/// The next step of a PV of a node that is away.
pub(super) fn step(volume: &Volume, loss: &Loss) -> Step {
    let ends = volume.deleting || volume.disposable;
    match (ends, loss.given_up) {
        (false, _) => Step::Rest,
        (true, false) => Step::Wait,
        // Deleted first: without its finalizer a PV that is only Released would not go.
        (true, true) if !volume.deleting => Step::Delete,
        (true, true) => {
            let kept: Vec<String> =
                volume.finalizers.iter().filter(|name| *name != PROVISIONED).cloned().collect();
            if kept == volume.finalizers { Step::Rest } else { Step::Finalizers(kept) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume() -> Volume {
        let finalizers = vec!["kubernetes.io/pv-protection".to_owned(), PROVISIONED.to_owned()];
        Volume { node: Some("n1".into()), finalizers, ..Volume::default() }
    }

    fn node(ready: bool, given_up: bool) -> Node {
        Node { ready, since: "2026-01-02T03:04:05Z".into(), cordoned: false, given_up }
    }

    #[test]
    fn claims_of_a_node_that_is_away_report_cause_and_remedy() {
        let given = Volume { given_up: true, ..volume() };
        let anywhere = Volume { node: None, ..volume() };
        let (ready, away, lost) = (node(true, false), node(false, false), node(false, true));
        for (volume, node, wanted) in [
            (volume(), Some(&ready), None),
            (anywhere, None, None),
            (volume(), Some(&away), Some(("NodeNotReady", false))),
            (volume(), None, Some(("NodeGone", false))),
            (volume(), Some(&lost), Some(("NodeNotReady", true))),
            (given.clone(), Some(&away), Some(("NodeNotReady", true))),
            (given.clone(), None, Some(("NodeGone", true))),
            // A node that has come back does its work itself.
            (given, Some(&ready), None),
        ] {
            let found = loss("pv", &volume, node).map(|loss| (loss.reason, loss.given_up));
            assert_eq!(found, wanted, "{volume:?} {node:?}");
        }
        let text = |node: Option<&Node>| loss("pv", &volume(), node).unwrap().message;
        assert_eq!(
            text(Some(&away)),
            "volume pv cannot be reached: node n1 is not ready since 2026-01-02T03:04:05Z; bring the node back, or, if it is \
             lost for good, give up its data with \"kubectl annotate node n1 ferrovirt.io/node-lost=true\" and delete the claim"
        );
        assert!(text(None).contains("kubectl annotate pv pv ferrovirt.io/node-lost=true"));
        assert!(text(Some(&lost)).contains("given it up: delete the claim"));
    }

    #[test]
    fn claims_of_a_chosen_node_that_is_away_report_cause_and_remedy() {
        let (ready, away) = (node(true, false), node(false, false));
        assert_eq!(unmade("n1", Some(&ready)), None);
        for (node, reason, what) in [
            (Some(&away), "NodeNotReady", "node n1 is not ready since 2026-01-02T03:04:05Z"),
            (None, "NodeGone", "node n1 does not exist"),
        ] {
            let found = unmade("n1", node).unwrap();
            assert_eq!((found.reason, found.given_up), (reason, false));
            assert_eq!(
                found.message,
                format!(
                    "the volume is not made: {what}; bring the node back, or remove the claim's annotation that names it \
                     (volume.kubernetes.io/selected-node, or kubevirt.io/provisionOnNode), and another one is chosen"
                )
            );
        }
    }

    #[test]
    fn nothing_is_deleted_before_an_administrator_gives_it_up() {
        let loss = |given_up| Loss { reason: "NodeGone", message: String::new(), given_up };
        let released = Volume { disposable: true, ..volume() };
        let deleted = Volume { deleting: true, ..volume() };
        let bare = Volume { finalizers: vec!["kubernetes.io/pv-protection".into()], ..deleted.clone() };
        let left = vec!["kubernetes.io/pv-protection".to_owned()];
        for (volume, given_up, wanted) in [
            (volume(), false, Step::Rest),
            (volume(), true, Step::Rest),
            (released.clone(), false, Step::Wait),
            (released, true, Step::Delete),
            (deleted.clone(), false, Step::Wait),
            (deleted, true, Step::Finalizers(left)),
            (bare, true, Step::Rest),
        ] {
            assert_eq!(step(&volume, &loss(given_up)), wanted, "{volume:?} {given_up}");
        }
    }
}
