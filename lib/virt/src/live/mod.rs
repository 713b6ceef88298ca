//! Live updates: the parts of a machine's template that are applied to its instance while the guest runs, as in KubeVirt.
//! Everything else waits for the next instance, which [`needs_restart`] reports.
//!
//! Not here: the changes to the guest.

mod interfaces;
mod size;
mod volumes;

pub use interfaces::{followed as follow_interfaces, is_absent};
pub use size::{
    MEMORY, PROCESSORS, followed as follow_size, give_room, keep_room, needs_restart as size_needs_restart,
    note as note_size, wanted as size_wanted,
};
pub use volumes::{
    Move, attached, claims_there, dump, dumps, followed as follow_volumes, is_hotpluggable, is_in_drive,
    moves, needs_restart, status_of, take_out, volume,
};
