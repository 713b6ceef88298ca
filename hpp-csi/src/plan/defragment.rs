//! Whether a disk is worth defragmenting, and whether its pool has the room for a copy.

use crate::amount::display;
use crate::error::{Error, Kind, Result};

use super::room::Room;

/// Whether a copy of a disk is worth its work: the disk has more `extents` than `limit`, and a copy would have at most half of
/// them. It has at least `least`: holes and unwritten ranges keep extents apart.
pub(crate) fn is_worth(extents: u64, least: u64, limit: u64) -> bool {
    extents > limit && least <= extents / 2
}

/// Checks that the pool `name` has `bytes` free, apart from the reserve, for a second disk: with overcommitment a promise
/// does not guarantee them.
///
/// # Errors
/// [`Kind::Exhausted`] when it does not.
pub(crate) fn holds(name: &str, room: &Room, bytes: u64) -> Result<()> {
    let free = room.unreserved();
    if bytes <= free {
        return Ok(());
    }
    Err(Error::new(
        Kind::Exhausted,
        format!(
            "pool {name}: a copy of the disk takes {}, {} are free apart from the reserve",
            display(bytes),
            display(free)
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Capacity, Reserve};

    #[test]
    fn a_copy_must_have_half_of_the_extents() {
        for (extents, least, limit, worth) in [
            (100, 1, 100, false),
            (101, 1, 100, true),
            (101, 50, 100, true),
            // Holes: a copy of the copy would change nothing.
            (101, 51, 100, false),
            (1, 1, 1, false),
        ] {
            assert_eq!(is_worth(extents, least, limit), worth, "{extents} {least} {limit}");
        }
    }

    #[test]
    fn a_copy_leaves_the_reserve() {
        let room = Room {
            capacity: Capacity::Filesystem,
            size: 1000,
            free: 200,
            foreign: 0,
            promised: 0,
            outstanding: 0,
            others: 0,
            reserve: Reserve::Thousandths(50),
            overcommit: 3000,
        };
        holds("p", &room, 150).unwrap();
        let error = holds("p", &room, 151).unwrap_err();
        assert_eq!(error.kind(), Kind::Exhausted);
        assert!(error.to_string().contains("151 bytes, 150 bytes are free"), "{error}");
    }
}
