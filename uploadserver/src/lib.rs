//! Takes one upload of a disk image over TLS and puts it straight into a volume: one process, bounded memory, no scratch.
//! A drop-in for cdi-uploadserver: same environment, paths, status codes, termination message.
//!
//! ```text
//!  connection ─► server ─► admission: right client? free? ─► body_queue ═══ pieces, bounded ═══╗
//!  TLS, limits   routes    503, 409                          HTTP bodies, one after another    ║
//!                                                            if they break                     ▼
//!  answer ◄─────────────── outcome ◄──────────────── upload: decode ─► disk_image::volume ─► target
//!  status, reason                                    a thread: form, snappy, tar, digest
//! ```
//!
//! Not here: image formats, sizes, writing (`disk_image`), the contract's names (`api::upload`), certificates (`serve`);
//! the proxy before these servers (package `uploadproxy`) and the sender of a clone (package `clone-source`).

mod admission;
mod answer;
mod args;
mod body_queue;
mod config;
mod decode;
mod digest;
mod entry;
mod form;
mod resume;
mod routes;
mod server;
mod upload;

pub use entry::run;

/// The command line, of which manual pages and tables of options are made.
pub fn command() -> clap::Command {
    <args::Args as clap::CommandFactory>::command()
}
