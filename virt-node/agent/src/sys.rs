//! The system calls that have no safe wrapper: a thread's own root and mount namespace, and the attributes of a mount.
#![expect(unsafe_code, reason = "rustix calls unshare unsafe and has no mount_setattr")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Gives this thread a working directory and root of its own, so that it may enter another mount namespace.
///
/// # Errors
/// The kernel's error.
pub(crate) fn own_root() -> io::Result<()> {
    // SAFETY: only `UnshareFlags::FILES` has demands on its caller.
    Ok(unsafe { unshare_unsafe(UnshareFlags::FS) }?)
}

/// Makes a detached mount one without set-id bits and programs (mount_setattr(2), Linux 5.12): read-only unless `write`,
/// without devices unless `devices`.
///
/// # Errors
/// The kernel's error.
pub(crate) fn seal(mount: impl AsFd, write: bool, devices: bool) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_NOSUID
            | libc::MOUNT_ATTR_NOEXEC
            | if write { 0 } else { libc::MOUNT_ATTR_RDONLY }
            | if devices { 0 } else { libc::MOUNT_ATTR_NODEV },
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: the path is an empty string with its end, the structure is valid and its size is given.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            std::ptr::from_ref(&attributes),
            size_of::<libc::mount_attr>(),
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
