//! The cluster's door for uploads: a client that shows a token for a claim is passed on to the upload server of that claim.
//! A drop-in for cdi-uploadproxy: same flags, environment, paths, status codes; and a client of its own, `push`.
//!
//! ```text
//!  client ══ TLS ══► server ─► keys: is the token good, for which claim? ─► target: is its server ready? ─► forward
//!  browser,          CORS      400, 401                                    503 and why; asks the cluster     ║ TLS with our
//!  virtctl, push     limits                                                                                  ▼ certificate
//!  answer ◄═════════════════════════ streamed both ways, 104 too ═════════════════════════════════════ uploadserver
//! ```
//!
//! On a port of its own, for the operator alone, the process also polls sources of DataImportCrons ([`poll`]).
//!
//! Not here: connections and their limits (`serve`), what is in a token (`api::upload::token`), images.

mod answer;
mod args;
mod cluster;
mod config;
mod entry;
mod error;
mod forward;
mod keys;
mod peer;
mod poll;
mod progress;
mod push;
mod routes;
mod server;
mod target;

pub use entry::run;

/// The command line, of which manual pages and tables of options are made.
pub fn command() -> clap::Command {
    <args::Args as clap::CommandFactory>::command()
}
