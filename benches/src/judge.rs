//! Whether two disks are the same.

use std::{fs::File, io::Read, path::Path};

use anyhow::{Context as _, Result};

/// The first byte in which two files differ; a file that ends early differs there. None if they are the same.
///
/// # Errors
/// One of them cannot be read.
pub fn first_difference(one: &Path, other: &Path) -> Result<Option<u64>> {
    let open = |path: &Path| File::open(path).with_context(|| format!("open {}", path.display()));
    let (mut one, mut other) = (open(one)?, open(other)?);
    let (mut left, mut right) = (vec![0_u8; 1 << 20], vec![0_u8; 1 << 20]);
    let mut at = 0;
    loop {
        let (first, second) = (fill(&mut one, &mut left)?, fill(&mut other, &mut right)?);
        let same = first.iter().zip(second).take_while(|(a, b)| a == b).count();
        if same < first.len() || same < second.len() {
            return Ok(Some(at + u64::try_from(same)?));
        }
        if same == 0 {
            return Ok(None);
        }
        at += u64::try_from(same)?;
    }
}

/// Reads until the buffer is full or the file ends.
fn fill<'a>(file: &mut File, buffer: &'a mut [u8]) -> Result<&'a [u8]> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read(rest)? {
            0 => break,
            read => filled += read,
        }
    }
    buffer.get(..filled).context("read no more than asked")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_first_differing_byte_and_the_shorter_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, content: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, content).unwrap();
            path
        };
        let long = vec![7_u8; (1 << 20) + 5];
        let mut changed = long.clone();
        changed[(1 << 20) + 2] = 8;
        let long = file("long", &long);
        let changed = file("changed", &changed);
        let short = file("short", &[7; 10]);
        let empty = file("empty", &[]);
        assert_eq!(first_difference(&long, &long).unwrap(), None);
        assert_eq!(first_difference(&long, &changed).unwrap(), Some((1 << 20) + 2));
        assert_eq!(first_difference(&long, &short).unwrap(), Some(10));
        assert_eq!(first_difference(&empty, &short).unwrap(), Some(0));
        assert_eq!(first_difference(&empty, &empty).unwrap(), None);
    }
}
