//! A qcow2 writer for tests: makes images of a known disk that no tool here makes (zstd and extended L2 clusters in
//! any order, tables anywhere), so that there is a judge besides qemu. Not here: refcounts, which readers do not need.

use std::ops::Range;

use libdeflater::{CompressionLvl, Compressor};

use super::mutate::Rng;

/// The image to write.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub version: u32,
    pub cluster_bits: u32,
    pub zstd: bool,
    pub extended_l2: bool,
    /// Tables after all data, as after `qemu-img resize` or in a guest-written image.
    pub tables_last: bool,
    /// How many clusters of ten are compressed.
    pub packed_of_ten: u64,
}

/// An image and where its parts lie.
#[derive(Debug)]
pub struct Written {
    pub bytes: Vec<u8>,
    pub header: Range<usize>,
    pub l1: Range<usize>,
    pub l2: Vec<Range<usize>>,
}

impl Written {
    /// The ranges worth damaging: the header's first 128 bytes count three times.
    pub fn places(&self) -> Vec<Range<usize>> {
        let mut places = vec![self.l1.clone(), self.l1.clone(), 0..128, 0..128, self.header.clone()];
        places.extend(self.l2.iter().cloned());
        places
    }
}

/// Content of a cluster.
enum Kind {
    Hole,
    Zero,
    ZeroAllocated,
    Plain { stored: u32, zero: u32 },
    Packed(Vec<u8>),
}

/// The clusters to place at an offset of the image.
enum Item {
    Refcounts,
    L1,
    L2(usize),
    Plain(usize),
    Packs(Vec<usize>),
    Gap,
}

/// Writes `disk` as an image.
pub fn write(disk: &[u8], plan: &Plan, rng: &mut Rng) -> Written {
    let size = 1usize << plan.cluster_bits;
    let entry_len = if plan.extended_l2 { 16 } else { 8 };
    let per_l2 = size / entry_len;
    let clusters = disk.len().div_ceil(size);
    let tables = clusters.div_ceil(per_l2);
    let padded = |i: usize| {
        let mut cluster = disk[i * size..disk.len().min((i + 1) * size)].to_vec();
        cluster.resize(size, 0);
        cluster
    };
    let kinds: Vec<Kind> = (0..clusters).map(|i| kind(&padded(i), plan, rng)).collect();

    let mut items: Vec<Item> = Vec::new();
    let mut pack = Vec::new();
    for (i, kind) in kinds.iter().enumerate() {
        match kind {
            Kind::Hole | Kind::Zero => {}
            Kind::ZeroAllocated | Kind::Plain { .. } => items.push(Item::Plain(i)),
            Kind::Packed(_) => {
                pack.push(i);
                if rng.one_in(5) {
                    items.push(Item::Packs(std::mem::take(&mut pack)));
                }
            }
        }
        if rng.one_in(20) {
            items.push(Item::Gap);
        }
    }
    items.push(Item::Packs(pack));
    let mut meta = vec![Item::Refcounts, Item::L1];
    meta.extend(
        (0..tables)
            .filter(|&t| {
                kinds[t * per_l2..clusters.min((t + 1) * per_l2)].iter().any(|k| !matches!(k, Kind::Hole))
            })
            .map(Item::L2),
    );
    if plan.tables_last {
        shuffle(&mut items, rng);
        items.extend(meta);
    } else {
        items.extend(meta);
        shuffle(&mut items, rng);
    }

    let mut out = vec![0; size];
    let mut place = vec![0u64; clusters];
    let mut l2_at = vec![0u64; tables];
    let (mut l1_at, mut refcounts_at) = (0, 0);
    for item in &items {
        out.resize(out.len().next_multiple_of(size), 0);
        let at = out.len() as u64;
        match item {
            Item::Refcounts => {
                refcounts_at = at;
                out.resize(out.len() + size, 0);
            }
            Item::L1 => {
                l1_at = at;
                out.resize(out.len() + (tables.max(1) * 8).next_multiple_of(size), 0);
            }
            Item::L2(t) => {
                l2_at[*t] = at;
                out.resize(out.len() + size, 0);
            }
            Item::Plain(i) => {
                place[*i] = at;
                let mut cluster = padded(*i);
                if let Kind::Plain { stored, .. } = &kinds[*i] {
                    noise_where_not_stored(&mut cluster, *stored, plan, rng);
                } else {
                    cluster = rng.bytes(size);
                }
                out.extend(cluster);
            }
            Item::Packs(pack) => {
                for i in pack {
                    let Kind::Packed(stream) = &kinds[*i] else { unreachable!() };
                    place[*i] = out.len() as u64;
                    out.extend(stream);
                }
            }
            Item::Gap => out.extend(rng.bytes(size)),
        }
    }

    for (i, kind) in kinds.iter().enumerate() {
        let table = l2_at[i / per_l2] as usize;
        if table == 0 {
            continue;
        }
        let (entry, bitmap) = entry(kind, place[i], plan);
        let at = table + i % per_l2 * entry_len;
        put64(&mut out, at, entry);
        if plan.extended_l2 {
            put64(&mut out, at + 8, bitmap);
        }
    }
    for (t, &at) in l2_at.iter().enumerate() {
        let copied = if at != 0 && rng.one_in(2) { 1 << 63 } else { 0 };
        put64(&mut out, l1_at as usize + t * 8, at | copied);
    }
    let header = header(&mut out, disk.len(), plan, tables.max(1), l1_at, refcounts_at, rng);
    let l1 = l1_at as usize..l1_at as usize + tables.max(1) * 8;
    let l2 = l2_at.iter().filter(|&&at| at != 0).map(|&at| at as usize..at as usize + size).collect();
    Written { bytes: out, header, l1, l2 }
}

fn kind(cluster: &[u8], plan: &Plan, rng: &mut Rng) -> Kind {
    if cluster.iter().all(|&b| b == 0) {
        return match rng.below(4) {
            0 if plan.version > 2 => Kind::Zero,
            1 if plan.version > 2 => Kind::ZeroAllocated,
            2 => Kind::Plain { stored: u32::MAX, zero: 0 },
            _ => Kind::Hole,
        };
    }
    if rng.below(10) < plan.packed_of_ten {
        let stream = if plan.zstd { zstd(cluster, rng) } else { deflate(cluster, rng) };
        // The range of the length field of an L2 entry: sectors, counted from the one the stream starts in.
        if stream.len() <= cluster.len() - 511 {
            return Kind::Packed(stream);
        }
    }
    let (mut stored, mut zero) = (u32::MAX, 0);
    if plan.extended_l2 {
        for (bit, part) in cluster.chunks(cluster.len() / 32).enumerate() {
            if part.iter().all(|&b| b == 0) && !rng.one_in(3) {
                stored &= !(1 << bit);
                zero |= u32::from(rng.one_in(2)) << bit;
            }
        }
    }
    Kind::Plain { stored, zero }
}

fn deflate(data: &[u8], rng: &mut Rng) -> Vec<u8> {
    let level = CompressionLvl::new(rng.within(1..13) as i32).unwrap();
    let mut compressor = Compressor::new(level);
    let mut out = vec![0; compressor.deflate_compress_bound(data.len())];
    let len = compressor.deflate_compress(data, &mut out).unwrap();
    out.truncate(len);
    out
}

/// A frame with or without content size and checksum.
fn zstd(data: &[u8], rng: &mut Rng) -> Vec<u8> {
    let level = rng.within(1..8) as i32;
    if rng.one_in(2) {
        return zstd::bulk::compress(data, level).unwrap();
    }
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), level).unwrap();
    encoder.include_checksum(rng.one_in(2)).unwrap();
    std::io::Write::write_all(&mut encoder, data).unwrap();
    encoder.finish().unwrap()
}

/// Subclusters that are not stored hold rubbish, which a reader must not show.
fn noise_where_not_stored(cluster: &mut [u8], stored: u32, plan: &Plan, rng: &mut Rng) {
    if plan.extended_l2 {
        let len = cluster.len() / 32;
        for (bit, part) in cluster.chunks_mut(len).enumerate() {
            if stored >> bit & 1 == 0 {
                let noise = rng.bytes(part.len());
                part.copy_from_slice(&noise);
            }
        }
    }
}

fn entry(kind: &Kind, at: u64, plan: &Plan) -> (u64, u64) {
    match (kind, plan.extended_l2) {
        (Kind::Hole, _) => (0, 0),
        (Kind::Zero, false) => (1, 0),
        (Kind::ZeroAllocated, false) => (at | 1, 0),
        (Kind::Zero, true) => (0, 0xffff_ffff << 32),
        (Kind::ZeroAllocated, true) => (at, 0xffff_0000 << 32),
        (Kind::Plain { .. }, false) => (at | 1 << 63, 0),
        (Kind::Plain { stored, zero }, true) => (at | 1 << 63, u64::from(*zero) << 32 | u64::from(*stored)),
        (Kind::Packed(stream), _) => {
            let bits = 62 - (plan.cluster_bits - 8);
            let sectors = (at + stream.len() as u64 - 1) / 512 - at / 512;
            (1 << 62 | sectors << bits | at, 0)
        }
    }
}

fn header(
    out: &mut [u8],
    size: usize,
    plan: &Plan,
    l1_entries: usize,
    l1_at: u64,
    refcounts_at: u64,
    rng: &mut Rng,
) -> Range<usize> {
    put32(out, 0, 0x5146_49fb);
    put32(out, 4, plan.version);
    put32(out, 20, plan.cluster_bits);
    put64(out, 24, size as u64);
    put32(out, 36, l1_entries as u32);
    put64(out, 40, l1_at);
    put64(out, 48, refcounts_at);
    put32(out, 56, 1);
    let mut at = 72;
    if plan.version > 2 {
        put64(out, 72, u64::from(plan.zstd) << 3 | u64::from(plan.extended_l2) << 4);
        put32(out, 96, 4);
        at = if plan.zstd || rng.one_in(2) { 112 } else { 104 };
        put32(out, 100, at as u32);
        out[104] = u8::from(plan.zstd);
    }
    // Extensions: an unknown one, of a length that needs padding; then the names of features.
    let len = rng.below(30) as usize;
    put32(out, at, 0x1234_5678);
    put32(out, at + 4, len as u32);
    out[at + 8..at + 8 + len].fill(0x77);
    at += 8 + len.next_multiple_of(8);
    put32(out, at, 0x6803_f857);
    put32(out, at + 4, 96);
    for (i, (bit, name)) in [(0u8, "dirty bit"), (33, "teleportation")].into_iter().enumerate() {
        let at = at + 8 + i * 48;
        out[at + 1] = bit;
        out[at + 2..at + 2 + name.len()].copy_from_slice(name.as_bytes());
    }
    0..at + 8 + 96 + 8
}

fn shuffle(items: &mut [Item], rng: &mut Rng) {
    for i in (1..items.len()).rev() {
        items.swap(i, rng.below(i as u64 + 1) as usize);
    }
}

/// Writes a big-endian number.
pub fn put32(out: &mut [u8], at: usize, value: u32) {
    out[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

/// Writes a big-endian number.
pub fn put64(out: &mut [u8], at: usize, value: u64) {
    out[at..at + 8].copy_from_slice(&value.to_be_bytes());
}

/// Reads a big-endian number.
pub fn get64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// A disk with runs of data and of zeroes, at the scale of `1 << bits` clusters.
pub fn disk(rng: &mut Rng, len: usize, bits: u32) -> Vec<u8> {
    let cluster = 1u64 << bits;
    let mut disk = Vec::with_capacity(len);
    while disk.len() < len {
        let run = match rng.below(3) {
            0 => rng.within(1..cluster),
            1 => cluster * rng.within(1..4),
            _ => rng.within(1..4 * cluster),
        } as usize;
        if rng.one_in(3) {
            disk.resize(disk.len() + run, 0);
        } else {
            disk.extend(rng.disk_bytes(run));
        }
    }
    disk.truncate(len);
    disk
}

/// The plainest image there is.
pub const PLAN: Plan = Plan {
    version: 3,
    cluster_bits: 16,
    zstd: false,
    extended_l2: false,
    tables_last: false,
    packed_of_ten: 0,
};

/// Small images of every kind and the places worth damaging.
pub fn bases() -> Vec<(Vec<u8>, Vec<Range<usize>>)> {
    [
        Plan { cluster_bits: 9, packed_of_ten: 5, ..PLAN },
        Plan { cluster_bits: 12, version: 2, packed_of_ten: 5, ..PLAN },
        Plan { cluster_bits: 12, zstd: true, packed_of_ten: 5, tables_last: true, ..PLAN },
        Plan { cluster_bits: 14, extended_l2: true, packed_of_ten: 3, ..PLAN },
        Plan { cluster_bits: 14, extended_l2: true, zstd: true, packed_of_ten: 3, ..PLAN },
    ]
    .into_iter()
    .map(|plan| {
        let mut rng = Rng::new(u64::from(plan.cluster_bits));
        let len = (200 << 10) + 512 * 3;
        let image = write(&disk(&mut rng, len, plan.cluster_bits), &plan, &mut rng);
        let places = image.places();
        (image.bytes, places)
    })
    .collect()
}
