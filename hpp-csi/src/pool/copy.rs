//! Copies data where blocks cannot be shared: throttled, and resumed after the driver was killed. An extended attribute of
//! each file being copied holds its source and progress; one of the topmost directory holds the source and the start time.
//! Files that cannot have attributes are copied from their beginning.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{
    SeekFrom, Stat, XattrFlags, fdatasync, fgetxattr, fremovexattr, fsetxattr, fstat, ftruncate, seek,
};
use rustix::io::Errno;

use crate::error::{Error, Result};

/// The attribute; only root sees it.
pub(super) const MARK: &str = "trusted.hpp-csi.copy";
/// Longest value of it.
const MARK_MAX: usize = 512;
/// Bytes that are copied between two looks at the clock.
const STEP: usize = 4 << 20;
/// Bytes after which is written down how far it is.
const SAVE: u64 = 64 << 20;
/// Copying leaves the disk to others for as long as it took.
const REST: u32 = 1;
/// Seconds by which clocks of files lag behind, at most.
const LAG: i64 = 2;

/// Start time of a tree's copy: source files that changed later are copied again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Since(i64);

impl Since {
    /// When the copy of `source` into the folder `top` began; `None` when it is no such copy.
    pub(crate) fn recorded(top: BorrowedFd<'_>, source: &str) -> Option<Self> {
        read(top)?.strip_prefix(source)?.strip_prefix(' ')?.parse().ok().map(Self)
    }

    /// The same of a copy that begins now if it has not.
    pub(crate) fn of(top: BorrowedFd<'_>, source: &str) -> Self {
        if let Some(since) = Self::recorded(top, source) {
            return since;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        write(top, &format!("{source} {now}"));
        Self(now)
    }

    /// Whether `copy` is all of `source`: its times are set last, when its content is on the disk.
    pub(super) fn is_done(self, source: &Stat, copy: &Stat) -> bool {
        source.st_ctime < self.0.saturating_sub(LAG)
            && source.st_size == copy.st_size
            && (source.st_mtime, source.st_mtime_nsec) == (copy.st_mtime, copy.st_mtime_nsec)
    }
}

/// Takes the mark off what is whole.
pub(crate) fn done(file: BorrowedFd<'_>) {
    // Where there are no attributes there is no mark.
    let _ = fremovexattr(file, MARK);
}

/// Identifies a source in an unchanged state.
fn state(source: &Stat) -> String {
    let Stat { st_ino, st_size, st_mtime, st_mtime_nsec, st_ctime, st_ctime_nsec, .. } = source;
    format!("{st_ino} {st_size} {st_mtime}.{st_mtime_nsec} {st_ctime}.{st_ctime_nsec} ")
}

/// How far a copy of a source is; `None` when it is none, or its source has changed.
pub(crate) fn so_far(source: &Stat, copy: BorrowedFd<'_>) -> Option<u64> {
    read(copy)?.strip_prefix(&state(source))?.parse().ok()
}

fn read(file: BorrowedFd<'_>) -> Option<String> {
    let mut value = [0; MARK_MAX];
    let length = fgetxattr(file, MARK, &mut value).ok()?;
    std::str::from_utf8(value.get(..length)?).ok().map(str::to_owned)
}

fn write(file: BorrowedFd<'_>, value: &str) {
    // Without the attribute the next attempt starts from the beginning.
    let _ = fsetxattr(file, MARK, value.as_bytes(), XattrFlags::empty());
}

/// Copies the data between holes, from the progress of an earlier attempt. Data is synced before the progress that covers it
/// is recorded.
pub(super) fn content(from: &File, to: &File) -> Result<()> {
    use std::os::fd::AsFd;
    let io = |error: Errno| Error::io("copy a file", error);
    let stat = fstat(from).map_err(io)?;
    let mut at = so_far(&stat, to.as_fd()).unwrap_or(0);
    let mut saved = at;
    let mark = |at: u64| write(to.as_fd(), &format!("{}{at}", state(&stat)));
    if at == 0 {
        ftruncate(to, u64::try_from(stat.st_size).unwrap_or(0)).map_err(io)?;
        mark(0);
    }
    'file: loop {
        let start = match seek(from, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(error) => return Err(io(error)),
        };
        let end = seek(from, SeekFrom::Hole(start)).map_err(io)?;
        let (mut read, mut written) = (start, start);
        while read < end {
            let begun = Instant::now();
            let step = usize::try_from(end - read).unwrap_or(STEP).min(STEP);
            let copied = rustix::fs::copy_file_range(from, Some(&mut read), to, Some(&mut written), step)
                .map_err(io)?;
            if copied == 0 {
                // The file became shorter while we copied.
                break 'file;
            }
            fdatasync(to).map_err(io)?;
            if written.saturating_sub(saved) >= SAVE {
                mark(written);
                saved = written;
            }
            std::thread::sleep(begun.elapsed().saturating_mul(REST).min(Duration::from_secs(1)));
        }
        at = end;
    }
    done(to.as_fd());
    Ok(())
}
