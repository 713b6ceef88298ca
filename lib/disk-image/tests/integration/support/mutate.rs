//! A deterministic mutator of image bytes: the same image, places and seed give the same mutant on every machine.

use std::ops::Range;

/// A small generator (splitmix64), the same everywhere.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator of its own for each seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x9e37_79b9_7f4a_7c15)
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n` (0 when `n` is 0).
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.next() % n }
    }

    /// A number of `range`.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end.saturating_sub(range.start))
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of `items`.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }

    /// Bytes that do not compress.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> =
            std::iter::repeat_with(|| self.next().to_le_bytes()).take(len / 8 + 1).flatten().collect();
        bytes.truncate(len);
        bytes
    }

    /// Bytes as disks hold them: text-like runs, some noise, some zeroes.
    pub fn disk_bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let run = self.within(1..700) as usize;
            match self.below(4) {
                0 => bytes.extend(self.bytes(run)),
                1 => bytes.extend(std::iter::repeat_n(self.next() as u8, run)),
                _ => {
                    let word = self.bytes(7);
                    bytes.extend(word.iter().cycle().take(run));
                }
            }
        }
        bytes.truncate(len);
        bytes
    }
}

/// Damages `image` in one to four of `places` (or cuts or extends it) and describes the damage.
pub fn mutate(image: &mut Vec<u8>, places: &[Range<usize>], seed: u64) -> String {
    let mut rng = Rng::new(seed);
    let mut said = Vec::new();
    for _ in 0..=rng.below(4) {
        let place = rng.pick(places).clone();
        let end = place.end.min(image.len());
        if place.start >= end {
            continue;
        }
        let at = rng.within(place.start as u64..end as u64) as usize;
        said.push(once(image, at, end, &mut rng));
    }
    said.join("; ")
}

fn once(image: &mut Vec<u8>, at: usize, end: usize, rng: &mut Rng) -> String {
    match rng.below(16) {
        0..4 => {
            let bit = rng.below(8);
            image[at] ^= 1 << bit;
            format!("bit {bit} of byte {at} flipped")
        }
        4..6 => {
            image[at] = rng.next() as u8;
            format!("byte {at} set to {:#x}", image[at])
        }
        6..13 => {
            let width = *rng.pick(&[1usize, 2, 4, 4, 8, 8, 8]);
            let at = at - at % width;
            let little = rng.one_in(2);
            let old = number(image, at, width, little);
            let new = interesting(old, image.len() as u64, rng);
            write(image, at, width, little, new);
            format!("{width} bytes at {at} from {old:#x} to {new:#x}{}", if little { " (LE)" } else { "" })
        }
        13 => {
            let len = (1 + rng.below(64) as usize).min(end - at);
            image[at..at + len].fill(*rng.pick(&[0, 0xff]));
            format!("{len} bytes at {at} filled with {:#x}", image[at])
        }
        14 => {
            let len = (8 << rng.below(4) as usize).min(end - at);
            let from = rng.below((image.len() - len) as u64) as usize;
            image.copy_within(from..from + len, at);
            format!("{len} bytes copied from {from} to {at}")
        }
        _ => {
            let len = rng.below(image.len() as u64 + 1) as usize;
            let len = if rng.one_in(2) {
                image.len() - rng.below(513.min(image.len() as u64)) as usize
            } else {
                len
            };
            image.truncate(len);
            format!("cut to {len} bytes")
        }
    }
}

fn number(image: &[u8], at: usize, width: usize, little: bool) -> u64 {
    let bytes = image.get(at..at + width).unwrap_or(&[]);
    let fold = |n: u64, &b: &u8| n << 8 | u64::from(b);
    if little { bytes.iter().rev().fold(0, fold) } else { bytes.iter().fold(0, fold) }
}

fn write(image: &mut [u8], at: usize, width: usize, little: bool, value: u64) {
    for i in 0..width {
        let shift = 8 * if little { i } else { width - 1 - i };
        if let Some(byte) = image.get_mut(at + i) {
            *byte = (value >> shift) as u8;
        }
    }
}

/// Numbers that break parsers: limits, neighbours, the image's size, small steps from the old value.
fn interesting(old: u64, size: u64, rng: &mut Rng) -> u64 {
    match rng.below(10) {
        0 => 0,
        1 => u64::MAX,
        2 => u64::MAX >> rng.below(64),
        3 => 1 << rng.below(64),
        4 => old.wrapping_add(rng.within(1..4)),
        5 => old.wrapping_sub(rng.within(1..4)),
        6 => old ^ (1 << rng.below(64)),
        7 => size.wrapping_sub(rng.below(1025)),
        8 => rng.below(size + 1) & !511,
        _ => rng.next() >> rng.below(64),
    }
}
