//! Addresses that several running guests and pods have at once. Pure.
//!
//! An instance counts by its interfaces with addresses of our range, by their addresses as it runs: a bridge on the pod
//! network, or an interface that a guest makes of its own, does not count. A pod counts as soon as it is
//! attached.
//!
//! Two ends of one decentralised migration (same migration uid) are the same guest for its time, and no collision. Objects
//! of namespaces that are not ours are not entered.

use std::collections::{BTreeSet, HashMap, HashSet};

use serde_json::Value;

use crate::fields;
use api::net::Mac;
use api::net::pool::{Owner, View};

/// A running guest or pod, as far as collisions are concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runner {
    /// The instance or pod.
    pub owner: Owner,
    /// Its uid, for events.
    pub uid: Box<str>,
    /// The addresses that it uses.
    pub macs: Vec<Mac>,
    /// Uids of the migration of which it is the source, and the target.
    pub migration: [Option<Box<str>>; 2],
}

impl Runner {
    /// Reads an instance or a pod; `None` when it does not run, or uses no address.
    pub fn read(view: View, object: &Value) -> Option<Self> {
        if object.pointer("/status/phase").and_then(Value::as_str) != Some("Running") {
            return None;
        }
        let seen = fields::read(view, object)?;
        let (macs, migration) = match view {
            View::Machine => return None,
            View::Instance => {
                let given = fields::interfaces(object.get("spec"));
                let ours: HashSet<&str> =
                    given.iter().filter(|one| one.managed).filter_map(|one| one.name).collect();
                let interfaces = object.pointer("/status/interfaces").and_then(Value::as_array);
                let macs = interfaces.into_iter().flatten();
                let macs = macs.filter(|one| one["name"].as_str().is_some_and(|name| ours.contains(name)));
                let macs = macs.filter_map(|one| Mac::parse(one.get("mac")?.as_str()?));
                let uid = |end: &str| {
                    let path = format!("/status/migrationState/{end}/migrationUID");
                    let uid = object.pointer(&path).and_then(Value::as_str);
                    uid.filter(|uid| !uid.is_empty()).map(Into::into)
                };
                (macs.filter(|mac| mac.is_usable()).collect(), [uid("sourceState"), uid("targetState")])
            }
            // A guest's pod has its instance's addresses.
            View::Pod if seen.owner.guest.is_some() => return None,
            View::Pod if fields::annotation(object, fields::NETWORK_STATUS).is_none() => return None,
            View::Pod => (seen.macs, [None, None]),
        };
        let macs: Vec<Mac> = macs;
        let uid = fields::metadata(object, "uid").unwrap_or_default().into();
        (!macs.is_empty()).then_some(Self { owner: seen.owner, uid, macs, migration })
    }

    /// Whether both using one address is a collision.
    fn collides(&self, other: &Self) -> bool {
        let migrates = self.migration.iter().zip(&other.migration).any(|(a, b)| a.is_some() && a == b);
        !migrates && !self.owner.is_family(&other.owner)
    }
}

/// All that runs.
#[derive(Debug, Default)]
pub struct Running {
    runners: HashMap<Owner, Runner>,
    users: HashMap<Mac, Vec<Owner>>,
    /// Addresses that have more than one user.
    shared: BTreeSet<Mac>,
    /// Those that were not met yet in the listing that goes on.
    unmet: HashSet<Owner>,
}

/// The users of one address at the same time, sorted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collision {
    /// The address.
    pub mac: Mac,
    /// Objects and their uids.
    pub between: Vec<(Owner, Box<str>)>,
}

impl Running {
    /// An object runs now, or (`None`) does not any more.
    pub fn set(&mut self, owner: &Owner, runner: Option<Runner>) {
        self.unmet.remove(owner);
        if let Some(gone) = self.runners.remove(owner) {
            for mac in gone.macs {
                let Some(users) = self.users.get_mut(&mac) else { continue };
                users.retain(|user| user != owner);
                if users.len() < 2 {
                    self.shared.remove(&mac);
                }
                if users.is_empty() {
                    self.users.remove(&mac);
                }
            }
        }
        let Some(runner) = runner else { return };
        for mac in &runner.macs {
            let users = self.users.entry(*mac).or_insert_with(|| Vec::with_capacity(1));
            if !users.contains(owner) {
                users.push(owner.clone());
            }
            if users.len() > 1 {
                self.shared.insert(*mac);
            }
        }
        self.runners.insert(owner.clone(), runner);
    }

    /// All collisions there are, by address.
    pub fn collisions(&self) -> impl Iterator<Item = Collision> {
        self.shared.iter().filter_map(|mac| self.at(*mac))
    }

    /// A new listing of a view's objects begins: what is not set before [`Running::end_listing`] does not run any more.
    pub fn begin_listing(&mut self, view: View) {
        let of_view = self.runners.keys().filter(|owner| owner.view == view);
        self.unmet.extend(of_view.cloned());
    }

    /// A listing of all objects of a view is complete.
    pub fn end_listing(&mut self, view: View) {
        let gone: Vec<Owner> = self.unmet.extract_if(|owner| owner.view == view).collect();
        gone.iter().for_each(|owner| self.set(owner, None));
    }

    fn at(&self, mac: Mac) -> Option<Collision> {
        let users = self.users.get(&mac)?;
        let users: Vec<&Runner> = users.iter().filter_map(|user| self.runners.get(user)).collect();
        let colliding = users.iter().filter(|one| users.iter().any(|other| one.collides(other)));
        let mut between: Vec<_> = colliding.map(|one| (one.owner.clone(), one.uid.clone())).collect();
        between.sort_by_cached_key(|(owner, _)| owner.to_string());
        (between.len() > 1).then_some(Collision { mac, between })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn instance(name: &str, macs: &[&str], more: &Value) -> Runner {
        let of = |one: fn(usize, &str) -> Value| -> Vec<Value> {
            macs.iter().enumerate().map(|(number, mac)| one(number, mac)).collect()
        };
        let mut object = json!({
            "metadata": {"namespace": "n", "name": name, "uid": name},
            "spec": {"domain": {"devices": {
                "interfaces": of(|number, _| json!({"name": format!("i{number}"), "masquerade": {}})),
            }}},
            "status": {
                "phase": "Running",
                "interfaces": of(|number, mac| json!({"name": format!("i{number}"), "mac": mac})),
            },
        });
        object["status"]["migrationState"] = more.clone();
        Runner::read(View::Instance, &object).unwrap()
    }

    /// Enters one; gives how many collisions there are then.
    fn enter(running: &mut Running, runner: Runner) -> usize {
        running.set(&runner.owner.clone(), Some(runner));
        running.collisions().count()
    }

    #[test]
    fn running_and_ended_objects() {
        let mut object = json!({
            "metadata": {"namespace": "n", "name": "a", "uid": "u"},
            "spec": {
                "domain": {"devices": {"interfaces": [
                    {"name": "a", "masquerade": {}},
                    {"name": "b", "bridge": {}},
                    {"name": "c", "bridge": {}},
                    {"name": "d", "masquerade": {}},
                ]}},
                "networks": [{"name": "b", "pod": {}}, {"name": "c", "multus": {"networkName": "x"}}],
            },
            "status": {"phase": "Running", "interfaces": [
                {"name": "a", "mac": "02:00:00:00:00:01"},
                {"name": "b", "mac": "02:00:00:00:00:02"},
                {"name": "c", "mac": "02-00-00-00-00-03"},
                {"name": "d", "mac": "x"},
                // Interfaces that a guest's agent reports, such as a bridge of containers.
                {"interfaceName": "docker0", "mac": "02:42:00:00:00:01"},
                {"mac": "02:00:00:00:00:04"},
                {},
            ]},
        });
        let macs = Runner::read(View::Instance, &object).unwrap().macs;
        let macs: Vec<String> = macs.iter().map(ToString::to_string).collect();
        assert_eq!(macs, ["02:00:00:00:00:01", "02:00:00:00:00:03"]);
        assert_eq!(Runner::read(View::Machine, &object), None);
        object["status"]["phase"] = "Succeeded".into();
        assert_eq!(Runner::read(View::Instance, &object), None);
        let mut pod = json!({
            "metadata": {"namespace": "n", "name": "p", "annotations": {
                fields::NETWORKS: r#"[{"name":"x","mac":"02:00:00:00:00:01"}]"#,
            }},
            "status": {"phase": "Running"},
        });
        assert_eq!(Runner::read(View::Pod, &pod), None, "not attached yet");
        pod["metadata"]["annotations"][fields::NETWORK_STATUS] = "[]".into();
        assert_eq!(Runner::read(View::Pod, &pod).unwrap().macs.len(), 1);
        pod["metadata"]["ownerReferences"] = json!([{"kind": "VirtualMachineInstance", "name": "a"}]);
        assert_eq!(Runner::read(View::Pod, &pod), None);
    }

    #[test]
    fn collisions_come_and_go() {
        let mut running = Running::default();
        let none = json!(null);
        assert_eq!(enter(&mut running, instance("a", &["02:00:00:00:00:01", "02:00:00:00:00:02"], &none)), 0);
        assert_eq!(enter(&mut running, instance("b", &["02:00:00:00:00:02"], &none)), 1);
        assert_eq!(enter(&mut running, instance("b", &["02:00:00:00:00:02"], &none)), 1);
        assert_eq!(enter(&mut running, instance("c", &["02:00:00:00:00:02"], &none)), 1);
        let all: Vec<Collision> = running.collisions().collect();
        let names: Vec<&str> = all[0].between.iter().map(|(owner, _)| &*owner.name).collect();
        assert_eq!((all[0].mac.to_string().as_str(), names), ("02:00:00:00:00:02", vec!["a", "b", "c"]));
        assert_eq!(enter(&mut running, instance("a", &["02:00:00:00:00:01"], &none)), 1);
        assert_eq!(enter(&mut running, instance("b", &["02:00:00:00:00:01"], &none)), 1, "with another");
        running.set(&Owner::new(View::Instance, "n", "b"), None);
        assert_eq!(running.collisions().count(), 0);
        assert!(running.shared.is_empty() && running.users.len() == 2 && running.runners.len() == 2);
    }

    #[test]
    fn a_guest_that_restarts_or_migrates_has_no_collision() {
        let mut running = Running::default();
        let none = json!(null);
        let mac = &["02:00:00:00:00:01"];
        assert_eq!(enter(&mut running, instance("a", mac, &none)), 0);
        // Its next instance has another uid, whether or not the end of the one before was heard of.
        let next = Runner { uid: "another".into(), ..instance("a", mac, &none) };
        assert_eq!(enter(&mut running, next.clone()), 0);
        running.set(&next.owner.clone(), None);
        assert_eq!(enter(&mut running, next), 0);
        // While it moves to another node of the cluster, two pods are its own; neither counts.
        for name in ["source", "target"] {
            let pod = json!({
                "metadata": {
                    "namespace": "n",
                    "name": name,
                    "ownerReferences": [{"kind": "VirtualMachineInstance", "name": "a"}],
                    "annotations": {
                        fields::NETWORKS: format!(r#"[{{"name":"x","mac":"{}"}}]"#, mac[0]),
                        fields::NETWORK_STATUS: "[]",
                    },
                },
                "status": {"phase": "Running"},
            });
            running.set(&Owner::new(View::Pod, "n", name), Runner::read(View::Pod, &pod));
        }
        assert_eq!(running.collisions().count(), 0);
    }

    #[test]
    fn objects_missing_from_a_listing_end_their_collisions() {
        let mut running = Running::default();
        let none = json!(null);
        enter(&mut running, instance("a", &["02:00:00:00:00:01"], &none));
        enter(&mut running, instance("b", &["02:00:00:00:00:01"], &none));
        running.begin_listing(View::Pod);
        running.end_listing(View::Pod);
        running.begin_listing(View::Instance);
        assert_eq!(enter(&mut running, instance("a", &["02:00:00:00:00:01"], &none)), 1);
        running.end_listing(View::Instance);
        assert_eq!(running.collisions().count(), 0);
        assert!(running.runners.len() == 1 && running.unmet.is_empty());
    }

    #[test]
    fn the_ends_of_one_migration_are_one_guest() {
        let source = json!({"sourceState": {"migrationUID": "m"}});
        let target = json!({"targetState": {"migrationUID": "m"}});
        let both = json!({"sourceState": {"migrationUID": "m"}, "targetState": {"migrationUID": "n"}});
        let empty = json!({"sourceState": {"migrationUID": ""}});
        for (one, other, expected) in
            [(&source, &both, 0), (&source, &target, 1), (&empty, &empty, 1), (&both, &json!(null), 1)]
        {
            let mut running = Running::default();
            enter(&mut running, instance("a", &["02:00:00:00:00:01"], one));
            assert_eq!(
                enter(&mut running, instance("b", &["02:00:00:00:00:01"], other)),
                expected,
                "{one} {other}"
            );
        }
    }
}
