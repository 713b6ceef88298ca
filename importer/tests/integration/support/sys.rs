//! Waits for a child and learns how much memory it used: `wait4(2)`, which the standard library does not offer.

#![expect(unsafe_code, reason = "wait4 has no safe wrapper")]

use std::io;
use std::mem::MaybeUninit;

/// Waits for the child `pid` of this process: its wait status, and the most memory it had resident, in bytes.
pub(crate) fn wait(pid: i32) -> io::Result<(i32, u64)> {
    loop {
        let mut status = 0;
        let mut usage = MaybeUninit::<libc::rusage>::uninit();
        // SAFETY: both pointers are valid for writes for the length of the call.
        let answer = unsafe { libc::wait4(pid, &raw mut status, 0, usage.as_mut_ptr()) };
        if answer == pid {
            // SAFETY: the kernel fills the structure whenever it answers with a process.
            let usage = unsafe { usage.assume_init() };
            return Ok((status, usage.ru_maxrss as u64 * 1024));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
