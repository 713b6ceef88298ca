//! Takes one upload of a disk image over TLS and puts it straight into a volume: one process, bounded memory, no scratch.
//! A drop-in for cdi-uploadserver: same environment, paths, status codes, termination message.
//!
//! ```text
//!  connection ─► server ─► door: may this client? is the place free? ─► feed ═══ pieces, bounded ═══╗
//!  TLS, limits   routes    503, 409                                      HTTP bodies, one after      ║
//!                                                                        another if they break       ▼
//!  answer ◄─────────────── outcome ◄──────────────── upload: content ─► disk_image::volume ─► target
//!  status, reason                                    a thread: form, snappy, tar, digest
//! ```
//!
//! `proxy` (feature `proxy`) is another program, the cluster's door before these servers; it has the
//! same limits on connections. `clone` (the same feature) is the third: it sends a volume to such a server.
//!
//! Not here: image formats, sizes, writing (`disk_image`), the contract's names (`api::upload`), certificates (`serve`).

mod answer;
mod args;
#[cfg(feature = "proxy")]
pub mod clone;
mod config;
mod content;
mod digest;
mod door;
mod entry;
mod feed;
mod form;
#[cfg(feature = "proxy")]
pub mod proxy;
mod resume;
mod routes;
mod server;
mod upload;

pub use entry::run;
