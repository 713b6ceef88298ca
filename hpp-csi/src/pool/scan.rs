//! Reads a pool into its book, and looks anew at what its volumes use.

use crate::error::{Kind, Result};
use crate::folder::is_file;
use crate::record::Shape;

use super::{Open, tree};

/// Fills the book of a pool that was just found.
pub(super) fn load(open: &Open<'_>) -> Result<()> {
    for id in open.volume_ids()? {
        match open.volume(&id) {
            Ok(_) => {}
            // It has no line then, and each call about it says the same.
            Err(error) if error.kind() == Kind::Internal => {
                tracing::warn!(error = error.chain(), "a volume cannot be used");
            }
            Err(error) => return Err(error),
        }
    }
    for id in open.snapshot_ids()? {
        if let Err(error) = open.snapshot(&id) {
            tracing::warn!(error = error.chain(), "a snapshot cannot be used");
        }
    }
    measure(open, &mut tree::Budget::at_start())
}

/// Looks at what every volume uses, and so at what others use.
///
/// What blocks are shared by several files is counted for each: foreign usage is then told too small, never too large.
pub(crate) fn measure(open: &Open<'_>, budget: &mut tree::Budget) -> Result<()> {
    let lines: Vec<_> =
        open.known.book().volumes.iter().map(|(id, line)| (id.clone(), line.clone())).collect();
    let mut sum: u64 = 0;
    for (id, line) in lines {
        let used = match line.shape {
            Shape::Block => open.blocks()?.stat(&id)?.filter(is_file).map(|stat| tree::bytes(&stat)),
            Shape::Folder | Shape::Loop => match open.root.open(&id)? {
                Some(folder) => Some(tree::used(&folder, budget)?),
                None => None,
            },
        };
        let Some(used) = used else { continue };
        // A budget that ran out leaves the rest unseen: it is taken to use what it was promised.
        let used = match &line.record {
            Some(record) if budget.is_spent() => record.capacity.max(used),
            Some(_) | None => used,
        };
        sum = sum.saturating_add(used);
        if let Some(line) = open.known.book().volumes.get_mut(&id) {
            line.used = used;
        }
    }
    let mut book = open.known.book();
    let snapshots = book.snapshots.values().map(|record| record.used).fold(0, u64::saturating_add);
    book.foreign = open.used().saturating_sub(sum.saturating_add(snapshots));
    Ok(())
}
