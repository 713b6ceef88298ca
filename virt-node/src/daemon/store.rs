//! Objects, kept as files: the same ones that a cluster shows, status included.
//!
//! Each is a file of its own, written as a whole; a file that cannot be read stops the daemon's start with its name, so
//! that nothing is lost by going on without it. Where there is no room for a change of an object that is there, it is made
//! in memory and written later: deleting is what makes room.
//!
//! Not here: what objects mean.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use api::cdi::DataVolume;
use api::core::{ConfigMap, PersistentVolumeClaim, Secret};
use api::kind::Kind;
use api::kubevirt::{VirtualMachine, VirtualMachineInstance};
use api::multus::NetworkAttachmentDefinition;
use api::resource::ObjectMeta;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::state::VERSION;
use crate::error::{Error, Kind as ErrorKind};

/// Longest file of an object in bytes.
const FILE_MAX: u64 = 32 << 20;

/// The key of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) kind: Kind,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Key {
    pub(crate) fn new(kind: Kind, namespace: &str, name: &str) -> Self {
        Self { kind, namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// The key of events of the daemon itself: a part of it, in no namespace, and no object.
    pub(crate) fn daemon(part: &str) -> Self {
        Self::new(Kind::ConfigMap, "", part)
    }

    /// The kind in messages for users.
    pub(crate) fn shown_kind(&self) -> &'static str {
        if self.kind == Kind::ConfigMap && self.namespace.is_empty() { "Daemon" } else { self.kind.name() }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}/{}", self.shown_kind(), self.namespace, self.name)
    }
}

/// A kind of object that is kept.
pub(super) trait Stored: Serialize + DeserializeOwned {
    const KIND: Kind;
    fn metadata(&self) -> &ObjectMeta;
    fn metadata_mut(&mut self) -> &mut ObjectMeta;

    fn key(&self) -> Key {
        let metadata = self.metadata();
        Key::new(Self::KIND, metadata.namespace.as_deref().unwrap_or_default(), &metadata.name)
    }

    fn uid(&self) -> &str {
        self.metadata().uid.as_deref().unwrap_or_default()
    }

    fn is_deleting(&self) -> bool {
        self.metadata().deletion_timestamp.is_some()
    }
}

macro_rules! stored {
    ($($kind:ident: $type:ty,)*) => {$(
        impl Stored for $type {
            const KIND: Kind = Kind::$kind;
            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }
            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    )*};
}
stored! {
    VirtualMachine: VirtualMachine,
    VirtualMachineInstance: VirtualMachineInstance,
    DataVolume: DataVolume,
    PersistentVolumeClaim: PersistentVolumeClaim,
    NetworkAttachmentDefinition: NetworkAttachmentDefinition,
    Secret: Secret,
    ConfigMap: ConfigMap,
}

/// A file of an object.
#[derive(Deserialize)]
struct Filed {
    version: u64,
    #[serde(default)]
    object: Value,
}

/// All objects.
#[derive(Debug)]
pub(super) struct Store {
    folder: PathBuf,
    objects: BTreeMap<Key, Value>,
    /// Counts changes.
    changes: u64,
    /// Objects with a last change in memory only.
    unwritten: BTreeSet<Key>,
}

impl Store {
    /// Reads all objects.
    ///
    /// # Errors
    /// A file that cannot be read, by its name.
    pub(super) fn open(folder: &Path) -> Result<Self, Error> {
        let mut objects = BTreeMap::new();
        for kind in Kind::ALL {
            for namespace in names(&folder.join(kind.name()))? {
                let space = folder.join(kind.name()).join(&namespace);
                for name in names(&space)? {
                    let object = read(&space.join(&name))?;
                    objects.insert(Key::new(kind, &namespace, &name), object);
                }
            }
        }
        Ok(Self { folder: folder.to_owned(), objects, changes: 0, unwritten: BTreeSet::new() })
    }

    /// How many changes there were.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    fn file(&self, key: &Key) -> PathBuf {
        self.folder.join(key.kind.name()).join(&key.namespace).join(&key.name)
    }

    /// The keys of all objects of a kind.
    pub(super) fn keys(&self, kind: Kind) -> Vec<Key> {
        self.objects.keys().filter(|key| key.kind == kind).cloned().collect()
    }

    /// An object as it is written.
    pub(super) fn value(&self, key: &Key) -> Option<&Value> {
        self.objects.get(key)
    }

    /// An object.
    pub(super) fn get<T: Stored>(&self, namespace: &str, name: &str) -> Option<T> {
        T::deserialize(self.objects.get(&Key::new(T::KIND, namespace, name))?).ok()
    }

    /// All objects of a kind.
    pub(super) fn all<T: Stored>(&self) -> Vec<T> {
        let of_kind = self.objects.iter().filter(|(key, _)| key.kind == T::KIND);
        of_kind.filter_map(|(_, value)| T::deserialize(value).ok()).collect()
    }

    /// Keeps an object, if it is not kept just so.
    ///
    /// # Errors
    /// It cannot be written, and is new, or it is not for want of room.
    pub(super) fn put<T: Stored>(&mut self, object: &T) -> Result<(), Error> {
        self.put_as(object, true)
    }

    /// The same, and the object is on the disk when this returns.
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
        if before.is_some_and(|before| same(before, &value)) {
            return Ok(());
        }
        let version = before.and_then(|before| before["metadata"]["resourceVersion"].as_str());
        let version = version.and_then(|version| version.parse::<u64>().ok()).unwrap_or(0) + 1;
        value["metadata"]["resourceVersion"] = Value::String(version.to_string());
        match self.write(&key, &value) {
            Ok(()) => drop(self.unwritten.remove(&key)),
            Err(error) if later && before.is_some() && is_full(&error) => {
                self.unwritten.insert(key.clone());
            }
            Err(error) => return Err(failed(error)),
        }
        self.changes += 1;
        self.objects.insert(key, value);
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
            let written = self.objects.get(&key).is_none_or(|value| self.write(&key, value).is_ok());
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
        self.changes += u64::from(self.objects.remove(key).is_some());
        Ok(())
    }
}

fn unwritable(key: &Key, error: io::Error) -> Error {
    if is_full(&error) {
        // Without the path, which differs each time: it is logged once.
        let error = io::Error::from(error.kind());
        let text = format!("there is no room to keep {key}: deleting something makes some");
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
    let filed: Filed = serde_json::from_slice(&json).map_err(|error| broken(format!("torn: {error}")))?;
    if filed.version > VERSION {
        return Err(broken(format!("written by a newer release (version {})", filed.version)));
    }
    if filed.object.is_object() { Ok(filed.object) } else { Err(broken("no object in it".to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(name: &str) -> Secret {
        let mut secret = Secret::default();
        secret.metadata.name = name.to_owned();
        secret.metadata.namespace = Some("default".to_owned());
        secret
    }

    #[test]
    fn stored_objects_are_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::open(folder.path()).unwrap();
        let mut object = secret("a");
        store.put(&object).unwrap();
        store.put(&object).unwrap();
        assert_eq!(store.changes(), 1, "the same again is no change");
        object.purpose = Some("Opaque".to_owned());
        store.put(&object).unwrap();
        store.put(&secret("b")).unwrap();
        store.remove(&secret("b").key()).unwrap();
        store.remove(&secret("b").key()).unwrap();
        let store = Store::open(folder.path()).unwrap();
        let found: Vec<Secret> = store.all();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].purpose.as_deref(), Some("Opaque"));
        assert_eq!(found[0].metadata.resource_version.as_deref(), Some("2"));
        assert!(store.get::<Secret>("default", "a").is_some());
        assert!(store.get::<ConfigMap>("default", "a").is_none());
    }

    #[test]
    fn a_torn_or_newer_file_is_named_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::open(folder.path()).unwrap();
        store.put(&secret("a")).unwrap();
        let file = folder.path().join("Secret/default/a");
        let whole = fs::read(&file).unwrap();
        for (text, problem) in [
            (&whole[..whole.len() / 2], "torn"),
            (b"", "torn"),
            (b"{\"version\": 3, \"object\": {}}", "newer release (version 3)"),
            (b"{\"version\": 1}", "no object"),
        ] {
            fs::write(&file, text).unwrap();
            let error = Store::open(folder.path()).unwrap_err().to_string();
            assert!(error.contains(problem) && error.contains("Secret/default/a"), "{error}");
            assert_eq!(fs::read(&file).unwrap(), text, "nothing is lost");
        }
        // A write that was cut short has another name.
        fs::write(&file, &whole).unwrap();
        fs::write(folder.path().join("Secret/default/.tmp1234"), "{").unwrap();
        assert_eq!(Store::open(folder.path()).unwrap().all::<Secret>().len(), 1);
    }
}
