//! Memory of a process that is not needed after its start.
//!
//! Not here: memory of guests.

use std::fs;
use std::io;

use crate::sys;

/// Gives back what only a start needed: free memory of the heap, and pages of programs and libraries that are as they are
/// in their files. Those that are needed again come back from there.
///
/// # Errors
/// When `/proc/self/smaps` cannot be read; the heap's memory is given back all the same.
pub fn give_back() -> io::Result<()> {
    sys::trim_heap();
    for (begin, length) in unchanged(&fs::read_to_string("/proc/self/smaps")?) {
        // A mapping that has changed since keeps its pages.
        let _ = sys::drop_pages(begin, length);
    }
    Ok(())
}

/// Addresses and lengths of the read-only mappings of files without a modified page (proc_pid_smaps(5)).
fn unchanged(smaps: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut mapping = None;
    for line in smaps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [range, rights, _, _, _, path, ..] if range.contains('-') => {
                let kept = !rights.contains('w') && rights.ends_with('p') && path.starts_with('/');
                mapping = Some(*range).filter(|_| kept);
            }
            [range, rights, ..] if range.contains('-') && rights.len() == 4 => mapping = None,
            ["Anonymous:", "0", "kB"] => {
                let ends = mapping.and_then(|range| range.split_once('-'));
                let number = |text: &str| usize::from_str_radix(text, 16).ok();
                if let Some((begin, end)) = ends.and_then(|(begin, end)| Some((number(begin)?, number(end)?)))
                {
                    found.push((begin, end.saturating_sub(begin)));
                }
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_that_are_as_in_their_files_are_given_back() {
        let smaps = "\
1000-3000 r-xp 00000000 08:01 1 /usr/lib/a.so
Rss: 8 kB
Anonymous:             0 kB
3000-4000 r--p 00000000 08:01 1 /usr/lib/a.so
Anonymous:             4 kB
4000-5000 rw-p 00000000 08:01 1 /usr/lib/a.so
Anonymous:             0 kB
5000-6000 r--p 00000000 00:00 0
Anonymous:             0 kB
6000-7000 r--p 00000000 00:00 0 [vvar]
Anonymous:             0 kB
7000-9000 r--s 00000000 08:01 1 /usr/lib/shared
Anonymous:             0 kB
a000-b000 r--p 00000000 08:01 1 /usr/lib/with a space
Anonymous:             0 kB
";
        assert_eq!(unchanged(smaps), [(0x1000, 0x2000), (0xa000, 0x1000)]);
    }

    /// KiB of this process's memory that is as it is in files.
    fn of_files() -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssFile:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
    }

    #[test]
    fn pages_of_libraries_are_not_resident_afterwards() {
        let before = of_files();
        give_back().unwrap();
        let after = of_files();
        assert!(after < before, "{before} KiB, then {after} KiB");
    }
}
