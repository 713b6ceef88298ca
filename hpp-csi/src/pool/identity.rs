//! The identity of a pool. At first use a pool gets a file with a UUID, and the driver stores the UUID outside of the pool,
//! next to its socket. A directory without the file is then not the pool: its filesystem is not mounted, and nothing is
//! written to the directory below.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Kind, Result};
use dir::Dir;

use super::{BLOCK, OWN, Pool};

/// The file in a pool's own folder.
const FILE: &str = "pool.json";
/// The file outside of the pools.
const MEMORY: &str = "hpp-csi-pools.json";
/// Longest of both in bytes.
const FILE_MAX: u64 = 1 << 20;

/// The content of the identity file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Identity {
    version: u32,
    pool: String,
    name: String,
}

/// UUIDs of the pools that were seen, by name.
#[derive(Debug)]
pub(crate) struct KnownPools {
    folder: PathBuf,
    pools: Mutex<BTreeMap<String, String>>,
}

impl KnownPools {
    /// Reads what was remembered in `folder`.
    ///
    /// # Errors
    /// When the file is there and cannot be read: forgetting would be worse.
    pub(crate) fn load(folder: &Path) -> Result<Self> {
        let missing = || Error::new(Kind::Invalid, format!("{} is not there", folder.display()));
        let open = Dir::find(folder)?.ok_or_else(missing)?;
        let pools = match open.read(MEMORY, FILE_MAX)? {
            None => BTreeMap::new(),
            Some(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
                let path = open.path_of(MEMORY);
                Error::new(Kind::Invalid, format!("{} is damaged: {error}", path.display()))
            })?,
        };
        Ok(Self { folder: folder.to_path_buf(), pools: Mutex::new(pools) })
    }

    fn get(&self, name: &str) -> Option<String> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    fn put(&self, name: &str, uuid: &str) -> Result<()> {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if pools.get(name).is_some_and(|known| known == uuid) {
            return Ok(());
        }
        let mut new = pools.clone();
        new.insert(name.to_owned(), uuid.to_owned());
        let bytes = serde_json::to_vec_pretty(&new)
            .map_err(|error| Error::new(Kind::Internal, format!("{MEMORY} cannot be written: {error}")))?;
        let missing = || Error::new(Kind::Internal, format!("{} is gone", self.folder.display()));
        let folder = Dir::find(&self.folder)?.ok_or_else(missing)?;
        let temporary = format!("{MEMORY}.tmp");
        folder.write(&temporary, &bytes)?;
        folder.rename(&temporary, &folder, MEMORY)?;
        folder.sync()?;
        *pools = new;
        Ok(())
    }
}

/// The pool's own folder, made at first use; with it, the folders in it.
///
/// # Errors
/// [`Kind::NotReady`] when the folder is not the pool it was.
pub(super) fn own_folder(pool: &Pool, root: &Dir, read_only: bool) -> Result<Dir> {
    let name = &pool.config.name;
    let path = pool.config.path.display();
    let remembered = pool.remembered.get(name);
    let own = root.dir(OWN)?;
    let identity = match &own {
        None => None,
        Some(own) => own.read(FILE, FILE_MAX)?,
    };
    let identity: Option<Identity> = match identity {
        None => None,
        Some(bytes) => Some(serde_json::from_slice(&bytes).map_err(|error| {
            pool.error(Kind::NotReady, format!("{path}/{OWN}/{FILE} is damaged: {error}"))
        })?),
    };
    let memory = || pool.remembered.folder.join(MEMORY).display().to_string();
    let uuid = match (identity, remembered) {
        (Some(identity), Some(known)) if identity.pool != known => {
            return Err(pool.error(
                Kind::NotReady,
                format!(
                    "another pool is at {path}; if that is intended, remove the entry {name:?} from {}",
                    memory()
                ),
            ));
        }
        (Some(identity), _) => identity.pool,
        (None, Some(_)) => {
            return Err(pool.error(
                Kind::NotReady,
                format!(
                    "its filesystem is not mounted at {path}; mount it, or remove the entry {name:?} from {} to create a new pool there",
                    memory()
                ),
            ));
        }
        (None, None) if read_only => {
            return Err(pool.error(Kind::NotReady, format!("{path} is read-only and holds no pool yet")));
        }
        (None, None) => begin(pool, root)?,
    };
    let own = root.need_dir(OWN)?;
    if !read_only {
        for folder in [BLOCK, "volumes", "snapshots", "groups"] {
            own.dir_or_make(folder, 0o700)?;
        }
        for folder in ["tmp", "trash"] {
            own.dir_or_make(folder, 0o700)?.dir_or_make(&pool.node, 0o700)?;
        }
    }
    pool.remembered.put(name, &uuid)?;
    Ok(own)
}

/// Makes the own folder and its identity.
fn begin(pool: &Pool, root: &Dir) -> Result<String> {
    let own = root.dir_or_make(OWN, 0o700)?;
    let uuid = new_uuid()?;
    let identity = Identity { version: 1, pool: uuid.clone(), name: pool.config.name.clone() };
    let bytes = serde_json::to_vec(&identity)
        .map_err(|error| Error::new(Kind::Internal, format!("{FILE} cannot be written: {error}")))?;
    let temporary = format!("{FILE}.tmp");
    own.write(&temporary, &bytes)?;
    if !own.rename_new(&temporary, &own, FILE)? {
        // Another node was faster on a shared filesystem.
        own.unlink(&temporary)?;
        let bytes = own.read(FILE, FILE_MAX)?.unwrap_or_default();
        let identity: Identity = serde_json::from_slice(&bytes)
            .map_err(|error| pool.error(Kind::NotReady, format!("{FILE} is damaged: {error}")))?;
        return Ok(identity.pool);
    }
    own.sync()?;
    root.sync()?;
    Ok(uuid)
}

/// A random UUID from the kernel.
pub(crate) fn new_uuid() -> Result<String> {
    let mut text = String::new();
    std::fs::File::open("/proc/sys/kernel/random/uuid")
        .and_then(|mut file| file.read_to_string(&mut text))
        .map_err(|error| Error::io("make a UUID", error))?;
    Ok(text.trim().to_owned())
}
