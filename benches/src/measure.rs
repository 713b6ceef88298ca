//! Runs one command and measures it; writes to the disk directly, as the measure of what the disk can do.

use std::{
    fs::{File, OpenOptions},
    io::Read as _,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde::Serialize;

use crate::sys;

/// Cost of one run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cost {
    /// Seconds from start to end.
    pub wall: f64,
    /// CPU seconds, user and system, of the process and its children.
    pub cpu: f64,
    /// Peak resident set in MiB, of the largest process.
    pub peak_mib: f64,
}

/// Runs `command` to its end. With a limit, it is asked to stop after that long, and ending by the signal is no failure.
///
/// # Errors
/// The command cannot be started or fails; its standard error is then part of the message.
pub fn command(command: &mut Command, limit: Option<Duration>) -> Result<Cost> {
    let mut log = tempfile::tempfile()?;
    let begin = Instant::now();
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log.try_clone()?)
        .spawn()
        .with_context(|| format!("start {command:?}; `make deps` installs what is missing"))?;
    let pid = i32::try_from(child.id())?;
    let (ended, watch) = std::sync::mpsc::channel::<()>();
    let stopper = limit.map(|limit| {
        std::thread::spawn(move || {
            let expired = watch.recv_timeout(limit).is_err();
            if expired && let Some(pid) = rustix::process::Pid::from_raw(pid) {
                // A signal to a process that has just ended has no effect: ids are not reused at once.
                rustix::process::kill_process(pid, rustix::process::Signal::TERM).ok();
            }
            expired
        })
    });
    let (status, usage) = sys::wait(pid)?;
    let wall = begin.elapsed();
    ended.send(()).ok();
    let stopped = stopper.is_some_and(|stopper| stopper.join().unwrap_or(false));
    if !status.success() && !stopped {
        let mut text = String::new();
        std::io::Seek::rewind(&mut log)?;
        log.read_to_string(&mut text)?;
        bail!("{command:?}: {status}: {}", text.trim());
    }
    Ok(Cost {
        wall: wall.as_secs_f64(),
        cpu: Duration::from_micros(usage.cpu_micros).as_secs_f64(),
        peak_mib: f64::from(u32::try_from(usage.peak_kib).unwrap_or(u32::MAX)) / 1024.0,
    })
}

/// Writes `bytes` bytes to a new file at `path`, past the page cache, 1 MiB at a time, one after the other, and syncs it.
///
/// # Errors
/// The file cannot be made or written; filesystems without direct I/O refuse it.
pub fn direct_write(path: &Path, bytes: u64) -> Result<Cost> {
    const BLOCK: usize = 1 << 20;
    const ALIGNMENT: usize = 4096;
    let mut space = vec![0_u8; BLOCK + ALIGNMENT];
    let begin = space.as_ptr().align_offset(ALIGNMENT);
    let block = space.get_mut(begin..begin + BLOCK).context("room to align")?;
    // Bytes that no storage below can pack or take for zeroes.
    File::open("/dev/urandom")?.read_exact(block)?;
    let flags = i32::try_from(rustix::fs::OFlags::DIRECT.bits())?;
    let file = OpenOptions::new().write(true).create_new(true).custom_flags(flags).open(path)?;
    let start = Instant::now();
    for at in (0..bytes).step_by(BLOCK) {
        file.write_all_at(block, at)?;
    }
    file.sync_all()?;
    Ok(Cost { wall: start.elapsed().as_secs_f64(), cpu: 0.0, peak_mib: 0.0 })
}

/// Reads a file once, so that it is in the page cache.
///
/// # Errors
/// It cannot be read.
pub fn warm(path: &Path) -> Result<()> {
    let mut file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    let mut block = vec![0_u8; 1 << 20];
    while file.read(&mut block)? > 0 {}
    Ok(())
}
