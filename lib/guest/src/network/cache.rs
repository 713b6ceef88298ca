//! Requests to plugins and their results, kept in libcni's form (`cniCacheV1`), so that DEL gets the input of ADD, also
//! after a crash.
//!
//! ```text
//! STATE/begun/NETWORK-CONTAINER-INTERFACE       before ADD: an entry without "result"
//! STATE/results/NETWORK-CONTAINER-INTERFACE     after ADD: the whole entry; with "leaving": DEL was begun
//! STATE/torn/…                                  files that are not entries, set aside
//! ```
//!
//! The result does not replace the begun entry: after a power cut a file that was not synced may be empty, and the begun
//! entry, synced where plugins keep state on disk, still gets its DEL.
//!
//! Not here: what is done with it.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
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
/// Folders of entries, and of files that are not.
const BEGUN: &str = "begun";
const RESULTS: &str = "results";
const TORN: &str = "torn";
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

    /// Notes that DEL is about to begin. An entry without a result needs no such note.
    ///
    /// # Errors
    /// The cache cannot be read or written.
    pub fn leave(&self, state: &Path) -> Result<(), Error> {
        if self.result.is_none() {
            return Ok(());
        }
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
        Error::new(Kind::Content, format!("the cached attachment {} is invalid: {why}", self.file()))
    }

    /// The name of its files.
    fn file(&self) -> String {
        format!("{}-{}-{}", self.network_name, self.container_id, self.if_name)
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |error| Error::with(Kind::System, path.display().to_string(), error)
}

/// Writes an entry, as a whole or not at all. An entry without a result is on the disk when it returns, if its network keeps
/// state that a reboot does not end.
///
/// # Errors
/// The cache cannot be read or written.
pub fn write(state: &Path, entry: &Entry) -> Result<(), Error> {
    let begun = entry.result.is_none();
    let folder = state.join(if begun { BEGUN } else { RESULTS });
    fs::create_dir_all(&folder).map_err(failed(&folder))?;
    let path = folder.join(entry.file());
    let json = serde_json::to_vec(entry)
        .map_err(|error| Error::with(Kind::System, "an attachment cannot be written as JSON", error))?;
    let written = if begun && entry.network()?.outlives_reboot() {
        dir::replace_durably(&path, &json, 0o600)
    } else {
        dir::replace(&path, &json, 0o600)
    };
    written.map_err(|error| failed(&path)(error.into()))
}

/// Removes an entry.
///
/// # Errors
/// The cache cannot be read or written.
pub fn remove(state: &Path, entry: &Entry) -> Result<(), Error> {
    // The begun entry last: alone, it still gets its DEL.
    for folder in [RESULTS, BEGUN] {
        let path = state.join(folder).join(entry.file());
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(&path)(error)),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// Removes the files of a process that was killed while it wrote entries; call it where no other process writes any.
///
/// # Errors
/// The cache cannot be read or written.
pub fn remove_unfinished(state: &Path) -> Result<(), Error> {
    for folder in [BEGUN, RESULTS].map(|name| state.join(name)) {
        let removed = dir::Dir::find(&folder).and_then(|found| match found {
            Some(found) => found.remove_unfinished(),
            None => Ok(()),
        });
        removed.map_err(|error| failed(&folder)(error.into()))?;
    }
    Ok(())
}

/// All entries, in the order of their files. A file that is not an entry is set aside with a warning: it was torn by a power
/// cut, which ended the attachment's links too, or was written by another program.
///
/// # Errors
/// The cache cannot be read, or such a file cannot be moved.
pub fn all(state: &Path) -> Result<Vec<Entry>, Error> {
    matching(state, "")
}

/// The entries of one guest. Files of other guests are not read.
///
/// # Errors
/// As [`all`].
pub fn of(state: &Path, container: &str) -> Result<Vec<Entry>, Error> {
    let mut entries = matching(state, &format!("-{container}-"))?;
    entries.retain(|entry| entry.container_id == container);
    Ok(entries)
}

/// The entries with this in the names of their files.
fn matching(state: &Path, part: &str) -> Result<Vec<Entry>, Error> {
    let mut names = BTreeSet::new();
    for folder in [BEGUN, RESULTS] {
        names.extend(list(&state.join(folder), part)?);
    }
    names.iter().filter_map(|name| find(state, name).transpose()).collect()
}

fn list(folder: &Path, part: &str) -> Result<Vec<OsString>, Error> {
    let files = match fs::read_dir(folder) {
        Ok(files) => files,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(folder)(error)),
    };
    let mut names = Vec::new();
    for one in files {
        let name = one.map_err(failed(folder))?.file_name();
        let text = name.to_string_lossy();
        // A name with a leading dot belongs to an interrupted write.
        if !text.starts_with('.') && text.contains(part) {
            names.push(name);
        }
    }
    Ok(names)
}

/// The entry of this file name: with its result, or as it was begun. `None`: it was removed or set aside.
fn find(state: &Path, name: &OsStr) -> Result<Option<Entry>, Error> {
    for folder in [RESULTS, BEGUN] {
        let path = state.join(folder).join(name);
        match read(&path) {
            Ok(None) => {}
            Err(error) if error.kind() == Kind::Content => set_aside(state, &path, name, &error)?,
            found => return found,
        }
    }
    Ok(None)
}

fn set_aside(state: &Path, path: &Path, name: &OsStr, why: &Error) -> Result<(), Error> {
    let folder = state.join(TORN);
    let to = folder.join(name);
    fs::create_dir_all(&folder).and_then(|()| fs::rename(path, &to)).map_err(failed(path))?;
    tracing::warn!(
        error = why.chain(),
        kept = %to.display(),
        "set aside a file that is not an attachment; addresses that its plugins gave out may stay in use"
    );
    Ok(())
}

/// The entry of a file; `None`: there is none.
fn read(path: &Path) -> Result<Option<Entry>, Error> {
    let mut text = Vec::new();
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(path)(error)),
    };
    file.take(ENTRY_MAX).read_to_end(&mut text).map_err(failed(path))?;
    let entry: Entry = serde_json::from_slice(&text).map_err(|error| {
        Error::with(
            Kind::Content,
            format!("{} is incomplete, or written by another program", path.display()),
            error,
        )
    })?;
    if entry.kind == KIND {
        return Ok(Some(entry));
    }
    let message = format!("{} has the kind {:?} instead of {KIND}", path.display(), entry.kind);
    Err(Error::new(Kind::Content, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(container: &str, interface: &str) -> Entry {
        let network = r#"{"cniVersion": "1.0.0", "type": "bridge", "ipam": {"type": "host-local"}}"#;
        let network = Configuration::read(network, "net").unwrap();
        Entry::new(container, interface, Path::new("/run/netns/x"), &network, Vec::new(), Map::new())
    }

    fn done(entry: Entry) -> Entry {
        Entry { result: Some(Value::Object(Map::new())), ..entry }
    }

    #[test]
    fn a_torn_file_stops_no_other_attachment() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path();
        let (one, other) = (entry("a", "eth0"), entry("b", "eth0"));
        for entry in [&one, &other] {
            write(state, entry).unwrap();
            write(state, &done(entry.clone())).unwrap();
        }
        // The power was cut before the result was on the disk: what was begun is still known.
        let path = |folder: &str, entry: &Entry| state.join(folder).join(entry.file());
        fs::write(path(RESULTS, &one), "").unwrap();
        assert_eq!(of(state, "b").unwrap(), [done(other.clone())]);
        assert!(path(RESULTS, &one).exists(), "files of other guests are not read");
        assert_eq!(all(state).unwrap(), [one.clone(), done(other.clone())]);
        assert!(path(TORN, &one).exists() && !path(RESULTS, &one).exists());
        // Both are torn.
        fs::write(path(BEGUN, &one), "{\"kind\": 1").unwrap();
        assert_eq!(of(state, "a").unwrap(), []);
        assert_eq!(all(state).unwrap(), [done(other)]);
        assert_eq!(fs::read_to_string(path(TORN, &one)).unwrap(), "{\"kind\": 1");
    }

    #[test]
    fn a_begun_entry_stays_until_the_attachment_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path();
        let begun = entry("a-b", "eth0");
        write(state, &begun).unwrap();
        begun.leave(state).unwrap();
        assert_eq!(all(state).unwrap(), std::slice::from_ref(&begun));
        let whole = done(begun.clone());
        write(state, &whole).unwrap();
        assert!(of(state, "a-b").unwrap()[0].is_whole());
        assert_eq!(of(state, "a").unwrap(), [], "a part of another guest's name");
        whole.leave(state).unwrap();
        assert!(!of(state, "a-b").unwrap()[0].is_whole());
        remove(state, &whole).unwrap();
        assert_eq!(all(state).unwrap(), []);
        remove(state, &begun).unwrap();
    }
}
