//! The NBD source against servers of others (qemu-nbd, nbdkit, the `nbd` crate) and against one of ours that does
//! everything wrong. Whatever a server does: the right bytes, or an error that names the cause.
//!
//! - `disks`, `place`, `wrong_server`: what the tests share.
//! - `servers`, `hostile`, `program`: the tests, by subject.

#![expect(clippy::wildcard_enum_match_arm, reason = "a server does one thing wrong and the rest right")]

mod disks;
mod hostile;
mod place;
mod program;
mod servers;
mod wrong_server;
