//! What a process before this one did not come to finish in a pool: it is undone before the pool is used.

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
