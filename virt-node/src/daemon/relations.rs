//! Which object has a UID, and which depend on another: a machine on its run and on its claims, a clone on its source. When
//! one changes, those that depend on it are reconciled, and no others.
//!
//! ```text
//! machine ◄─► run of its name        claim ◄─► DataVolume of its name
//! claim, DataVolume ─► machines, runs and clones that name it ─► the claims of those clones
//! run ─► claims that it names, and clones of them
//! DataVolume ─► the machine that owns it
//! ```

use std::collections::{BTreeMap, BTreeSet};

use api::kind::Kind;

use super::object::Key;

/// A claim: its namespace and name.
type Claim = (String, String);

/// Objects that an object names.
#[derive(Clone, Debug, Default)]
pub(super) struct Named {
    /// Claims, and DataVolumes of their names.
    claims: BTreeSet<Claim>,
    /// The machine that owns it.
    owner: Option<String>,
}

/// The claims that objects name.
pub(super) mod claims_named {
    use api::cdi::DataVolume;
    use api::kubevirt::{VirtualMachine, VirtualMachineInstance};
    use virt::{live, resolve};

    use super::{Claim, Named};
    use crate::daemon::object::Stored;

    fn of<'a>(object: &impl Stored, names: impl Iterator<Item = &'a str>) -> Named {
        let namespace = object.key().namespace;
        let claims = names.map(|name| -> Claim { (namespace.clone(), name.to_owned()) }).collect();
        Named { claims, owner: None }
    }

    /// Those of a machine's template and its dataVolumeTemplates.
    pub(in super::super) fn machine(machine: &VirtualMachine) -> Named {
        let templates = machine.spec.data_volume_templates.iter().map(|one| one.metadata.name.as_str());
        of(machine, resolve::claims_of(&machine.spec.template.spec).chain(templates))
    }

    /// Those of a run, and those that its guest still has.
    pub(in super::super) fn instance(run: &VirtualMachineInstance) -> Named {
        of(run, resolve::claims_of(&run.spec).chain(live::claims_there(run)))
    }

    /// The one that is cloned.
    pub(in super::super) fn data_volume(volume: &DataVolume) -> Named {
        let namespace = volume.key().namespace;
        let source = volume.spec.source.as_ref().and_then(|source| source.pvc.as_ref());
        let claim = source.map(|source| (source.namespace.clone().unwrap_or(namespace), source.name.clone()));
        let owner = volume.metadata.owner_references.iter().find_map(|owner| {
            let name = owner.get("name").and_then(|name| name.as_str());
            name.filter(|_| owner.get("kind").and_then(|kind| kind.as_str()) == Some("VirtualMachine"))
        });
        Named { claims: claim.into_iter().collect(), owner: owner.map(str::to_owned) }
    }
}

/// The indexes.
#[derive(Debug, Default)]
pub(super) struct Relations {
    uids: BTreeMap<String, Key>,
    objects: BTreeMap<Key, (String, Named)>,
    /// Objects that name a claim.
    users: BTreeMap<Claim, BTreeSet<Key>>,
    /// DataVolumes that a machine owns.
    owned: BTreeMap<Key, BTreeSet<Key>>,
}

/// Removes a key from an index.
fn remove<K: Ord>(index: &mut BTreeMap<K, BTreeSet<Key>>, of: &K, key: &Key) {
    if let Some(keys) = index.get_mut(of) {
        keys.remove(key);
        if keys.is_empty() {
            index.remove(of);
        }
    }
}

impl Relations {
    /// The object of a UID.
    pub(super) fn called(&self, uid: &str) -> Option<&Key> {
        self.uids.get(uid)
    }

    /// Objects that name a claim.
    pub(super) fn users(&self, namespace: &str, claim: &str) -> impl Iterator<Item = &Key> {
        self.users.get(&(namespace.to_owned(), claim.to_owned())).into_iter().flatten()
    }

    /// DataVolumes with an owner reference to a VM.
    pub(super) fn owned(&self, machine: &Key) -> impl Iterator<Item = &Key> {
        self.owned.get(machine).into_iter().flatten()
    }

    /// Stores an object's UID and the objects that it names.
    pub(super) fn set(&mut self, key: &Key, uid: &str, named: Named) {
        self.remove(key);
        self.uids.insert(uid.to_owned(), key.clone());
        for claim in &named.claims {
            self.users.entry(claim.clone()).or_default().insert(key.clone());
        }
        if let Some(owner) = &named.owner {
            let owner = Key::new(Kind::VirtualMachine, &key.namespace, owner);
            self.owned.entry(owner).or_default().insert(key.clone());
        }
        self.objects.insert(key.clone(), (uid.to_owned(), named));
    }

    /// Forgets an object.
    pub(super) fn remove(&mut self, key: &Key) {
        let Some((uid, named)) = self.objects.remove(key) else { return };
        if self.uids.get(&uid) == Some(key) {
            self.uids.remove(&uid);
        }
        for claim in &named.claims {
            remove(&mut self.users, claim, key);
        }
        if let Some(owner) = &named.owner {
            remove(&mut self.owned, &Key::new(Kind::VirtualMachine, &key.namespace, owner), key);
        }
    }

    /// An object, and all that depend on it.
    pub(super) fn affected(&self, key: &Key, all: &mut BTreeSet<Key>) {
        let beside = |kind: Kind| Key::new(kind, &key.namespace, &key.name);
        all.insert(key.clone());
        match key.kind {
            Kind::VirtualMachine => drop(all.insert(beside(Kind::VirtualMachineInstance))),
            Kind::VirtualMachineInstance => {
                all.insert(beside(Kind::VirtualMachine));
                for claim in self.objects.get(key).iter().flat_map(|(_, named)| &named.claims) {
                    self.of_claim(claim, false, all);
                }
            }
            Kind::DataVolume | Kind::PersistentVolumeClaim => {
                self.of_claim(&(key.namespace.clone(), key.name.clone()), true, all);
                let owner = self.objects.get(key).and_then(|(_, named)| named.owner.as_deref());
                all.extend(owner.map(|name| Key::new(Kind::VirtualMachine, &key.namespace, name)));
            }
            Kind::NetworkAttachmentDefinition | Kind::Secret | Kind::ConfigMap => {}
        }
    }

    /// A claim, its DataVolume, and what depends on them; `guests`: machines and runs, too.
    fn of_claim(&self, claim: &Claim, guests: bool, all: &mut BTreeSet<Key>) {
        let (namespace, name) = claim;
        all.insert(Key::new(Kind::PersistentVolumeClaim, namespace, name));
        all.insert(Key::new(Kind::DataVolume, namespace, name));
        for user in self.users.get(claim).into_iter().flatten() {
            if user.kind == Kind::DataVolume {
                all.insert(Key::new(Kind::PersistentVolumeClaim, &user.namespace, &user.name));
                all.insert(user.clone());
            } else if guests {
                all.insert(user.clone());
            }
        }
    }
}
