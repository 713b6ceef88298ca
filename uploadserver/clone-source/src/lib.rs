//! The sending side of a clone: a volume's files or bytes to the upload server of another claim, in one pass and with no
//! more memory than a few pieces. A drop-in for cdi-cloner: same environment, stream, metric.
//!
//! ```text
//!   volume ─► tar with holes ─► snappy ─► pieces, bounded ═══ TLS with our certificate ═══► uploadserver
//!   folder    or a device's     zeroes    a thread reads                                    POST /v1beta1/upload
//!   or device bytes             are known                   ◄──────────── 200, or why not
//! ```
//!
//! Not here: what the receiver makes of it (package `uploadserver`), the names of the contract (`api::upload::clone`),
//! connections (`serve::peer`).

mod args;
mod config;
mod entry;
mod pack;
mod send;

pub use entry::run;

/// The command line, of which manual pages and tables of options are made.
pub fn command() -> clap::Command {
    <args::Args as clap::CommandFactory>::command()
}
