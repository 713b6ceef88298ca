//! Container images: `docker://` against a real registry (Debian's docker-registry) over TLS with a CA of our own, with
//! passwords and with tokens, and `oci-archive:` files.
//!
//! One registry without a login writes a storage folder; others with a login serve the same folder.
//!
//! - `servers`, `tokens`, `pull`: what the tests share; images and registries are of `e2e/sources`.
//! - `disks`, `logins`, `strange`, `archives`, `imports`: the tests, by subject.

mod archives;
mod disks;
mod imports;
mod logins;
mod pull;
mod servers;
mod strange;
mod tokens;
