//! Signals, taken one at a time instead of interrupting.

pub use crate::sys::{Signal, block_signals, next_signal};
