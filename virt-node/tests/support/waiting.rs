//! Waiting for what happens, and having it happen: at random, and to processes by their ids.

#![allow(dead_code, reason = "each test uses what it needs")]

use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long anything may take on a machine that is busy with other tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// What `found` finds, waited for.
pub(crate) fn eventually<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < until, "{what}: not in {PATIENCE:?}");
        sleep(Duration::from_millis(20));
    }
}

/// Ends a process by its id.
pub(crate) fn kill(process: u32, signal: rustix::process::Signal) {
    let id = rustix::process::Pid::from_raw(i32::try_from(process).unwrap()).unwrap();
    // It may just have gone.
    _ = rustix::process::kill_process(id, signal);
}

/// SplitMix64.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }
}
