//! Whether a volume stays as it is while it is read: a copy of one that changes would mix old and new blocks.

use std::fs::File;
use std::time::Duration;

use crate::error::{Error, Kind, Result};
use crate::pool::tree::State;
use crate::record;
use dir::Dir;

/// Two changes within this time may bear the same time stamp.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The content of a volume.
pub(super) enum Content<'a> {
    Tree(&'a Dir),
    Image(&'a File),
}

impl Content<'_> {
    pub(super) fn state(&self) -> Result<State> {
        match self {
            Self::Tree(folder) => State::of_tree(folder),
            Self::Image(file) => State::of_file(file),
        }
    }

    /// Writes the filesystem's changed pages out.
    fn sync(&self) -> Result<()> {
        let synced = match self {
            Self::Tree(folder) => rustix::fs::syncfs(folder),
            Self::Image(file) => rustix::fs::syncfs(file),
        };
        synced.map_err(|error| Error::io("write a volume out before it is copied", error))
    }
}

/// The state of a volume before it is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before {
    state: State,
    settled: bool,
}

impl Before {
    /// Looks at `content`, once more if it changed just now.
    pub(super) fn of(content: &Content<'_>) -> Result<Self> {
        let mut state = content.state()?;
        if !is_settled(&state) {
            std::thread::sleep(POLL_INTERVAL * 2);
            state = content.state()?;
        }
        // Until its page is written out, memory that a process has mapped can change without a new time stamp. A change after
        // the sync has one; a change before its end is in the copy.
        content.sync()?;
        Ok(Self { state, settled: is_settled(&state) })
    }

    /// Checks that `content` is as it was.
    ///
    /// # Errors
    /// [`Kind::Precondition`] when it may have changed since.
    pub(super) fn unchanged(self, content: &Content<'_>, what: &str) -> Result<()> {
        if self.settled && content.state()? == self.state {
            return Ok(());
        }
        Err(Error::new(
            Kind::Precondition,
            format!(
                "{what} was written to while it was copied: the copy is discarded; stop what writes to it"
            ),
        ))
    }
}

/// Whether the latest change is so long ago that another one would be seen.
pub(super) fn is_settled(state: &State) -> bool {
    let until = record::now().saturating_sub(POLL_INTERVAL).as_nanos();
    u128::try_from(state.latest).is_ok_and(|latest| latest < until)
}
