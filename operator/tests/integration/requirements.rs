//! docs/requirements.md and docs/versions.md: what they name exists.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Rows of a table: cells without the outer bars.
fn rows(text: &str) -> Vec<Vec<String>> {
    text.lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("|---"))
        .map(|line| line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect())
        .filter(|cells: &Vec<String>| cells[0] != "id")
        .collect()
}

#[test]
fn every_requirement_is_listed_once_with_a_test_that_exists_or_as_open() {
    let rows = rows(&fs::read_to_string(root().join("docs/requirements.md")).unwrap());
    let ids: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
    let wanted: Vec<String> = (1..=22)
        .map(|number| format!("A{number}"))
        .chain(["B9", "B10", "B14"].map(str::to_owned))
        .chain((1..=10).map(|number| format!("C{number}")))
        .collect();
    assert_eq!(ids, wanted);
    for row in &rows {
        let proof = row[2].as_str();
        if proof.starts_with("open") {
            continue;
        }
        let (file, test) = proof.trim_matches('`').split_once(": ").unwrap_or_else(|| panic!("{proof}"));
        let source = fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        let at = source.find(&format!("fn {test}(")).unwrap_or_else(|| panic!("{file} has no test {test}"));
        assert!(source[..at].trim_end().ends_with(']'), "{test} in {file} is not marked as a test");
    }
}

#[test]
fn versions_state_a_range_of_kubernetes() {
    let text = fs::read_to_string(root().join("docs/versions.md")).unwrap();
    assert!(text.contains("Supported: Kubernetes 1."), "docs/versions.md");
}
