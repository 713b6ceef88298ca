//! A guest that obeys its serial console: each line that it receives is a word and a command of its shell.
//!
//! ```text
//! WORD COMMAND ─► guest ─► begin WORD, what the command printed, end WORD STATUS
//! ```
//!
//! Not here: how the console is reached.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Tree;

/// Makes the guest's disk, raw.
///
/// # Panics
/// When a tool or the kernel's package is missing.
pub fn disk(disk: &Path) {
    let init = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("shell/init");
    let work = disk.with_added_extension("work");
    let applets =
        "sh mount modprobe sleep cat ls grep sed head tail ip ping arping stty nc poweroff reboot true";
    let tree = Tree::new(&work, &[], applets, &init);
    tree.modules(&["virtio_pci", "virtio_net"]);
    tree.pack().disk(disk);
    fs::remove_dir_all(&work).unwrap();
}

/// The line that has the guest run a command; `word` marks its answer.
pub fn line(word: &str, command: &str) -> String {
    format!("\n{word} {command}\n")
}

/// The last line of the answer to `word`.
pub fn last(word: &str) -> String {
    format!("end {word} ")
}

/// Output of the command of `word`, and its exit code; `None`: the console's text does not have all of it.
pub fn answer(console: &str, word: &str) -> Option<(String, u8)> {
    let (_, rest) = console.rsplit_once(&format!("begin {word}"))?;
    let (printed, rest) = rest.split_once(&last(word))?;
    let (status, _) = rest.split_once('\n')?;
    let lines: Vec<&str> = printed.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    Some((lines.join("\n"), status.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_found_among_others() {
        let console = "begin 1\r\nold\r\nend 1 0\r\nbegin 2\r\na b\r\n\r\nc\r\nend 2 1\r\n";
        assert_eq!(answer(console, "2"), Some(("a b\nc".to_owned(), 1)));
        assert_eq!(answer(console, "1"), Some(("old".to_owned(), 0)));
        assert_eq!(answer(console, "3"), None);
        assert_eq!(answer("begin 4\r\nx\r\nend 4 1", "4"), None, "the exit code may have more digits");
    }
}
