//! Decides what an object `KubeVirt` or `CDI` needs next. Pure.

use std::collections::BTreeSet;

/// Side of the platform that an object stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// Virtual machines: `KubeVirt`.
    Compute,
    /// Data import: `CDI`.
    Storage,
}

impl Side {
    /// Finalizer of the object, with upstream's name.
    pub fn finalizer(self) -> &'static str {
        match self {
            Self::Compute => "kubevirt.io/foregroundDeleteKubeVirt",
            Self::Storage => "operator.cdi.kubevirt.io",
        }
    }

    /// Components that must be ready, as Deployment or DaemonSet.
    pub fn components(self) -> &'static [&'static str] {
        match self {
            Self::Compute => &["ferrovirt-operator", "virt-handler"],
            Self::Storage => &["ferrovirt-operator", "cdi-uploadproxy"],
        }
    }

    /// Services of webhooks that refuse requests while no endpoint is ready.
    pub fn services(self) -> &'static [&'static str] {
        match self {
            Self::Compute => &["virt-api", "kubevirt-operator-webhook", "hco-webhook-service"],
            Self::Storage => &["cdi-api"],
        }
    }
}

/// The object, as far as decisions need it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedOwner {
    /// Whether a deletion was requested.
    pub deleting: bool,
    /// Whether it has our finalizer.
    pub held: bool,
    /// Whether deletion waits for workloads (`BlockUninstallIfWorkloadsExist`) instead of removing them.
    pub waits: bool,
}

/// A component of the platform: a Deployment or DaemonSet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Component {
    /// Name.
    pub name: String,
    /// Pods that should run.
    pub desired: u32,
    /// Pods that run in the present version and are ready.
    pub ready: u32,
    /// Whether the controller has seen the latest spec.
    pub current: bool,
}

impl Component {
    /// Whether every pod runs in the present version and is ready, by a controller that has seen the latest spec.
    pub fn is_ready(&self) -> bool {
        self.current && self.ready >= self.desired
    }

    /// How far its pods are, for conditions.
    pub fn progress(&self, kind: &str) -> String {
        format!("{kind} {} has {} of {} pods ready", self.name, self.ready, self.desired)
    }
}

/// A version of the platform, and the template of its images.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Release {
    /// Version.
    pub version: String,
    /// Template of images; empty where it is not reported.
    pub registry: String,
}

/// The inputs of the decision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// The object.
    pub object: ObservedOwner,
    /// Name of an older object of the same kind, which counts instead.
    pub older: Option<String>,
    /// The release that was deployed, if one was.
    pub deployed: Option<Release>,
    /// The release that is to be deployed.
    pub target: Release,
    /// Components that exist.
    pub components: Vec<Component>,
    /// Services that have a ready endpoint.
    pub services: BTreeSet<String>,
    /// Workloads that exist: VMs and instances, or DataVolumes. Counted only while the object is being deleted.
    pub workloads: usize,
    /// Whether instance types and preferences are left that go with the object. Counted only while it is being deleted.
    pub flavors: bool,
}

/// State of one side of the platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Another object of the kind is older and counts.
    Duplicate(String),
    /// These components are not ready, or Services of webhooks have no endpoint.
    Deploying(Vec<String>),
    /// The first release was deployed and works, the second one is not ready everywhere.
    Updating(Release, Release),
    /// The release was deployed, and these are not ready any more.
    Degraded(Vec<String>),
    /// Everything works.
    Deployed,
    /// Deletion waits for this number of workloads.
    Waiting(usize),
    /// Workloads are being removed.
    Removing(usize),
    /// Nothing is left.
    Removed,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Add the finalizer.
    Hold,
    /// Delete all workloads.
    DeleteWorkloads,
    /// Delete the instance types and preferences that the platform ships.
    DeleteFlavors,
    /// Remove the finalizer: the object may go.
    Release,
}

/// The state that an object is in.
pub fn state(side: Side, observed: &Observed) -> State {
    let Observed { object, older, deployed, target, components, services, workloads, flavors: _ } = observed;
    if object.deleting {
        return match (*workloads, object.waits) {
            // A duplicate never owned the workloads.
            _ if older.is_some() => State::Removed,
            (0, _) => State::Removed,
            (count, true) => State::Waiting(count),
            (count, false) => State::Removing(count),
        };
    }
    if let Some(older) = older {
        return State::Duplicate(older.clone());
    }
    let is_ready = |name: &&&str| components.iter().any(|one| one.name == ***name && one.is_ready());
    let pods = side.components().iter().filter(|name| !is_ready(name)).map(|name| (*name).to_owned());
    let unreachable = side.services().iter().filter(|name| !services.contains(**name));
    let missing: Vec<String> =
        pods.chain(unreachable.map(|name| format!("endpoints of the Service {name}"))).collect();
    match deployed {
        _ if missing.is_empty() => State::Deployed,
        None => State::Deploying(missing),
        Some(deployed) if deployed == target => State::Degraded(missing),
        Some(deployed) => State::Updating(deployed.clone(), target.clone()),
    }
}

/// The next step; the status is reported besides.
pub fn plan(observed: &Observed, state: &State) -> Option<Action> {
    let object = &observed.object;
    match state {
        // Those of a duplicate are the older object's.
        State::Removed if object.held && observed.flavors && observed.older.is_none() => {
            Some(Action::DeleteFlavors)
        }
        State::Removed if object.held => Some(Action::Release),
        State::Removing(_) => Some(Action::DeleteWorkloads),
        State::Deploying(_) | State::Updating(..) | State::Degraded(_) | State::Deployed if !object.held => {
            Some(Action::Hold)
        }
        State::Deploying(_)
        | State::Updating(..)
        | State::Degraded(_)
        | State::Deployed
        | State::Duplicate(_)
        | State::Waiting(_)
        | State::Removed => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(side: Side) -> Vec<Component> {
        let component =
            |name: &&str| Component { name: (*name).to_owned(), desired: 2, ready: 2, current: true };
        side.components().iter().map(component).collect()
    }

    fn observed(object: ObservedOwner) -> Observed {
        let services = Side::Compute.services().iter().map(|name| (*name).to_owned()).collect();
        Observed { object, components: ready(Side::Compute), services, ..Observed::default() }
    }

    fn next(observed: &Observed) -> (State, Option<Action>) {
        let state = state(Side::Compute, observed);
        let action = plan(observed, &state);
        (state, action)
    }

    #[test]
    fn a_new_object_gets_the_finalizer_before_anything_else() {
        assert_eq!(next(&observed(ObservedOwner::default())), (State::Deployed, Some(Action::Hold)));
        let held = ObservedOwner { held: true, ..ObservedOwner::default() };
        assert_eq!(next(&observed(held)), (State::Deployed, None));
    }

    #[test]
    fn deployed_needs_every_component_current_and_ready() {
        let held = ObservedOwner { held: true, ..ObservedOwner::default() };
        for change in [
            |list: &mut Vec<Component>| drop(list.remove(1)),
            |list: &mut Vec<Component>| list[1].ready = 1,
            |list: &mut Vec<Component>| list[1].current = false,
        ] {
            let mut one = observed(held.clone());
            change(&mut one.components);
            assert_eq!(next(&one), (State::Deploying(vec!["virt-handler".to_owned()]), None));
        }
        let mut one = observed(held);
        one.services.remove("virt-api");
        let missing = "endpoints of the Service virt-api".to_owned();
        assert_eq!(next(&one), (State::Deploying(vec![missing]), None));
    }

    #[test]
    fn after_a_release_was_deployed_it_is_degraded_or_updated_and_never_deployed_again() {
        let release =
            |version: &str| Release { version: version.to_owned(), registry: "r:{program}".to_owned() };
        let elsewhere = Release { registry: "s:{program}".to_owned(), ..release("1") };
        let missing = vec!["virt-handler".to_owned()];
        for (deployed, ready, wanted) in [
            (None, 1, State::Deploying(missing.clone())),
            (None, 2, State::Deployed),
            (Some(release("1")), 1, State::Degraded(missing)),
            (Some(release("1")), 2, State::Deployed),
            (Some(release("0")), 1, State::Updating(release("0"), release("1"))),
            (Some(release("0")), 2, State::Deployed),
            (Some(elsewhere.clone()), 1, State::Updating(elsewhere, release("1"))),
        ] {
            let held = ObservedOwner { held: true, ..ObservedOwner::default() };
            let mut one = Observed { deployed: deployed.clone(), target: release("1"), ..observed(held) };
            one.components[1].ready = ready;
            assert_eq!(next(&one), (wanted, None), "{deployed:?}, {ready} of 2 ready");
        }
    }

    #[test]
    fn a_second_object_is_a_duplicate_and_may_be_deleted_at_once() {
        let older = Some("kubevirt".to_owned());
        let one = Observed { older: older.clone(), ..observed(ObservedOwner::default()) };
        assert_eq!(next(&one), (State::Duplicate("kubevirt".to_owned()), None));
        let object = ObservedOwner { deleting: true, held: true, waits: true };
        let one = Observed { older, workloads: 3, ..observed(object) };
        assert_eq!(next(&one), (State::Removed, Some(Action::Release)));
    }

    #[test]
    fn deletion_waits_for_workloads_or_removes_them_by_the_strategy() {
        let object = |waits| ObservedOwner { deleting: true, held: true, waits };
        for (waits, workloads, wanted) in [
            (true, 2, (State::Waiting(2), None)),
            (false, 2, (State::Removing(2), Some(Action::DeleteWorkloads))),
            (true, 0, (State::Removed, Some(Action::Release))),
            (false, 0, (State::Removed, Some(Action::Release))),
        ] {
            let one = Observed { workloads, ..observed(object(waits)) };
            assert_eq!(next(&one), wanted, "waits {waits}, workloads {workloads}");
        }
    }

    #[test]
    fn instance_types_go_after_the_workloads_and_before_their_object() {
        let object = || ObservedOwner { deleting: true, held: true, waits: false };
        for (workloads, flavors, older, wanted) in [
            (1, true, None, Action::DeleteWorkloads),
            (0, true, None, Action::DeleteFlavors),
            (0, false, None, Action::Release),
            (0, true, Some("kubevirt".to_owned()), Action::Release),
        ] {
            let one = Observed { workloads, flavors, older, ..observed(object()) };
            assert_eq!(next(&one).1, Some(wanted), "{one:?}");
        }
        let held = ObservedOwner { held: true, ..ObservedOwner::default() };
        assert_eq!(next(&Observed { flavors: true, ..observed(held) }), (State::Deployed, None));
    }
}
