//! The memory of a pod's cgroup while it runs: the kernel's own counters, sampled every 50 ms.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::importer::MIB;

/// The largest values seen, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Peaks {
    /// `memory.max_usage_in_bytes`: everything, page cache included. The kernel keeps it; the last look counts.
    pub(crate) usage: u64,
    /// `total_rss` of `memory.stat`: memory of processes.
    pub(crate) rss: u64,
    /// `total_cache`: page cache, tmpfs and mapped files.
    pub(crate) cache: u64,
    /// `total_dirty`: written and not yet on the disk.
    pub(crate) dirty: u64,
    /// How often was looked.
    pub(crate) samples: u64,
}

/// Samples until it is stopped.
pub(crate) struct Sampler {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Peaks>,
}

impl Sampler {
    /// Looks at a group, which need not be there yet.
    pub(crate) fn start(group: PathBuf) -> Self {
        let over = Arc::<AtomicBool>::default();
        let told = over.clone();
        let thread = thread::spawn(move || {
            let mut peaks = Peaks::default();
            while !told.load(Ordering::Relaxed) {
                sample(&group, &mut peaks);
                thread::sleep(Duration::from_millis(50));
            }
            peaks
        });
        Self { over, thread }
    }

    pub(crate) fn stop(self) -> Peaks {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn sample(group: &Path, peaks: &mut Peaks) {
    let Ok(usage) = fs::read_to_string(group.join("memory.max_usage_in_bytes")) else { return };
    let Ok(stat) = fs::read_to_string(group.join("memory.stat")) else { return };
    let field = |name: &str| {
        let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse::<u64>().ok()).unwrap_or(0)
    };
    peaks.usage = peaks.usage.max(usage.trim().parse().unwrap());
    peaks.rss = peaks.rss.max(field("total_rss"));
    peaks.cache = peaks.cache.max(field("total_cache"));
    peaks.dirty = peaks.dirty.max(field("total_dirty"));
    peaks.samples += 1;
}

impl std::fmt::Display for Peaks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [usage, rss, cache, dirty] =
            [self.usage, self.rss, self.cache, self.dirty].map(|bytes| bytes.div_ceil(MIB));
        write!(f, "max usage {usage} MiB, rss {rss}, cache {cache}, dirty {dirty} ({} samples)", self.samples)
    }
}
