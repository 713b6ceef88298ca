//! Projections of API objects: the fields that decisions need, read from JSON. Caches hold these, not objects.
//!
//! A field that is absent or of the wrong type reads as empty: the API server has already checked the schema.
//!
//! Not here: decisions, and objects that are written.

pub mod claim;
pub mod class;
pub mod data_volume;
mod driver;
mod meta;
pub mod snapshot;
pub mod source;
mod user;
pub mod volume;
pub mod worker;

pub use claim::Claim;
pub use class::Class;
pub use data_volume::DataVolume;
pub use driver::{CsiDriver, CsiNode};
pub use meta::{Condition, Meta, Owner, conditions, map, text, texts};
pub use snapshot::Snapshot;
pub use source::Source;
pub use user::User;
pub use volume::Volume;
pub use worker::Worker;
