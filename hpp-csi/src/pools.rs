//! The pools of this node, and what is looked for in all of them. Not here: locks, and any change.

use std::sync::Arc;

use crate::config::{self, Config, LEGACY_POOL, PoolConfig};
use crate::device::Devices;
use crate::error::{Error, Kind, Result};
use crate::id::Id;
use crate::pool::identity::KnownPools;
use crate::pool::neighbours::Neighbours;
use crate::pool::{Open, Pool, Recover, Snapshot, Volume};
use crate::publications;

/// The configured pools, there or not.
#[derive(Debug)]
pub(crate) struct Pools {
    pub(crate) all: Vec<Pool>,
    pub(crate) node: Id,
    /// The loop devices of their volumes.
    pub(crate) devices: Arc<Devices>,
    /// Whether there is no other node that could have a volume.
    single_node: bool,
}

impl Pools {
    /// The pools of `config`. `recover` makes a pool ready for use.
    ///
    /// # Errors
    /// When they lie in each other, or what is remembered about them, or the loop devices, cannot be read.
    pub(crate) fn new(config: &Config, recover: Recover) -> Result<Self> {
        // Where links lead is known only now; what is not there yet is as it is written.
        let mut resolved = config.pools.clone();
        for pool in &mut resolved {
            for path in [&mut pool.path, &mut pool.snapshots] {
                if let Ok(real) = path.canonicalize() {
                    *path = real;
                }
            }
        }
        config::check_disjoint(&resolved)?;
        check_disjoint_on_filesystems(resolved)?;
        let remembered = Arc::new(KnownPools::load(&config.state)?);
        let neighbours: Arc<Neighbours> = Arc::default();
        let devices = Arc::new(Devices::scan()?);
        let all = config
            .pools
            .iter()
            .map(|pool| {
                let (remembered, neighbours) = (remembered.clone(), neighbours.clone());
                Pool::new(pool.clone(), config.node.clone(), remembered, neighbours, devices.clone(), recover)
            })
            .collect();
        Ok(Self { all, node: config.node.clone(), devices, single_node: config.single_node })
    }

    /// The pool that a class names; the legacy pool when it names none.
    ///
    /// # Errors
    /// [`Kind::Invalid`] when there is no such pool.
    pub(crate) fn pool(&self, name: Option<&str>) -> Result<&Pool> {
        let name = name.unwrap_or(LEGACY_POOL);
        self.all.iter().find(|pool| pool.config.name == name).ok_or_else(|| {
            let names: Vec<_> = self.all.iter().map(|pool| pool.config.name.as_str()).collect();
            let shown: String = name.chars().take(128).collect();
            Error::new(
                Kind::Invalid,
                format!("there is no pool {shown:?} on {}, only {}", self.node, names.join(", ")),
            )
        })
    }

    /// The first result of `look` in any pool.
    ///
    /// # Errors
    /// [`Kind::NotReady`] when it is in none, and not every pool could be looked into.
    pub(crate) fn find<T>(
        &self,
        look: impl Fn(&Open<'_>) -> Result<Option<T>>,
    ) -> Result<Option<(Open<'_>, T)>> {
        let mut unseen = None;
        for pool in &self.all {
            match pool.open() {
                Ok(open) => {
                    if let Some(found) = look(&open)? {
                        return Ok(Some((open, found)));
                    }
                }
                Err(error) => unseen = Some(error),
            }
        }
        unseen.map_or(Ok(None), Err)
    }

    /// The volume `id` and its pool.
    pub(crate) fn volume(&self, id: &Id) -> Result<Option<(Open<'_>, Volume)>> {
        self.find(|open| open.volume(id))
    }

    /// The volume `id`, which must be here.
    pub(crate) fn need_volume(&self, id: &Id) -> Result<(Open<'_>, Volume)> {
        self.volume(id)?.ok_or_else(|| self.absent(id))
    }

    /// The error about a volume that is not here.
    pub(crate) fn absent(&self, id: &Id) -> Error {
        Error::new(Kind::NotFound, format!("volume {id} is not on {}", self.node))
    }

    /// The snapshot `id` and its pool.
    pub(crate) fn snapshot(&self, id: &Id) -> Result<Option<(Open<'_>, Snapshot)>> {
        self.find(|open| open.snapshot(id))
    }

    /// The volume that a snapshot is to be taken of.
    pub(crate) fn need_source(&self, id: &Id) -> Result<(Open<'_>, Volume)> {
        self.volume(id)?.ok_or_else(|| self.missing_source("volume", id, self.are_shared()))
    }

    /// The error about a source that is not here; `shared`: nor would another node have it.
    pub(crate) fn missing_source(&self, what: &str, id: &Id, shared: bool) -> Error {
        let node = &self.node;
        if !shared && self.may_be_elsewhere(id) {
            return Error::new(
                Kind::Exhausted,
                format!("{what} {id} is not on {node}; it may be on another node"),
            );
        }
        Error::new(Kind::NotFound, format!("there is no {what} {id} on {node}"))
    }

    /// Whether another node may have what is not here, if its pool is not shared.
    pub(crate) fn may_be_elsewhere(&self, id: &Id) -> bool {
        id.is_of_a_sidecar() && !self.single_node
    }

    /// Whether other nodes have all these pools, too.
    pub(crate) fn are_shared(&self) -> bool {
        self.all.iter().all(|pool| pool.config.shared)
    }

    /// Whether snapshots and clones are to be had in some pool. A pool that is not there now may have them.
    pub(crate) fn can_clone(&self) -> bool {
        self.all.iter().any(|pool| pool.config.copy || pool.open().map_or(true, |open| open.known.sharing))
    }
}

/// Bind mounts can lead to one directory by paths that have nothing in common.
fn check_disjoint_on_filesystems(mut pools: Vec<PoolConfig>) -> Result<()> {
    publications::locate(pools.iter_mut().flat_map(|pool| [&mut pool.path, &mut pool.snapshots]))?;
    config::check_disjoint(&pools).map_err(|error| {
        let text = "mounts lead to one directory, here named by its filesystem's device and the path there";
        Error::new(Kind::Invalid, format!("{error} ({text})"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_that_lie_in_each_other_by_a_link_are_refused() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        std::fs::create_dir_all(at("one/two")).unwrap();
        std::fs::create_dir(at("run")).unwrap();
        std::os::unix::fs::symlink(at("one/two"), at("link")).unwrap();
        let config = |path: &str| {
            let json = format!(
                r#"[{{"name":"a","path":{:?}}},{{"name":"b","path":{:?}}}]"#,
                at("one").to_str().unwrap(),
                at(path).to_str().unwrap()
            );
            crate::testing::config(config::pools(&json).unwrap(), at("run"))
        };
        let error = Pools::new(&config("link"), |_| Ok(())).unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.to_string().contains("contains the other"), "{error}");
        Pools::new(&config("elsewhere"), |_| Ok(())).unwrap();
    }
}
