//! The worker: one thread that looks after the pools while nobody waits. It removes what was deleted, sees what volumes
//! use, and finds pools that come and go.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::pool::{Pool, scan, trash, tree};
use crate::published;

/// Time between two looks at what volumes use.
const LOOK: Duration = Duration::from_secs(60);
/// Time between two looks at whether the pools are there.
const ROUND: Duration = Duration::from_secs(10);

/// Time in which deletes are gathered, so that removing one does not hold up the next.
const GATHER: Duration = Duration::from_millis(100);

/// Starts the worker; it ends with the driver.
pub(crate) fn start(driver: Arc<Driver>, woken: Receiver<()>) -> Result<()> {
    thread::Builder::new()
        .name("worker".to_owned())
        .spawn(move || work(&driver, &woken))
        .map(drop)
        .map_err(|error| Error::io("start the worker", error))
}

fn work(driver: &Driver, woken: &Receiver<()>) {
    let mut ready: Vec<Option<bool>> = vec![None; driver.pools.len()];
    let mut looked: Option<Instant> = None;
    loop {
        let look = looked.is_none_or(|at| at.elapsed() >= LOOK);
        for (pool, was_ready) in driver.pools.iter().zip(&mut ready) {
            let result = round(pool, look && looked.is_some());
            // A pool that came back may have volumes that are published.
            if result.is_ok() && *was_ready == Some(false) {
                drop(published::recover(driver));
            }
            match (&result, *was_ready) {
                (Err(error), None | Some(true)) => {
                    tracing::warn!(pool = pool.config.name, error = error.chain(), "pool is not ready");
                }
                (Ok(()), Some(false)) => tracing::info!(pool = pool.config.name, "pool is ready again"),
                (Ok(()), None | Some(true)) | (Err(_), Some(false)) => {}
            }
            *was_ready = Some(result.is_ok());
        }
        if look {
            looked = Some(Instant::now());
        }
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

fn round(pool: &Pool, look: bool) -> Result<()> {
    let open = pool.open()?;
    if !open.read_only() {
        trash::empty(&open)?;
    }
    if look {
        scan::measure(&open, &mut tree::Budget::default())?;
    }
    Ok(())
}
