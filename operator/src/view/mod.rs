//! Objects as controllers see them: of every kind, only the fields that decisions are made on.
//!
//! The types have the shape of the objects and are read straight from the API server's JSON; fields that they do not name
//! are skipped while reading and take no memory. Not here: full objects (read again before a write that needs them), and
//! how collections are followed.

mod gates;
mod instance;
mod machine;
mod meta;
mod node;
mod pod;
mod selector;
mod set;
mod size;
mod volume;

pub(crate) use gates::Gates;
pub(crate) use instance::{GuestOs, Instance, InterfaceStatus, MigrationState, PhaseTransition, VolumeEntry};
pub(crate) use machine::{Description, Machine, MachineStatus, StartFailure, VolumeSnapshotStatus};
pub(crate) use meta::{Age, Condition, Meta, WAITS, condition, is_false, is_true, oldest};
pub(crate) use node::Node;
pub(crate) use pod::Pod;
pub(crate) use selector::{meets, selector_problem, selector_text, selects};
pub(crate) use set::{Pool, ReplicaSet, Revision, SetStatus};
pub(crate) use size::{Requested, Size};
pub(crate) use volume::{Claim, DataVolume, SnapshotClass, TransferConfig, VolumeSource};
