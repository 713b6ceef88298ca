//! Signals, taken one at a time instead of interrupting: `sigprocmask(2)` and `sigtimedwait(2)`, which neither the standard
//! library nor rustix offers. Memory that is given back: `malloc_trim(3)` and `madvise(2)`.
#![expect(unsafe_code, reason = "these calls have no safe wrapper")]

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

/// A signal that the launcher waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// A child ended.
    Child,
    /// Somebody wants the guest to end: SIGTERM, SIGINT, SIGHUP.
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
pub(crate) fn block_signals() -> io::Result<()> {
    // SAFETY: the set is valid, and the old mask is not asked for.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set(), std::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// The next signal; `None` when none came in time, or another one interrupted the wait.
pub(crate) fn next_signal(patience: Option<Duration>) -> io::Result<Option<Signal>> {
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

/// Gives back what only a start needed: free memory of the heap, and pages of programs and libraries that are as they are
/// in their files. Those that are needed again come back from there.
pub(super) fn give_back() -> io::Result<()> {
    // SAFETY: it may be called at any time.
    unsafe { libc::malloc_trim(0) };
    for (begin, length) in unchanged(&fs::read_to_string("/proc/self/smaps")?) {
        // SAFETY: the pages cannot be written and none was: the next use finds the same bytes in the file.
        unsafe { libc::madvise(std::ptr::without_provenance_mut(begin), length, libc::MADV_DONTNEED) };
    }
    Ok(())
}

/// Addresses and lengths of what is mapped from files, cannot be written, and has no page that was (proc_pid_smaps(5)).
fn unchanged(smaps: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut mapping = None;
    for line in smaps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [range, rights, _, _, _, path, ..] if range.contains('-') => {
                let kept = !rights.contains('w') && rights.ends_with('p') && path.starts_with('/');
                mapping = Some(*range).filter(|_| kept);
            }
            [range, rights, ..] if range.contains('-') && rights.len() == 4 => mapping = None,
            ["Anonymous:", "0", "kB"] => {
                let ends = mapping.and_then(|range| range.split_once('-'));
                let number = |text: &str| usize::from_str_radix(text, 16).ok();
                if let Some((begin, end)) = ends.and_then(|(begin, end)| Some((number(begin)?, number(end)?)))
                {
                    found.push((begin, end.saturating_sub(begin)));
                }
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_that_are_as_in_their_files_are_given_back() {
        let smaps = "\
1000-3000 r-xp 00000000 08:01 1 /usr/lib/a.so
Rss: 8 kB
Anonymous:             0 kB
3000-4000 r--p 00000000 08:01 1 /usr/lib/a.so
Anonymous:             4 kB
4000-5000 rw-p 00000000 08:01 1 /usr/lib/a.so
Anonymous:             0 kB
5000-6000 r--p 00000000 00:00 0
Anonymous:             0 kB
6000-7000 r--p 00000000 00:00 0 [vvar]
Anonymous:             0 kB
7000-9000 r--s 00000000 08:01 1 /usr/lib/shared
Anonymous:             0 kB
a000-b000 r--p 00000000 08:01 1 /usr/lib/with a space
Anonymous:             0 kB
";
        assert_eq!(unchanged(smaps), [(0x1000, 0x2000), (0xa000, 0x1000)]);
    }
}
