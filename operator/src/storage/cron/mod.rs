//! DataImportCron: imports of an image, each under a name made of its digest, behind a DataSource.
//!
//! ```text
//!  poll ─► digest (annotation; or the source claim) ─► DataVolume ─► Succeeded ─► DataSource ─► older ones deleted
//!                                                              └─► VolumeSnapshot, in place of the DataVolume
//! ```
//!
//! - [`seen`]: what is read of a DataImportCron. [`schedule`], [`poll`]: when and how its source is polled.
//! - [`stream`]: the image of an ImageStream. [`plan`]: the next steps. [`status`]: conditions.
//!
//! A poll writes annotation `storage.import.sourceDesiredDigest`, as upstream's poller does; another program may write it
//! as well.

pub mod plan;
pub mod poll;
pub mod schedule;
pub mod seen;
pub mod status;
pub mod stream;
