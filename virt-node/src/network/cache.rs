//! What plugins were asked and answered, kept in libcni's form (`cniCacheV1`), so that DEL is given what ADD was, also after a
//! crash.
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

use super::configuration::Configuration;
use crate::error::{Error, Kind};
use crate::launcher::replace;

const KIND: &str = "cniCacheV1";
/// Longest entry, in bytes: a configuration and an answer, both bounded before.
const ENTRY_MAX: u64 = 8 << 20;

/// An attachment, begun or done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Entry {
    kind: String,
    pub(super) container_id: String,
    /// Base64 of the configuration.
    config: String,
    /// The link's name in the namespace.
    pub(super) if_name: String,
    pub(super) network_name: String,
    #[serde(rename = "netns")]
    pub(super) namespace: PathBuf,
    #[serde(rename = "cniArgs")]
    pub(super) arguments: Vec<(String, String)>,
    #[serde(rename = "capabilityArgs")]
    pub(super) offered: Map<String, Value>,
    /// What the last plugin answered; nothing: ADD was begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) result: Option<Value>,
    /// DEL was begun, and may have done anything by now. Ours; libcni passes over it.
    #[serde(default)]
    leaving: bool,
}

impl Entry {
    /// Of an attachment that is about to begin.
    pub(super) fn new(
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
            config: STANDARD.encode(&network.text),
            if_name: interface.to_owned(),
            network_name: network.name.clone(),
            namespace: namespace.to_owned(),
            arguments,
            offered,
            result: None,
            leaving: false,
        }
    }

    /// Whether it is all there.
    pub(super) fn is_whole(&self) -> bool {
        self.result.is_some() && !self.leaving
    }

    /// Notes that DEL is about to begin.
    pub(super) fn leave(&self, state: &Path) -> Result<(), Error> {
        write(state, &Self { leaving: true, ..self.clone() })
    }

    /// The network's configuration as it was.
    pub(super) fn network(&self) -> Result<Configuration, Error> {
        let bytes = STANDARD.decode(&self.config).map_err(|error| self.malformed(&error))?;
        let text = String::from_utf8(bytes).map_err(|error| self.malformed(&error))?;
        Configuration::read(&text, &self.network_name).map_err(|said| self.malformed(&said))
    }

    fn malformed(&self, why: &dyn std::fmt::Display) -> Error {
        let name = file(Path::new(""), &self.network_name, &self.container_id, &self.if_name);
        Error::new(Kind::Content, format!("what is kept in {} makes no sense: {why}", name.display()))
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
pub(super) fn write(state: &Path, entry: &Entry) -> Result<(), Error> {
    let folder = folder(state);
    fs::create_dir_all(&folder).map_err(failed(&folder))?;
    let path = file(state, &entry.network_name, &entry.container_id, &entry.if_name);
    let json = serde_json::to_vec(entry).map_err(|error| Error::with(Kind::System, "an entry", error))?;
    replace(&path, &json).map_err(failed(&path))
}

/// Removes an entry.
pub(super) fn remove(state: &Path, entry: &Entry) -> Result<(), Error> {
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
pub(super) fn all(state: &Path) -> Result<Vec<Entry>, Error> {
    let folder = folder(state);
    let files = match fs::read_dir(&folder) {
        Ok(files) => files,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(&folder)(error)),
    };
    let mut paths = Vec::new();
    for one in files {
        let path = one.map_err(failed(&folder))?.path();
        // What begins with a dot was being written when somebody was killed.
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
pub(super) fn of(state: &Path, container: &str) -> Result<Vec<Entry>, Error> {
    let mut entries = all(state)?;
    entries.retain(|entry| entry.container_id == container);
    Ok(entries)
}

fn read(path: &Path) -> Result<Entry, Error> {
    let mut text = Vec::new();
    let file = fs::File::open(path).map_err(failed(path))?;
    file.take(ENTRY_MAX).read_to_end(&mut text).map_err(failed(path))?;
    let entry: Entry = serde_json::from_slice(&text).map_err(|error| {
        Error::with(Kind::Content, format!("{} is torn, or of another program", path.display()), error)
    })?;
    if entry.kind == KIND {
        return Ok(entry);
    }
    let message = format!("{} is of the kind {:?}; this program reads {KIND}", path.display(), entry.kind);
    Err(Error::new(Kind::Content, message))
}
