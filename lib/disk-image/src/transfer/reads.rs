//! Ranges that are read at once: neighbouring leaf tables together, and extents of data in parts for one reader each. Pure.

use std::ops::Range;

use crate::extent::{Codec, Content, Extent};
use crate::format::Leaf;

/// Bytes of tables read at once.
pub(super) const TABLE_READ: u64 = 512 << 10;
/// Unwanted bytes that are cheaper to read than to skip.
pub(super) const GAP: u64 = 128 << 10;
/// Parts of plain extents end at multiples of this guest size.
pub(super) const PART_ALIGN: u64 = 1 << 20;

/// A range of the image for one reader, and the extents in it, by host offset.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) host: Range<u64>,
    pub(super) extents: Vec<Extent>,
    /// Share of the virtual disk that is done with this job.
    pub(super) credit: u64,
}

/// One read of leaf tables.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TableRead {
    /// Where in the image; at most [`TABLE_READ`] long.
    pub(super) host: Range<u64>,
    /// Which of the leaves are in it.
    pub(super) leaves: Range<usize>,
    /// The entries, when it is a slice of a single long leaf.
    pub(super) entries: Option<Range<u64>>,
}

/// The reads that fetch `leaves`, which are sorted by host offset: neighbours together, long ones in slices.
pub(super) fn reads(leaves: &[Leaf]) -> Vec<TableRead> {
    let mut reads: Vec<TableRead> = Vec::new();
    for (i, leaf) in leaves.iter().enumerate() {
        let all = leaf.table.bytes_of(0..leaf.table.entries);
        if all.end - all.start > TABLE_READ {
            let per_read = TABLE_READ / u64::from(leaf.table.entry_len);
            let mut first = 0;
            while first < leaf.table.entries {
                let some = first..leaf.table.entries.min(first + per_read);
                first = some.end;
                let host = leaf.table.bytes_of(some.clone());
                reads.push(TableRead { host, leaves: i..i + 1, entries: Some(some) });
            }
            continue;
        }
        match reads.last_mut() {
            Some(TableRead { host, leaves, entries: None })
                if all.start <= host.end.saturating_add(GAP / 2)
                    && all.end.max(host.end) - host.start <= TABLE_READ =>
            {
                host.end = host.end.max(all.end);
                leaves.end = i + 1;
            }
            _ => reads.push(TableRead { host: all, leaves: i..i + 1, entries: None }),
        }
    }
    reads
}

/// `usize` of a length that is bounded by [`TABLE_READ`].
pub(super) fn index(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

/// Sorts extents by host offset and cuts them into parts of about `part` bytes.
pub(super) fn split(mut data: Vec<Extent>, part: u64) -> Vec<Job> {
    data.sort_unstable_by_key(|e| (host_of(e).start, e.guest));
    trim_grains(&mut data);
    let mut jobs: Vec<Job> = Vec::new();
    for mut extent in data {
        loop {
            let host = host_of(&extent);
            let fits = jobs.last().is_some_and(|job| {
                // Before the part's start lies what overlaps an extent that was cut.
                let at = host.start.checked_sub(job.host.start);
                host.start <= job.host.end.saturating_add(GAP) && at.is_some_and(|at| at < part)
            });
            if !fits {
                jobs.push(Job { host: host.start..host.start, extents: Vec::new(), credit: 0 });
            }
            let Some(job) = jobs.last_mut() else { break };
            let room = part - (host.start - job.host.start);
            let cut = match extent.content {
                Content::Plain { .. } if extent.len > room => {
                    // At least one aligned piece, so that every turn goes on.
                    let end = (extent.guest + room) / PART_ALIGN * PART_ALIGN;
                    end.checked_sub(extent.guest).filter(|&len| len > 0).unwrap_or(room.max(PART_ALIGN))
                }
                Content::Plain { .. } | Content::Packed { .. } | Content::Zero => extent.len,
            };
            let (front, rest) = cut_at(extent, cut);
            job.host.end = job.host.end.max(host_of(&front).end);
            job.extents.push(front);
            match rest {
                Some(rest) => extent = rest,
                None => break,
            }
        }
    }
    jobs
}

/// A grain's packed length is known only as an upper bound; no grain reaches into the next one.
fn trim_grains(data: &mut [Extent]) {
    let mut next = u64::MAX;
    let mut same = u64::MAX;
    for extent in data.iter_mut().rev() {
        if let Content::Packed { host, len, codec: Codec::VmdkGrain } = &mut extent.content {
            let until = if *host < same { same } else { next };
            *len = (*len).min(u32::try_from(until.saturating_sub(*host)).unwrap_or(u32::MAX));
        }
        let start = host_of(extent).start;
        if start < same {
            next = same;
            same = start;
        }
    }
}

/// The host range of an extent that has one; empty for zeroes.
pub(super) fn host_of(extent: &Extent) -> Range<u64> {
    extent.host_range().unwrap_or(0..0)
}

/// Cuts a plain extent after `len` bytes.
pub(super) fn cut_at(extent: Extent, len: u64) -> (Extent, Option<Extent>) {
    match extent.content {
        Content::Plain { host } if len < extent.len => {
            let rest = Extent {
                guest: extent.guest + len,
                len: extent.len - len,
                content: Content::Plain { host: host + len },
            };
            (Extent { len, ..extent }, Some(rest))
        }
        Content::Plain { .. } | Content::Packed { .. } | Content::Zero => (extent, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(guest: u64, len: u64, host: u64) -> Extent {
        Extent { guest, len, content: Content::Plain { host } }
    }

    #[test]
    fn parts_cover_every_byte_once_and_stay_near_their_size() {
        let data =
            vec![plain(64 << 20, 100 << 20, 1 << 20), plain(0, 3 << 20, 200 << 20), plain(5 << 20, 512, 7)];
        let total: u64 = data.iter().map(|e| e.len).sum();
        let jobs = split(data, 8 << 20);
        assert_eq!(jobs.iter().flat_map(|j| &j.extents).map(|e| e.len).sum::<u64>(), total);
        for job in &jobs {
            assert!(job.host.end - job.host.start <= 9 << 20, "{:?}", job.host);
            for e in &job.extents {
                let host = host_of(e);
                assert!(job.host.start <= host.start && host.end <= job.host.end);
            }
        }
        assert!(jobs.len() >= 14);
    }

    #[test]
    fn extents_that_overlap_are_cut_too() {
        let data = vec![plain(0, 20 << 20, 0), plain(32 << 20, 4 << 20, 1 << 20)];
        let jobs = split(data, 8 << 20);
        let lengths = jobs.iter().flat_map(|job| &job.extents).map(|extent| extent.len);
        assert_eq!(lengths.sum::<u64>(), 24 << 20);
        for job in &jobs {
            assert!(
                job.host.start <= job.host.end && job.host.end - job.host.start <= 9 << 20,
                "{:?}",
                job.host
            );
        }
    }

    #[test]
    fn every_entry_of_every_leaf_is_read_once_and_neighbours_together() {
        let leaf = |index, host, entries| Leaf {
            index,
            table: crate::format::Table { host, entries, entry_len: 8 },
        };
        // Two neighbours, a far one, a long one, and one right behind it.
        let long = 3 * TABLE_READ / 8 + 5;
        let leaves = [
            leaf(0, 65_536, 8192),
            leaf(1, 131_072, 8192),
            leaf(2, 64 << 20, 8192),
            leaf(3, 65 << 20, long),
            leaf(4, (65 << 20) + long * 8, 10),
        ];
        let reads = reads(&leaves);
        assert_eq!(reads[0], TableRead { host: 65_536..196_608, leaves: 0..2, entries: None });
        assert_eq!(reads.len(), 7);
        for (i, leaf) in leaves.iter().enumerate() {
            let mut at = 0;
            for read in reads.iter().filter(|read| read.leaves.contains(&i)) {
                let entries = read.entries.clone().unwrap_or(0..leaf.table.entries);
                let host = leaf.table.bytes_of(entries.clone());
                assert!(read.host.start <= host.start && host.end <= read.host.end, "{read:?}");
                assert!(read.host.end - read.host.start <= TABLE_READ);
                assert_eq!(entries.start, at);
                at = entries.end;
            }
            assert_eq!(at, leaf.table.entries, "leaf {i}");
        }
    }

    #[test]
    fn grains_end_where_the_next_one_starts() {
        let grain = |guest, host| Extent {
            guest,
            len: 65536,
            content: Content::Packed { host, len: 70000, codec: Codec::VmdkGrain },
        };
        let jobs = split(
            vec![grain(0, 512), grain(65536, 1024), grain(131_072, 1024), grain(196_608, 90_000)],
            1 << 20,
        );
        let lens: Vec<_> = jobs[0].extents.iter().map(|e| host_of(e).end - host_of(e).start).collect();
        assert_eq!(lens, [512, 70000, 70000, 70000]);
    }
}
