//! Disks to serve, and reading them back through the source.

use std::io::{self, Read};
use std::ops::Range;
use std::time::Duration;

use disk_image::{Access, Source, Stop};
use importer::source::blocking::Net;
use importer::source::nbd::{self, NbdSource, Options};
use importer::source::remote::Reach;
use importer::source::retry::Policy;

use crate::support::errors::chain;

pub(crate) const KIB: usize = 1 << 10;
pub(crate) const MIB: usize = 1 << 20;

/// Random bytes, the same for the same seed.
pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        out.extend_from_slice(&(state ^ (state >> 29)).to_le_bytes());
    }
    out.truncate(len);
    out
}

/// A disk of `mib` MiB: data, a hole, data, a hole …
pub(crate) fn sparse(mib: usize, seed: u64) -> Vec<u8> {
    let mut disk = noise(mib * MIB, seed);
    for (i, part) in disk.chunks_mut(MIB).enumerate() {
        if i % 3 == 1 {
            part.fill(0);
        }
    }
    disk
}

pub(crate) fn options(url: &str) -> Options {
    let retry = Policy {
        patience: Duration::from_secs(20),
        first: Duration::from_secs(10),
        longest: Duration::from_millis(400),
        ..Policy::default()
    };
    Options {
        reach: Reach { retry, stall: Duration::from_secs(20), ..Reach::default() },
        ..Options::new(url)
    }
}

/// Gives up quickly.
pub(crate) fn hasty(url: &str) -> Options {
    let retry = Policy {
        patience: Duration::from_millis(300),
        first: Duration::from_millis(300),
        base: Duration::from_millis(5),
        longest: Duration::from_millis(20),
        ..Policy::default()
    };
    Options {
        reach: Reach { retry, stall: Duration::from_millis(700), ..Reach::default() },
        ..Options::new(url)
    }
}

pub(crate) fn open(options: Options) -> Result<NbdSource, importer::Error> {
    nbd::open(&Net::new(Stop::new()).unwrap(), options)
}

pub(crate) fn read(source: &dyn Source, range: Range<u64>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.open(range)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The whole export, by several readers over uneven parts.
pub(crate) fn read_all(source: &NbdSource) -> io::Result<Vec<u8>> {
    let size = source.facts().size.unwrap();
    let part = (size / 5 + 777).max(1);
    let starts: Vec<u64> = (0..size).step_by(part as usize).collect();
    let parts: Vec<io::Result<Vec<u8>>> = std::thread::scope(|scope| {
        let threads: Vec<_> = starts
            .iter()
            .map(|&start| scope.spawn(move || read(source, start..(start + part).min(size))))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    Ok(parts.into_iter().collect::<io::Result<Vec<_>>>()?.concat())
}

#[track_caller]
pub(crate) fn assert_told(error: &(dyn std::error::Error + 'static), words: &[&str]) {
    let text = chain(error);
    for word in words {
        assert!(text.contains(word), "\"{word}\" is not in: {text}");
    }
}

#[track_caller]
pub(crate) fn assert_reads(source: &NbdSource, disk: &[u8]) {
    assert_eq!(source.facts().size, Some(disk.len() as u64));
    assert_eq!(source.facts().access, Access::Ranges);
    assert!(read_all(source).unwrap() == disk, "other bytes");
    assert_ranges(source, disk);
}

/// Outside of the ranges that the source names there are only zeroes; gives how many bytes they have.
#[track_caller]
pub(crate) fn assert_ranges(source: &NbdSource, disk: &[u8]) -> Option<u64> {
    let size = disk.len() as u64;
    let mut data = 0;
    for within in [0..size, size / 3..size / 2, size.saturating_sub(1)..size] {
        let ranges = source.data_ranges(within.clone()).unwrap()?;
        data = if within == (0..size) { ranges.iter().map(|r| r.end - r.start).sum() } else { data };
        let mut at = within.start;
        for range in ranges.into_iter().chain(std::iter::once(within.end..within.end)) {
            assert!(range.start >= at && range.end <= within.end, "{range:?} in {within:?}");
            assert!(disk[at as usize..range.start as usize].iter().all(|&b| b == 0), "data before {range:?}");
            at = range.end;
        }
    }
    Some(data)
}
