//! Signals, taken one at a time instead of interrupting.

pub use crate::sys::{Signal, block_signals, next_signal};

/// Gives free memory of the heap back to the kernel: after a start much of it is not needed any more.
pub fn trim_heap() {
    crate::sys::trim_heap();
}
