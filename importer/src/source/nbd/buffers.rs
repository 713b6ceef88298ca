//! Buffers of the requests in flight, all readers and connections together: their number is the bound of the memory.
//!
//! A reader always gets one, so that no reader waits for another; more only while there is room.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Hands out buffers of one size.
#[derive(Debug)]
pub(super) struct Buffers {
    size: usize,
    /// Handed out beyond this only to those that have none.
    limit: usize,
    out: AtomicUsize,
    idle: Mutex<Vec<Vec<u8>>>,
}

impl Buffers {
    /// Buffers of `size` bytes, `memory` bytes together.
    pub(super) fn new(size: usize, memory: usize) -> Arc<Self> {
        let limit = (memory / size.max(1)).max(1);
        Arc::new(Self { size, limit, out: AtomicUsize::new(0), idle: Mutex::default() })
    }

    /// A buffer of `len` bytes (at most the size), its content arbitrary; `None` when there is no room, unless `first`.
    pub(super) fn acquire(self: &Arc<Self>, len: usize, first: bool) -> Option<Buffer> {
        let out = self.out.fetch_add(1, Ordering::Relaxed);
        if out >= self.limit && !first {
            self.out.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let bytes = idle.unwrap_or_else(|| vec![0; self.size]);
        Some(Buffer { bytes, len: len.min(self.size), home: self.clone() })
    }
}

/// A buffer on loan.
#[derive(Debug)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    len: usize,
    home: Arc<Buffers>,
}

impl Buffer {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let out = self.home.out.fetch_sub(1, Ordering::Relaxed);
        if out <= self.home.limit {
            let mut idle = self.home.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.push(std::mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_bounded_and_the_first_is_sure() {
        let buffers = Buffers::new(10, 25);
        let one = buffers.acquire(10, false).unwrap();
        let two = buffers.acquire(4, false).unwrap();
        assert_eq!((one.bytes().len(), two.bytes().len()), (10, 4));
        assert!(buffers.acquire(10, false).is_none());
        let three = buffers.acquire(99, true).unwrap();
        assert_eq!(three.bytes().len(), 10);
        drop((two, three));
        assert!(buffers.acquire(10, false).is_some());
        assert!(buffers.idle.lock().unwrap().len() <= 2);
    }
}
