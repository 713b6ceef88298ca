//! One reader of an object: asks for parts from its own offset, places what comes, and asks again when that breaks.

use std::error::Error as StdError;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Buf, Bytes};
use futures_util::StreamExt;
use tokio::time::timeout;

use super::shared::{Shared, lock};
use super::{Attempts, Body, Chain, Changed, Failure, Lane, Part, Remote, TO_END, Want, stalled};
use crate::error::{Error, Kind};
use crate::source::retry::{Cause, Verdict, Why};

/// A part that is being read.
struct Current {
    body: Body,
    /// Offset in the object of the next byte that comes.
    at: u64,
    /// Where the body should end, by its own length or the object's.
    end: Option<u64>,
    whole: bool,
}

/// One reader of an object, on a lane of its own.
pub(super) struct Reader<R: Remote> {
    shared: Arc<Shared<R>>,
    // Before the lane: its connection belongs to the lane's runtime.
    part: Option<Current>,
    lane: Option<Lane<R::Client>>,
    /// Offset of the next byte to hand on, `chunk` aside.
    at: u64,
    end: u64,
    chunk: Bytes,
    /// Of everything handed on, when the source must be read again from its start after a break: what is skipped then
    /// must be the same.
    seen: Option<crc32fast::Hasher>,
    skipped: crc32fast::Hasher,
    attempts: Attempts,
    /// No half-read answer is on the lane.
    clean: bool,
}

impl<R: Remote> Read for Reader<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        if self.chunk.is_empty() {
            self.fill()?;
        }
        let n = buf.len().min(self.chunk.len());
        self.chunk.copy_to_slice(&mut buf[..n]);
        Ok(n)
    }
}

impl<R: Remote> Drop for Reader<R> {
    fn drop(&mut self) {
        let clean = self.clean && self.part.is_none();
        self.part = None;
        if let Some(lane) = self.lane.take()
            && clean
        {
            let mut lanes = lock(&self.shared.lanes);
            if lanes.len() < self.shared.reach.connections {
                lanes.push(lane);
            }
        }
    }
}

impl<R: Remote> Reader<R> {
    /// Reads `range`; `again` when a break means reading from the object's start once more.
    pub(super) fn new(shared: Arc<Shared<R>>, range: Range<u64>, again: bool) -> Self {
        Self {
            part: None,
            lane: None,
            at: range.start,
            end: range.end,
            chunk: Bytes::new(),
            seen: again.then(crc32fast::Hasher::new),
            skipped: crc32fast::Hasher::new(),
            attempts: Attempts::new(&shared.reach.retry, true),
            clean: true,
            shared,
        }
    }

    /// Continues with an existing answer.
    pub(super) fn take_over(&mut self, lane: Lane<R::Client>, part: Part) {
        self.lane = Some(lane);
        self.adopt(part);
    }

    /// Gets the next chunk; leaves it empty at the end.
    fn fill(&mut self) -> io::Result<()> {
        if self.at >= self.end {
            return Ok(());
        }
        let lane = match self.lane.take() {
            Some(lane) => lane,
            None => {
                let idle = lock(&self.shared.lanes).pop();
                match idle {
                    Some(lane) => lane,
                    None => Lane::new(&self.shared.net, &self.shared.remote)?,
                }
            }
        };
        let outcome = lane.net.block_on(self.next(&lane.client));
        self.lane = Some(lane);
        match outcome {
            Ok(Ok(chunk)) => {
                self.chunk = chunk;
                Ok(())
            }
            Ok(Err(error)) | Err(error) => {
                self.clean = false;
                Err(error)
            }
        }
    }

    async fn next(&mut self, client: &R::Client) -> io::Result<Bytes> {
        let stall = self.shared.reach.stall;
        loop {
            if self.at >= self.end {
                return Ok(Bytes::new());
            }
            let Some(part) = &mut self.part else {
                self.ask(client).await?;
                continue;
            };
            let Ok(chunk) = timeout(stall, part.body.next()).await else {
                return Err(stalled(self.shared.remote.name(), self.at, stall).into());
            };
            match chunk {
                Some(Ok(chunk)) => {
                    let chunk = self.place(chunk)?;
                    if chunk.is_empty() {
                        continue;
                    }
                    self.attempts.progress();
                    self.at += chunk.len() as u64;
                    if let Some(seen) = &mut self.seen {
                        seen.update(&chunk);
                    }
                    self.complete().await?;
                    return Ok(chunk);
                }
                Some(Err(error)) => {
                    let reset = breaks(&*error);
                    let at = part.at;
                    self.part = None;
                    let cause = if reset || at != self.at { Cause::Network } else { Cause::Truncated };
                    let what = format!("the connection to {} broke at byte {at}", self.shared.remote.name());
                    self.wait(cause, Error::with(Kind::Process, what, error)).await?;
                }
                None => {
                    let (at, end, whole) = (part.at, part.end, part.whole);
                    self.part = None;
                    match end {
                        // It gave no length and ended by the rules: that is the end.
                        None if whole && at >= self.at => self.end = self.at,
                        // A server may send less than requested, if it declares so.
                        Some(end) if at == end && at >= self.at => {}
                        Some(_) | None => {
                            let cause = if at == self.at { Cause::Truncated } else { Cause::Network };
                            let what = format!("{} ended its answer at byte {at}", self.shared.remote.name());
                            self.wait(cause, Error::new(Kind::Process, what)).await?;
                        }
                    }
                }
            }
        }
    }

    /// Asks for what is missing.
    async fn ask(&mut self, client: &R::Client) -> io::Result<()> {
        let shared = self.shared.clone();
        let ranges = shared.ranges.load(Ordering::Relaxed);
        let want = Want { from: self.at, end: (self.end != u64::MAX).then_some(self.end), ranges };
        let Ok(answer) = timeout(shared.reach.stall, shared.remote.get(client, want)).await else {
            return Err(stalled(shared.remote.name(), self.at, shared.reach.stall).into());
        };
        match answer {
            Ok(part) => {
                if let Some(changed) = self.changed(&part) {
                    self.clean = false;
                    return Err(io::Error::other(changed));
                }
                if part.start > self.at || (part.start < self.at && !part.whole) {
                    let what = format!("{} answered with other bytes than asked for", shared.remote.name());
                    return self.wait(Cause::Server, Error::new(Kind::Process, what)).await;
                }
                if ranges && part.whole {
                    self.lose_ranges("the server sends the whole file when asked for a part");
                }
                self.adopt(part);
                Ok(())
            }
            Err(Failure::NoRanges(what)) if ranges => {
                self.lose_ranges(&what);
                Ok(())
            }
            Err(Failure::NoRanges(what)) => {
                let what = format!("{}: {what}", shared.remote.name());
                self.wait(Cause::Server, Error::new(Kind::Process, what)).await
            }
            Err(Failure::Changed(changed)) => Err(io::Error::other(changed)),
            Err(Failure::Failed(cause, error)) => self.wait(cause, error).await,
        }
    }

    fn lose_ranges(&self, why: &str) {
        if self.shared.ranges.swap(false, Ordering::Relaxed) {
            let source = self.shared.remote.name();
            tracing::warn!(
                source,
                why,
                "the server does not honour ranges: continuing with one stream from the start"
            );
        }
    }

    /// Continues with `part`, which starts at or before our offset.
    fn adopt(&mut self, part: Part) {
        let whole_end = if part.whole { self.shared.size } else { None };
        self.skipped = crc32fast::Hasher::new();
        self.part =
            Some(Current { body: part.body, at: part.start, end: part.end.or(whole_end), whole: part.whole });
    }

    fn changed(&self, part: &Part) -> Option<Changed> {
        let shared = &self.shared;
        if let (Some(old), Some(new)) = (shared.size, part.total)
            && old != new
        {
            return Some(Changed::new(format!("{} had {old} bytes and has {new}", shared.remote.name())));
        }
        let what = part.mark.differs(&shared.mark, part.whole)?;
        Some(Changed::new(format!("{}: {what}", shared.remote.name())))
    }

    /// The bytes of `chunk` that are for the caller: without what was handed on before a break, and not past the end.
    fn place(&mut self, mut chunk: Bytes) -> io::Result<Bytes> {
        let Some(part) = &mut self.part else { return Ok(Bytes::new()) };
        let start = part.at;
        part.at = part.at.saturating_add(chunk.len() as u64);
        if part.end.is_some_and(|end| part.at > end) {
            return Err(longer(self.shared.remote.name(), part.end).into());
        }
        if start < self.at {
            let skip = usize::try_from(self.at - start).unwrap_or(usize::MAX).min(chunk.len());
            let skipped = chunk.split_to(skip);
            if let Some(seen) = &self.seen {
                self.skipped.update(&skipped);
                if start + skip as u64 == self.at
                    && self.skipped.clone().finalize() != seen.clone().finalize()
                {
                    let name = self.shared.remote.name();
                    let what = format!(
                        "{name} was replaced while it was read: its first {} bytes differ; start over",
                        self.at
                    );
                    return Err(io::Error::other(Changed::new(what)));
                }
            }
        }
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        chunk.truncate(left);
        Ok(chunk)
    }

    /// After the last byte: lets the answer end, so that the connection can be used again, and sees that nothing more
    /// comes.
    async fn complete(&mut self) -> io::Result<()> {
        if self.at < self.end {
            return Ok(());
        }
        let Some(part) = &mut self.part else { return Ok(()) };
        if part.end != Some(part.at) {
            // The answer has more than we want: a whole object where a range was asked for. Its connection is lost.
            self.clean = false;
            self.part = None;
            return Ok(());
        }
        match timeout(TO_END, part.body.next()).await {
            Ok(Some(Ok(more))) if !more.is_empty() => {
                return Err(longer(self.shared.remote.name(), part.end).into());
            }
            Ok(None) => {}
            Ok(Some(_)) | Err(_) => self.clean = false,
        }
        self.part = None;
        Ok(())
    }

    /// Waits according to the policy, or gives up.
    async fn wait(&mut self, cause: Cause, error: Error) -> io::Result<()> {
        let name = self.shared.remote.name();
        let spell = |attempts: &Attempts| (attempts.spell.failures, attempts.spell.elapsed.as_secs());
        match self.attempts.failed(cause) {
            Verdict::Wait(wait) => {
                tracing::debug!(source = name, at = self.at, error = %Chain(&error), ?wait, "trying again");
                if !wait.is_zero() {
                    tokio::time::sleep(wait).await;
                }
                Ok(())
            }
            Verdict::GiveUp(Why::Final) => Err(error.into()),
            Verdict::GiveUp(Why::Truncated) => {
                let declared = self.shared.size.map_or(String::new(), |size| format!(" of {size} declared"));
                let what = format!(
                    "{name} ends at byte {}{declared}: it is truncated there, or the server's length is wrong",
                    self.at
                );
                Err(Error::with(Kind::Process, what, error).into())
            }
            Verdict::GiveUp(Why::Patience) => {
                let (tries, seconds) = spell(&self.attempts);
                let what =
                    format!("no new byte of {name} after byte {}: {tries} tries in {seconds} s", self.at);
                Err(Error::with(Kind::Process, what, error).into())
            }
        }
    }
}

fn longer(name: &str, end: Option<u64>) -> Error {
    let declared = end.map_or(String::new(), |end| format!(" ({end} bytes)"));
    Error::new(Kind::Process, format!("{name} sends more than the length it declared{declared}"))
}

/// Whether a connection was broken off rather than ended.
fn breaks(error: &(dyn StdError + 'static)) -> bool {
    let mut kinds =
        crate::error::below(error).filter_map(|error| error.downcast_ref::<io::Error>()).map(io::Error::kind);
    kinds.find(|kind| *kind != io::ErrorKind::Other).is_some_and(|kind| kind != io::ErrorKind::UnexpectedEof)
}
