//! Undoes the unfinished work of an earlier process in a pool, before the pool is used. Not here: the steps, which `group`
//! and `image` have.

use crate::error::Result;
use crate::pool::Open;

use super::{group, image};

/// Thaws volumes that are still frozen, and removes groups of snapshots that are not whole.
///
/// # Errors
/// When the pool's filesystem refuses.
pub(crate) fn recover(open: &Open<'_>) -> Result<()> {
    image::thaw_left(open)?;
    group::dismantle_left(open)
}
