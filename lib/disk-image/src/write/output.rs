//! The descriptors of a target that is being written, and every call on them: one piece at a time, from any thread.
//!
//! It decides nothing about order or engines; it knows whether direct I/O still works, what makes ranges zero here,
//! and the first failure, after which nothing counts as written any more.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rustix::fs::{FallocateFlags, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use super::errno::explain;
use super::pool::{Buf, Pool};
use super::target::{Target, sync_folder};
use super::writeback::Writeback;
use super::{Direct, Engine, EngineKind, Options, PAGE, Piece};
use crate::error::{Error, Kind};
use crate::stop::Stop;

/// Largest range one call makes zero, so that a stop is seen in between.
const ZERO_STEP: u64 = 256 << 20;
/// Bytes of zeroes written at a time where nothing better works.
const ZEROES: usize = 1 << 20;
/// How often a write is tried again that the kernel puts off (EAGAIN), 1 ms apart.
const PUT_OFF: u32 = 1000;

/// The first failure, returned by every later call.
#[derive(Clone, Debug)]
struct Failure {
    kind: Kind,
    message: String,
    errno: Option<i32>,
}

impl Failure {
    fn error(&self) -> Error {
        match self.errno {
            Some(errno) => Error::with(self.kind, self.message.clone(), io::Error::from_raw_os_error(errno)),
            None => Error::new(self.kind, self.message.clone()),
        }
    }
}

/// Ways to zero a range; each is tried until it proves impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Zeroing {
    /// Gives the blocks back; reads as zero by the kernel's word, on devices too.
    Punch = 0,
    /// Zeroes in place.
    ZeroRange = 1,
    /// Writing zeroes.
    Write = 2,
}

/// A target being written.
#[derive(Debug)]
pub(super) struct Output {
    target: Target,
    direct: Option<File>,
    /// Whether ranges never written read as zero.
    fresh: bool,
    size: u64,
    /// Alignment of ranges for `fallocate`.
    unit: u64,
    /// Alignment of direct writes.
    grain: usize,
    use_direct: AtomicBool,
    engine: Arc<Mutex<Engine>>,
    failed: AtomicBool,
    /// The kernel reported that data it had accepted did not reach the disk: it does not name the data, and reports it once.
    lost: AtomicBool,
    failure: Mutex<Option<Failure>>,
    written: AtomicU64,
    zeroed: AtomicU64,
    behind: Writeback,
    zeroing: AtomicU8,
    preallocated: bool,
    zeroes: OnceLock<Buf>,
    stop: Stop,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Output {
    /// Sizes `target` for `size` bytes and opens it for direct I/O if that is wanted and possible.
    ///
    /// # Errors
    /// [`Kind::TooLarge`] for a block device that is too small, [`Kind::NoSpace`] when preallocation does not fit or
    /// the filesystem has no files that large.
    pub(super) fn open(target: Target, size: u64, options: &Options) -> Result<Self, Error> {
        let shown = target.path.display();
        let mut unit = PAGE as u64;
        if target.block {
            let capacity = target.capacity()?;
            if size > capacity {
                return Err(Error::new(
                    Kind::TooLarge,
                    format!(
                        "virtual image size {size} is larger than the reported available storage {capacity} of {shown}"
                    ),
                ));
            }
            unit = unit.max(target.sector());
        } else if !options.grows && target.len()? < size {
            target.set_len(size)?;
        }
        let (direct, why) = match options.direct {
            Direct::Never => (None, "direct I/O was not asked for".to_owned()),
            Direct::Try => match open_direct(&target) {
                Ok(file) => (Some(file), String::new()),
                Err(e) => (None, format!("direct I/O is refused at opening: {e}")),
            },
        };
        let fresh = !target.block && !target.kept;
        let mut output = Self {
            use_direct: AtomicBool::new(direct.is_some()),
            engine: Arc::new(Mutex::new(Engine {
                kind: EngineKind::Pwrite,
                direct: direct.is_some(),
                registered: false,
                why,
            })),
            direct,
            fresh,
            size,
            unit,
            grain: grain(&target),
            failed: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            failure: Mutex::new(None),
            written: AtomicU64::new(0),
            zeroed: AtomicU64::new(0),
            behind: Writeback::default(),
            zeroing: AtomicU8::new(Zeroing::Punch as u8),
            preallocated: false,
            zeroes: OnceLock::new(),
            stop: options.stop.clone(),
            target,
        };
        if options.preallocate && !output.target.block {
            output.preallocated = true;
            output.reserve(output.fresh)?;
        }
        Ok(output)
    }

    /// Reserves the blocks of the whole file; `empty` is set when it holds nothing yet.
    fn reserve(&self, empty: bool) -> Result<(), Error> {
        let len = self.target.len()?;
        if self.target.preallocate(len)? { Ok(()) } else { self.fill_holes(len, empty) }
    }

    /// Writes zeroes where nothing is allocated yet.
    fn fill_holes(&self, len: u64, empty: bool) -> Result<(), Error> {
        let mut at = 0;
        while at < len {
            let (hole, data) = if empty {
                (at, len)
            } else {
                // A filesystem without the information reports none.
                let hole = rustix::fs::seek(&self.target.file, SeekFrom::Hole(at)).unwrap_or(len).min(len);
                (hole, rustix::fs::seek(&self.target.file, SeekFrom::Data(hole)).unwrap_or(len).min(len))
            };
            self.write_zeroes(hole..data)?;
            at = data.max(at + 1);
        }
        self.check()
    }

    pub(super) fn plain(&self) -> &File {
        &self.target.file
    }

    /// The descriptor for direct I/O, as long as that works.
    pub(super) fn direct(&self) -> Option<&File> {
        self.direct.as_ref().filter(|_| self.use_direct.load(Ordering::Acquire))
    }

    pub(super) fn is_block(&self) -> bool {
        self.target.block
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn stop(&self) -> &Stop {
        &self.stop
    }

    pub(super) fn engine(&self) -> Engine {
        lock(&self.engine).clone()
    }

    /// Where the engine in use is kept up to date.
    pub(super) fn engine_cell(&self) -> Arc<Mutex<Engine>> {
        self.engine.clone()
    }

    pub(super) fn set_engine(&self, kind: EngineKind, registered: bool, why: &str) {
        let mut engine = lock(&self.engine);
        engine.kind = kind;
        engine.registered = registered;
        engine.because(why);
    }

    /// The ring takes no more buffers; it goes on without.
    pub(super) fn unregistered(&self, error: &io::Error) {
        let mut engine = lock(&self.engine);
        engine.registered = false;
        engine.because(&format!("registering buffers is refused: {error}"));
        tracing::info!(target = %self.target.path.display(), engine = %*engine, "buffers are not registered");
    }

    pub(super) fn written(&self) -> (u64, u64) {
        (self.written.load(Ordering::Acquire), self.zeroed.load(Ordering::Acquire))
    }

    /// The first failure, if there was one.
    pub(super) fn check(&self) -> Result<(), Error> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        match &*lock(&self.failure) {
            Some(failure) => Err(failure.error()),
            None => Ok(()),
        }
    }

    /// Remembers a failure; only the first is kept. Gives the one that is kept.
    fn fail(&self, kind: Kind, message: String, errno: Option<i32>) -> Error {
        let mut first = lock(&self.failure);
        let error = first.get_or_insert(Failure { kind, message, errno }).error();
        drop(first);
        self.failed.store(true, Ordering::Release);
        error
    }

    pub(super) fn fail_io(&self, error: &io::Error, doing: &str) -> Error {
        let errno = Errno::from_io_error(error);
        let message = errno.map_or_else(|| format!("{doing}: {error}"), |errno| explain(errno, doing));
        let kind = Error::target("", io::Error::from(error.kind())).kind();
        self.fail(kind, message, error.raw_os_error())
    }

    fn fail_errno(&self, errno: Errno, doing: &str) -> Error {
        self.fail_io(&io::Error::from(errno), doing)
    }

    /// From now on everything goes through the page cache.
    fn refuse_direct(&self, errno: Errno, guest: u64) {
        if self.use_direct.swap(false, Ordering::AcqRel) {
            let mut engine = lock(&self.engine);
            engine.direct = false;
            engine.because(&format!(
                "direct I/O is refused at the write to {guest}: {}",
                io::Error::from(errno)
            ));
            tracing::warn!(target = %self.target.path.display(), engine = %*engine, "direct I/O refused, going on through the page cache");
        }
    }

    /// Writes `bytes` to `guest`, all of them; `direct` promises whole pages from an aligned address.
    ///
    /// # Errors
    /// The kernel's error; recorded as this output's failure.
    pub(super) fn write(&self, bytes: &[u8], guest: u64, direct: bool) -> Result<(), Error> {
        let mut done = 0;
        let mut put_off = 0;
        let mut file = self.direct().filter(|_| direct);
        let mut through_cache = file.is_none();
        while done < bytes.len() {
            let at = guest + done as u64;
            match rustix::io::pwrite(file.unwrap_or(&self.target.file), &bytes[done..], at) {
                Ok(0) => {
                    let doing =
                        format!("writing {} at {at}: the kernel takes no byte", self.target.path.display());
                    return Err(self.fail(Kind::Target, doing, None));
                }
                Ok(n) => {
                    done += n;
                    if file.is_some() && done < bytes.len() {
                        // Go on at a whole block; what it has of this one is written again.
                        done -= done % self.grain;
                        if n < self.grain {
                            (file, through_cache) = (None, true);
                        }
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if put_off < PUT_OFF => {
                    put_off += 1;
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(e @ (Errno::INVAL | Errno::OPNOTSUPP)) if file.is_some() => {
                    self.refuse_direct(e, at);
                    (file, through_cache) = (None, true);
                }
                Err(e) => {
                    return Err(
                        self.fail_errno(e, &format!("writing {} at {at}", self.target.path.display()))
                    );
                }
            }
        }
        if through_cache {
            self.wrote_cached(guest..guest + bytes.len() as u64)?;
        }
        Ok(())
    }

    /// `range` went through the page cache; see that it does not stay there.
    ///
    /// # Errors
    /// A write-back that failed.
    pub(super) fn wrote_cached(&self, range: Range<u64>) -> Result<(), Error> {
        let doing = || format!("writing back {} before {}", self.target.path.display(), range.end);
        self.behind.wrote(&self.target.file, range.clone()).map_err(|e| {
            self.lost.store(true, Ordering::Release);
            self.fail_io(&e, &doing())
        })
    }

    /// Counts `bytes` as written.
    pub(super) fn count(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Ordering::AcqRel);
    }

    /// Alignment of direct writes, in bytes: pages, or the larger blocks that the page cache keeps whole.
    pub(super) fn grain(&self) -> usize {
        self.grain
    }

    /// Whether `piece` may be written directly.
    pub(super) fn may_be_direct(&self) -> bool {
        self.use_direct.load(Ordering::Acquire)
    }

    /// Makes `range` read as zero.
    ///
    /// # Errors
    /// The failure, ours or an earlier one; [`Kind::Stopped`].
    pub(super) fn zero(&self, range: Range<u64>) -> Result<(), Error> {
        self.check()?;
        if !self.fresh {
            // Calls that make ranges zero want whole units on a device; on a file any range is fine, but a reserved
            // block is better overwritten than given back and reserved again.
            let unit = if self.target.block { self.unit } else { 1 };
            let start = range.start.next_multiple_of(unit).min(range.end);
            let end = (range.end - range.end % unit).max(start);
            self.write_zeroes(range.start..start)?;
            let mut at = start;
            while at < end {
                self.stop.check()?;
                let step = (end - at).min(ZERO_STEP);
                self.zero_units(at..at + step)?;
                at += step;
            }
            self.write_zeroes(end..range.end)?;
        }
        self.zeroed.fetch_add(range.end - range.start, Ordering::AcqRel);
        Ok(())
    }

    fn zero_units(&self, range: Range<u64>) -> Result<(), Error> {
        let len = range.end - range.start;
        loop {
            let (how, flags) = match self.zeroing.load(Ordering::Acquire) {
                0 if self.preallocated => (Zeroing::Punch, None),
                0 => (Zeroing::Punch, Some(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE)),
                1 => (Zeroing::ZeroRange, Some(FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE)),
                _ => return self.write_zeroes(range),
            };
            let next = match how {
                Zeroing::Punch => Zeroing::ZeroRange,
                Zeroing::ZeroRange | Zeroing::Write => Zeroing::Write,
            };
            let tried = flags.map_or(Err(Errno::OPNOTSUPP), |flags| {
                rustix::fs::fallocate(&self.target.file, flags, range.start, len)
            });
            match tried {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => self.stop.check()?,
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::NODEV | Errno::PERM) => {
                    self.zeroing.fetch_max(next as u8, Ordering::AcqRel);
                }
                Err(e) => {
                    let doing = format!(
                        "zeroing {} from {} to {}",
                        self.target.path.display(),
                        range.start,
                        range.end
                    );
                    return Err(self.fail_errno(e, &doing));
                }
            }
        }
    }

    fn write_zeroes(&self, range: Range<u64>) -> Result<(), Error> {
        if range.is_empty() {
            return Ok(());
        }
        if self.zeroes.get().is_none() {
            let made = Pool::new(1, ZEROES).acquire(&self.stop)?;
            // Another thread may have been quicker; either will do.
            let _ = self.zeroes.set(made);
        }
        let Some(zeroes) = self.zeroes.get() else {
            return Ok(());
        };
        let mut at = range.start;
        while at < range.end {
            self.stop.check()?;
            let left = usize::try_from(range.end - at).unwrap_or(usize::MAX).min(ZEROES);
            let into = usize::try_from(at % self.grain as u64).unwrap_or(0);
            // Up to a boundary, then whole blocks, then the rest.
            let (len, direct) = match () {
                () if into > 0 => (left.min(self.grain - into), false),
                () if left >= self.grain => (left - left % self.grain, true),
                () => (left, false),
            };
            self.write(&zeroes[..len], at, direct)?;
            at += len as u64;
        }
        Ok(())
    }

    /// Makes everything written so far durable.
    ///
    /// # Errors
    /// An earlier failure, or this one, recorded: the kernel reports a lost write once only.
    pub(super) fn sync(&self) -> Result<(), Error> {
        self.check()?;
        self.flush(rustix::fs::fdatasync)?;
        self.check()
    }

    /// Makes durable what was written before the first failure, if that was a write which the kernel refused.
    ///
    /// # Errors
    /// When accepted data may be lost.
    pub(super) fn salvage(&self) -> Result<(), Error> {
        if self.lost.load(Ordering::Acquire) {
            self.check()?;
        }
        self.flush(rustix::fs::fdatasync)
    }

    fn flush<'a>(&'a self, sync: fn(&'a File) -> rustix::io::Result<()>) -> Result<(), Error> {
        rustix::io::retry_on_intr(|| sync(&self.target.file)).map_err(|e| {
            self.lost.store(true, Ordering::Release);
            self.fail_errno(e, &format!("syncing {}", self.target.path.display()))
        })
    }

    /// Whether anything failed so far.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Makes the target, its length and its name durable.
    ///
    /// # Errors
    /// As [`Output::sync`].
    pub(super) fn close(&self) -> Result<(), Error> {
        self.check()?;
        self.flush(rustix::fs::fsync)?;
        self.check()?;
        if !self.target.block {
            sync_folder(&self.target.path).map_err(|e| {
                self.fail_io(&e, &format!("syncing the folder of {}", self.target.path.display()))
            })?;
        }
        Ok(())
    }

    /// Nothing will be written: a file that had no content has none again.
    pub(super) fn give_up(&self) -> Result<(), Error> {
        if self.fresh { self.target.set_len(0) } else { Ok(()) }
    }

    /// Gives a file its final length, one length after the other; what is new of it is reserved, too, if the rest is.
    pub(super) fn set_lengths(&self, lengths: &[u64]) -> Result<(), Error> {
        for &len in lengths {
            self.target.set_len(len)?;
        }
        if self.preallocated && !lengths.is_empty() { self.reserve(false) } else { Ok(()) }
    }

    /// Cuts a range of a buffer into what goes directly and what does not.
    pub(super) fn cut(&self, piece: Piece, out: &mut impl Extend<Piece>) {
        let Piece { at, len, guest, .. } = piece;
        let into = usize::try_from(guest % self.grain as u64).unwrap_or(0);
        let head = if into == 0 { 0 } else { (self.grain - into).min(len) };
        let whole = (len - head) - (len - head) % self.grain;
        if whole == 0 || !(at + head).is_multiple_of(PAGE) || !self.may_be_direct() {
            out.extend([Piece { direct: false, ..piece }]);
            return;
        }
        let tail = len - head - whole;
        let part = |from: usize, len: usize, direct: bool| Piece {
            at: at + from,
            len,
            guest: guest + from as u64,
            direct,
        };
        let parts = [part(0, head, false), part(head, whole, true), part(head + whole, tail, false)];
        out.extend(parts.into_iter().filter(|part| part.len > 0));
    }
}

/// Filesystems whose statfs reports the size of the blocks that the page cache keeps whole: ext4, XFS, btrfs. Magic numbers
/// from linux/magic.h.
const TELL_BLOCKS: [u32; 3] = [0xef53, 0x5846_5342, 0x9123_683e];

/// The alignment of direct writes to `target`. Where blocks are larger than pages the page cache reads and writes whole
/// blocks, and would put back data that a direct write next to it has just replaced. Not so on devices: one of larger
/// sectors takes no less by direct writes either.
fn grain(target: &Target) -> usize {
    let told = rustix::fs::fstatfs(&target.file)
        .ok()
        .filter(|fs| TELL_BLOCKS.iter().any(|&magic| i64::from(magic) == fs.f_type))
        .and_then(|fs| usize::try_from(fs.f_bsize).ok());
    told.filter(|block| block.is_power_of_two() && *block <= ZEROES).unwrap_or(PAGE).max(PAGE)
}

/// A second descriptor of the same file or device, for direct I/O: opened through /proc, so that it is the same one even if
/// the path has changed.
fn open_direct(target: &Target) -> io::Result<File> {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", target.file.as_raw_fd());
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::DIRECT | OFlags::NOCTTY;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}
