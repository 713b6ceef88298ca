//! Objects, kept as files: the same ones that a cluster shows, status included.
//!
//! Each is a file of its own, written as a whole; a file that cannot be read stops the daemon's start with its name, so
//! that nothing is lost by going on without it. Where there is no room for a change of an object that is there, it is made
//! in memory and written later: deleting is what makes room.
//!
//! Objects are in memory as their types too, with indexes by UID and by the claims that they name ([`super::relations`]).
//! After a change the object and those that depend on it are dirty: only these are reconciled.
//!
//! Not here: what objects mean.

mod batch;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use api::cdi::DataVolume;
use api::kind::Kind;
use api::kubevirt::{VirtualMachine, VirtualMachineInstance};
use serde::Deserialize;
use serde_json::Value;

pub(crate) use super::object::Key;
pub(super) use super::object::Stored;
use super::relations::{Relations, claims_named};
use super::state::VERSION;
use crate::error::{Error, Kind as ErrorKind};

/// Longest file of an object in bytes.
const FILE_MAX: u64 = 32 << 20;

/// A file of an object.
#[derive(Deserialize)]
struct Filed {
    version: u64,
    #[serde(default)]
    object: Value,
}

/// An object in memory.
#[derive(Clone, Debug)]
struct Entry {
    value: Value,
    /// The same as its type, once it was asked for; `None`: it cannot be read as that.
    typed: OnceLock<Option<Arc<dyn Any + Send + Sync>>>,
}

impl Entry {
    fn new(value: Value) -> Self {
        Self { value, typed: OnceLock::new() }
    }

    fn read<T: Stored>(&self) -> Option<Arc<T>> {
        let typed = self.typed.get_or_init(|| {
            let object = T::deserialize(&self.value).ok()?;
            Some(Arc::new(object) as Arc<dyn Any + Send + Sync>)
        });
        Arc::clone(typed.as_ref()?).downcast().ok()
    }
}

/// All objects.
#[derive(Debug)]
pub(super) struct Store {
    folder: PathBuf,
    objects: BTreeMap<Key, Entry>,
    relations: Relations,
    /// Changed objects and those that depend on one.
    dirty: BTreeSet<Key>,
    /// Counts changes.
    changes: u64,
    /// Objects with a last change in memory only.
    unwritten: BTreeSet<Key>,
    /// Earlier state of the objects that the current batch changes.
    batch: Option<BTreeMap<Key, Option<Entry>>>,
}

impl Store {
    /// Reads all objects, and completes a batch that was cut short.
    ///
    /// # Errors
    /// A file that cannot be read, by its name.
    pub(super) fn open(folder: &Path) -> Result<Self, Error> {
        let mut store = Self {
            folder: folder.to_owned(),
            objects: BTreeMap::new(),
            relations: Relations::default(),
            dirty: BTreeSet::new(),
            changes: 0,
            unwritten: BTreeSet::new(),
            batch: None,
        };
        for kind in Kind::ALL {
            for namespace in names(&folder.join(kind.name()))? {
                let space = folder.join(kind.name()).join(&namespace);
                for name in names(&space)? {
                    let object = read(&space.join(&name))?;
                    store.insert(Key::new(kind, &namespace, &name), Entry::new(object));
                }
            }
        }
        store.complete()?;
        store.touch_all();
        Ok(store)
    }

    /// How many changes there were.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    fn file(&self, key: &Key) -> PathBuf {
        self.folder.join(key.kind.name()).join(&key.namespace).join(&key.name)
    }

    fn of_kind(&self, kind: Kind) -> impl Iterator<Item = (&Key, &Entry)> {
        self.objects.range(Key::new(kind, "", "")..).take_while(move |(key, _)| key.kind == kind)
    }

    /// All objects of a kind as they are written, by namespace and name.
    pub(super) fn values(&self, kind: Kind) -> impl Iterator<Item = &Value> {
        self.of_kind(kind).map(|(_, entry)| &entry.value)
    }

    /// An object as it is written.
    pub(super) fn value(&self, key: &Key) -> Option<&Value> {
        self.objects.get(key).map(|entry| &entry.value)
    }

    /// An object.
    pub(super) fn get<T: Stored>(&self, namespace: &str, name: &str) -> Option<T> {
        self.shared::<T>(&Key::new(T::KIND, namespace, name)).map(|object| (*object).clone())
    }

    /// The object of this UID.
    pub(super) fn called<T: Stored>(&self, uid: &str) -> Option<T> {
        let key = self.relations.called(uid).filter(|key| key.kind == T::KIND)?;
        self.shared::<T>(key).map(|object| (*object).clone())
    }

    fn shared<T: Stored>(&self, key: &Key) -> Option<Arc<T>> {
        self.objects.get(key)?.read()
    }

    /// All objects of a kind.
    pub(super) fn all<T: Stored>(&self) -> impl Iterator<Item = Arc<T>> {
        self.of_kind(T::KIND).filter_map(|(_, entry)| entry.read())
    }

    /// All objects of a kind that name a claim.
    pub(super) fn users<T: Stored>(&self, namespace: &str, claim: &str) -> impl Iterator<Item = Arc<T>> {
        let keys = self.relations.users(namespace, claim).filter(|key| key.kind == T::KIND);
        keys.filter_map(|key| self.shared(key))
    }

    /// DataVolumes that the machine with this UID owns.
    pub(super) fn owned(&self, uid: &str) -> impl Iterator<Item = Arc<DataVolume>> {
        let owned = self.relations.called(uid).into_iter().flat_map(|key| self.relations.owned(key));
        let uid = uid.to_owned();
        owned.filter_map(|key| self.shared::<DataVolume>(key)).filter(move |volume| {
            let owners = &volume.metadata.owner_references;
            owners.iter().any(|owner| owner.get("uid").and_then(|one| one.as_str()) == Some(&uid))
        })
    }

    /// Takes the dirty objects.
    pub(super) fn take_dirty(&mut self) -> BTreeSet<Key> {
        std::mem::take(&mut self.dirty)
    }

    /// Marks an object and those that depend on it dirty.
    pub(super) fn touch(&mut self, key: &Key) {
        self.relations.affected(key, &mut self.dirty);
    }

    /// The same for the object of a UID, if there is one.
    pub(super) fn touch_called(&mut self, uid: &str) {
        if let Some(key) = self.relations.called(uid).cloned() {
            self.touch(&key);
        }
    }

    /// Marks all objects dirty.
    pub(super) fn touch_all(&mut self) {
        self.dirty.extend(self.objects.keys().cloned());
    }

    fn insert(&mut self, key: Key, entry: Entry) {
        let uid = entry.value["metadata"]["uid"].as_str().unwrap_or_default();
        let claims = match key.kind {
            Kind::VirtualMachine => entry.read().map(|one: Arc<VirtualMachine>| claims_named::machine(&one)),
            Kind::VirtualMachineInstance => {
                entry.read().map(|one: Arc<VirtualMachineInstance>| claims_named::instance(&one))
            }
            Kind::DataVolume => entry.read().map(|one: Arc<DataVolume>| claims_named::data_volume(&one)),
            Kind::PersistentVolumeClaim
            | Kind::NetworkAttachmentDefinition
            | Kind::Secret
            | Kind::ConfigMap => None,
        };
        // Those that depended on the object as it was, too.
        self.touch(&key);
        self.relations.set(&key, uid, claims.unwrap_or_default());
        self.touch(&key);
        self.objects.insert(key, entry);
    }

    fn take_out(&mut self, key: &Key) -> Option<Entry> {
        self.touch(key);
        self.relations.remove(key);
        self.objects.remove(key)
    }

    /// Keeps an object, if it is not kept just so.
    ///
    /// # Errors
    /// It cannot be written, and is new, or it is not for want of room.
    pub(super) fn put<T: Stored>(&mut self, object: &T) -> Result<(), Error> {
        self.put_as(object, true)
    }

    /// The same, and the object is on the disk when this returns, or when the batch is committed.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn put_durably<T: Stored>(&mut self, object: &T) -> Result<(), Error> {
        self.put_as(object, false)
    }

    fn put_as<T: Stored>(&mut self, object: &T, later: bool) -> Result<(), Error> {
        let key = object.key();
        let failed = |error: io::Error| unwritable(&key, error);
        let mut value = serde_json::to_value(object).map_err(|error| failed(error.into()))?;
        let before = self.objects.get(&key);
        if before.is_some_and(|before| same(&before.value, &value)) {
            return Ok(());
        }
        let version = before.and_then(|before| before.value["metadata"]["resourceVersion"].as_str());
        let version = version.and_then(|version| version.parse::<u64>().ok()).unwrap_or(0) + 1;
        value["metadata"]["resourceVersion"] = Value::String(version.to_string());
        let before = before.cloned();
        if let Some(batch) = &mut self.batch {
            batch.entry(key.clone()).or_insert(before);
        } else {
            match self.write(&key, &value) {
                Ok(()) => drop(self.unwritten.remove(&key)),
                Err(error) if later && before.is_some() && is_full(&error) => {
                    self.unwritten.insert(key.clone());
                }
                Err(error) => return Err(failed(error)),
            }
        }
        self.changes += 1;
        self.insert(key, Entry::new(value));
        Ok(())
    }

    fn write(&self, key: &Key, value: &Value) -> io::Result<()> {
        let path = self.file(key);
        let json = serde_json::to_vec(&serde_json::json!({"version": VERSION, "object": value}))?;
        fs::create_dir_all(path.parent().unwrap_or(&self.folder))?;
        dir::replace_durably(&path, &json, 0o600).map_err(io::Error::from)
    }

    /// Writes what there was no room for. Answers whether everything is written.
    pub(super) fn catch_up(&mut self) -> bool {
        while let Some(key) = self.unwritten.first().cloned() {
            let written = self.objects.get(&key).is_none_or(|entry| self.write(&key, &entry.value).is_ok());
            if !written {
                return false;
            }
            self.unwritten.remove(&key);
        }
        true
    }

    /// Forgets an object.
    pub(super) fn remove(&mut self, key: &Key) -> Result<(), Error> {
        let path = self.file(key);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::with(ErrorKind::System, format!("{key} cannot be removed"), error));
            }
            Ok(()) | Err(_) => {}
        }
        // The folder of the last one of a namespace goes too; the others' stay by themselves.
        if let Some(space) = path.parent() {
            drop(fs::remove_dir(space));
        }
        self.unwritten.remove(key);
        self.changes += u64::from(self.take_out(key).is_some());
        Ok(())
    }
}

fn unwritable(key: &Key, error: io::Error) -> Error {
    if is_full(&error) {
        // Without the path, which differs each time: it is logged once.
        let error = io::Error::from(error.kind());
        let text = format!("no space left to store {key}: free disk space or delete objects");
        return Error::with(ErrorKind::System, text, error);
    }
    Error::with(ErrorKind::System, format!("{key} cannot be written"), error)
}

fn is_full(error: &io::Error) -> bool {
    [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded].contains(&error.kind())
}

/// Whether two values are one object, apart from the version that counts its changes.
fn same(before: &Value, after: &Value) -> bool {
    let plain = |value: &Value| {
        let mut value = value.clone();
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("resourceVersion");
        }
        value
    };
    plain(before) == plain(after)
}

/// Names in a folder; those that begin with a dot are of writes that were cut short.
fn names(folder: &Path) -> Result<Vec<String>, Error> {
    let failed = |error| Error::with(ErrorKind::System, folder.display().to_string(), error);
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        match entry.file_name().into_string() {
            Ok(name) if name.starts_with('.') => drop(fs::remove_file(entry.path())),
            Ok(name) => names.push(name),
            Err(_) => {}
        }
    }
    names.sort();
    Ok(names)
}

fn read(path: &Path) -> Result<Value, Error> {
    let broken = |problem: String| {
        let text = format!(
            "{}: {problem}; it was left as it is: put it right, or move it away to go on without this object",
            path.display()
        );
        Error::new(ErrorKind::Content, text)
    };
    let mut json = Vec::new();
    let file = fs::File::open(path).map_err(|error| broken(error.to_string()))?;
    file.take(FILE_MAX).read_to_end(&mut json).map_err(|error| broken(error.to_string()))?;
    let filed: Filed =
        serde_json::from_slice(&json).map_err(|error| broken(format!("not valid JSON: {error}")))?;
    if filed.version > VERSION {
        return Err(broken(format!("written by a newer release (version {})", filed.version)));
    }
    if filed.object.is_object() { Ok(filed.object) } else { Err(broken("no object in it".to_owned())) }
}

#[cfg(test)]
mod tests;
