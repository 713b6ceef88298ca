//! The target, the buffers, and the engine that writes them.
//!
//! ```text
//!  worker ──Write{Arc<Buf>, segments, ticket}──► bounded queue ──► engine ──► file or block device
//!                                                                  io_uring: one thread owns the ring
//!                                                                  pwrite:   a few threads
//! ```
//!
//! - [`pool`]: buffers of one size, 4 KiB aligned, of a fixed number. The only back-pressure.
//! - [`target`]: opening, sizing, growing, preallocating, zeroing and closing a file or a block device.
//! - `engine`: chosen by trying (set-up, probe, one test write), never by version; `uring`, `pwrite`; `sys` holds the
//!   `unsafe` submissions.
//!
//! Direct I/O writes whole 4 KiB pages of the guest only; what does not fill a page (the tail of a disk, clusters
//! of 512 bytes) goes through the page cache by a second descriptor, so no page is ever written both ways.
