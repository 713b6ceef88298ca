//! The content of a Secret, ConfigMap or token that the kubelet mounted: the entries of one version, never half of an update.
//!
//! ```text
//! VOLUME/..data ─► ..2026_01_01_00_00_00.123/   KEY, KEY, …      the kubelet swaps the link, which this reads once
//! VOLUME/KEY    ─► ..data/KEY
//! ```

use std::collections::BTreeMap;

use dir::Dir;

use crate::error::{Error, Kind, Result};

/// The link to the entries of now.
const NOW: &str = "..data";
/// A Secret or ConfigMap holds 1 MiB at most (Kubernetes' own limit).
const CONTENT_MAX: u64 = 1 << 20;
/// Attempts while the kubelet swaps the link.
const TRIES: usize = 5;

/// The entries of a mounted Secret or ConfigMap, by their keys.
///
/// # Errors
/// The directory is not one that the kubelet makes, or holds more than a Secret can.
pub(crate) fn entries(volume: &Dir) -> Result<BTreeMap<String, Vec<u8>>> {
    for _ in 0..TRIES {
        let target = rustix::fs::readlinkat(volume, NOW, Vec::new()).map_err(|error| {
            Error::system(format!("cannot read {}", volume.path_of(NOW).display()), error)
        })?;
        let target = target.into_string().unwrap_or_default();
        // The kubelet's own names; one with a slash would lead elsewhere.
        if !target.starts_with("..") || target.len() <= 2 || target.contains('/') {
            let text = format!("{} is not a volume of the kubelet's", volume.path().display());
            return Err(Error::new(Kind::Untrusted, text));
        }
        if let Some(directory) = volume.dir(&target)?
            && let Some(entries) = read(&directory)?
        {
            return Ok(entries);
        }
    }
    let text = format!("{} changes faster than it can be read", volume.path().display());
    Err(Error::new(Kind::System, text))
}

/// All entries; `None`: one was removed during the reading.
fn read(directory: &Dir) -> Result<Option<BTreeMap<String, Vec<u8>>>> {
    let (mut entries, mut left) = (BTreeMap::new(), CONTENT_MAX);
    for entry in directory.entries()?.into_iter().filter(|entry| !entry.is_dir) {
        let Some(content) = directory.read(&entry.name, left)? else { return Ok(None) };
        left -= u64::try_from(content.len()).unwrap_or(left).min(left);
        entries.insert(entry.name, content);
    }
    Ok(Some(entries))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn entries_are_those_that_the_link_names() {
        let volume = tempfile::tempdir().unwrap();
        for (name, content) in [("..old", "before"), ("..new", "after")] {
            std::fs::create_dir(volume.path().join(name)).unwrap();
            std::fs::write(volume.path().join(name).join("userdata"), content).unwrap();
        }
        symlink("..new", volume.path().join(NOW)).unwrap();
        symlink("..data/userdata", volume.path().join("userdata")).unwrap();
        let found = entries(&Dir::open(volume.path()).unwrap()).unwrap();
        assert_eq!(found, BTreeMap::from([("userdata".to_owned(), b"after".to_vec())]));
    }

    #[test]
    fn a_directory_that_is_not_the_kubelets_is_refused() {
        for target in ["/etc", "../..", "..", "other"] {
            let volume = tempfile::tempdir().unwrap();
            symlink(target, volume.path().join(NOW)).unwrap();
            let error = entries(&Dir::open(volume.path()).unwrap()).unwrap_err();
            assert_eq!(error.kind(), Kind::Untrusted, "{target}");
        }
    }

    #[test]
    fn more_than_a_secret_can_hold_is_refused() {
        let volume = tempfile::tempdir().unwrap();
        std::fs::create_dir(volume.path().join("..new")).unwrap();
        symlink("..new", volume.path().join(NOW)).unwrap();
        let half = vec![0; usize::try_from(CONTENT_MAX).unwrap() / 2 + 1];
        for name in ["a", "b"] {
            std::fs::write(volume.path().join("..new").join(name), &half).unwrap();
        }
        assert!(entries(&Dir::open(volume.path()).unwrap()).is_err());
    }
}
