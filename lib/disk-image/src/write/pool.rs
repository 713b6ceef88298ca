//! Buffers of one size and a fixed number: the only back-pressure, and the bound of the memory in flight.
//!
//! Buffers are allocated on first need and kept until the pool and all its buffers are gone. Not here: filling and writing
//! them.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::PAGE;
use crate::error::Error;
use crate::stop::Stop;

/// How often a waiter looks whether it should stop.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A pool of buffers; clones share it.
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

struct Inner {
    size: usize,
    count: usize,
    state: Mutex<State>,
    returned: Condvar,
}

struct State {
    free: Vec<Vec<u8>>,
    made: usize,
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    /// A pool of at most `count` buffers of `size` bytes each (at least one of at least one byte).
    pub fn new(count: usize, size: usize) -> Self {
        let count = count.max(1);
        let state = State { free: Vec::with_capacity(count), made: 0 };
        Self(Arc::new(Inner { size: size.max(1), count, state: Mutex::new(state), returned: Condvar::new() }))
    }

    /// A buffer; waits while all are out. Its content is whatever the last user left there.
    ///
    /// # Errors
    /// [`crate::Kind::Stopped`] within 200 ms of `stop`, [`crate::Kind::Target`] when memory is short.
    pub fn acquire(&self, stop: &Stop) -> Result<Buf, Error> {
        let mut state = self.0.state();
        loop {
            stop.check()?;
            if let Some(bytes) = state.free.pop() {
                return Ok(Buf::new(bytes, self.0.clone()));
            }
            if state.made < self.0.count {
                state.made += 1;
                break;
            }
            state = self
                .0
                .returned
                .wait_timeout(state, POLL_INTERVAL)
                .map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state);
        }
        drop(state);
        Ok(Buf::new(vec![0; self.0.size.saturating_add(PAGE)], self.0.clone()))
    }

    /// Length of every buffer in bytes.
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// Largest number of buffers that can be out at once.
    pub fn count(&self) -> usize {
        self.0.count
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.state();
        f.debug_struct("Pool")
            .field("size", &self.0.size)
            .field("count", &self.0.count)
            .field("made", &state.made)
            .field("free", &state.free.len())
            .finish()
    }
}

/// A buffer of a [`Pool`], at an address that is a multiple of 4096; goes back when dropped.
pub struct Buf {
    /// The allocation, a page longer than the buffer. It is never resized, so its address stands.
    bytes: Vec<u8>,
    start: usize,
    pool: Arc<Inner>,
}

/// Keeps a pool's memory from being freed. Buffers stay where they are as long as their pool does.
pub(super) struct Keep {
    _pool: Arc<Inner>,
}

impl Buf {
    pub(super) fn keep(&self) -> Keep {
        Keep { _pool: self.pool.clone() }
    }

    fn new(bytes: Vec<u8>, pool: Arc<Inner>) -> Self {
        let start = bytes.as_ptr().align_offset(PAGE).min(PAGE);
        Self { bytes, start, pool }
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.pool.size]
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.pool.size]
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        self.pool.state().free.push(std::mem::take(&mut self.bytes));
        self.pool.returned.notify_one();
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf of {} bytes", self.pool.size)
    }
}
