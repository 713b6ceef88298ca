//! Authenticates upload requests by token and forwards them to the upload server of the claim in the token.
//! A drop-in for cdi-uploadproxy: same flags, environment, paths, status codes; and a client of its own, `push`.
//!
//! ```text
//!  client ══ TLS ══► server ─► token_keys: is the token good? ─► readiness: is the claim's server ready? ─► forward
//!  browser,          CORS      400, 401                                    503 and why; asks the cluster     ║ TLS with our
//!  virtctl, push     limits                                                                                  ▼ certificate
//!  answer ◄═════════════════════════ streamed both ways, 104 too ═════════════════════════════════════ uploadserver
//! ```
//!
//! On ports of their own the process also polls sources of DataImportCrons, for the operator alone ([`poll`]), and serves
//! clients for download ([`downloads`]).
//!
//! Not here: connections and their limits (`serve`), what is in a token (`api::upload::token`), images.

mod answer;
mod args;
mod cluster;
mod config;
mod connect;
mod downloads;
mod entry;
mod forward;
mod poll;
mod progress;
mod push;
mod readiness;
mod routes;
mod server;
mod token_keys;

pub use entry::run;

/// The command line, of which manual pages and tables of options are made.
pub fn command() -> clap::Command {
    <args::Args as clap::CommandFactory>::command()
}
