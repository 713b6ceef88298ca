//! Probes: a few bytes of what is finished, remembered by their checksum and looked at again before another process
//! goes on from there.
//!
//! A journal is valid as long as no other program has written to the target since: a file may have been overwritten in
//! its place, a device's number given to another disk, a signature wiped. Not here: where probes are kept (`journal`).

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use serde::{Deserialize, Serialize};

/// Bytes that a probe covers, at most.
const LEN: usize = 4096;
/// Probes that are kept and looked at, at most.
const MOST: usize = 64;

/// Some bytes of the target: where they are, how many, and their CRC-32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Probe(u64, usize, u32);

impl Probe {
    fn of(target: &File, at: u64, len: usize) -> io::Result<Self> {
        let mut bytes = [0; LEN];
        let bytes = &mut bytes[..len.min(LEN)];
        let mut done = 0;
        while done < bytes.len() {
            match target.read_at(&mut bytes[done..], at + done as u64) {
                // A file that grows while it is written: nothing is there yet, and that reads as zero.
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(Self(at, len, crc32fast::hash(bytes)))
    }
}

/// Probes of `ranges`, which were finished together: the first bytes of the first, the last bytes of the last.
///
/// # Errors
/// When the target cannot be read.
pub(super) fn sample(target: &File, ranges: &[Range<u64>]) -> io::Result<Vec<Probe>> {
    let len = |range: &Range<u64>| usize::try_from(range.end - range.start).unwrap_or(LEN).min(LEN);
    let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else { return Ok(Vec::new()) };
    let front = Probe::of(target, first.start, len(first))?;
    let end = Probe::of(target, last.end - len(last) as u64, len(last))?;
    Ok(if front == end { vec![front] } else { vec![front, end] })
}

/// Leaves so many of `probes` that they can be looked at in no time: the lowest, the highest, and some between them.
pub(super) fn thin(probes: &mut Vec<Probe>) {
    probes.sort_unstable();
    probes.dedup();
    if let Some(gaps) = probes.len().checked_sub(1).filter(|_| probes.len() > MOST) {
        *probes = (0..MOST).map(|i| probes[i * gaps / (MOST - 1)]).collect();
    }
}

/// Whether `target` holds the probed bytes.
///
/// # Errors
/// When it cannot be read.
pub(super) fn hold(probes: &[Probe], target: &File) -> io::Result<bool> {
    for probe in probes {
        if Probe::of(target, probe.0, probe.1)? != *probe {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "lists of one range are meant")]
mod tests {
    use super::*;

    #[test]
    fn changes_are_detected_at_either_end() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 100_000], 0).unwrap();
        let probes = sample(&file, &[512..20_000, 30_000..90_000]).unwrap();
        assert_eq!(probes.len(), 2);
        assert!(hold(&probes, &file).unwrap());
        for (at, seen) in
            [(511, false), (512, true), (4607, true), (50_000, false), (89_999, true), (90_000, false)]
        {
            file.write_all_at(&[8], at).unwrap();
            assert_eq!(hold(&probes, &file).unwrap(), !seen, "byte {at}");
            file.write_all_at(&[7], at).unwrap();
        }
        file.set_len(80_000).unwrap();
        assert!(!hold(&probes, &file).unwrap());
    }

    #[test]
    fn unwritten_ranges_read_as_zero() {
        let file = tempfile::tempfile().unwrap();
        let probes = sample(&file, &[0..1]).unwrap();
        assert_eq!(probes.len(), 1);
        file.set_len(1 << 20).unwrap();
        assert!(hold(&probes, &file).unwrap());
        assert!(sample(&file, &[]).unwrap().is_empty());
    }

    #[test]
    fn a_few_are_enough() {
        for count in [0, 1, MOST, MOST + 1, 1000] {
            let mut probes: Vec<_> = (0..count as u64).rev().map(|at| Probe(at, 1, 2)).collect();
            thin(&mut probes);
            assert_eq!(probes.len(), count.min(MOST));
            assert_eq!(probes.first().map(|probe| probe.0), (count > 0).then_some(0));
            assert_eq!(probes.last().map(|probe| probe.0), (count as u64).checked_sub(1));
        }
    }
}
