//! The request to stop, shared by every stage. Not here: signals, which are the programs'.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Kind};

/// A flag that is set once and seen by every holder of a clone.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// A flag that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks every holder of a clone to stop.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether stopping was asked for.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// An error once stopping was asked for.
    ///
    /// # Errors
    /// [`Kind::Stopped`].
    pub fn check(&self) -> Result<(), Error> {
        if self.is_set() { Err(Error::new(Kind::Stopped, "stopped on request")) } else { Ok(()) }
    }
}
