//! Leaving the host's network namespace.

#![expect(unsafe_code, reason = "unshare can part threads from each other's files")]

use rustix::io::Errno;
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Moves this process, which has one thread, into a new network namespace.
///
/// # Errors
/// What the kernel says.
pub(super) fn leave_the_host() -> Result<(), Errno> {
    // SAFETY: only `UnshareFlags::FILES` has demands on its caller.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
}
