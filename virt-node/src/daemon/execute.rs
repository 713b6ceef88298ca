//! Executes the actions that [`super::reconcile`] decided on.

use api::cdi::DataVolume;
use api::core::PersistentVolumeClaim;
use api::kubevirt::{VirtualMachine, VirtualMachineInstance};
use api::resource::ObjectMeta;

use super::controller::Controller;
use super::metadata::made;
use super::reconcile::{Action, Attempt, ClaimAction, Object, RunAction};
use super::store::Stored;
use crate::error::Error;
use virt::time;

impl Controller {
    /// Whether a job of an object may begin.
    pub(super) fn attempt(&self, uid: &str) -> Attempt {
        let retry = self.memory.get(uid).and_then(|memory| memory.retry);
        Attempt { busy: self.is_busy(uid), retry, now: time::now() }
    }

    /// Executes the actions for an object, in their order.
    ///
    /// # Errors
    /// An object cannot be stored; the actions behind it are not executed.
    pub(super) fn execute(&mut self, of: &impl Stored, actions: Vec<Action>) -> Result<(), Error> {
        let (key, uid) = (of.key(), of.uid());
        for action in actions {
            match action {
                Action::Put(object) => self.put(object)?,
                Action::Create(object) => self.create(object, &key.namespace)?,
                Action::Remove => {
                    self.memory.remove(uid);
                    self.store.remove(&key)?;
                }
                Action::Event { warning, reason, text } => self.events.add(&key, warning, reason, &text),
                Action::Look(time) => self.look_at(time),
                Action::Fail => self.failed(uid),
                Action::Succeed => {
                    let memory = self.memory(uid);
                    (memory.failures, memory.retry) = (0, None);
                }
                Action::Cancel => self.cancel(uid),
                Action::Claim(action) => {
                    if let Some(claim) = self.store.called(uid) {
                        self.act_on_claim(&claim, action);
                    }
                }
                Action::FillVolume(origin) => {
                    if let Some(volume) = self.store.called::<DataVolume>(uid) {
                        self.fill_volume(&volume, *origin);
                    }
                }
                Action::EndRun(run) => self.end_run(&run, None)?,
                Action::Run(action) => {
                    self.run_called(uid).map_or(Ok(()), |run| self.act_on_run(&run, action))?
                }
                Action::MendLater { run } => self.memory(&run).mend = true,
                Action::RemoveNetworks => self.remove_networks(uid),
                Action::RemoveMachine => {
                    if let Some(machine) = self.store.called::<VirtualMachine>(uid) {
                        self.remove_machine(&machine)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn put(&mut self, object: Object) -> Result<(), Error> {
        match object {
            Object::Machine(machine) => self.store.put(&*machine),
            Object::Instance(run) => self.store.put(&*run),
            Object::DataVolume(volume) => self.store.put(&*volume),
            Object::Claim(claim) => self.store.put(&*claim),
        }
    }

    /// Stores a new object.
    fn create(&mut self, mut object: Object, namespace: &str) -> Result<(), Error> {
        let metadata = match &mut object {
            Object::Machine(machine) => &mut machine.metadata,
            Object::Instance(run) => &mut run.metadata,
            Object::DataVolume(volume) => &mut volume.metadata,
            Object::Claim(claim) => &mut claim.metadata,
        };
        let owner_references = std::mem::take(&mut metadata.owner_references);
        *metadata = ObjectMeta { owner_references, ..made(metadata, namespace)? };
        self.put(object)
    }

    fn act_on_claim(&mut self, claim: &PersistentVolumeClaim, action: ClaimAction) {
        match action {
            ClaimAction::Make { source } => self.make_volume(claim, source),
            ClaimAction::Grow(shown) => self.grow_volume(claim, shown),
            ClaimAction::Remove => self.remove_volume_of(claim),
        }
    }

    fn act_on_run(&mut self, run: &VirtualMachineInstance, action: RunAction) -> Result<(), Error> {
        match action {
            RunAction::Start { launch } => self.start(run, launch),
            RunAction::MoveDevices => return self.move_devices(run),
            RunAction::ShutDown => self.shut_down(run),
            RunAction::Kill => self.kill(run),
            RunAction::Clear => self.clear_run(run),
            RunAction::Remove => return self.remove_run(run),
        }
        Ok(())
    }
}
