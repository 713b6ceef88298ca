//! Keeps buffered writing from filling the page cache: what was written is sent to the disk and dropped a window
//! behind the writers.
//!
//! ```text
//!   dropped │ previous window: being written back │ current window: collecting │ not written yet
//! ```
//! A window is the span around what was written since the last one, however scattered: the kernel walks only the
//! pages it has, so a wide span of few pages costs little.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use self::sys::Wait;

mod sys;

/// Bytes written before a window is sent to the disk. Two windows are dirty at most.
const WINDOW: u64 = 8 << 20;

/// The two windows of one target.
#[derive(Debug, Default)]
pub(super) struct Writeback(Mutex<Windows>);

#[derive(Debug, Default)]
struct Windows {
    current: Option<Range<u64>>,
    bytes: u64,
    previous: Option<Range<u64>>,
}

impl Writeback {
    /// `range` of `file` was written through the page cache.
    ///
    /// # Errors
    /// A write-back that failed; the kernel reports it once, so the caller must remember it.
    pub(super) fn wrote(&self, file: &File, range: Range<u64>) -> io::Result<()> {
        let (start, drop) = {
            let mut windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            windows.bytes += range.end - range.start;
            let span = match windows.current.take() {
                Some(span) => span.start.min(range.start)..span.end.max(range.end),
                None => range,
            };
            if windows.bytes < WINDOW {
                windows.current = Some(span);
                return Ok(());
            }
            windows.bytes = 0;
            let previous = windows.previous.replace(span.clone());
            (span, previous)
        };
        let mut result = sys::sync_file_range(file, start, Wait::No);
        if let Some(range) = drop {
            result = result.and(sys::sync_file_range(file, range.clone(), Wait::Yes));
            // Whole pages only are dropped; advice that is refused costs memory and nothing else.
            let len = std::num::NonZeroU64::new(range.end - range.start);
            let _ = rustix::fs::fadvise(file, range.start, len, rustix::fs::Advice::DontNeed);
        }
        result
    }
}
