//! Pools of this driver that lie on one filesystem, and so have its free space together.
//!
//! Not here: pools of other drivers or nodes; what they write counts as foreign once it is written.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::Known;
use super::accounting::Accounting;

/// All pools of the driver that were opened, by name.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    opened: Mutex<BTreeMap<String, (u64, Weak<Known>)>>,
    admission: Mutex<()>,
}

impl Neighbours {
    /// Notes the filesystem of a pool, by its device.
    pub(super) fn note(&self, pool: &str, device: u64, known: &Arc<Known>) {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.insert(pool.to_owned(), (device, Arc::downgrade(known)));
    }

    /// The sum of `count` over the other pools on the filesystem `device`. The caller has no account locked.
    pub(super) fn sum(&self, pool: &str, device: u64, count: fn(&Accounting) -> u64) -> u64 {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let others = opened.iter().filter(|(name, (of, _))| *name != pool && *of == device);
        let others: Vec<Arc<Known>> = others.filter_map(|(_, (_, known))| known.upgrade()).collect();
        drop(opened);
        others.iter().map(|known| count(&known.book())).fold(0, u64::saturating_add)
    }

    /// Admits one reservation at a time, so that two pools do not reserve the same bytes.
    pub(crate) fn admission(&self) -> MutexGuard<'_, ()> {
        self.admission.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
