//! The state that an open object and its readers share.

use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Lane, Mark, Part, Reach, Remote};
use crate::source::blocking::Net;

/// State shared by all readers of an object.
pub(super) struct Shared<R: Remote> {
    pub(super) remote: R,
    pub(super) net: Net,
    pub(super) reach: Reach,
    pub(super) size: Option<u64>,
    pub(super) mark: Mark,
    pub(super) ranges: AtomicBool,
    pub(super) lanes: Mutex<Vec<Lane<R::Client>>>,
    /// The answer to the first request when it was the whole object: the first reader continues with it.
    pub(super) whole: Mutex<Option<(Lane<R::Client>, Part)>>,
}

/// A panic elsewhere leaves nothing half done behind these locks.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
