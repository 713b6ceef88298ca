//! The `unsafe` call of write-back: `sync_file_range`, which rustix lacks.

#![expect(unsafe_code, reason = "sync_file_range is a libc call")]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// Whether to wait for the pages to reach the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Start writing back and return.
    No,
    /// Write back and wait.
    Yes,
}

/// Sends the dirty pages of `range` to the disk. Refusals to do it at all are no errors.
///
/// # Errors
/// A write-back that failed, now or since the last report on this descriptor.
pub(super) fn sync_file_range(file: &File, range: Range<u64>, wait: Wait) -> io::Result<()> {
    let flags = match wait {
        Wait::No => libc::SYNC_FILE_RANGE_WRITE,
        Wait::Yes => {
            libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER
        }
    };
    let (Ok(start), Ok(len)) = (i64::try_from(range.start), i64::try_from(range.end - range.start)) else {
        return Ok(());
    };
    // SAFETY: a call with an open descriptor and integers; it touches no memory of this process.
    if unsafe { libc::sync_file_range(file.as_raw_fd(), start, len, flags) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EIO | libc::ENOSPC | libc::EDQUOT) => Err(error),
        _ => Ok(()),
    }
}
