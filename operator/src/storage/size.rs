//! Sizes of claims and disks: how much of a Filesystem volume is the filesystem's own.

use serde_json::Value;

/// Disks are multiples of this: QEMU's direct I/O fails on odd sizes.
const ALIGNMENT: u64 = 1 << 20;

/// Share of a Filesystem volume that its filesystem takes, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overhead(u32);

impl Default for Overhead {
    /// Upstream's 0.06.
    fn default() -> Self {
        Self(60)
    }
}

impl Overhead {
    /// A Block volume's: the disk is the volume.
    pub const NONE: Self = Self(0);

    /// Reads `0`, `0.055`, `1`: at most three digits behind the point.
    pub fn parse(text: &str) -> Option<Self> {
        api::cdi::thousandths(text).map(Self)
    }

    /// Reads a field of CDIConfig.
    pub fn of(value: &Value) -> Option<Self> {
        Self::parse(value.as_str()?)
    }

    /// As a share from 0 to 1.
    pub fn share(self) -> f64 {
        f64::from(self.0) / 1000.0
    }

    /// Size of a volume that has room for a disk of `size` bytes. Saturates.
    pub fn volume_for(self, size: u64) -> u64 {
        let disk = size.checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX);
        let extra = (u128::from(disk) * u128::from(self.0)).div_ceil(1000);
        u64::try_from(u128::from(disk) + extra).unwrap_or(u64::MAX)
    }

    /// Largest disk in a volume of `size` bytes.
    pub fn disk_in(self, size: u64) -> u64 {
        let usable = u128::from(size) * 1000 / (1000 + u128::from(self.0));
        let usable = u64::try_from(usable).unwrap_or(u64::MAX);
        usable - usable % ALIGNMENT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_have_room_for_the_disk() {
        // Upstream's figure for 1 GiB.
        assert_eq!(Overhead::default().volume_for(1 << 30), 1_138_166_334);
        assert_eq!(Overhead::NONE.volume_for((1 << 20) - 1), 1 << 20);
        assert_eq!(Overhead::default().volume_for(u64::MAX), u64::MAX);
        for size in [1, 1 << 20, (1 << 30) + 1, 10_000_000_000] {
            for overhead in [Overhead::NONE, Overhead::default(), Overhead(333), Overhead(1000)] {
                assert!(overhead.disk_in(overhead.volume_for(size)) >= size, "{size} {overhead:?}");
            }
        }
    }
}
