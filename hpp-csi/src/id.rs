//! Names of volumes and snapshots, as far as they may become names of files. Not here: whether they exist.
//!
//! Grammar: 1 to 128 bytes (the most CSI allows) of letters, digits, `.`, `_` and `-`, the first of them a letter or a
//! digit; `snapshots`, `data` and `lost+found` have another meaning in a pool.

use std::borrow::Borrow;
use std::fmt;
use std::path::Path;

use crate::error::{Error, Kind};

/// Longest id in bytes: CSI's limit for strings.
pub const ID_MAX: usize = 128;
/// Names with another meaning in a pool's data folder or a snapshot's folder.
const TAKEN: [&str; 3] = ["snapshots", "data", "lost+found"];

/// A volume's or snapshot's name that is safe as one component of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(String);

impl Id {
    /// `text` as an id, if it is one.
    pub fn read(text: &str) -> Option<Self> {
        let mut bytes = text.bytes();
        let starts = bytes.next().is_some_and(|first| first.is_ascii_alphanumeric());
        let goes_on = bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'));
        let fits = text.len() <= ID_MAX && !TAKEN.contains(&text);
        (starts && goes_on && fits).then(|| Self(text.to_owned()))
    }

    /// `text`, which a request gives as its `field`, as an id.
    ///
    /// # Errors
    /// [`Kind::Invalid`] when it is empty or outside of the grammar.
    pub fn parse(field: &str, text: &str) -> Result<Self, Error> {
        if text.is_empty() {
            return Err(Error::new(Kind::Invalid, format!("{field} is missing")));
        }
        Self::read(text).ok_or_else(|| {
            let shown: String = text.chars().take(ID_MAX).collect();
            let rule = if TAKEN.contains(&text) {
                "the pool has a directory of that name for itself"
            } else {
                "1 to 128 letters, digits, dots, underscores and dashes, the first a letter or digit"
            };
            Error::new(Kind::Invalid, format!("{field} {shown:?} cannot be a name here: {rule}"))
        })
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a sidecar made this name: `pvc-` or `snapshot-` and a UUID. Such an id may live on another node.
    pub fn is_of_a_sidecar(&self) -> bool {
        ["pvc-", "snapshot-"].iter().any(|prefix| self.0.strip_prefix(prefix).is_some_and(is_uuid))
    }

    /// Whether the kubelet made this name for an inline volume of a pod: `csi-` and a SHA-256.
    pub fn is_inline(&self) -> bool {
        self.0
            .strip_prefix("csi-")
            .is_some_and(|hash| hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
    }
}

/// 8-4-4-4-12 hexadecimal digits.
fn is_uuid(text: &str) -> bool {
    let dashes = [8, 13, 18, 23];
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match byte {
            b'-' => dashes.contains(&at),
            _ => byte.is_ascii_hexdigit() && !dashes.contains(&at),
        })
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Borrow<str> for Id {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl AsRef<Path> for Id {
    fn as_ref(&self) -> &Path {
        Path::new(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_plain_component() {
        for good in ["a", "pvc-0a", "sanity-x-5F1.7_3", &"x".repeat(128), "0"] {
            assert_eq!(Id::read(good).unwrap().as_str(), good);
        }
        let long = "x".repeat(129);
        for bad in [
            "",
            ".",
            "..",
            ".hpp-csi",
            "-a",
            "_a",
            "a/b",
            "a/../b",
            "/a",
            "a b",
            "a\0b",
            "a\nb",
            "ä",
            "snapshots",
            "data",
            "lost+found",
            "a%2fb",
            &long,
        ] {
            assert_eq!(Id::read(bad), None, "{bad:?}");
            assert_eq!(Id::parse("volume_id", bad).unwrap_err().kind(), Kind::Invalid);
        }
    }

    #[test]
    fn names_identify_their_creator() {
        let id = |text: &str| Id::read(text).unwrap();
        assert!(id("pvc-0a1b2c3d-0000-4000-8000-0123456789ab").is_of_a_sidecar());
        assert!(id("snapshot-0a1b2c3d-0000-4000-8000-0123456789AB").is_of_a_sidecar());
        for other in
            ["pvc-1", "pvc-0a1b2c3d00000400008000-0123456789ab", "vol-0a1b2c3d-0000-4000-8000-0123456789ab"]
        {
            assert!(!id(other).is_of_a_sidecar(), "{other}");
        }
        assert!(id(&format!("csi-{}", "0f".repeat(32))).is_inline());
        assert!(!id("csi-0f").is_inline());
    }
}
