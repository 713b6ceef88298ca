//! Decoders, writer and transfer, against the tools of others and against hostile input.
//!
//! One module per subject; `lanes` runs each of them as a process of its own.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![expect(clippy::cast_possible_truncation, reason = "images in tests fit in memory")]

mod compress;
mod formats_hostile;
mod formats_read;
mod formats_stream;
mod qcow2_hostile;
mod qcow2_read;
mod qcow2_written;
mod support;
mod transfer;
mod write;

use support::sys::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;
