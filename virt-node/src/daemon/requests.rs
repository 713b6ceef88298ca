//! Requests of clients and their answers: documents become objects, verbs become the wanted state. Not here: the socket
//! (`socket`), and the steps towards that state (`reconcile`).

use std::sync::mpsc::Sender;

use api::cdi::DataVolume;
use api::core::PersistentVolumeClaim;
use api::kind::Kind;
use api::kubevirt::{VirtualMachine, VirtualMachineInstance};
use api::launcher::{RefusedKind as Declined, Request as LauncherRequest};
use serde_json::Value;

use super::claim::is_upload;
use super::controller::{Controller, Reply};
use super::metadata::is_owned;
use super::rows::rows;
use super::start_request::{set_strategy, start_request};
use super::store::{Key, Stored};
use super::upload;
use crate::error::Error;
use crate::protocol::{Answer, RefusedKind, Request, Stream, Target, Verb};
use guest::CallError;
use virt::machine::Strategy;
use virt::machine::{phase, request_start};
use virt::time;

/// A refusal.
pub(super) type Refused = (RefusedKind, String);

/// The refusal of a request that failed.
pub(super) fn broken(error: &Error) -> Refused {
    (RefusedKind::Failed, error.chain())
}

/// An object's key, if there is such a kind.
fn key(target: &Target) -> Result<Key, Refused> {
    let kind = Kind::ALL.into_iter().find(|kind| kind.name() == target.kind);
    let kind = kind.ok_or_else(|| (RefusedKind::Invalid, format!("there is no kind {:?}", target.kind)))?;
    Ok(Key::new(kind, &target.namespace, &target.name))
}

impl Controller {
    /// Answers a call, now or from another thread.
    pub(super) fn call(&mut self, request: Request, reply: Sender<Reply>) {
        let answer = match request {
            Request::Apply { documents } => return self.check(documents, reply),
            Request::List => Ok(Answer::Objects(self.list())),
            Request::Rows => Ok(rows(&self.store)),
            Request::Get(target) => self.get(&target),
            Request::Events { namespace, name, after } => {
                Ok(Answer::Events(self.events.after(&namespace, name.as_deref(), after)))
            }
            Request::Delete { targets, grace_seconds } => self.delete(&targets, grace_seconds),
            Request::Power { namespace, name, verb } => match self.power(&namespace, &name, &verb) {
                Ok(Some((uid, asked))) => return self.forward(&uid, asked, reply),
                Ok(None) => Ok(Answer::Done),
                Err(refused) => Err(refused),
            },
            Request::AddVolume { namespace, name, claim, disk, dry_run } => {
                self.add_volume((&namespace, &name), &claim, *disk, dry_run)
            }
            Request::RemoveVolume { namespace, name, volume, dry_run } => {
                self.remove_volume((&namespace, &name), &volume, dry_run)
            }
            Request::Upload { namespace, name } => self.upload(&namespace, &name),
            Request::Stream { namespace, name, stream } => match self.running(&namespace, &name) {
                Ok(run) => {
                    let name = match stream {
                        Stream::Console => "serial0",
                        Stream::Screen => "vnc",
                    };
                    return self.stream(&run, name, &reply);
                }
                Err(refused) => Err(refused),
            },
        };
        let answer = answer.unwrap_or_else(|(kind, message)| Answer::Refused { kind, message });
        // A client that went does not want it any more.
        drop(reply.send(Reply::Answer(answer)));
    }

    /// Hands a call on to a guest's launcher.
    fn forward(&mut self, uid: &str, asked: LauncherRequest, reply: Sender<Reply>) {
        self.ask(uid, asked, move |answer| {
            let answer = match answer {
                Ok(()) => Answer::Done,
                Err(CallError::Refused(Declined::State, message)) => {
                    Answer::Refused { kind: RefusedKind::State, message }
                }
                Err(error) => {
                    let error = Error::with(
                        crate::error::Kind::System,
                        "the call of the guest's launcher failed",
                        error,
                    );
                    Answer::Refused { kind: RefusedKind::Failed, message: error.chain() }
                }
            };
            drop(reply.send(Reply::Answer(answer)));
        });
    }

    fn stream(&mut self, run: &VirtualMachineInstance, name: &str, reply: &Sender<Reply>) {
        let answer = match self.state.run(run.uid()).connect(name) {
            Ok(stream) => Reply::Stream(stream),
            Err(error) => {
                let message = format!("the guest has no {name}: {error}");
                Reply::Answer(Answer::Refused { kind: RefusedKind::Failed, message })
            }
        };
        drop(reply.send(answer));
    }

    /// Machines and volumes: what others have may be long, or secret.
    fn list(&self) -> Vec<Value> {
        let kinds = [
            Kind::VirtualMachine,
            Kind::VirtualMachineInstance,
            Kind::DataVolume,
            Kind::PersistentVolumeClaim,
        ];
        kinds.into_iter().flat_map(|kind| self.store.values(kind)).cloned().collect()
    }

    fn get(&self, target: &Target) -> Result<Answer, Refused> {
        let key = key(target)?;
        let object = self.stored(&key);
        let object = object.ok_or_else(|| (RefusedKind::Missing, format!("there is no {key}")))?;
        Ok(Answer::Objects(vec![object]))
    }

    /// Where a DataVolume's content is to be sent.
    fn upload(&self, namespace: &str, name: &str) -> Result<Answer, Refused> {
        let volume = self.store.get::<DataVolume>(namespace, name);
        let volume = volume
            .ok_or_else(|| (RefusedKind::Missing, format!("there is no DataVolume {namespace}/{name}")))?;
        let claim = self.store.get::<PersistentVolumeClaim>(namespace, name);
        let claim = claim.filter(|claim| is_owned(&claim.metadata, volume.uid()));
        let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
        if !is_upload(&volume) {
            let text =
                format!("DataVolume {namespace}/{name} is not filled by an upload: see its spec.source");
            return Err((RefusedKind::Invalid, text));
        }
        let door = claim.and_then(|claim| upload::door(&self.volume(&claim).folder));
        match door.filter(|_| phase == "UploadReady") {
            Some(upload::UploadAddress { port, authority, certificate, key }) => {
                Ok(Answer::Upload { port, authority, certificate, key })
            }
            None => Err((RefusedKind::State, format!("DataVolume {namespace}/{name} is {phase}"))),
        }
    }

    /// An object as it is kept.
    fn stored(&self, key: &Key) -> Option<Value> {
        self.store.value(key).cloned()
    }

    fn delete(&mut self, targets: &[Target], grace: Option<u64>) -> Result<Answer, Refused> {
        let keys = targets.iter().map(key).collect::<Result<Vec<Key>, Refused>>()?;
        for key in &keys {
            if self.store.value(key).is_none() {
                return Err((RefusedKind::Missing, format!("there is no {key}")));
            }
        }
        for key in &keys {
            self.delete_one(key, grace).map_err(|error| broken(&error))?;
        }
        Ok(Answer::Done)
    }

    fn delete_one(&mut self, key: &Key, grace: Option<u64>) -> Result<(), Error> {
        match key.kind {
            Kind::VirtualMachine => {
                if let Some(machine) = self.store.get::<VirtualMachine>(&key.namespace, &key.name)
                    && let Some(run) = self.run_of(&machine)
                {
                    self.end_run(&run, grace)?;
                }
                self.mark::<VirtualMachine>(key)
            }
            Kind::VirtualMachineInstance => {
                match self.store.get::<VirtualMachineInstance>(&key.namespace, &key.name) {
                    Some(run) => self.end_run(&run, grace),
                    None => Ok(()),
                }
            }
            Kind::DataVolume => self.mark::<DataVolume>(key),
            Kind::PersistentVolumeClaim => self.mark::<PersistentVolumeClaim>(key),
            Kind::NetworkAttachmentDefinition | Kind::Secret | Kind::ConfigMap => self.store.remove(key),
        }
    }

    /// Has an object go away.
    fn mark<T: Stored>(&mut self, key: &Key) -> Result<(), Error> {
        let Some(mut object) = self.store.get::<T>(&key.namespace, &key.name) else { return Ok(()) };
        if !object.is_deleting() {
            object.metadata_mut().deletion_timestamp = Some(time::text(time::now()));
        }
        self.store.put(&object)
    }

    /// The run of a name, with a guest.
    fn running(&self, namespace: &str, name: &str) -> Result<VirtualMachineInstance, Refused> {
        let run = self.store.get::<VirtualMachineInstance>(namespace, name);
        let machine = self.store.value(&Key::new(Kind::VirtualMachine, namespace, name));
        if run.is_none() && machine.is_none() {
            let text = format!("there is no VirtualMachine or VirtualMachineInstance {namespace}/{name}");
            return Err((RefusedKind::Missing, text));
        }
        let run = run.filter(|run| phase(run) == "Running");
        run.ok_or_else(|| (RefusedKind::State, format!("{namespace}/{name} does not run")))
    }

    /// Carries out a verb; returns the request for its launcher.
    fn power(
        &mut self,
        namespace: &str,
        name: &str,
        verb: &Verb,
    ) -> Result<Option<(String, LauncherRequest)>, Refused> {
        let asked = match verb {
            Verb::Pause => LauncherRequest::Pause,
            Verb::Unpause => LauncherRequest::Unpause,
            Verb::SoftReboot => LauncherRequest::SoftReboot,
            Verb::Reset => LauncherRequest::Reset,
            Verb::Start { .. } | Verb::Stop { .. } | Verb::Restart { .. } => {
                let machine = self.store.get::<VirtualMachine>(namespace, name);
                let machine =
                    machine.ok_or_else(|| (RefusedKind::Missing, self.no_machine(namespace, name)))?;
                if machine.is_deleting() {
                    return Err((RefusedKind::State, format!("{namespace}/{name} is being deleted")));
                }
                return self.switch(machine, verb).map(|()| None);
            }
        };
        Ok(Some((self.running(namespace, name)?.uid().to_owned(), asked)))
    }

    /// Why a verb of a VirtualMachine has no object, and what there is instead.
    fn no_machine(&self, namespace: &str, name: &str) -> String {
        let text = format!("there is no VirtualMachine {namespace}/{name}");
        match self.store.get::<VirtualMachineInstance>(namespace, name) {
            Some(_) => format!(
                "{text}; the VirtualMachineInstance of this name has none and runs once: \
                 `virt-node delete -n {namespace} vmi/{name}` ends it"
            ),
            None => text,
        }
    }

    /// Start, stop, restart: what virtctl does by a machine's strategy.
    fn switch(&mut self, mut machine: VirtualMachine, verb: &Verb) -> Result<(), Refused> {
        let run = self.run_of(&machine).filter(|run| !["Succeeded", "Failed"].contains(&phase(run)));
        let state = |text: &str| (RefusedKind::State, format!("{}: {text}", machine.key()));
        let current = Strategy::of_machine(&machine);
        let always = current == Strategy::Always;
        let (ended, grace) = match verb {
            Verb::Start { paused, once } => {
                // One that waits after crashes is tried at once.
                let backing_off =
                    machine.status.as_ref().is_some_and(|status| status.start_failure.is_some());
                match (current, &run) {
                    (_, Some(run)) if !run.is_deleting() => return Err(state("VM is already running")),
                    (Strategy::Always, _) if !backing_off => {
                        return Err(state("Always does not support manual start requests"));
                    }
                    (Strategy::Once, _) => return Err(state("Once does not support manual start requests")),
                    (Strategy::Halted, _) if *once => start_request(&mut machine, *paused, true),
                    (Strategy::Halted, _) if !paused => {
                        set_strategy(&mut machine, Strategy::Always);
                    }
                    (Strategy::Halted, _) => {
                        // Started once, and as it was started.
                        set_strategy(&mut machine, Strategy::Always);
                        start_request(&mut machine, true, false);
                    }
                    (Strategy::Manual | Strategy::RerunOnFailure | Strategy::Always, _) => {
                        start_request(&mut machine, *paused, false);
                    }
                }
                machine.status.get_or_insert_default().start_failure = None;
                (None, None)
            }
            Verb::Stop { grace_seconds } => {
                match (current, &run) {
                    (
                        Strategy::Halted | Strategy::Manual | Strategy::RerunOnFailure | Strategy::Once,
                        None,
                    ) => {
                        return Err(state("VM is not running"));
                    }
                    (Strategy::Always | Strategy::Once, _) => set_strategy(&mut machine, Strategy::Halted),
                    (Strategy::Halted | Strategy::Manual | Strategy::RerunOnFailure, Some(_)) => {}
                }
                let status = machine.status.get_or_insert_default();
                status.state_change_requests.retain(|request| request.action != "Start");
                (run, *grace_seconds)
            }
            Verb::Restart { grace_seconds } => {
                if matches!(current, Strategy::Halted | Strategy::Once) {
                    let text = format!("{} does not support manual restart requests", current.word());
                    return Err(state(&text));
                }
                let run = run.ok_or_else(|| state("VM is not running"))?;
                if !always {
                    request_start(&mut machine.status.get_or_insert_default().state_change_requests);
                }
                (Some(run), *grace_seconds)
            }
            Verb::Pause | Verb::Unpause | Verb::SoftReboot | Verb::Reset => (None, None),
        };
        self.store.put(&machine).map_err(|error| broken(&error))?;
        match ended {
            Some(run) => self.end_run(&run, grace).map_err(|error| broken(&error)),
            None => Ok(()),
        }
    }
}
