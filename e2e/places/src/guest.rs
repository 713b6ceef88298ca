//! Disks as guests write them: scattered writes in several rounds, by qemu-io. Seeded, so the same every time.

use std::path::Path;

use crate::run;

/// A small generator (SplitMix64): the same numbers for the same seed, everywhere.
#[derive(Clone, Debug)]
pub struct Dice(pub u64);

impl Dice {
    /// A number below `below`.
    pub fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }

    /// Bytes that do not compress.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next(256) as u8).collect()
    }

    /// Puts items into another order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.next(i as u64 + 1) as usize);
        }
    }
}

/// Runs commands of qemu-io on an image. `format` is qemu's name for it.
///
/// # Panics
/// One of them fails.
pub fn qemu_io(format: &str, image: &Path, commands: &[String]) {
    let mut arguments = vec!["-f", format];
    for command in commands {
        arguments.extend(["-c", command]);
    }
    arguments.push(image.to_str().unwrap());
    let said = run("qemu-io", &arguments);
    assert!(!said.contains("failed") && !said.contains("error"), "qemu-io: {said}");
}

/// One round of a guest's writes to a disk of `size` bytes (whole sectors): some of a byte repeated, some of the
/// noise in `noise`, some zeroes, from a sector to 192 KiB long, in any order.
pub fn round(dice: &mut Dice, size: u64, noise: &Path) -> Vec<String> {
    let sectors = size / 512;
    if sectors == 0 {
        return Vec::new();
    }
    let noise = noise.to_str().unwrap();
    let mut commands: Vec<_> = (0..20.min(sectors))
        .map(|_| {
            let at = dice.next(sectors);
            let most = [2, 16, 129, 384][dice.next(4) as usize].min(sectors - at);
            let len = (1 + dice.next(most)) * 512;
            let at = at * 512;
            match dice.next(8) {
                0 => format!("write -z {at} {len}"),
                1 => format!("write -P 0 {at} {len}"),
                2..=4 => format!("write -P {} {at} {len}", 1 + dice.next(255)),
                _ => format!("write -s {noise} {at} {len}"),
            }
        })
        .collect();
    dice.shuffle(&mut commands);
    commands
}
