//! Worker pods: which program runs on which claim, with which environment. Restricted Pod Security, uid 107.

pub mod importer;
pub(super) mod pod;
pub mod upload;

pub use pod::Images;
