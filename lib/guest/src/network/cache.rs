//! Requests to plugins and their results, kept in libcni's form (`cniCacheV1`), so that DEL gets the input of ADD, also
//! after a crash.
//!
//! ```text
//! STATE/results/NETWORK-CONTAINER-INTERFACE     an entry without "result": ADD was begun; with "leaving": DEL was
//! ```
//!
//! Not here: what is done with it.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{Error, Kind};
use api::cni::Configuration;
use link::Namespace;

const KIND: &str = "cniCacheV1";
/// Longest entry, in bytes: a configuration and an answer, both bounded before.
const ENTRY_MAX: u64 = 8 << 20;

/// An attachment, begun or done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    kind: String,
    /// The guest, as the runtime calls it.
    pub container_id: String,
    /// Base64 of the configuration.
    config: String,
    /// The link's name in the namespace.
    pub if_name: String,
    /// The network's name.
    pub network_name: String,
    /// The network namespace.
    #[serde(rename = "netns")]
    pub namespace: PathBuf,
    /// CNI_ARGS.
    #[serde(rename = "cniArgs")]
    pub arguments: Vec<(String, String)>,
    /// Capabilities that plugins may ask for.
    #[serde(rename = "capabilityArgs")]
    pub offered: Map<String, Value>,
    /// The result of the last plugin; absent: ADD was begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// DEL was begun, and may have done anything by now. Ours; libcni passes over it.
    #[serde(default)]
    leaving: bool,
    /// Number of the network namespace, where its path may lead to another one later. Ours, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    namespace_number: Option<u64>,
}

impl Entry {
    /// Of an attachment that is about to begin.
    pub fn new(
        container: &str,
        interface: &str,
        namespace: &Path,
        network: &Configuration,
        arguments: Vec<(String, String)>,
        offered: Map<String, Value>,
    ) -> Self {
        Self {
            kind: KIND.to_owned(),
            container_id: container.to_owned(),
            config: STANDARD.encode(network.text()),
            if_name: interface.to_owned(),
            network_name: network.name().to_owned(),
            namespace: namespace.to_owned(),
            arguments,
            offered,
            result: None,
            leaving: false,
            namespace_number: None,
        }
    }

    /// The same entry, for exactly this namespace: plugins are not given the path once it leads to another namespace, or
    /// nowhere.
    #[must_use]
    pub fn only_in(self, namespace: &Namespace) -> Self {
        Self { namespace_number: Some(namespace.number()), ..self }
    }

    /// Whether the attachment was made in this namespace.
    pub fn is_in(&self, namespace: &Namespace) -> bool {
        self.namespace_number == Some(namespace.number())
    }

    /// Path of the namespace for plugins; empty when it does not exist any more.
    pub(crate) fn reachable(&self) -> &Path {
        let Some(number) = self.namespace_number else { return &self.namespace };
        let found = Namespace::find(&self.namespace).ok().flatten();
        match found.filter(|found| found.number() == number) {
            Some(_) => &self.namespace,
            None => Path::new(""),
        }
    }

    /// Whether it is all there.
    pub fn is_whole(&self) -> bool {
        self.result.is_some() && !self.leaving
    }

    /// Notes that DEL is about to begin.
    ///
    /// # Errors
    /// The cache cannot be read or written.
    pub fn leave(&self, state: &Path) -> Result<(), Error> {
        write(state, &Self { leaving: true, ..self.clone() })
    }

    /// The network's configuration as it was.
    ///
    /// # Errors
    /// The cache cannot be read or written.
    pub fn network(&self) -> Result<Configuration, Error> {
        let bytes = STANDARD.decode(&self.config).map_err(|error| self.malformed(&error))?;
        let text = String::from_utf8(bytes).map_err(|error| self.malformed(&error))?;
        Configuration::read(&text, &self.network_name).map_err(|said| self.malformed(&said))
    }

    fn malformed(&self, why: &dyn std::fmt::Display) -> Error {
        let name = file(Path::new(""), &self.network_name, &self.container_id, &self.if_name);
        Error::new(Kind::Content, format!("the cached attachment {} is invalid: {why}", name.display()))
    }
}

fn folder(state: &Path) -> PathBuf {
    state.join("results")
}

fn file(state: &Path, network: &str, container: &str, interface: &str) -> PathBuf {
    folder(state).join(format!("{network}-{container}-{interface}"))
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |error| Error::with(Kind::System, path.display().to_string(), error)
}

/// Writes an entry, as a whole or not at all.
///
/// # Errors
/// The cache cannot be read or written.
pub fn write(state: &Path, entry: &Entry) -> Result<(), Error> {
    let folder = folder(state);
    fs::create_dir_all(&folder).map_err(failed(&folder))?;
    let path = file(state, &entry.network_name, &entry.container_id, &entry.if_name);
    let json = serde_json::to_vec(entry)
        .map_err(|error| Error::with(Kind::System, "an attachment cannot be written as JSON", error))?;
    dir::replace(&path, &json, 0o600).map_err(|error| failed(&path)(error.into()))
}

/// Removes an entry.
///
/// # Errors
/// The cache cannot be read or written.
pub fn remove(state: &Path, entry: &Entry) -> Result<(), Error> {
    let path = file(state, &entry.network_name, &entry.container_id, &entry.if_name);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(&path)(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// All entries, in the order of their files.
///
/// # Errors
/// A file that is no entry, by its name: what it was for is not known, so it is never passed over.
pub fn all(state: &Path) -> Result<Vec<Entry>, Error> {
    let folder = folder(state);
    let files = match fs::read_dir(&folder) {
        Ok(files) => files,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(&folder)(error)),
    };
    let mut paths = Vec::new();
    for one in files {
        let path = one.map_err(failed(&folder))?.path();
        // A name with a leading dot belongs to an interrupted write.
        if path.file_name().is_some_and(|name| !name.as_encoded_bytes().starts_with(b".")) {
            paths.push(path);
        }
    }
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}

/// The entries of one guest.
///
/// # Errors
/// As [`all`].
pub fn of(state: &Path, container: &str) -> Result<Vec<Entry>, Error> {
    let mut entries = all(state)?;
    entries.retain(|entry| entry.container_id == container);
    Ok(entries)
}

fn read(path: &Path) -> Result<Entry, Error> {
    let mut text = Vec::new();
    let file = fs::File::open(path).map_err(failed(path))?;
    file.take(ENTRY_MAX).read_to_end(&mut text).map_err(failed(path))?;
    let entry: Entry = serde_json::from_slice(&text).map_err(|error| {
        Error::with(
            Kind::Content,
            format!("{} is incomplete, or written by another program", path.display()),
            error,
        )
    })?;
    if entry.kind == KIND {
        return Ok(entry);
    }
    let message = format!("{} has the kind {:?} instead of {KIND}", path.display(), entry.kind);
    Err(Error::new(Kind::Content, message))
}
