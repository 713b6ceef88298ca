//! Stores documents: checked on a thread of their own, then written as one batch, all or none. Not here: verbs
//! ([`super::requests`]).

use std::sync::mpsc::Sender;
use std::sync::{Arc, PoisonError};

use api::cdi::DataVolume;
use api::core::{ConfigMap, PersistentVolumeClaim, Secret};
use api::kind::Kind;
use api::kubevirt::{VirtualMachine, VirtualMachineInstance};
use api::manifest::Document;
use api::multus::NetworkAttachmentDefinition;
use serde_json::Value;

use super::addresses::Addresses;
use super::claim;
use super::controller::{Controller, Message, Reply};
use super::metadata::made;
use super::requests::{Refused, broken};
use super::store::{Key, Stored};
use crate::error::Error;
use crate::protocol::{Answer, Change, RefusedKind, Target};
use virt::fields::Place;
use virt::finding::{Finding, Verdict};
use virt::status;
use virt::validate;
use virt::validate::{Checked, Documents, Report, SourceDocument};

/// An object that was kept.
struct Kept {
    key: Key,
    change: Change,
    /// Of addresses that another guest has, too.
    shared: Vec<String>,
}

/// Findings about fields, by object.
type Findings = Vec<(Target, Vec<Finding>)>;

fn target(key: &Key) -> Target {
    Target { kind: key.kind.name().to_owned(), namespace: key.namespace.clone(), name: key.name.clone() }
}

/// Valid documents, with their findings.
fn checked(documents: Vec<SourceDocument>) -> Result<Checked, Refused> {
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
    /// Has documents checked on a thread of its own, one client's after the other's: they may be long.
    pub(super) fn check(&self, documents: Vec<SourceDocument>, reply: Sender<Reply>) {
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
        self.store.begin();
        let kept = self.keep_all(&documents, &report);
        let kept = kept.and_then(|kept| self.store.commit().map(|()| kept));
        let (kept, findings) = match kept {
            Ok(kept) => kept,
            Err((error, keys)) => {
                for key in &keys {
                    self.addresses.read(&self.store, key);
                }
                return Err(broken(&error));
            }
        };
        for Kept { key, change, shared } in kept {
            if change == Change::Created {
                self.events.add(&key, false, "Created", &format!("{key} was made"));
            }
            // Upstream's reason.
            for text in &shared {
                self.events.add(&key, true, "MACCollision", text);
            }
            objects.push((target(&key), change));
        }
        Ok(Answer::Applied { objects, findings })
    }

    /// Keeps objects in a batch, which is rolled back where one cannot be kept; hands out their keys then.
    fn keep_all(
        &mut self,
        documents: &[Document],
        report: &Report,
    ) -> Result<(Vec<Kept>, Findings), (Error, Vec<Key>)> {
        let kept = self.keep_each(documents, report);
        kept.map_err(|error| (error, self.store.roll_back()))
    }

    fn keep_each(&mut self, documents: &[Document], report: &Report) -> Result<(Vec<Kept>, Findings), Error> {
        let mut kept = Vec::new();
        for document in documents {
            kept.extend(self.keep(document)?);
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
                self.note_fields(&of, &told)?;
            }
            if !told.is_empty() {
                findings.push((of, told));
            }
        }
        Ok((kept, findings))
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
                    asked = claim::without_growth(&kept, asked);
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
        let text = format!(
            "{key} and {other} conflict: the VirtualMachineInstance of a VirtualMachine has its name; rename one of them"
        );
        Err((RefusedKind::State, text))
    }

    /// Keeps an object of a document.
    fn keep(&mut self, document: &Document) -> Result<Option<Kept>, Error> {
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
                    claim::ask_for(new, &asked);
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
    ) -> Result<Kept, Error> {
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
            self.store.put_durably(&object)?;
            return Ok(Kept { key: object.key(), change: Change::Created, shared });
        };
        let given = object.metadata().clone();
        *object.metadata_mut() = before.metadata().clone();
        object.metadata_mut().labels = given.labels;
        object.metadata_mut().annotations = given.annotations;
        kept(&before, &mut object);
        let shared = addressed(&mut self.addresses, Some(&before), &mut object)?;
        let changes = self.store.changes();
        self.store.put_durably(&object)?;
        if self.store.changes() == changes {
            return Ok(Kept { key: object.key(), change: Change::Unchanged, shared });
        }
        let generation = object.metadata().generation.unwrap_or(1) + 1;
        object.metadata_mut().generation = Some(generation);
        self.store.put_durably(&object)?;
        Ok(Kept { key: object.key(), change: Change::Configured, shared })
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
