//! gz, xz and zst sources against the command-line compressors: same bytes, or an error, never anything else.
//!
//! - `packed`: what the tests share.
//! - `every`, `xz`, `readers`: the tests, by subject.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "what cannot be read or made here is a failed test; the casts take seven bits"
)]

mod every;
mod packed;
mod readers;
mod xz;
