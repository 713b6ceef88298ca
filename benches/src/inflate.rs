//! libdeflate alone: inflates the packed clusters of a qcow2, one after the other on one thread, and counts CPU seconds. Reading
//! them does not count, and nothing is written: an importer cannot be cheaper with this library.

use std::{fs::File, os::unix::fs::FileExt as _, path::Path};

use anyhow::{Context as _, Result, ensure};
use libdeflater::Decompressor;
use rustix::time::{ClockId, clock_gettime};

use crate::measure::Cost;

/// L2 entry: the cluster is packed.
const PACKED: u64 = 1 << 62;
/// L1 entry: where its L2 table begins.
const TABLE: u64 = 0x00FF_FFFF_FFFF_FE00;

/// Inflates the packed clusters of the qcow2 at `path`.
///
/// # Errors
/// It cannot be read, is no qcow2 with 64-bit entries, or has no packed cluster.
pub fn clusters(path: &Path) -> Result<Cost> {
    let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    let mut header = [0; 48];
    file.read_exact_at(&mut header, 0)?;
    let word =
        |at: usize| header.get(at..).and_then(<[u8]>::first_chunk).map(|bytes| u32::from_be_bytes(*bytes));
    let (magic, bits, tables, l1_at) = (word(0), word(20), word(36), word(44));
    ensure!(magic == Some(0x5146_49FB), "{} is no qcow2", path.display());
    let bits = bits.filter(|bits| (9..=21).contains(bits)).context("bits of a cluster")?;
    let l1 = entries(&file, l1_at.context("where L1 begins")?.into(), tables.context("length of L1")?)?;
    // Of a packed cluster's entry the low bits are its place, the others how many further sectors it touches.
    let place_bits = 62 - (bits - 8);
    let mut unpacked = vec![0; 1 << bits];
    let mut inflate = Decompressor::new();
    let (mut count, mut cpu) = (0_u64, 0.0);
    for table in l1.iter().map(|entry| entry & TABLE).filter(|table| *table != 0) {
        for entry in entries(&file, table, 1 << (bits - 3))?.into_iter().filter(|entry| entry & PACKED != 0) {
            let place = entry & ((1 << place_bits) - 1);
            let sectors = 1 + ((entry & !(PACKED | 1 << 63)) >> place_bits);
            let mut packed = vec![0; usize::try_from(sectors * 512 - place % 512)?];
            // The last one may touch a sector that the file does not have in full.
            let length = read_up_to(&file, &mut packed, place)?;
            let begin = seconds();
            inflate.deflate_decompress(packed.get(..length).unwrap_or_default(), &mut unpacked)?;
            cpu += seconds() - begin;
            count += 1;
        }
    }
    ensure!(count > 0, "{} has no packed cluster", path.display());
    Ok(Cost { wall: cpu, cpu, peak_mib: 0.0 })
}

/// CPU seconds of this thread.
fn seconds() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    std::time::Duration::try_from(now).map_or(0.0, |time| time.as_secs_f64())
}

/// A table of big-endian numbers.
fn entries(file: &File, at: u64, count: u32) -> Result<Vec<u64>> {
    let mut bytes = vec![0; usize::try_from(count)? * 8];
    file.read_exact_at(&mut bytes, at)?;
    Ok(bytes.as_chunks().0.iter().map(|bytes| u64::from_be_bytes(*bytes)).collect())
}

fn read_up_to(file: &File, buffer: &mut [u8], at: u64) -> Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, at + u64::try_from(filled)?)? {
            0 => break,
            read => filled += read,
        }
    }
    Ok(filled)
}
