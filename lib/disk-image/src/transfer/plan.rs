//! Which way an image takes. Pure: facts in, decision out.

use std::fmt;

use crate::source::Access;

/// How an image is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Tables first, then data in large parts, several at once.
    Tables,
    /// Raw data by independent blocks of an outer compression, several at once.
    Blocks,
    /// One reader from the start; tables and data as they pass by; again from the start if tables come late.
    Forward,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tables => "ranges, several connections",
            Self::Blocks => "independent compressed blocks, several at once",
            Self::Forward => "one stream from the start",
        })
    }
}

/// Decides from how the (unpacked) source may be read and whether the image is raw, with a known size.
pub(super) fn way(access: &Access, raw: bool, size_known: bool) -> Way {
    match access {
        Access::Ranges if size_known || !raw => Way::Tables,
        Access::Blocks(_) if raw && size_known => Way::Blocks,
        Access::Ranges | Access::Blocks(_) | Access::Again | Access::Once => Way::Forward,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_has_its_way() {
        let blocks = Access::Blocks(Vec::new().into());
        for (access, raw, size_known, expect) in [
            (&Access::Ranges, false, false, Way::Tables),
            (&Access::Ranges, true, true, Way::Tables),
            (&Access::Ranges, true, false, Way::Forward),
            (&blocks, true, true, Way::Blocks),
            (&blocks, true, false, Way::Forward),
            (&blocks, false, true, Way::Forward),
            (&Access::Again, true, true, Way::Forward),
            (&Access::Again, false, true, Way::Forward),
            (&Access::Once, true, false, Way::Forward),
            (&Access::Once, false, true, Way::Forward),
        ] {
            assert_eq!(way(access, raw, size_known), expect, "{access:?} raw {raw} size known {size_known}");
        }
    }
}
