//! Interfaces that come and go while a guest runs: those on networks by name, bridged, as in KubeVirt. One that a machine's
//! template has more comes, one whose `state` becomes `absent` goes. Everything else waits for the next run.
//!
//! [`followed`] decides, pure; [`mend`] does, and finds out what is there already, so that it can be cut short anywhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use api::kubevirt::{Interface, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceSpec as Spec};
use api::launcher::{Answer, RefusedKind, Request};

use super::apply::{self, Start};
use super::controller::{Controller, Outcome, Work};
use super::runs::phase;
use super::store::Stored;
use crate::error::{Error, Kind};
use crate::launcher::{CallError, Client};
use crate::network::Attached;
use crate::resolve::{self, Made, Objects};

/// How long a guest may take to let go of an interface.
const PATIENCE: Duration = Duration::from_secs(60);

fn is_absent(one: &Interface) -> bool {
    one.state.as_deref() == Some("absent")
}

/// Whether an interface may come and go: it is bridged to a network by name that is not in the pod network's place.
fn is_live(spec: &Spec, one: &Interface) -> bool {
    let network = spec.networks.iter().find(|network| network.name == one.name);
    let multus = network.and_then(|network| network.multus.as_ref());
    one.bridge.is_some() && multus.is_some_and(|multus| multus.is_default != Some(true))
}

/// What a run is to be, so that its interfaces follow its machine's template; `None`: they do, as far as they can now.
pub(super) fn followed(template: &Spec, run: &Spec) -> Option<Spec> {
    let mut wanted = run.clone();
    let interfaces = &mut wanted.domain.devices.interfaces;
    for one in &template.domain.devices.interfaces {
        let network = template.networks.iter().find(|network| network.name == one.name);
        match (interfaces.iter_mut().find(|other| other.name == one.name), network) {
            (Some(other), _) => {
                if is_live(template, one) && is_absent(one) {
                    other.state.clone_from(&one.state);
                }
            }
            (None, Some(network)) => {
                let free = wanted.networks.iter().all(|other| other.name != one.name);
                if is_live(template, one) && free && !is_absent(one) {
                    interfaces.push(one.clone());
                    wanted.networks.push(network.clone());
                }
            }
            (None, None) => {}
        }
    }
    // Those that are gone are forgotten with the template's.
    let named = |name: &str| template.domain.devices.interfaces.iter().any(|one| one.name == name);
    let gone = |one: &Interface| is_absent(one) && !named(&one.name);
    wanted.networks.retain(|network| !interfaces.iter().any(|one| one.name == network.name && gone(one)));
    interfaces.retain(|one| !gone(one));
    (wanted != *run).then_some(wanted)
}

/// Has a guest that runs let go of interfaces that are absent, mends what the others need, and gives it those that it has
/// not; `None`: it has none.
///
/// # Errors
/// What is refused; the guest does not let go.
fn mend(start: &Start) -> Result<Option<Attached>, Error> {
    let Start { state, networks, host, instance, guest, owner, stop, .. } = start;
    let folder = state.run(&guest.uid);
    let refused = |error| Error::with(Kind::System, "the launcher does not change interfaces", error);
    let mut client = Client::connect(&folder).map_err(|error| refused(error.into()))?;
    let interfaces = &instance.spec.domain.devices.interfaces;
    for one in interfaces.iter().filter(|one| is_absent(one)) {
        let_go(&mut client, &one.name, stop)?;
    }
    let Some(attached) = networks.attach(state, instance, owner, true)? else { return Ok(None) };
    let taps = attached.nics.iter().map(|nic| (nic.name.clone(), nic.tap.clone())).collect();
    let made = Made { folder: folder.to_string_lossy().into_owned(), taps, ..Made::default() };
    // Interfaces need nothing of the guest's volumes.
    let mut spec = instance.spec.clone();
    (spec.volumes, spec.domain.devices.disks) = (Vec::new(), Vec::new());
    let (launch, findings) = resolve::resolve(&spec, guest, host, &made, &Objects::default(), "spec");
    let launch = launch.ok_or_else(|| apply::invalid(&findings))?;
    for one in launch.interfaces {
        if let Answer::Layout(layout) =
            client.call(Request::AttachInterface(Box::new(one))).map_err(refused)?
        {
            apply::keep_layout(state, owner, layout)?;
        }
    }
    Ok(Some(attached))
}

/// Has a guest let go of an interface, and waits until it has, or it is to end.
fn let_go(client: &mut Client, name: &str, stop: &AtomicBool) -> Result<(), Error> {
    let until = Instant::now() + PATIENCE;
    loop {
        match client.call(Request::DetachInterface(name.to_owned())) {
            Ok(Answer::Layout(layout)) if !layout.has(&format!("net-{name}")) => return Ok(()),
            // It is asked already.
            Ok(_) | Err(CallError::Refused(RefusedKind::Failed, _))
                if Instant::now() < until && !stop.load(Ordering::Relaxed) => {}
            Ok(_) => {
                let text = format!("the guest does not let go of the interface {name:?}");
                return Err(Error::new(Kind::System, text));
            }
            Err(error) => return Err(Error::with(Kind::System, format!("interface {name:?}"), error)),
        }
        sleep(Duration::from_millis(500));
    }
}

impl Controller {
    /// Brings the interfaces of a machine's template that may come and go to its run.
    pub(super) fn follow_interfaces(&mut self, machine: &VirtualMachine) -> Result<(), Error> {
        let run = self.run_of(machine).filter(|run| phase(run) == "Running" && !run.is_deleting());
        let Some(mut run) = run else { return Ok(()) };
        let Some(spec) = followed(&machine.spec.template.spec, &run.spec) else { return Ok(()) };
        run.spec = spec;
        self.memory(run.uid()).mend = true;
        self.store.put(&run)
    }

    /// Has a guest's networks mended while it runs, where that is to be done. Answers whether it is.
    pub(super) fn mend(&mut self, run: &VirtualMachineInstance) -> Result<bool, Error> {
        let uid = run.uid();
        if !self.memory(uid).mend || !self.may_try(uid) {
            return Ok(false);
        }
        let host = self.host()?;
        let mut start = self.start_of(run, host, false);
        self.memory(uid).mend = false;
        self.job(uid, Work::Mend, move |stop, _| {
            start.stop = Arc::clone(stop);
            mend(&start).map(Outcome::Mended)
        });
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// A spec with interfaces of these names: `p` is the pod network's, others are bridged; `!` says that it is absent.
    fn spec(names: &[&str]) -> Spec {
        let interface = |text: &&str| -> Value {
            let name = text.trim_start_matches('!');
            let mut one = json!({"name": name});
            one[if name == "p" { "masquerade" } else { "bridge" }] = json!({});
            if text.starts_with('!') {
                one["state"] = json!("absent");
            }
            one
        };
        let network = |text: &&str| -> Value {
            match text.trim_start_matches('!') {
                "p" => json!({"name": "p", "pod": {}}),
                name => json!({"name": name, "multus": {"networkName": name}}),
            }
        };
        let value = json!({
            "domain": {"devices": {"interfaces": names.iter().map(interface).collect::<Vec<_>>()}},
            "networks": names.iter().map(network).collect::<Vec<_>>(),
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn interfaces_follow_where_they_can() {
        for (template, run, wanted) in [
            (&["p", "a"][..], &["p", "a"][..], None),
            (&["p", "a"], &["p"], Some(&["p", "a"][..])),
            (&["p", "!a"], &["p", "a"], Some(&["p", "!a"])),
            (&["p", "!a"], &["p"], None),
            (&["p"], &["p", "!a"], Some(&["p"])),
            // Only the next run has it, or has it no more.
            (&["p", "a"], &["a"], None),
            (&["p"], &["p", "a"], None),
            (&["!p", "a"], &["p", "a"], None),
        ] {
            assert_eq!(followed(&spec(template), &spec(run)), wanted.map(spec), "{template:?} {run:?}");
        }
    }
}
