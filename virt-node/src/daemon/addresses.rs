//! MAC addresses of the machine's guests: by the rules of [`api::net::pool`], as macpool's in a cluster, with the state
//! directory for its state: the range, generated once, and the objects, whose interfaces hold the addresses.
//!
//! An interface with masquerade, or on a network of its own, without an address is given one when its object is stored, and
//! keeps it as long as the object has an interface of this name. An address from the user's document stays, also where
//! another guest has it; an event reports the duplicate.
//!
//! Not here: the default interface of the pod network, which no document has; the network generates its addresses.

use std::fs;
use std::io::{self, Read};
use std::time::Duration;

use api::kind::Kind;
use api::kubevirt::{VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceSpec};
use api::net::pool::{Owner, Pool, View};
use api::net::{Mac, Range};

use super::state::State;
use super::store::{Key, Store, Stored};
use crate::error::{Error, Kind as ErrorKind};

/// Addresses in a range that is made up: the lower half of the bytes.
const RANGE_BITS: u32 = 24;
/// Longest file of a range.
const FILE_MAX: u64 = 128;

/// The owner of each address.
#[derive(Debug)]
pub(super) struct Addresses {
    pool: Pool,
}

/// An object with a guest that has interfaces.
pub(super) trait Guest: Stored {
    const VIEW: View;
    fn spec(&self) -> &VirtualMachineInstanceSpec;
    fn spec_mut(&mut self) -> &mut VirtualMachineInstanceSpec;
}

impl Guest for VirtualMachine {
    const VIEW: View = View::Machine;
    fn spec(&self) -> &VirtualMachineInstanceSpec {
        &self.spec.template.spec
    }
    fn spec_mut(&mut self) -> &mut VirtualMachineInstanceSpec {
        &mut self.spec.template.spec
    }
}

impl Guest for VirtualMachineInstance {
    const VIEW: View = View::Instance;
    fn spec(&self) -> &VirtualMachineInstanceSpec {
        &self.spec
    }
    fn spec_mut(&mut self) -> &mut VirtualMachineInstanceSpec {
        &mut self.spec
    }
}

fn owner(view: View, key: &Key) -> Owner {
    Owner::new(view, &key.namespace, &key.name)
}

/// The addresses of interfaces that have one.
fn macs(spec: &VirtualMachineInstanceSpec) -> Vec<Mac> {
    let given = spec.domain.devices.interfaces.iter().filter_map(|one| one.mac_address.as_deref());
    given.filter_map(Mac::parse).collect()
}

impl Addresses {
    /// Reads or makes up the range, and learns of all guests.
    ///
    /// # Errors
    /// A file that is no range, by its name.
    pub(super) fn open(state: &State, store: &Store) -> Result<Self, Error> {
        let cursor = u64::from_ne_bytes(random()?) & ((1 << 48) - 1);
        let mut pool = Pool::alone(range(state)?, Duration::ZERO, cursor);
        for machine in store.all::<VirtualMachine>() {
            pool.observe(&owner(View::Machine, &machine.key()), None, macs(machine.spec()));
        }
        for run in store.all::<VirtualMachineInstance>() {
            pool.observe(&owner(View::Instance, &run.key()), None, macs(run.spec()));
        }
        Ok(Self { pool })
    }

    /// Gives addresses to interfaces that need one: the previous one, or the next. Returns those that another guest has,
    /// too.
    ///
    /// # Errors
    /// None is free.
    pub(super) fn give<T: Guest>(
        &mut self,
        before: Option<&T>,
        object: &mut T,
    ) -> Result<Vec<String>, Error> {
        let owner = owner(T::VIEW, &object.key());
        let spec = object.spec_mut();
        let mut taken = macs(spec);
        for interface in &mut spec.domain.devices.interfaces {
            let network = spec.networks.iter().find(|network| network.name == interface.name);
            let ours = interface.masquerade.is_some() || network.is_some_and(|one| one.multus.is_some());
            if !ours || interface.mac_address.as_deref().is_some_and(|text| !text.is_empty()) {
                continue;
            }
            let interfaces = before.map(|before| &before.spec().domain.devices.interfaces[..]);
            let same = interfaces.unwrap_or_default().iter().find(|one| one.name == interface.name);
            let kept = same.and_then(|one| Mac::parse(one.mac_address.as_deref()?));
            let mac = match kept.filter(|mac| !taken.contains(mac)) {
                Some(mac) => mac,
                None => {
                    let found = self.pool.find(&taken, Duration::ZERO);
                    let found =
                        found.map_err(|error| Error::with(ErrorKind::System, owner.to_string(), error))?;
                    self.pool.advance(found);
                    found
                }
            };
            taken.push(mac);
            interface.mac_address = Some(mac.to_string());
        }
        let shared = |mac: &Mac| {
            let other = self.pool.other_holder(*mac, &owner)?;
            Some(format!(
                "{other} has the MAC address {mac} too; set another one: on one network neither is reliably reachable"
            ))
        };
        let shared = taken.iter().filter_map(shared).collect();
        self.pool.observe(&owner, None, taken);
        Ok(shared)
    }

    /// Learns which addresses an object has now, which may be gone.
    pub(super) fn read(&mut self, store: &Store, key: &Key) {
        self.forget(key);
        let (namespace, name) = (&key.namespace, &key.name);
        if key.kind == Kind::VirtualMachine
            && let Some(machine) = store.get::<VirtualMachine>(namespace, name)
        {
            self.pool.observe(&owner(View::Machine, key), None, macs(machine.spec()));
        }
        if key.kind == Kind::VirtualMachineInstance
            && let Some(run) = store.get::<VirtualMachineInstance>(namespace, name)
        {
            self.pool.observe(&owner(View::Instance, key), None, macs(run.spec()));
        }
    }

    /// An object is gone.
    pub(super) fn forget(&mut self, key: &Key) {
        let view = match key.kind {
            Kind::VirtualMachine => View::Machine,
            Kind::VirtualMachineInstance => View::Instance,
            Kind::DataVolume
            | Kind::PersistentVolumeClaim
            | Kind::NetworkAttachmentDefinition
            | Kind::Secret
            | Kind::ConfigMap => return,
        };
        self.pool.forget(&owner(view, key), None);
    }
}

/// The range: a line of its two ends, which a person may change while no daemon runs.
fn range(state: &State) -> Result<Range, Error> {
    let path = state.path("addresses");
    let shown = path.display().to_string();
    let failed = |error: io::Error| Error::with(ErrorKind::System, shown.clone(), error);
    let broken = |why: String| Error::new(ErrorKind::Content, format!("{shown}: {why}"));
    let mut text = String::new();
    match fs::File::open(&path) {
        Ok(file) => drop(file.take(FILE_MAX).read_to_string(&mut text).map_err(failed)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Locally administered, of one interface.
            let [second, third] = random()?;
            let [first, last] = [0, (1u64 << RANGE_BITS) - 1].map(|rest| {
                let bits = 0x02 << 40 | u64::from(second) << 32 | u64::from(third) << 24 | rest;
                Mac::new(bits).map(|mac| mac.to_string()).unwrap_or_default()
            });
            text = format!("{first} {last}\n");
            dir::replace_durably(&path, text.as_bytes(), 0o600).map_err(|error| failed(error.into()))?;
        }
        Err(error) => return Err(failed(error)),
    }
    let two = text.trim().split_once(' ');
    let (first, last) = two.ok_or_else(|| broken("not two MAC addresses in a line".to_owned()))?;
    let range = Range::parse(first, last).map_err(|error| broken(error.to_string()))?;
    if range.size() > 1 << RANGE_BITS {
        return Err(broken(format!("{range} has {} addresses; 2^{RANGE_BITS} are the most", range.size())));
    }
    Ok(range)
}

fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    let failed = |error: rustix::io::Errno| Error::with(ErrorKind::System, "no random bytes", error);
    let count = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).map_err(failed)?;
    if count == N { Ok(bytes) } else { Err(Error::new(ErrorKind::System, "too few random bytes")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(name: &str, interfaces: &serde_json::Value) -> VirtualMachine {
        let mut machine: VirtualMachine = serde_json::from_value(serde_json::json!({
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachine",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"template": {"spec": {
                "domain": {"devices": {"interfaces": interfaces}},
                "networks": [
                    {"name": "pod", "pod": {}},
                    {"name": "a", "multus": {"networkName": "a"}},
                    {"name": "b", "multus": {"networkName": "b"}},
                ],
            }}},
        }))
        .unwrap();
        machine.metadata.namespace = Some("default".to_owned());
        machine
    }

    fn addresses(first: &str, last: &str) -> Addresses {
        let range = Range::parse(first, last).unwrap();
        Addresses { pool: Pool::alone(range, Duration::ZERO, range.first().bits()) }
    }

    fn given(machine: &VirtualMachine) -> Vec<&str> {
        let interfaces = machine.spec().domain.devices.interfaces.iter();
        interfaces.map(|one| one.mac_address.as_deref().unwrap_or_default()).collect()
    }

    #[test]
    fn addresses_are_given_once_and_kept() {
        let mut addresses = addresses("02:00:00:00:00:00", "02:00:00:00:00:03");
        let interfaces = serde_json::json!([
            {"name": "pod", "masquerade": {}},
            {"name": "a", "bridge": {}},
            {"name": "b", "bridge": {}, "macAddress": "0a:00:00:00:00:01"},
        ]);
        let mut one = machine("one", &interfaces);
        assert_eq!(addresses.give(None, &mut one).unwrap(), [] as [String; 0]);
        let expected = ["02:00:00:00:00:00", "02:00:00:00:00:01", "0a:00:00:00:00:01"];
        assert_eq!(given(&one), expected);
        // The same again, without an interface, and with it again.
        let mut again = machine("one", &interfaces);
        addresses.give(Some(&one), &mut again).unwrap();
        assert_eq!(given(&again), expected);
        let mut less = machine("one", &serde_json::json!([{"name": "a", "bridge": {}}]));
        addresses.give(Some(&again), &mut less).unwrap();
        assert_eq!(given(&less), expected[1..2]);
        let mut two = machine("two", &interfaces);
        let told = addresses.give(None, &mut two).unwrap();
        assert_eq!(given(&two), ["02:00:00:00:00:02", "02:00:00:00:00:03", "0a:00:00:00:00:01"]);
        assert_eq!(told, [] as [String; 0], "the first has it no more");
        let told = addresses.give(Some(&less), &mut machine("one", &interfaces)).unwrap();
        assert!(told.len() == 1 && told[0].contains("VirtualMachine default/two"), "{told:?}");
        // A bridge on the pod network has the network's address; a full range is an error until an address is released.
        let mut bridged = machine("three", &serde_json::json!([{"name": "pod", "bridge": {}}]));
        addresses.give(None, &mut bridged).unwrap();
        assert_eq!(given(&bridged), [""]);
        let mut full = machine("four", &serde_json::json!([{"name": "a", "bridge": {}}]));
        let error = addresses.give(None, &mut full).unwrap_err().chain();
        assert!(error.contains("default/four") && error.contains("4 addresses"), "{error}");
        addresses.forget(&two.key());
        addresses.give(None, &mut full).unwrap();
        assert!(!given(&full)[0].is_empty());
    }

    #[test]
    fn addresses_are_known_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let mut one = machine("one", &serde_json::json!([{"name": "a", "bridge": {}}]));
        let range = {
            let state = State::open(folder.path()).unwrap();
            let mut store = Store::open(&state.path("objects")).unwrap();
            let mut addresses = Addresses::open(&state, &store).unwrap();
            addresses.give(None, &mut one).unwrap();
            store.put(&one).unwrap();
            addresses.pool.range()
        };
        let state = State::open(folder.path()).unwrap();
        let store = Store::open(&state.path("objects")).unwrap();
        let addresses = Addresses::open(&state, &store).unwrap();
        let mac = Mac::parse(given(&one)[0]).unwrap();
        assert!(range.contains(mac) && range.size() == 1 << RANGE_BITS && addresses.pool.range() == range);
        assert_eq!(addresses.pool.holders(mac).count(), 1);
        // A person's range; one that is none is named.
        for (text, why) in [
            ("0a:00:00:00:00:00 0a:00:00:00:00:0f", None),
            ("", Some("not two")),
            ("x y", Some("not a MAC")),
            ("02:00:00:00:00:01 02:00:00:00:00:00", Some("greater")),
            ("02:00:00:00:00:00 02:00:01:00:00:00", Some("are the most")),
        ] {
            fs::write(state.path("addresses"), text).unwrap();
            let opened = Addresses::open(&state, &store);
            match why {
                None => assert_eq!(opened.unwrap().pool.range().size(), 16),
                Some(why) => {
                    let error = opened.unwrap_err().chain();
                    assert!(error.contains(why) && error.contains("addresses"), "{error}");
                }
            }
        }
    }
}
