//! Leaving a network namespace for a new one.

#![expect(unsafe_code, reason = "unshare can part threads from each other's files")]

use rustix::io::Errno;
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Moves this thread into a new network namespace.
///
/// # Errors
/// The kernel's error.
pub(super) fn leave() -> Result<(), Errno> {
    // SAFETY: only `UnshareFlags::FILES` has demands on its caller.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
}
