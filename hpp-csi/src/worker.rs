//! The worker: one thread that maintains the pools in the background. It removes deleted objects, updates the usage of
//! volumes, and notices pools that appear or vanish. A second thread defragments disks, which may take hours, after each of its
//! rounds.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use crate::apply::defragment::Defragmenter;
use crate::apply::upkeep;
use crate::error::{Error, Result};
use crate::locks::Locks;
use crate::pool::accounting::LookSchedule;
use crate::pool::{Pool, scan, trash, tree};
use crate::pools::Pools;
use crate::publications::{self, Publications};

/// Time between two looks at whether the pools are there.
const ROUND: Duration = Duration::from_secs(10);

/// Time in which deletes are gathered, so that removing one does not hold up the next.
const GATHER: Duration = Duration::from_millis(100);

/// The worker, before it is started.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) pools: Arc<Pools>,
    pub(crate) locks: Locks,
    pub(crate) published: Arc<Publications>,
    /// Gets a message for each deletion.
    pub(crate) woken: Receiver<()>,
}

/// Starts the worker; it ends when nothing is left that could wake it.
pub(crate) fn start(worker: Worker) -> Result<()> {
    let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
        let spawned = thread::Builder::new().name(name.to_owned()).spawn(work);
        spawned.map(drop).map_err(|error| Error::io(format!("start the {name}"), error))
    };
    let (looked, rounds) = mpsc::sync_channel(1);
    if worker.pools.all.iter().any(|pool| pool.config.defragment.is_some()) {
        let Worker { pools, locks, published, .. } = &worker;
        let mut defragmenter = Defragmenter::new(pools.clone(), locks.clone(), published.clone());
        spawn("defragmenter", Box::new(move || rounds.iter().for_each(|()| defragmenter.run())))?;
    }
    spawn("worker", Box::new(move || work(&worker, &looked)))
}

fn work(worker: &Worker, looked: &SyncSender<()>) {
    let Worker { pools, locks, published, woken } = worker;
    let begun = Instant::now();
    // All was looked at when the pools were found.
    let mut looks = vec![LookSchedule::since(Duration::ZERO); pools.all.len()];
    let mut ready: Vec<Option<bool>> = vec![None; pools.all.len()];
    loop {
        for ((pool, looks), was_ready) in pools.all.iter().zip(&mut looks).zip(&mut ready) {
            let result = round(locks, pool, looks, begun);
            // A pool that came back may have volumes that are published.
            if result.is_ok() && *was_ready == Some(false) {
                drop(publications::recover(&pools.all, published));
            }
            match (&result, *was_ready) {
                (Err(error), None | Some(true)) => {
                    tracing::warn!(pool = pool.config.name, error = %error.chain(), "pool is not ready");
                }
                (Ok(()), Some(false)) => tracing::info!(pool = pool.config.name, "pool is ready again"),
                (Ok(()), None | Some(true)) | (Err(_), Some(false)) => {}
            }
            *was_ready = Some(result.is_ok());
        }
        // Fails where nothing defragments, or it is at work.
        let _ = looked.try_send(());
        match woken.recv_timeout(ROUND) {
            Ok(()) => {
                thread::sleep(GATHER);
                while woken.try_recv().is_ok() {}
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn round(locks: &Locks, pool: &Pool, looks: &mut LookSchedule, begun: Instant) -> Result<()> {
    let open = pool.open()?;
    if !open.read_only() {
        trash::empty(&open)?;
    }
    let mut budget = tree::Budget::default();
    let again = open.known.book().look_again();
    let due = looks.is_due(begun.elapsed());
    let since = Instant::now();
    if !open.read_only() {
        upkeep::of_pool(locks, &open, due);
    }
    if due {
        scan::measure(&open, &mut budget, None)?;
        looks.done(begun.elapsed(), since.elapsed());
    } else if again {
        // Blocks that a deleted snapshot or clone shared may have one owner now.
        let sharing = open.known.book().sharing();
        scan::measure(&open, &mut budget, Some(&sharing))?;
    }
    Ok(())
}
