//! VMs: observed and reconciled. Not here: the decisions ([`super::reconcile`]), their runs ([`super::vmi`]).

use std::sync::Arc;

use api::cdi::DataVolume;
use api::kind::Kind;
use api::kubevirt::{VirtualMachine, VirtualMachineInstance};

use super::claim::Filled;
use super::controller::{Controller, Outcome, Work};
use super::metadata::is_owned;
use super::store::{Key, Stored};
use super::{ids, images, kept, networks, reconcile};
use crate::error::Error;
use virt::resolve;

impl Controller {
    /// How the claims of a guest stand, the worst first.
    pub(super) fn claims_stand(
        &self,
        namespace: &str,
        instance: &api::kubevirt::VirtualMachineInstanceSpec,
    ) -> Filled {
        let all = resolve::claims_of(instance).map(|name| self.filled(namespace, name));
        let rank = |filled: &Filled| match filled {
            Filled::Missing => 0,
            Filled::Broken => 1,
            Filled::NotYet => 2,
            Filled::Ready => 3,
        };
        all.min_by_key(rank).unwrap_or(Filled::Ready)
    }

    /// The run of a machine.
    pub(super) fn run_of(&self, machine: &VirtualMachine) -> Option<VirtualMachineInstance> {
        let key = machine.key();
        let run = self.store.get::<VirtualMachineInstance>(&key.namespace, &key.name);
        run.filter(|run| is_owned(&run.metadata, machine.uid()))
    }

    /// Brings a machine towards its spec.
    pub(super) fn machine(&mut self, machine: &VirtualMachine) -> Result<(), Error> {
        let key = machine.key();
        let run = self.run_of(machine);
        let volumes: Vec<Arc<DataVolume>> = self.store.owned(machine.uid()).collect();
        let templates = machine.spec.data_volume_templates.iter().map(|one| &one.metadata.name);
        let is_missing =
            |name: &&String| self.store.value(&Key::new(Kind::DataVolume, &key.namespace, name)).is_none();
        let observed = reconcile::machine::Observed {
            machine,
            run: run.as_ref(),
            volumes: &volumes,
            missing: templates.filter(is_missing).cloned().collect(),
            stand: self.claims_stand(&key.namespace, &machine.spec.template.spec),
            networks: machine.is_deleting() && run.is_none() && networks::kept(&self.state, machine.uid()),
            attempt: self.attempt(machine.uid()),
        };
        let actions = reconcile::machine::reconcile(&observed);
        self.execute(machine, actions)
    }

    /// Has what is left of a machine's networks removed.
    pub(super) fn remove_networks(&mut self, uid: &str) {
        let (state, owner) = (Arc::clone(&self.state), uid.to_owned());
        self.job(uid, Work::RemoveNetworks, move |_, _| {
            networks::detach(&state, &owner).map(|()| Outcome::Done)
        });
    }

    /// Removes a machine of which nothing is left.
    pub(super) fn remove_machine(&mut self, machine: &VirtualMachine) -> Result<(), Error> {
        self.memory.remove(machine.uid());
        kept::remove(&self.state.guest(machine.uid()))?;
        self.state.ids().free(&ids::vm(machine.uid()))?;
        self.store.remove(&machine.key())?;
        self.addresses.forget(&machine.key());
        self.sweep_images();
        Ok(())
    }

    /// Takes away the images that no guest names any more.
    pub(super) fn sweep_images(&self) {
        let machines: Vec<_> = self.store.all::<VirtualMachine>().collect();
        let runs: Vec<_> = self.store.all::<VirtualMachineInstance>().collect();
        let specs = machines.iter().map(|machine| &machine.spec.template.spec);
        images::sweep(
            &self.state.path("images"),
            self.state.ids(),
            specs.chain(runs.iter().map(|run| &run.spec)),
        );
    }
}
