//! The driver, put together: its parts, each with what it needs of the others. No call goes through it: a service holds the
//! parts that it calls.

use std::sync::Arc;

use crate::apply::expand_node::Expansion;
use crate::apply::group::Groups;
use crate::apply::metadata::SnapshotBlocks;
use crate::apply::publish::Publishing;
use crate::apply::snapshot::Snapshots;
use crate::apply::stage::Staging;
use crate::apply::volume::Volumes;
use crate::config::Config;
use crate::error::Result;
use crate::locks::Locks;
use crate::pool::Recover;
use crate::pools::Pools;
use crate::publications::Publications;
use crate::wake;
use crate::worker::Worker;

/// The parts, before the services take theirs.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) pools: Arc<Pools>,
    pub(crate) published: Arc<Publications>,
    pub(crate) volumes: Arc<Volumes>,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) groups: Arc<Groups>,
    pub(crate) blocks: Arc<SnapshotBlocks>,
    pub(crate) staging: Arc<Staging>,
    pub(crate) publishing: Arc<Publishing>,
    pub(crate) expansion: Arc<Expansion>,
}

impl Driver {
    /// The parts for `config`, and the worker. `recover` makes a pool ready for use.
    ///
    /// # Errors
    /// When what is remembered about the pools, or the loop devices, cannot be read.
    pub(crate) fn new(config: &Config, recover: Recover) -> Result<(Self, Worker)> {
        let pools = Arc::new(Pools::new(config, recover)?);
        let locks = Locks::default();
        let published = Arc::new(Publications::default());
        let (wake, woken) = wake::channel();
        let volumes = Arc::new(Volumes {
            pools: pools.clone(),
            locks: locks.clone(),
            published: published.clone(),
            wake: wake.clone(),
        });
        let snapshots = Snapshots {
            pools: pools.clone(),
            locks: locks.clone(),
            published: published.clone(),
            wake: wake.clone(),
        };
        let groups =
            Groups { pools: pools.clone(), locks: locks.clone(), published: published.clone(), wake };
        let staging = Staging { pools: pools.clone(), locks: locks.clone(), published: published.clone() };
        let publishing = Publishing {
            pools: pools.clone(),
            locks: locks.clone(),
            published: published.clone(),
            volumes: volumes.clone(),
        };
        let expansion = Expansion { pools: pools.clone(), locks: locks.clone(), volumes: volumes.clone() };
        let blocks = SnapshotBlocks { pools: pools.clone(), locks: locks.clone() };
        let worker = Worker { pools: pools.clone(), locks, published: published.clone(), woken };
        let driver = Self {
            pools,
            published,
            volumes,
            snapshots: Arc::new(snapshots),
            groups: Arc::new(groups),
            blocks: Arc::new(blocks),
            staging: Arc::new(staging),
            publishing: Arc::new(publishing),
            expansion: Arc::new(expansion),
        };
        Ok((driver, worker))
    }
}
