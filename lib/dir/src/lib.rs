//! Files and directories that another user, a guest, a volume or an archive controls, for programs with more rights than
//! they have: every access goes through an open directory descriptor, so that no planted name leads anywhere else.
//!
//! ```text
//! Dir::open(path) ─► dir / file / create_new / read / replace / chown / connect (name)      names below stay below
//!                    │
//!                    └─ openat2(2): RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, on request RESOLVE_NO_XDEV
//! ```
//!
//! | planted | what stops it |
//! |---|---|
//! | symbolic link | it is never followed; [`Dir::links_beneath`] allows those that stay in the directory |
//! | FIFO, device, socket | files are opened with O_NONBLOCK and must be regular ([`Dir::file`]); no open waits |
//! | hard link to another user's file | [`Dir::own_file`] requires a link count of one |
//! | endless or huge file | reads have a limit ([`Dir::read`]) |
//! | listener that never accepts | [`Dir::connect`] has a timeout |
//!
//! [`replace`] and [`Dir::replace`] are the one home of "write a temporary file, rename": a reader and a crash see the old
//! file or the new one, never a part.
//!
//! Not here: what the files mean, archives, mounts.

mod directory;
mod error;
mod file_type;
mod owner;
mod read;
mod remove;
mod replace;
mod resolve;
mod socket;
mod sync;

pub use directory::{Dir, Entry};
pub use error::{Error, Result};
pub use file_type::{is_dir, is_file};
pub use owner::Owner;
pub use read::{read, read_file, read_input};
pub use replace::{Durability, replace, replace_durably};
pub use resolve::open_beneath;
pub use sync::{fsync, observe_syncs};
