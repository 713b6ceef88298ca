//! Which node a claim or PV is labelled with, decided on what is known. Pure, tested as tables.

use super::seen::{Capacity, Claim, Class, Content, Node, Volume};

/// The change of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForClaim {
    /// Nothing.
    Nothing,
    /// The label of this node; `None`: no label, because no node is chosen any more.
    Label(Option<String>),
    /// This node is chosen: annotation and label.
    Choose(String),
    /// Its source has no node yet: look again.
    Wait,
    /// No node has room, and why: look again when capacities change.
    NoRoom(String),
}

/// The objects that a claim refers to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Around<'a> {
    /// Its class.
    pub class: Option<&'a Class>,
    /// The PV that it is bound to.
    pub volume: Option<&'a Volume>,
    /// The node of the claim or snapshot that it is a copy of.
    pub source: Option<&'a str>,
    /// Whether stock csi-provisioner chooses.
    pub stock: bool,
}

/// The room of a node for a class.
#[derive(Clone, Copy, Debug)]
pub struct Room<'a> {
    /// What the node's agent or csi-provisioner wrote.
    pub capacity: &'a Capacity,
    /// The node; `None` when the cluster has it no more.
    pub node: Option<&'a Node>,
}

impl Room<'_> {
    /// Whether a claim's volume can be made there now.
    fn fits(&self, claim: &Claim) -> bool {
        self.node.is_some_and(|node| node.ready) && self.is_enough(claim)
    }

    /// Whether there is room for a claim's volume.
    fn is_enough(&self, claim: &Claim) -> bool {
        let Capacity { available, largest, .. } = self.capacity;
        largest.unwrap_or(*available) >= claim.request
    }
}

/// Decides about a claim; `rooms` are those of its class.
pub fn for_claim(claim: &Claim, around: Around<'_>, rooms: &[Room<'_>]) -> ForClaim {
    if !claim.ours || claim.deleting {
        return ForClaim::Nothing;
    }
    let label = |node: Option<&String>| {
        if claim.label.as_ref() == node { ForClaim::Nothing } else { ForClaim::Label(node.cloned()) }
    };
    if claim.volume.is_some() {
        return match around.volume {
            // The PV may not be known yet, or may have no node yet: what is written stays until it has.
            None => ForClaim::Nothing,
            Some(volume) if volume.ours && volume.served_by().is_none() => ForClaim::Nothing,
            Some(volume) => label(volume.served_by()),
        };
    }
    if claim.selected.is_some() {
        return label(claim.selected.as_ref());
    }
    let chosen_here = around.class.is_some_and(|class| class.ours && class.immediate) && !around.stock;
    if !chosen_here || claim.other_source {
        return label(None);
    }
    let is_copy = claim.source.is_some() || claim.snapshot.is_some();
    if is_copy && around.source.is_none() {
        return ForClaim::Wait;
    }
    let allowed = |node: &str| {
        around.source.is_none_or(|source| source == node)
            && around.class.is_some_and(|class| class.allows(node))
    };
    let may = |room: &&Room<'_>| room.capacity.node.as_deref().is_some_and(allowed) && room.fits(claim);
    // A cordoned node is the last choice: no new pod would find the volume there.
    let open = |room: &Room<'_>| room.node.is_some_and(|node| !node.cordoned);
    let most = rooms.iter().filter(may).max_by(|a, b| {
        let most = open(a).cmp(&open(b)).then(a.capacity.available.cmp(&b.capacity.available));
        most.then_with(|| b.capacity.node.cmp(&a.capacity.node))
    });
    most.and_then(|room| room.capacity.node.clone())
        .map_or_else(|| ForClaim::NoRoom(no_room(claim, around, rooms)), ForClaim::Choose)
}

/// Why no node can make a claim's volume, and what can be done about it. The text has no amounts of room: they change
/// all the time.
fn no_room(claim: &Claim, around: Around<'_>, rooms: &[Room<'_>]) -> String {
    let class = claim.class.as_deref().unwrap_or_default();
    let wanted =
        format!("room for a volume of {} in StorageClass {class}", api::quantity::text(claim.request));
    let allowed = |node: &str| around.class.is_some_and(|class| class.allows(node));
    let is_allowed = |room: &&Room<'_>| room.capacity.node.as_deref().is_some_and(allowed);
    match around.source {
        Some(node) if !allowed(node) => {
            format!(
                "StorageClass {class} does not allow node {node}, which has the source: use another class"
            )
        }
        Some(node) => format!(
            "node {node}, which has the source, has no {wanted}, or is not ready: free or add storage there, or delete the \
             claim and copy less"
        ),
        None if rooms.is_empty() => format!(
            "no node reports room in StorageClass {class}: check its parameters and the pods of the CSI driver"
        ),
        None if !rooms.iter().any(|room| is_allowed(&room)) => {
            format!("no node of the allowedTopologies of StorageClass {class} reports room: correct them")
        }
        None if rooms.iter().filter(is_allowed).any(|room| room.is_enough(claim)) => {
            format!("every node with {wanted} is not ready: bring one back")
        }
        None => format!("no node has {wanted}: free or add storage, or delete the claim and request less"),
    }
}

/// The change of a PV.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForVolume {
    /// Nothing.
    Nothing,
    /// The label of this node.
    Label(String),
    /// No node with its pool is ready: look again.
    Wait,
}

/// Decides about a PV; `nodes` are ready and have the pools of its class. A PV of a shared pool can be served by any of them,
/// and stays with one while that is ready.
pub fn for_volume(volume: &Volume, nodes: &[&str]) -> ForVolume {
    let label = volume.label.as_deref();
    let wanted = match volume.node.as_deref() {
        _ if !volume.ours => None,
        Some(node) => Some(node),
        None if label.is_some_and(|node| nodes.contains(&node)) => label,
        None => {
            // Spread by uid, and the same one each time.
            let number: usize = volume.uid.bytes().map(usize::from).sum();
            number.checked_rem(nodes.len()).and_then(|at| nodes.get(at).copied()).or(label)
        }
    };
    match wanted {
        None if volume.ours => ForVolume::Wait,
        Some(node) if label != Some(node) => ForVolume::Label(node.to_owned()),
        _ => ForVolume::Nothing,
    }
}

/// The change of a VolumeSnapshotContent or VolumeGroupSnapshotContent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForContent {
    /// Nothing.
    Nothing,
    /// The label that lets agents look for its snapshot is set or removed.
    Unassigned(bool),
    /// The label of this node: its agent takes the snapshot.
    Node(String),
    /// The node of its volume is not known: look again.
    Wait,
}

/// Decides about a content; `volume` is that of which its snapshot is taken. A snapshot controller without distributed
/// snapshotting leaves the label of the node out.
pub fn for_content(content: &Content, volume: Option<&Volume>) -> ForContent {
    let wanted = content.given && content.node.is_none();
    if wanted != content.unassigned {
        return ForContent::Unassigned(wanted);
    }
    if content.volume.is_none() || content.node.is_some() {
        return ForContent::Nothing;
    }
    match volume.and_then(Volume::served_by) {
        Some(node) => ForContent::Node(node.clone()),
        None => ForContent::Wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> Claim {
        Claim { ours: true, uid: "u".into(), class: Some("c".into()), request: 10, ..Claim::default() }
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    /// No node has room, for a reason that begins with a text.
    fn full(why: &str) -> ForClaim {
        ForClaim::NoRoom(why.to_owned())
    }

    /// The decision, with as much of its reason as is expected.
    fn begin(mut found: ForClaim, expected: &ForClaim) -> ForClaim {
        if let (ForClaim::NoRoom(why), ForClaim::NoRoom(expected)) = (&mut found, expected) {
            assert!(why.contains(": "), "a remedy follows: {why}");
            why.truncate(expected.len());
        }
        found
    }

    #[test]
    fn a_claim_gets_the_node_that_was_chosen() {
        let late = Class { ours: true, ..Class::default() };
        let at_once = Class { ours: true, immediate: true, ..Class::default() };
        let first = Class { allowed: Some(["n1".to_owned()].into()), ..at_once.clone() };
        let bound = Volume { ours: true, node: some("n2"), ..Volume::default() };
        let shared = Volume { node: None, ..bound.clone() };
        let served = Volume { label: some("n3"), ..shared.clone() };
        let others = Volume::default();
        let capacity = |node: &str, available| Capacity {
            class: "c".into(),
            node: some(node),
            available,
            largest: Some(available),
        };
        let (small, one, two) = (capacity("n3", 9), capacity("n1", 50), capacity("n2", 60));
        let ready = Node { ready: true, ..Node::default() };
        let all = [&small, &one, &two].map(|capacity| Room { capacity, node: Some(&ready) });
        let on = |class| Around { class: Some(class), ..Around::default() };
        let cases: Vec<(Claim, Around<'_>, &[Room<'_>], ForClaim)> = vec![
            (Claim::default(), on(&late), &all, ForClaim::Nothing),
            (claim(), on(&late), &all, ForClaim::Nothing),
            (Claim { selected: some("n1"), ..claim() }, on(&late), &all, ForClaim::Label(some("n1"))),
            (
                Claim { selected: some("n1"), label: some("n1"), ..claim() },
                on(&late),
                &all,
                ForClaim::Nothing,
            ),
            (Claim { label: some("n1"), ..claim() }, on(&late), &all, ForClaim::Label(None)),
            (claim(), on(&at_once), &all, ForClaim::Choose("n2".into())),
            (
                Claim { request: 70, ..claim() },
                on(&at_once),
                &all,
                full("no node has room for a volume of 70"),
            ),
            (claim(), on(&first), &all, ForClaim::Choose("n1".into())),
            (Claim { request: 55, ..claim() }, on(&first), &all, full("no node has room for a volume of 55")),
            (
                Claim { source: some("golden"), ..claim() },
                Around { source: Some("n2"), ..on(&first) },
                &all,
                full("StorageClass c does not allow node n2"),
            ),
            (claim(), Around { stock: true, ..on(&at_once) }, &all, ForClaim::Nothing),
            (Claim { other_source: true, ..claim() }, on(&at_once), &all, ForClaim::Nothing),
            (
                Claim { source: some("golden"), ..claim() },
                Around { source: Some("n1"), ..on(&at_once) },
                &all,
                ForClaim::Choose("n1".into()),
            ),
            (
                Claim { source: some("golden"), request: 55, ..claim() },
                Around { source: Some("n1"), ..on(&at_once) },
                &all,
                full("node n1, which has the source, has no room for a volume of 55"),
            ),
            (
                Claim { snapshot: some("golden"), ..claim() },
                Around { source: Some("n4"), ..on(&at_once) },
                &all,
                full("node n4, which has the source, has no room for a volume of 10"),
            ),
            (Claim { source: some("golden"), ..claim() }, on(&at_once), &all, ForClaim::Wait),
            (Claim { snapshot: some("golden"), ..claim() }, on(&at_once), &all, ForClaim::Wait),
            (
                Claim { volume: some("pv"), ..claim() },
                Around { volume: Some(&bound), ..on(&late) },
                &all,
                ForClaim::Label(some("n2")),
            ),
            (Claim { volume: some("pv"), label: some("n2"), ..claim() }, on(&late), &all, ForClaim::Nothing),
            (
                Claim { volume: some("pv"), label: some("n2"), ..claim() },
                Around { volume: Some(&shared), ..on(&late) },
                &all,
                ForClaim::Nothing,
            ),
            (
                Claim { volume: some("pv"), label: some("n2"), ..claim() },
                Around { volume: Some(&served), ..on(&late) },
                &all,
                ForClaim::Label(some("n3")),
            ),
            (
                Claim { volume: some("pv"), label: some("n2"), ..claim() },
                Around { volume: Some(&others), ..on(&late) },
                &all,
                ForClaim::Label(None),
            ),
            (Claim { deleting: true, ..claim() }, on(&at_once), &all, ForClaim::Nothing),
            (claim(), on(&at_once), &[], full("no node reports room in StorageClass c: ")),
            (claim(), on(&first), &all[..1], full("no node of the allowedTopologies of StorageClass c ")),
        ];
        for (claim, around, rooms, expected) in cases {
            let found = begin(for_claim(&claim, around, rooms), &expected);
            assert_eq!(found, expected, "{claim:?} {around:?}");
        }
    }

    #[test]
    fn a_node_that_is_away_is_not_chosen() {
        let class = Class { ours: true, immediate: true, ..Class::default() };
        let ready = Node { ready: true, ..Node::default() };
        let away = Node { ready: false, ..Node::default() };
        let cordoned = Node { cordoned: true, ..ready.clone() };
        let capacity = |node: &str, available| Capacity {
            class: "c".into(),
            node: some(node),
            available,
            largest: None,
        };
        let (less, more) = (capacity("n1", 50), capacity("n2", 60));
        let choose = |node: &str| ForClaim::Choose(node.to_owned());
        for (first, second, source, expected) in [
            (Some(&ready), Some(&ready), None, choose("n2")),
            (Some(&ready), Some(&away), None, choose("n1")),
            (Some(&ready), None, None, choose("n1")),
            (
                Some(&away),
                None,
                None,
                full("every node with room for a volume of 10 in StorageClass c is not ready"),
            ),
            (Some(&ready), Some(&cordoned), None, choose("n1")),
            (Some(&away), Some(&cordoned), None, choose("n2")),
            (Some(&ready), Some(&away), Some("n2"), full("node n2, which has the source, has no room")),
            (Some(&ready), Some(&cordoned), Some("n2"), choose("n2")),
        ] {
            let rooms = [Room { capacity: &less, node: first }, Room { capacity: &more, node: second }];
            let claim = Claim { source: source.map(|_| "golden".to_owned()), ..claim() };
            let around = Around { class: Some(&class), source, ..Around::default() };
            let found = begin(for_claim(&claim, around, &rooms), &expected);
            assert_eq!(found, expected, "{first:?} {second:?} {source:?}");
        }
    }

    #[test]
    fn a_volume_gets_the_node_of_its_affinity() {
        let volume = |node: Option<&str>, label: Option<&str>| Volume {
            ours: true,
            node: node.map(str::to_owned),
            label: label.map(str::to_owned),
            ..Volume::default()
        };
        let to = |node: &str| ForVolume::Label(node.to_owned());
        let all = ["n1", "n2"];
        for (volume, nodes, expected) in [
            (Volume::default(), &all[..], ForVolume::Nothing),
            (volume(Some("n3"), None), &all, to("n3")),
            (volume(Some("n1"), Some("n2")), &all, to("n1")),
            (volume(Some("n1"), Some("n1")), &[], ForVolume::Nothing),
            // Of a shared pool.
            (volume(None, None), &all, to("n1")),
            (Volume { uid: "\u{1}".into(), ..volume(None, None) }, &all, to("n2")),
            (volume(None, Some("n2")), &all, ForVolume::Nothing),
            (volume(None, Some("gone")), &all, to("n1")),
            (volume(None, Some("gone")), &[], ForVolume::Nothing),
            (volume(None, None), &[], ForVolume::Wait),
        ] {
            assert_eq!(for_volume(&volume, nodes), expected, "{volume:?} {nodes:?}");
        }
    }
    #[test]
    fn agents_look_for_a_snapshot_that_was_not_taken_here() {
        let label = ForContent::Unassigned;
        for (given, node, unassigned, expected) in [
            (true, None, false, label(true)),
            (true, None, true, ForContent::Nothing),
            (true, Some("n1"), true, label(false)),
            (true, Some("n1"), false, ForContent::Nothing),
            (false, None, false, ForContent::Nothing),
            (false, None, true, label(false)),
        ] {
            let content = Content { given, node: node.and_then(some), unassigned, ..Content::default() };
            assert_eq!(for_content(&content, None), expected, "{content:?}");
        }
    }

    #[test]
    fn the_agent_of_the_volume_takes_a_snapshot() {
        let pinned = Volume { ours: true, node: some("n1"), ..Volume::default() };
        let shared = Volume { ours: true, label: some("n2"), ..Volume::default() };
        let nowhere = Volume { ours: true, ..Volume::default() };
        let to = |node: &str| ForContent::Node(node.to_owned());
        for (node, volume, expected) in [
            (None, Some(&pinned), to("n1")),
            (None, Some(&shared), to("n2")),
            (None, Some(&nowhere), ForContent::Wait),
            (None, None, ForContent::Wait),
            // As a controller with distributed snapshotting has labelled it.
            (Some("n3"), Some(&pinned), ForContent::Nothing),
        ] {
            let content = Content { volume: some("pvc-1"), node: node.and_then(some), ..Content::default() };
            assert_eq!(for_content(&content, volume), expected, "{node:?} {volume:?}");
        }
    }
}
