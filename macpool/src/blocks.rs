//! Ownership of blocks of addresses: the one small object that replicas share, and each replica's changes to it. Pure:
//! reading the object, and writing it with compare-and-swap, is done elsewhere.
//!
//! ```text
//!            beat every BEAT            another's beat stands still for LEASE
//!  claim ─────────────────► mine ─────┐       (seen without a gap)        ┌──► taken over, used after SETTLE
//!                             └ not written for FENCE: nothing is given ──┘
//! ```
//!
//! FENCE is longer than an absence of the API server that must go unnoticed, and LEASE + SETTLE is later than FENCE by the
//! time that an admitted object may take to be written and seen: two replicas never allocate from one block at the same
//! time, regardless of their clocks. A process that ended and came back under its name takes its former blocks at once, and
//! quarantines them too: objects that it admitted at its end may not be seen yet. So do others with the blocks of a replica
//! that announced its end.
//!
//! A replica allocates only from blocks that are its own in the object as it was last read: an edit by others (a user, a
//! backup) takes blocks away, or adds some that are quarantined. An object that is gone or unreadable is rewritten as it was
//! last known. Blocks without an address in use are released when there are more than enough, so that the object stays small
//! however often replicas start.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::BLOCKS_MAP;
use crate::error::{Error, Kind, Result};
use api::net::Range;
use api::net::pool::{BLOCK_BITS, Block, bounds};

/// How often a replica writes that it lives.
pub const BEAT: Duration = Duration::from_secs(5);
/// After how long without a beat another replica is taken for dead.
pub const LEASE: Duration = Duration::from_secs(20);
/// After how long without a beat of its own a replica gives nothing more.
pub const FENCE: Duration = Duration::from_secs(40);
/// The quarantine of a block that another replica owned.
pub const SETTLE: Duration = Duration::from_secs(60);
/// Free addresses that a replica wants to have, if that is no more than an eighth of the range.
const STOCK: u64 = 1 << 14;
/// Most runs of blocks that are read of one replica.
const RUNS_MAX: usize = 1 << 14;
/// Most blocks that are read of one replica: some 256 million addresses.
const BLOCKS_MAX: u64 = 1 << 20;
/// Most replicas.
const REPLICAS_MAX: usize = 256;
/// Most blocks that are given back at once.
pub const RETURNED_MAX: usize = 1 << 12;

/// A replica's line in the object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replica {
    /// Which process it is: another one each time it starts.
    pub incarnation: String,
    /// Where it answers other replicas, `host:port`.
    pub address: String,
    /// Counts up while it lives.
    pub beat: u64,
    /// Its blocks: the first of a run, and how many.
    pub blocks: Vec<(Block, u64)>,
    /// It has ended, and gives nothing more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left: bool,
}

/// The object's content: replicas by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Book {
    /// All replicas that own blocks.
    pub replicas: BTreeMap<String, Replica>,
}

impl Book {
    /// Reads the object's text.
    ///
    /// # Errors
    /// [`Kind::Invalid`] when it is malformed: another program wrote it.
    pub fn parse(text: &str) -> Result<Self> {
        let invalid = |why: String| {
            let message = format!(
                "the ConfigMap {BLOCKS_MAP} cannot be read ({why}); delete it, and macpool writes it again"
            );
            Error::new(Kind::Invalid, message)
        };
        let book: Self = serde_json::from_str(text).map_err(|error| invalid(error.to_string()))?;
        if book.replicas.len() > REPLICAS_MAX {
            return Err(invalid(format!("{} replicas", book.replicas.len())));
        }
        for (name, replica) in &book.replicas {
            let end = 1 << (48 - BLOCK_BITS);
            let fits = |(first, count): &(Block, u64)| first.checked_add(*count).is_some_and(|to| to <= end);
            let all = replica.blocks.iter().fold(0_u64, |sum, (_, count)| sum.saturating_add(*count));
            if replica.blocks.len() > RUNS_MAX || all > BLOCKS_MAX || !replica.blocks.iter().all(fits) {
                return Err(invalid(format!("{name} has invalid blocks")));
            }
        }
        Ok(book)
    }

    /// The object's text.
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The owner of a block, by name; `None` when it has left.
    pub fn owner(&self, block: Block) -> Option<(&str, &Replica)> {
        let mut replicas = self.replicas.iter().filter(|(_, replica)| !replica.left);
        let found = replicas.find(|(_, replica)| replica.blocks.iter().any(|run| has(*run, block)));
        found.map(|(name, replica)| (name.as_str(), replica))
    }
}

/// Whether a run has a block.
pub fn has((first, count): (Block, u64), block: Block) -> bool {
    (first..first.saturating_add(count)).contains(&block)
}

/// The identity of this process.
#[derive(Clone, Debug)]
pub struct Me {
    /// The replica's name: the pod's.
    pub name: String,
    /// This process.
    pub incarnation: String,
    /// Where it answers other replicas.
    pub address: String,
}

/// A replica's knowledge of the object over time. Times are since the program's start.
#[derive(Debug)]
pub struct Ledger {
    me: Me,
    book: Book,
    /// When the object was last read; after a gap in reading others' beats prove nothing.
    read: Option<Duration>,
    /// Others' incarnation and beat, and since when they are the same.
    beats: BTreeMap<String, (String, u64, Duration)>,
    /// When our own line was last written.
    written: Option<Duration>,
    /// The object is gone, or cannot be read any more.
    lost: bool,
}

/// The change to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BookChange {
    /// The object's new content.
    pub book: Book,
    /// Runs of blocks that are ours by it, and may be used at once.
    pub fresh: Vec<(Block, u64)>,
    /// Runs of blocks that are ours by it, and have to settle.
    pub settling: Vec<(Block, u64)>,
}

impl BookChange {
    /// Gives blocks back, of the replica of this name. Nothing may be given out of them any more before this is written.
    pub fn give_back(&mut self, name: &str, blocks: &[Block]) {
        let Some(mine) = self.book.replicas.get_mut(name) else { return };
        let mut runs = Vec::new();
        for (first, count) in mine.blocks.drain(..) {
            let mut from = first;
            let end = first + count;
            for block in blocks.iter().filter(|block| has((first, count), **block)) {
                runs.push((from, block.saturating_sub(from)));
                from = block + 1;
            }
            runs.push((from, end.saturating_sub(from)));
        }
        mine.blocks = merged(runs);
    }
}

impl Ledger {
    /// Nothing is known yet.
    pub fn new(me: Me) -> Self {
        Self { me, book: Book::default(), read: None, beats: BTreeMap::new(), written: None, lost: false }
    }

    /// This process.
    pub fn me(&self) -> &Me {
        &self.me
    }

    /// The object as it was last read or written.
    pub fn book(&self) -> &Book {
        &self.book
    }

    /// The blocks that are this process's by the object as it was last read or written: none, when others have taken
    /// them over.
    pub fn blocks(&self) -> &[(Block, u64)] {
        let mine = self.book.replicas.get(&self.me.name);
        mine.filter(|mine| mine.incarnation == self.me.incarnation).map_or(&[], |mine| &mine.blocks)
    }

    /// Whether the object as it was last read or written has a line of this process.
    pub fn has_line(&self) -> bool {
        let mine = self.book.replicas.get(&self.me.name);
        mine.is_some_and(|mine| mine.incarnation == self.me.incarnation)
    }

    /// The object is gone, or cannot be read any more: the next turn writes it as it was last known.
    pub fn lose(&mut self, now: Duration) {
        self.lost = true;
        self.read = Some(now);
    }

    /// The object with our line saying that we have left.
    pub fn leave(&self) -> Option<Book> {
        let mut book = self.book.clone();
        let mine = book.replicas.get_mut(&self.me.name)?;
        mine.left = mine.incarnation == self.me.incarnation;
        mine.left.then_some(book)
    }

    /// The object was read, or heard of.
    ///
    /// # Errors
    /// [`Kind::Taken`] when another process of our name is there: it has our blocks, and we must end.
    pub fn read(&mut self, book: Book, now: Duration) -> Result<()> {
        let mine = book.replicas.get(&self.me.name);
        if self.written.is_some() && mine.is_some_and(|mine| mine.incarnation != self.me.incarnation) {
            let message = format!("the blocks of {} were taken over by another process", self.me.name);
            return Err(Error::new(Kind::Taken, message));
        }
        let gap = self.read.is_none_or(|read| now.saturating_sub(read) > BEAT * 2);
        let before = std::mem::take(&mut self.beats);
        for (name, replica) in &book.replicas {
            let (incarnation, beat) = (&replica.incarnation, replica.beat);
            let since = match before.get(name) {
                Some((of, at, since)) if !gap && of == incarnation && *at == beat => *since,
                Some(_) | None => now,
            };
            self.beats.insert(name.clone(), (incarnation.clone(), beat, since));
        }
        self.book = book;
        self.read = Some(now);
        self.lost = false;
        Ok(())
    }

    /// The change to write now, given how many addresses are free, without those in quarantine; `None`: nothing. `place` is
    /// any number, the place where the search for blocks begins.
    pub fn next_change(&self, range: Range, free: u64, place: u64, now: Duration) -> Option<BookChange> {
        let wanted = wanted(range);
        let short = if free < wanted.div_ceil(2) { wanted - free } else { 0 };
        let due = self.lost || self.written.is_none_or(|written| now.saturating_sub(written) >= BEAT);
        let mut book = self.book.clone();
        let mut settling = Vec::new();
        let dead = |(name, (_, _, since)): (&String, &(String, u64, Duration))| {
            let left = self.book.replicas.get(name).is_some_and(|replica| replica.left);
            let gone = left || now.saturating_sub(*since) >= LEASE;
            (*name != self.me.name && gone).then(|| name.clone())
        };
        for name in self.beats.iter().filter_map(dead) {
            settling.extend(book.replicas.remove(&name).into_iter().flat_map(|replica| replica.blocks));
        }
        let mut mine = book.replicas.remove(&self.me.name).unwrap_or_default();
        if mine.incarnation != self.me.incarnation {
            settling.append(&mut mine.blocks);
        }
        let fresh = unclaimed(&book, &mine, &settling, range, place, short.div_ceil(1 << BLOCK_BITS));
        if !due && fresh.is_empty() && settling.is_empty() {
            return None;
        }
        mine.blocks.extend(settling.iter().chain(&fresh));
        mine.blocks = merged(mine.blocks);
        let (incarnation, address) = (self.me.incarnation.clone(), self.me.address.clone());
        let beat = mine.beat.wrapping_add(1);
        let blocks = mine.blocks;
        book.replicas
            .insert(self.me.name.clone(), Replica { incarnation, address, beat, blocks, left: false });
        Some(BookChange { book, fresh, settling })
    }

    /// A turn was written; its writing began at `began`.
    pub fn wrote(&mut self, turn: &BookChange, began: Duration) {
        self.written = Some(began);
        self.lost = false;
        self.book = turn.book.clone();
        // Reading what we wrote is no news of others.
        self.beats.retain(|name, _| turn.book.replicas.contains_key(name));
    }

    /// Whether our line was ever written.
    pub fn has_written(&self) -> bool {
        self.written.is_some()
    }

    /// Whether addresses may be given out of our blocks.
    pub fn may_give(&self, now: Duration) -> bool {
        self.written.is_some_and(|written| now.saturating_sub(written) < FENCE)
    }
}

/// How many free addresses a replica wants to have.
fn wanted(range: Range) -> u64 {
    STOCK.min(range.size() / 8).max(1)
}

/// How many free addresses a replica with so many keeps when it gives blocks back.
pub fn enough(range: Range, free: u64) -> u64 {
    let wanted = wanted(range);
    if free > wanted * 4 { wanted * 2 } else { free }
}

/// Up to `count` blocks that touch the range and are free, as runs.
fn unclaimed(
    book: &Book,
    mine: &Replica,
    settling: &[(Block, u64)],
    range: Range,
    place: u64,
    count: u64,
) -> Vec<(Block, u64)> {
    let others = book.replicas.values().flat_map(|replica| &replica.blocks);
    let claimed = merged(others.chain(&mine.blocks).chain(settling).copied().collect());
    let (low, high) = (range.first().bits() >> BLOCK_BITS, range.last().bits() >> BLOCK_BITS);
    let start = low + place % (high - low + 1);
    let mut found = Vec::new();
    let mut left = count;
    for (from, to) in [(start, high + 1), (low, start)] {
        let mut at = from;
        while left > 0 && at < to {
            if let Some((first, count)) = claimed.iter().find(|run| has(**run, at)) {
                at = first + count;
            } else if let Some(mac) = range.next(bounds(at).0).filter(|mac| mac.bits() <= bounds(at).1) {
                debug_assert!(range.contains(mac));
                found.push((at, 1));
                left -= 1;
                at += 1;
            } else {
                // Group addresses only, up to the next first octet.
                at = range.next(bounds(at).0).map_or(to, |mac| mac.bits() >> BLOCK_BITS);
            }
        }
    }
    merged(found)
}

/// The same blocks in as few runs as possible, in order.
fn merged(mut runs: Vec<(Block, u64)>) -> Vec<(Block, u64)> {
    runs.sort_unstable();
    let mut merged: Vec<(Block, u64)> = Vec::with_capacity(runs.len());
    for (first, count) in runs.into_iter().filter(|(_, count)| *count > 0) {
        match merged.last_mut() {
            Some((begin, length)) if *begin + *length >= first => {
                *length = (*length).max(first + count - *begin);
            }
            Some(_) | None => merged.push((first, count)),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_merged() {
        for (runs, expected) in [
            (vec![], vec![]),
            (vec![(5, 1), (1, 2), (3, 2)], vec![(1, 5)]),
            (vec![(1, 10), (2, 3), (20, 0)], vec![(1, 10)]),
            (vec![(9, 1), (1, 1)], vec![(1, 1), (9, 1)]),
        ] {
            assert_eq!(merged(runs), expected);
        }
    }

    #[test]
    fn runs_without_what_is_given_back() {
        for (returned, expected) in [
            (&[][..], vec![(2, 4), (10, 2)]),
            (&[2, 5], vec![(3, 2), (10, 2)]),
            (&[3, 11], vec![(2, 1), (4, 2), (10, 1)]),
            (&[2, 3, 4, 5, 7, 10, 11, 12], vec![]),
        ] {
            let line = Replica { blocks: vec![(2, 4), (10, 2)], ..Replica::default() };
            let book = Book { replicas: [("a".to_owned(), line)].into() };
            let mut turn = BookChange { book, fresh: Vec::new(), settling: Vec::new() };
            turn.give_back("a", returned);
            assert_eq!(turn.book.replicas["a"].blocks, expected, "{returned:?}");
        }
    }

    #[test]
    fn objects_that_cannot_be() {
        for text in [
            "",
            "{}",
            "[]",
            r#"{"replicas":{"a":{"incarnation":"","address":"","beat":1,"blocks":[[1099511627775,2]]}}}"#,
            r#"{"replicas":{"a":{"incarnation":"","address":"","beat":1,"blocks":[[1,18446744073709551615]]}}}"#,
            r#"{"replicas":{"a":{"incarnation":"","address":"","beat":1,"blocks":[[0,1048577]]}}}"#,
            r#"{"replicas":{"a":{"incarnation":"","address":"","beat":-1,"blocks":[]}}}"#,
        ] {
            assert!(Book::parse(text).is_err(), "{text}");
        }
    }
}
