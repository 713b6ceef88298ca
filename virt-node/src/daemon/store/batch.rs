//! Changes of several objects, all or nothing: a journal of all of them is on the disk before the first file changes, and is
//! gone after the last. A start after a kill completes the batch; without room for all nothing changes.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use api::kind::Kind;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Entry, Key, Store, unwritable};
use crate::daemon::state::VERSION;
use crate::error::{Error, Kind as ErrorKind};

/// Longest journal of a batch in bytes.
const JOURNAL_MAX: u64 = 256 << 20;
/// The journal of a batch, in the folder of the objects; no kind is called so.
pub(super) const JOURNAL: &str = "journal";

/// An object that a batch changes, in its journal.
#[derive(Serialize, Deserialize)]
pub(super) struct Journaled {
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) object: Value,
}

/// The journal of a batch.
#[derive(Serialize, Deserialize)]
pub(super) struct Journal {
    pub(super) version: u64,
    pub(super) objects: Vec<Journaled>,
}

impl Store {
    /// Completes a batch whose journal is there.
    pub(super) fn complete(&mut self) -> Result<(), Error> {
        let path = self.folder.join(JOURNAL);
        let broken = |problem: String| {
            let text = format!("{}: {problem}; move it away to go on without what it holds", path.display());
            Error::new(ErrorKind::Content, text)
        };
        let Some(json) = dir::read(&path, JOURNAL_MAX).map_err(|error| broken(error.to_string()))? else {
            return Ok(());
        };
        let journal: Journal = serde_json::from_slice(&json).map_err(|error| broken(error.to_string()))?;
        if journal.version > VERSION {
            return Err(broken(format!("written by a newer release (version {})", journal.version)));
        }
        for Journaled { kind, namespace, name, object } in journal.objects {
            let kind = Kind::ALL.into_iter().find(|one| one.name() == kind);
            let key = Key::new(kind.ok_or_else(|| broken("an unknown kind".to_owned()))?, &namespace, &name);
            self.write(&key, &object).map_err(|error| unwritable(&key, error))?;
            self.insert(key, Entry::new(object));
        }
        fs::remove_file(&path).map_err(|error| broken(error.to_string()))
    }

    /// Begins a batch: what is put from now on is on the disk when it is committed, all or nothing.
    pub(in super::super) fn begin(&mut self) {
        self.batch = Some(BTreeMap::new());
    }

    /// Ends the batch: its objects are on the disk. Else all are as they were, and their keys are handed out.
    ///
    /// # Errors
    /// They cannot be written.
    pub(in super::super) fn commit(&mut self) -> Result<(), (Error, Vec<Key>)> {
        let changed: Vec<Key> = self.batch.iter().flat_map(BTreeMap::keys).cloned().collect();
        match self.write_all(&changed) {
            Ok(()) => {
                self.batch = None;
                for key in &changed {
                    self.unwritten.remove(key);
                }
                Ok(())
            }
            Err(error) => Err((error, self.roll_back())),
        }
    }

    /// Ends the batch, and all of its objects are as they were. Their keys are handed out.
    pub(in super::super) fn roll_back(&mut self) -> Vec<Key> {
        let mut keys = Vec::new();
        for (key, before) in self.batch.take().unwrap_or_default() {
            self.changes += 1;
            if let Some(entry) = before {
                // Its file may be the new one.
                if self.write(&key, &entry.value).is_err() {
                    self.unwritten.insert(key.clone());
                }
                self.insert(key.clone(), entry);
            } else {
                drop(fs::remove_file(self.file(&key)));
                self.take_out(&key);
            }
            keys.push(key);
        }
        keys
    }

    /// Writes objects, a journal of all of them first.
    fn write_all(&self, keys: &[Key]) -> Result<(), Error> {
        let journal = self.folder.join(JOURNAL);
        let failed = |error: io::Error| {
            let what = keys.first().map_or_else(String::new, ToString::to_string);
            let rest = keys.len().saturating_sub(1);
            let text = format!("{what} and {rest} others cannot be written: nothing of the request is kept");
            Error::with(ErrorKind::System, text, io::Error::from(error.kind()))
        };
        let several = keys.len() > 1;
        if several {
            let objects = keys.iter().filter_map(|key| {
                Some(Journaled {
                    kind: key.kind.name().to_owned(),
                    namespace: key.namespace.clone(),
                    name: key.name.clone(),
                    object: self.value(key)?.clone(),
                })
            });
            let json = serde_json::to_vec(&Journal { version: VERSION, objects: objects.collect() });
            let json = json.map_err(|error| failed(error.into()))?;
            fs::create_dir_all(&self.folder).map_err(failed)?;
            dir::replace_durably(&journal, &json, 0o600).map_err(|error| failed(error.into()))?;
        }
        let written = keys.iter().try_for_each(|key| match self.value(key) {
            Some(value) => self
                .write(key, value)
                .map_err(|error| if several { failed(error) } else { unwritable(key, error) }),
            None => Ok(()),
        });
        if several {
            // One that stays would be completed once more, which changes nothing before the next change of its objects.
            fs::remove_file(&journal).map_err(failed)?;
        }
        written
    }
}
