//! The golden list of strings that other programs match on: conditions, reasons, events, error texts, metrics, annotations, and
//! names of objects. A string on the list must stay in the file that the list names.
//!
//! Here: the list (`matched/strings.txt`) and its comparison with the sources. The comparison is textual: it skips comments and
//! unit tests, and does not see whether the code around a string is reached. Not here: whether upstream matches the string, which
//! the list's third column documents, and texts that only people read (`prose.rs`).

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// The list: string, file, and the programs that match, with tabs between them.
const LIST: &str = include_str!("matched/strings.txt");
/// The length of the list. It grows with the list; a string leaves the list only when no supported version of another program
/// matches it any more.
const STRINGS: usize = 697;

/// A line of the list.
#[derive(Debug)]
struct Matched<'a> {
    string: &'a str,
    /// Relative to the root of the repository.
    file: &'a str,
    programs: &'a str,
}

fn list() -> Vec<Matched<'static>> {
    let lines = LIST.lines().filter(|line| !line.is_empty() && !line.starts_with("# "));
    let columns = lines.map(|line| match line.split('\t').collect::<Vec<_>>()[..] {
        [string, file, programs] if !string.is_empty() && !programs.is_empty() => {
            Matched { string, file, programs }
        }
        _ => panic!("matched/strings.txt: {line:?} is not string, file and programs with tabs between them"),
    });
    columns.collect()
}

pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The lines of a source file without comments and unit tests, which are its last part.
pub(super) fn code(text: &str) -> String {
    let mut modules = text.match_indices("#[cfg(test)]\nmod ").map(|(at, _)| at);
    let is_inline = |at: &usize| text[*at..].lines().nth(1).is_some_and(|line| line.ends_with('{'));
    let text = &text[..modules.find(is_inline).unwrap_or(text.len())];
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Whether the string is in the code, not as a part of a longer word.
pub(super) fn holds(code: &str, string: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    code.match_indices(string).any(|(at, _)| {
        let (before, after) = (&code[..at], &code[at + string.len()..]);
        let begins = !string.starts_with(is_word) || !before.ends_with(is_word) || before.ends_with("\\n");
        let ends = !string.ends_with(is_word) || !after.starts_with(is_word);
        begins && ends
    })
}

#[test]
fn matched_strings_stay_in_their_files() {
    let mut lost = String::new();
    for Matched { string, file, programs } in list() {
        let found = fs::read_to_string(root().join(file)).is_ok_and(|text| holds(&code(&text), string));
        if !found {
            writeln!(lost, "  {string:?} is not in {file} ({programs})").unwrap();
        }
    }
    assert!(
        lost.is_empty(),
        "programs match on these strings: restore them; if the code moved, name its new file in \
         benches/tests/integration/matched/strings.txt:\n{lost}"
    );
}

#[test]
fn the_list_has_every_string_once_and_loses_none() {
    let list = list();
    let mut seen = BTreeSet::new();
    let twice: Vec<_> = list.iter().map(|one| one.string).filter(|string| !seen.insert(*string)).collect();
    assert!(twice.is_empty(), "given twice in matched/strings.txt: {twice:?}");
    assert!(
        list.len() >= STRINGS,
        "matched/strings.txt has {} strings instead of {STRINGS}: restore the missing lines",
        list.len()
    );
}

#[test]
fn comments_tests_and_longer_words_are_no_match() {
    let text = "// One.\nconst A: &str = \"Two\";\n    /// Three.\nlet b = \"\\nfour{x}\";\n#[cfg(test)]\nmod tests {\n\"five\"\n}\n";
    let code = code(text);
    for string in ["Two", "\"Two\"", "four{", "four"] {
        assert!(holds(&code, string), "{string}");
    }
    for string in ["One", "Three", "five", "Tw", "wo", "our"] {
        assert!(!holds(&code, string), "{string}");
    }
}
