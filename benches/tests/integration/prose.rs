//! The language of comments, string literals and test names: no indefinite persons, no relative clause as a subject, no everyday
//! verb in place of the field's term. Here are the patterns.
//!
//! Not here: grammar and facts, which a reader checks.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

mod source;

use source::{Piece, pieces};

/// Words that stand for nobody in particular.
const PERSONS: &[&str] =
    &["who", "whoever", "whom", "whose", "nobody", "somebody", "everybody", "anybody", "someone", "no one"];
/// Everyday verbs and adverbs where the field has a term: report, log, trust, resume, reload, next to.
const VAGUE: &[&str] = &[
    "told",
    "tell",
    "tells",
    "said",
    "says",
    "say",
    "anew",
    "beside",
    "meanwhile",
    "believed",
    "believes",
    "makes no sense",
    "make no sense",
    "goes on with",
    "go on with",
    "gone on with",
];
/// A clause as the subject: the component or a noun belongs there. Only at the start of a sentence.
const CLAUSES: &[&str] = &["what", "whatever"];

/// Counts of a package: lines of comments, string literals and test names; those that match, and the first few of them.
#[derive(Debug, Default)]
struct Count {
    all: [usize; 3],
    matched: [usize; 3],
    examples: [Vec<String>; 3],
}

/// The pattern that a sentence matches. Placeholders (`{what}`) are not part of it.
fn pattern(text: &str) -> Option<&'static str> {
    let text: String = text
        .split('{')
        .enumerate()
        .map(|(n, part)| if n == 0 { part } else { part.split_once('}').map_or("", |p| p.1) })
        .collect();
    let words: Vec<String> = text
        .split(|c: char| !(c.is_alphanumeric() || c == '\''))
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    let first = words.first()?;
    if let Some(clause) = CLAUSES.iter().find(|clause| **clause == first.as_str()) {
        return Some(clause);
    }
    let spaced = format!(" {} ", words.join(" "));
    PERSONS.iter().chain(VAGUE).find(|pattern| spaced.contains(&format!(" {pattern} "))).copied()
}

/// Whether a string literal is a text that a person reads: words with spaces between.
fn is_text(literal: &str) -> bool {
    literal
        .split_whitespace()
        .filter(|word| word.chars().all(|c| c.is_alphabetic() || ".,:;'".contains(c)))
        .count()
        >= 3
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Source files under version control.
fn files() -> Vec<String> {
    let output = Command::new("git").args(["ls-files", "*.rs"]).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// The package that a file belongs to: the nearest directory above it with a manifest.
fn package(file: &str) -> String {
    let directory = Path::new(file)
        .ancestors()
        .skip(1)
        .find(|directory| root().join(directory).join("Cargo.toml").exists());
    directory.unwrap().to_str().unwrap().to_owned()
}

fn counts() -> BTreeMap<String, Count> {
    let mut counts: BTreeMap<String, Count> = BTreeMap::new();
    for file in files() {
        // The patterns themselves.
        if file.starts_with("benches/tests/integration/prose") {
            continue;
        }
        let Ok(text) = fs::read_to_string(root().join(&file)) else { continue };
        let is_test = file.contains("/tests/") || file.starts_with("e2e/") || file.starts_with("benches/");
        let count = counts.entry(package(&file)).or_default();
        for (line, piece) in pieces(&text) {
            let (kind, text) = match piece {
                Piece::Comment(text) => (0, text),
                // What tests print and send is read by their authors.
                Piece::Literal { text, of_tests } if !of_tests && !is_test && is_text(&text) => (1, text),
                Piece::Test(name) => (2, name.replace('_', " ")),
                Piece::Literal { .. } => continue,
            };
            count.all[kind] += 1;
            if let Some(pattern) = pattern(&text) {
                count.matched[kind] += 1;
                if count.examples[kind].len() < 3 {
                    count.examples[kind].push(format!("{file}:{line}: {pattern:?}: {text}"));
                }
            }
        }
    }
    counts
}

#[test]
fn comments_strings_and_test_names_are_plain() {
    let counts = counts();
    let mut wrong = String::new();
    println!("{:28} {:>18} {:>18} {:>18}", "package", "comment lines", "texts", "test names");
    for (package, count) in &counts {
        let columns: Vec<String> =
            (0..3).map(|kind| format!("{:6} of {:6}", count.matched[kind], count.all[kind])).collect();
        println!("{package:28} {:>18} {:>18} {:>18}", columns[0], columns[1], columns[2]);
        for kind in 0..3 {
            // A package may have 1 % of its comment lines; texts and test names none.
            let most = if kind == 0 { count.all[0] / 100 } else { 0 };
            if count.matched[kind] > most {
                let kinds = ["comment lines", "string literals", "test names"];
                writeln!(
                    wrong,
                    "{package}: {} {} match, {most} are allowed:",
                    count.matched[kind], kinds[kind]
                )
                .unwrap();
                for example in &count.examples[kind] {
                    writeln!(wrong, "  {example}").unwrap();
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "name the component as the subject and use the field's term (CONTRIBUTING.md, Language):\n{wrong}"
    );
}

#[test]
fn patterns_match_sentences_not_parts_of_words() {
    for text in [
        "What is told apart",
        "the client who connects",
        "nobody reads it",
        "it makes no sense",
        "loaded anew",
    ] {
        assert!(pattern(text).is_some(), "{text}");
    }
    for text in
        ["The whole file", "somewhat", "bodies", "besides", "a saying", "sense", "reports what it found"]
    {
        assert!(pattern(text).is_none(), "{text}");
    }
}
