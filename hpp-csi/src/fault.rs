//! Steps that a test lets fail, to see that what was done before them is undone. Outside of unit tests none fails.

#[cfg(not(test))]
pub(crate) use real::step;
#[cfg(test)]
pub(crate) use tested::{Steps, step};

#[cfg(not(test))]
mod real {
    use crate::error::Result;

    /// A step of a call.
    #[expect(clippy::unnecessary_wraps, reason = "it fails in tests")]
    pub(crate) const fn step(_: &str) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tested {
    use std::cell::Cell;

    use crate::error::{Error, Kind, Result};

    thread_local! {
        /// Steps until one fails; `None`: none does.
        static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
    }

    /// A step of a call.
    pub(crate) fn step(what: &str) -> Result<()> {
        let Some(left) = LEFT.get() else { return Ok(()) };
        LEFT.set(left.checked_sub(1));
        if left == 0 { Err(Error::new(Kind::Internal, format!("injected at {what}"))) } else { Ok(()) }
    }

    /// Counts the steps of this thread while it lives.
    pub(crate) struct Steps;

    impl Steps {
        /// Lets the step after `before` others fail, once.
        pub(crate) fn fail_after(before: u32) -> Self {
            LEFT.set(Some(before));
            Self
        }

        /// Whether no step failed: there were too few.
        pub(crate) fn passed(&self) -> bool {
            LEFT.get().is_some()
        }
    }

    impl Drop for Steps {
        fn drop(&mut self) {
            LEFT.set(None);
        }
    }
}
