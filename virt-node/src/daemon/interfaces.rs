//! Interfaces that are attached and detached while a guest runs: bridged ones on named networks, as in KubeVirt. One added
//! to a VM's template is attached, one whose `state` becomes `absent` is detached. Every other change waits for the next
//! run.
//!
//! [`super::reconcile::machine`] decides; [`mend`] does, and finds out what is there already, so that it can be cut short
//! anywhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use api::kubevirt::VirtualMachineInstance;
use api::launcher::{Answer, RefusedKind, Request};

use super::apply::{self, Start};
use super::controller::{Controller, Outcome, Work};
use super::store::Stored;
use super::{findings, host, kept, networks};
use crate::error::{Error, Kind};
use crate::network::Attached;
use guest::{CallError, Client};
use virt::live::is_absent;
use virt::resolve::{self, Made, Objects};

/// How long a guest may take to let go of an interface.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Has a guest that runs let go of interfaces that are absent, mends what the others need, and gives it those that it has
/// not; `None`: it has none.
///
/// # Errors
/// The refused change; the guest does not release the device.
fn mend(start: &Start) -> Result<Option<Attached>, Error> {
    let Start { state, networks, accelerator, instance, guest, owner, stop, .. } = start;
    let folder = state.run(&guest.uid);
    let refused = |error| Error::with(Kind::System, "the launcher does not change interfaces", error);
    let mut client = folder.client().map_err(|error| refused(error.into()))?;
    let interfaces = &instance.spec.domain.devices.interfaces;
    for one in interfaces.iter().filter(|one| is_absent(one)) {
        let_go(&mut client, &one.name, stop)?;
    }
    let keep = state.guest(owner);
    let mut kept = kept::read(&keep)?;
    let attached = networks.attach(state, instance, owner, &kept.addresses, true)?;
    let Some(attached) = attached else { return Ok(None) };
    let addresses = networks::addresses(&attached);
    if kept.addresses != addresses {
        kept.addresses = addresses;
        kept::write(&keep, &kept)?;
    }
    let taps = attached.nics.iter().map(|nic| (nic.name.clone(), nic.tap.clone())).collect();
    let made = Made { folder: folder.own().to_string_lossy().into_owned(), taps, ..Made::default() };
    // Interfaces need nothing of the guest's volumes.
    let mut spec = instance.spec.clone();
    resolve::leave_volumes_out(&mut spec);
    let found = host::ask(state, &mut client, Vec::new(), *accelerator, Some(&kept))?;
    let (launch, findings) = resolve::resolve(&spec, guest, &found.host, &made, &Objects::default(), "spec");
    let launch = launch.ok_or_else(|| findings::invalid(&findings))?;
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
    let until = Instant::now() + TIMEOUT;
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
    /// Has a guest's networks mended while it runs, where that is to be done. Answers whether it is.
    pub(super) fn mend(&mut self, run: &VirtualMachineInstance) -> Result<bool, Error> {
        let uid = run.uid();
        if !self.memory(uid).mend || !self.may_try(uid) {
            return Ok(false);
        }
        let mut start = self.start_of(run, false);
        self.memory(uid).mend = false;
        self.job(uid, Work::Mend, move |stop, _| {
            start.stop = Arc::clone(stop);
            mend(&start).map(Outcome::Mended)
        });
        Ok(true)
    }
}
