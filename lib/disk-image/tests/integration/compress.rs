//! gz, xz and zst sources against the command-line compressors: same bytes, or an error, never anything else.
//!
//! - `packed`: what the tests share.
//! - `every`, `xz`, `readers`: the tests, by subject.

mod every;
mod packed;
mod readers;
mod xz;
