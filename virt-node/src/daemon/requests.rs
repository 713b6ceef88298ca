//! Requests of clients and their answers: documents become objects, verbs become the wanted state.

use std::sync::mpsc::Sender;
use std::sync::{Arc, PoisonError};

use api::cdi::DataVolume;
use api::core::{ConfigMap, PersistentVolumeClaim, Secret};
use api::kind::Kind;
use api::kubevirt::{VirtualMachine, VirtualMachineInstance};
use api::launcher::{RefusedKind as Declined, Request as Asked};
use api::manifest::Document;
use api::multus::NetworkAttachmentDefinition;
use serde_json::Value;

use super::addresses::Addresses;
use super::controller::{Controller, Message, Reply};
use super::store::{Key, Stored};
use super::volumes::{is_owned, is_upload, made};
use super::{growth, upload};
use crate::error::Error;
use crate::protocol::{Answer, Change, RefusedKind, Request, Stream, Target, Verb};
use guest::CallError;
use virt::fields::Place;
use virt::finding::{Finding, Verdict};
use virt::machine::Strategy;
use virt::machine::{phase, request_start};
use virt::status;
use virt::validate::{Checked, Documents, Given};
use virt::{time, validate};

/// A refusal.
pub(super) type Refused = (RefusedKind, String);

fn broken(error: &Error) -> Refused {
    (RefusedKind::Failed, error.chain())
}

/// An object's key, if there is such a kind.
fn key(target: &Target) -> Result<Key, Refused> {
    let kind = Kind::ALL.into_iter().find(|kind| kind.name() == target.kind);
    let kind = kind.ok_or_else(|| (RefusedKind::Invalid, format!("there is no kind {:?}", target.kind)))?;
    Ok(Key::new(kind, &target.namespace, &target.name))
}

fn target(key: &Key) -> Target {
    Target { kind: key.kind.name().to_owned(), namespace: key.namespace.clone(), name: key.name.clone() }
}

/// Valid documents, with their findings.
fn checked(documents: Vec<Given>) -> Result<Checked, Refused> {
    let checked = Documents::of(documents).validate(Place::Machine);
    if !checked.report.is_valid() {
        return Err((RefusedKind::Invalid, checked.report.text(false)));
    }
    Ok(checked)
}

/// Whether a document is a machine's run.
fn is_of_machine(document: &Document) -> bool {
    document.known() == Some(Kind::VirtualMachineInstance) && validate::is_of_machine(&document.value)
}

/// An object without interfaces has no addresses.
fn no_guest<T>(_: &mut Addresses, _: Option<&T>, _: &mut T) -> Result<Vec<String>, Error> {
    Ok(Vec::new())
}

impl Controller {
    /// Answers a call, now or from another thread.
    pub(super) fn call(&mut self, request: Request, reply: Sender<Reply>) {
        let answer = match request {
            Request::Apply { documents } => return self.check(documents, reply),
            Request::List => Ok(Answer::Objects(self.list())),
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
    fn forward(&mut self, uid: &str, asked: Asked, reply: Sender<Reply>) {
        self.ask(uid, asked, move |answer| {
            let answer = match answer {
                Ok(()) => Answer::Done,
                Err(CallError::Refused(Declined::State, message)) => {
                    Answer::Refused { kind: RefusedKind::State, message }
                }
                Err(error) => {
                    let error = Error::with(crate::error::Kind::System, "the guest's launcher", error);
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
        let all = kinds.iter().flat_map(|kind| self.store.keys(*kind));
        all.filter_map(|key| self.shown(&key)).collect()
    }

    fn get(&self, target: &Target) -> Result<Answer, Refused> {
        let key = key(target)?;
        let object = self.shown(&key);
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
            Some(upload::Door { port, authority, certificate, key }) => {
                Ok(Answer::Upload { port, authority, certificate, key })
            }
            None => Err((RefusedKind::State, format!("DataVolume {namespace}/{name} is {phase}"))),
        }
    }

    /// An object as it is kept.
    fn shown(&self, key: &Key) -> Option<Value> {
        self.store.value(key).cloned()
    }

    /// Has documents checked on a thread of its own, one client's after the other's: they may be long.
    fn check(&self, documents: Vec<Given>, reply: Sender<Reply>) {
        let (sender, turn) = (self.sender(), Arc::clone(&self.checking));
        let work = move || {
            // Nothing is left half done by a thread that panicked.
            let turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
            let checked = checked(documents);
            drop(turn);
            match checked {
                Ok(checked) => drop(sender.send(Message::Checked(Box::new(checked), reply))),
                Err((kind, message)) => drop(reply.send(Reply::Answer(Answer::Refused { kind, message }))),
            }
        };
        // The client notices the missing answer.
        drop(std::thread::Builder::new().name("check".to_owned()).spawn(work));
    }

    /// Keeps documents that were checked.
    pub(super) fn checked(&mut self, checked: Checked, reply: &Sender<Reply>) {
        let answer = self.apply(checked);
        let answer = answer.unwrap_or_else(|(kind, message)| Answer::Refused { kind, message });
        // A client that went does not want it any more.
        drop(reply.send(Reply::Answer(answer)));
    }

    /// Keeps documents' objects: all of them, or none where one of them cannot be kept.
    fn apply(&mut self, Checked { report, documents }: Checked) -> Result<Answer, Refused> {
        let mut documents: Vec<Document> = documents.into_iter().map(|one| one.document).collect();
        // The output of `get` for a VM: the run next to it is the VM's to make.
        documents.retain(|document| !is_of_machine(document));
        self.fits(&documents)?;
        let mut objects = Vec::new();
        // Referenced objects come first.
        let rank = |document: &Document| match document.known() {
            Some(Kind::Secret | Kind::ConfigMap | Kind::NetworkAttachmentDefinition) => 0,
            Some(Kind::PersistentVolumeClaim | Kind::DataVolume) => 1,
            Some(Kind::VirtualMachine | Kind::VirtualMachineInstance) | None => 2,
        };
        documents.sort_by_key(rank);
        for document in &documents {
            if let Some((key, change)) = self.keep(document).map_err(|error| broken(&error))? {
                objects.push((target(&key), change));
            }
        }
        let mut findings = Vec::new();
        for checked in &report.objects {
            let told: Vec<Finding> =
                checked.findings.iter().filter(|one| one.verdict != Verdict::Error).cloned().collect();
            let of = Target {
                kind: checked.kind.clone(),
                namespace: checked.namespace.clone(),
                name: checked.name.clone(),
            };
            if documents.iter().any(|document| document.kind == of.kind && document.name == of.name) {
                self.note_fields(&of, &told).map_err(|error| broken(&error))?;
            }
            if !told.is_empty() {
                findings.push((of, told));
            }
        }
        Ok(Answer::Applied { objects, findings })
    }

    /// Notes in a guest's object which of its fields have no effect.
    fn note_fields(&mut self, of: &Target, told: &[Finding]) -> Result<(), Error> {
        let (namespace, name) = (&of.namespace, &of.name);
        if of.kind == Kind::VirtualMachine.name() {
            let Some(mut machine) = self.store.get::<VirtualMachine>(namespace, name) else { return Ok(()) };
            status::fields(&mut machine.status.get_or_insert_default().conditions, told);
            self.store.put(&machine)
        } else if of.kind == Kind::VirtualMachineInstance.name() {
            let run = self.store.get::<VirtualMachineInstance>(namespace, name);
            let Some(mut run) = run else { return Ok(()) };
            status::fields(&mut run.status.get_or_insert_default().conditions, told);
            self.store.put(&run)
        } else {
            Ok(())
        }
    }

    /// Whether documents can be stored with the existing objects.
    fn fits(&self, documents: &[Document]) -> Result<(), Refused> {
        for document in documents {
            let Some(kind) = document.known() else { continue };
            let namespace = document.namespace.as_deref().unwrap_or(validate::NAMESPACE);
            let key = Key::new(kind, namespace, &document.name);
            self.has_name(&key, documents)?;
            let Some(before) = self.store.value(&key) else { continue };
            if before["metadata"].get("deletionTimestamp").is_some() {
                return Err((
                    RefusedKind::State,
                    format!("{key} is being deleted: try again when it is gone"),
                ));
            }
            let fixed = [Kind::DataVolume, Kind::PersistentVolumeClaim, Kind::VirtualMachineInstance];
            if fixed.contains(&kind) && before.get("spec") != document.value.get("spec") {
                let spec = |value: &Value| value.get("spec").cloned().unwrap_or(Value::Null);
                let (kept, mut asked) = (spec(before), spec(&document.value));
                if kind == Kind::PersistentVolumeClaim {
                    asked = growth::without_growth(&kept, asked);
                }
                if !includes(&kept, &asked) {
                    let text =
                        format!("{key} is there with another spec, which cannot change: delete it first");
                    return Err((RefusedKind::State, text));
                }
            }
        }
        Ok(())
    }

    /// Whether an object may be called so: a machine's run has its machine's name.
    fn has_name(&self, key: &Key, documents: &[Document]) -> Result<(), Refused> {
        let other = match key.kind {
            Kind::VirtualMachine => Kind::VirtualMachineInstance,
            Kind::VirtualMachineInstance => Kind::VirtualMachine,
            Kind::DataVolume
            | Kind::PersistentVolumeClaim
            | Kind::NetworkAttachmentDefinition
            | Kind::Secret
            | Kind::ConfigMap => return Ok(()),
        };
        let other = Key::new(other, &key.namespace, &key.name);
        let given = documents.iter().any(|document| {
            document.known() == Some(other.kind)
                && document.name == other.name
                && document.namespace.as_deref().unwrap_or(validate::NAMESPACE) == other.namespace
        });
        // A machine and its run, as `get` prints them.
        let both = self.store.value(key).is_some() && self.store.value(&other).is_some();
        if both || (!given && self.store.value(&other).is_none()) {
            return Ok(());
        }
        let text =
            format!("{key} and {other} cannot both be: a machine's run has its name; rename one of them");
        Err((RefusedKind::State, text))
    }

    /// Keeps an object of a document.
    fn keep(&mut self, document: &Document) -> Result<Option<(Key, Change)>, Error> {
        let kept = match document.known() {
            None => return Ok(None),
            Some(Kind::VirtualMachine) => self.keep_as::<VirtualMachine>(
                document,
                |old, new| {
                    new.status.clone_from(&old.status);
                },
                Addresses::give,
            )?,
            Some(Kind::VirtualMachineInstance) => {
                let kept =
                    |old: &VirtualMachineInstance, new: &mut VirtualMachineInstance| new.clone_from(old);
                self.keep_as(document, kept, Addresses::give)?
            }
            Some(Kind::DataVolume) => self.keep_as::<DataVolume>(
                document,
                |old, new| {
                    new.spec.clone_from(&old.spec);
                    new.status.clone_from(&old.status);
                },
                no_guest,
            )?,
            Some(Kind::PersistentVolumeClaim) => {
                let kept = |old: &PersistentVolumeClaim, new: &mut PersistentVolumeClaim| {
                    let asked = std::mem::replace(new, old.clone());
                    growth::ask_for(new, &asked);
                };
                self.keep_as(document, kept, no_guest)?
            }
            Some(Kind::NetworkAttachmentDefinition) => {
                self.keep_as::<NetworkAttachmentDefinition>(document, |_, _| {}, no_guest)?
            }
            Some(Kind::Secret) => self.keep_as::<Secret>(document, |_, _| {}, no_guest)?,
            Some(Kind::ConfigMap) => self.keep_as::<ConfigMap>(document, |_, _| {}, no_guest)?,
        };
        Ok(Some(kept))
    }

    /// Stores an object; `kept` carries state over from an existing object, `addressed` allocates its addresses and returns
    /// those that another guest has.
    fn keep_as<T: Stored>(
        &mut self,
        document: &Document,
        kept: impl FnOnce(&T, &mut T),
        addressed: impl FnOnce(&mut Addresses, Option<&T>, &mut T) -> Result<Vec<String>, Error>,
    ) -> Result<(Key, Change), Error> {
        let unread = |error| Error::with(crate::error::Kind::Content, "an object cannot be read", error);
        let mut value = document.value.clone();
        if let Some(object) = value.as_object_mut() {
            object.remove("status");
        }
        let mut object: T = serde_json::from_value(value).map_err(unread)?;
        let namespace = document.namespace.as_deref().unwrap_or(validate::NAMESPACE);
        let Some(before) = self.store.get::<T>(namespace, &document.name) else {
            let metadata = made(object.metadata(), namespace)?;
            *object.metadata_mut() = metadata;
            let shared = addressed(&mut self.addresses, None, &mut object)?;
            let put = self.store.put_durably(&object);
            // An object that could not be stored holds no address.
            put.inspect_err(|_| self.addresses.forget(&object.key()))?;
            self.events.add(&object.key(), false, "Created", &format!("{} was made", object.key()));
            self.tell_shared(&object.key(), &shared);
            return Ok((object.key(), Change::Created));
        };
        let given = object.metadata().clone();
        *object.metadata_mut() = before.metadata().clone();
        object.metadata_mut().labels = given.labels;
        object.metadata_mut().annotations = given.annotations;
        kept(&before, &mut object);
        let shared = addressed(&mut self.addresses, Some(&before), &mut object)?;
        self.tell_shared(&object.key(), &shared);
        let changes = self.store.changes();
        self.store.put_durably(&object)?;
        if self.store.changes() == changes {
            return Ok((object.key(), Change::Unchanged));
        }
        let generation = object.metadata().generation.unwrap_or(1) + 1;
        object.metadata_mut().generation = Some(generation);
        self.store.put_durably(&object)?;
        Ok((object.key(), Change::Configured))
    }

    /// Adds an event about addresses that another guest has, by upstream's reason.
    fn tell_shared(&mut self, key: &Key, shared: &[String]) {
        for text in shared {
            self.events.add(key, true, "MACCollision", text);
        }
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
    ) -> Result<Option<(String, Asked)>, Refused> {
        let asked = match verb {
            Verb::Pause => Asked::Pause,
            Verb::Unpause => Asked::Unpause,
            Verb::SoftReboot => Asked::SoftReboot,
            Verb::Reset => Asked::Reset,
            Verb::Start { .. } | Verb::Stop { .. } | Verb::Restart { .. } => {
                let machine = self.store.get::<VirtualMachine>(namespace, name);
                let machine = machine.ok_or_else(|| {
                    (RefusedKind::Missing, format!("there is no VirtualMachine {namespace}/{name}"))
                })?;
                if machine.is_deleting() {
                    return Err((RefusedKind::State, format!("{namespace}/{name} is being deleted")));
                }
                return self.switch(machine, verb).map(|()| None);
            }
        };
        Ok(Some((self.running(namespace, name)?.uid().to_owned(), asked)))
    }

    /// Start, stop, restart: what virtctl does by a machine's strategy.
    fn switch(&mut self, mut machine: VirtualMachine, verb: &Verb) -> Result<(), Refused> {
        let run = self.run_of(&machine).filter(|run| !["Succeeded", "Failed"].contains(&phase(run)));
        let state = |text: &str| (RefusedKind::State, format!("{}: {text}", machine.key()));
        let current = Strategy::of_machine(&machine);
        let always = current == Strategy::Always;
        let (ended, grace) = match verb {
            Verb::Start { paused } => {
                // One that waits after crashes is tried at once.
                let backing_off =
                    machine.status.as_ref().is_some_and(|status| status.start_failure.is_some());
                match (current, &run) {
                    (_, Some(run)) if !run.is_deleting() => return Err(state("VM is already running")),
                    (Strategy::Always, _) if !backing_off => {
                        return Err(state("Always does not support manual start requests"));
                    }
                    (Strategy::Once, _) => return Err(state("Once does not support manual start requests")),
                    (Strategy::Halted, _) if !paused => {
                        set_strategy(&mut machine, Strategy::Always);
                    }
                    (Strategy::Halted, _) => {
                        // Started once, and as it was started.
                        set_strategy(&mut machine, Strategy::Always);
                        start_request(&mut machine, true);
                    }
                    (Strategy::Manual | Strategy::RerunOnFailure | Strategy::Always, _) => {
                        start_request(&mut machine, *paused);
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

/// Writes a strategy where the machine has its own.
pub(super) fn set_strategy(machine: &mut VirtualMachine, strategy: Strategy) {
    if machine.spec.running.is_some() {
        machine.spec.running = Some(strategy == Strategy::Always);
    } else {
        machine.spec.run_strategy = Some(strategy.word().to_owned());
    }
    machine.metadata.generation = Some(machine.metadata.generation.unwrap_or(1) + 1);
}

fn start_request(machine: &mut VirtualMachine, paused: bool) {
    let status = machine.status.get_or_insert_default();
    status.state_change_requests.retain(|request| request.action != "Start");
    request_start(&mut status.state_change_requests);
    if let Some(request) = status.state_change_requests.last_mut().filter(|_| paused) {
        request.data.insert("paused".to_owned(), "true".to_owned());
    }
}

/// Whether `kept` includes everything in `asked`; it may have more.
fn includes(kept: &Value, asked: &Value) -> bool {
    match (kept, asked) {
        (Value::Object(kept), Value::Object(asked)) => {
            asked.iter().all(|(key, value)| kept.get(key).is_some_and(|kept| includes(kept, value)))
        }
        (Value::Array(kept), Value::Array(asked)) => {
            kept.len() == asked.len() && kept.iter().zip(asked).all(|(kept, asked)| includes(kept, asked))
        }
        (kept, asked) => {
            let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            text(kept) == text(asked)
        }
    }
}
