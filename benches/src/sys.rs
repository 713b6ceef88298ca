//! Waits for a child and learns what it used. The only unsafe code of this package: `wait4(2)`, which the standard
//! library and rustix do not offer.
#![expect(unsafe_code, reason = "wait4 has no safe wrapper")]

use std::{io, mem::MaybeUninit, os::unix::process::ExitStatusExt, process::ExitStatus};

/// Resources used by a process and all children it waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// User and system time in microseconds.
    pub(crate) cpu_micros: u64,
    /// Largest resident set of any one of these processes, in KiB.
    pub(crate) peak_kib: u64,
}

/// Waits for the child `pid` of this process to end.
///
/// # Errors
/// Result of `wait4`, which is called again after an interruption.
pub(crate) fn wait(pid: i32) -> io::Result<(ExitStatus, Usage)> {
    loop {
        let mut status = 0;
        let mut usage = MaybeUninit::<libc::rusage>::uninit();
        // SAFETY: both pointers are valid for writes for the length of the call.
        let answer = unsafe { libc::wait4(pid, &raw mut status, 0, usage.as_mut_ptr()) };
        if answer == pid {
            // SAFETY: the kernel fills the structure whenever it answers with a process.
            let usage = unsafe { usage.assume_init() };
            let micros = |time: libc::timeval| {
                u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(time.tv_usec).unwrap_or(0)
            };
            let usage = Usage {
                cpu_micros: micros(usage.ru_utime) + micros(usage.ru_stime),
                peak_kib: u64::try_from(usage.ru_maxrss).unwrap_or(0),
            };
            return Ok((ExitStatus::from_raw(status), usage));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
