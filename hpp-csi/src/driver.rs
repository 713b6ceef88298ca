//! The driver: its pools, its locks, and what is published where. Every verb of CSI is a method in [`crate::apply`];
//! each runs on a thread of its own, to its end, whether its caller still waits or not.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Semaphore;

use crate::config::{self, Config, LEGACY_POOL, PoolConfig};
use crate::device::Devices;
use crate::error::{Error, Kind, Result};
use crate::id::Id;
use crate::locks::Locks;
use crate::pool::identity::KnownPools;
use crate::pool::neighbours::Neighbours;
use crate::pool::{Open, Pool, Recover, Snapshot, Volume};
use crate::publications::{self, Publications};

/// Key of the topology: a volume is where its node is.
pub(crate) const TOPOLOGY_KEY: &str = "topology.hostpath.csi/node";

/// Controllers' calls at once; more wait.
const CONTROLLERS: usize = 48;
/// Those of them that may take minutes.
const SLOW: usize = 12;
/// Threads for calls: enough for all controllers' calls and as many of the kubelet's.
pub(crate) const THREADS: usize = 96;

/// Turns of calls. The kubelet's need none: a pod must not wait for clones.
#[derive(Debug)]
pub(crate) struct Lanes {
    pub(crate) controller: Arc<Semaphore>,
    pub(crate) slow: Arc<Semaphore>,
}

/// All that the services share.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) config: Config,
    pub(crate) pools: Vec<Pool>,
    pub(crate) devices: Arc<Devices>,
    pub(crate) locks: Locks,
    pub(crate) published: Publications,
    pub(crate) lanes: Lanes,
    wake: Mutex<Sender<()>>,
}

impl Driver {
    /// A driver for `config`, and what its worker listens to. `recover` makes a pool ready for use.
    ///
    /// # Errors
    /// When what is remembered about the pools, or the loop devices, cannot be read.
    pub(crate) fn new(config: Config, recover: Recover) -> Result<(Arc<Self>, Receiver<()>)> {
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
        let pools: Vec<Pool> = config
            .pools
            .iter()
            .map(|pool| {
                let (remembered, neighbours) = (remembered.clone(), neighbours.clone());
                Pool::new(pool.clone(), config.node.clone(), remembered, neighbours, devices.clone(), recover)
            })
            .collect();
        let (wake, woken) = channel();
        let driver = Self {
            config,
            pools,
            devices,
            locks: Locks::default(),
            published: Publications::default(),
            lanes: Lanes {
                controller: Arc::new(Semaphore::new(CONTROLLERS)),
                slow: Arc::new(Semaphore::new(SLOW)),
            },
            wake: Mutex::new(wake),
        };
        Ok((Arc::new(driver), woken))
    }

    /// Lets the worker look after the pools now.
    pub(crate) fn wake_worker(&self) {
        // Without a worker the message has no receiver.
        let _ = self.wake.lock().unwrap_or_else(PoisonError::into_inner).send(());
    }

    /// The pool that a class names; the legacy pool when it names none.
    ///
    /// # Errors
    /// [`Kind::Invalid`] when there is no such pool.
    pub(crate) fn pool(&self, name: Option<&str>) -> Result<&Pool> {
        let name = name.unwrap_or(LEGACY_POOL);
        self.pools.iter().find(|pool| pool.config.name == name).ok_or_else(|| {
            let names: Vec<_> = self.pools.iter().map(|pool| pool.config.name.as_str()).collect();
            let shown: String = name.chars().take(128).collect();
            Error::new(
                Kind::Invalid,
                format!("there is no pool {shown:?} on {}, only {}", self.config.node, names.join(", ")),
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
        for pool in &self.pools {
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
        Error::new(Kind::NotFound, format!("volume {id} is not on {}", self.config.node))
    }

    /// The snapshot `id` and its pool.
    pub(crate) fn snapshot(&self, id: &Id) -> Result<Option<(Open<'_>, Snapshot)>> {
        self.find(|open| open.snapshot(id))
    }

    /// Whether snapshots and clones are to be had in some pool. A pool that is not there now may have them.
    pub(crate) fn can_clone(&self) -> bool {
        self.pools.iter().any(|pool| pool.config.copy || pool.open().map_or(true, |open| open.known.sharing))
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
    use crate::config;

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
        let error = Driver::new(config("link"), |_| Ok(())).unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.to_string().contains("in each other"), "{error}");
        Driver::new(config("elsewhere"), |_| Ok(())).unwrap();
    }
}
