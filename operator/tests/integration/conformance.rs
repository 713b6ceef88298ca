//! docs/conformance.md: every case has a test that exists, or is open, or names what this machine lacks.

use std::fs;
use std::path::Path;

/// Cases that are listed.
const CASES: usize = 48;

#[test]
fn every_case_has_a_test_or_a_reason() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let page = fs::read_to_string(root.join("docs/conformance.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| case"));
    let rows: Vec<(&str, &str)> =
        rows.map(|line| line.trim_matches(['|', ' ']).rsplit_once(" | ").unwrap()).collect();
    assert_eq!(rows.len(), CASES);
    for (case, proof) in rows {
        if proof.starts_with("open") || proof.starts_with("not here (") {
            continue;
        }
        let (file, test) =
            proof.trim_matches('`').split_once(": ").unwrap_or_else(|| panic!("{case}: {proof}"));
        let source = fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        let at = source.find(&format!("fn {test}(")).unwrap_or_else(|| panic!("{file} has no test {test}"));
        assert!(source[..at].trim_end().ends_with(']'), "{test} in {file} is not marked as a test");
    }
}
