//! Signals, taken one at a time instead of interrupting: `sigprocmask(2)` and `sigtimedwait(2)`, which neither the standard
//! library nor rustix offers; memory that is given back: `malloc_trim(3)` and `madvise(2)`.
#![expect(unsafe_code, reason = "these calls have no safe wrapper")]

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

/// A signal that the launcher waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// A child ended.
    Child,
    /// A request to end the guest: SIGTERM, SIGINT, SIGHUP.
    Stop,
}

const WAITED_FOR: [libc::c_int; 4] = [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

fn set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset fills the set; the signals' numbers are valid.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in WAITED_FOR {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

/// Blocks the signals in this thread, and in the threads and processes that it starts from now on: they wait for
/// [`next_signal`].
///
/// # Errors
/// The kernel refuses.
pub fn block_signals() -> io::Result<()> {
    // SAFETY: the set is valid, and the old mask is not asked for.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set(), std::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// The next signal; `None` when none came in time, or another one interrupted the wait.
///
/// # Errors
/// The kernel refuses.
pub fn next_signal(patience: Option<Duration>) -> io::Result<Option<Signal>> {
    let time = patience.map(|patience| libc::timespec {
        tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: patience.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the set is valid, the information is not asked for, the time is null or valid.
    let answer = unsafe { libc::sigtimedwait(&set(), std::ptr::null_mut(), time) };
    match answer {
        libc::SIGCHLD => Ok(Some(Signal::Child)),
        signal if signal > 0 => Ok(Some(Signal::Stop)),
        _ => match io::Error::last_os_error() {
            error if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => Ok(None),
            error => Err(error),
        },
    }
}

/// Gives free memory of the heap back to the kernel.
pub(super) fn trim_heap() {
    // SAFETY: it may be called at any time.
    unsafe { libc::malloc_trim(0) };
}

/// Gives pages back that are as they are in their file: a mapping that cannot be written, and has no page that was.
pub(super) fn drop_pages(begin: usize, length: usize) -> io::Result<()> {
    // SAFETY: the pages cannot be written and none was: the next use finds the same bytes in the file.
    let done = unsafe { libc::madvise(std::ptr::without_provenance_mut(begin), length, libc::MADV_DONTNEED) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
