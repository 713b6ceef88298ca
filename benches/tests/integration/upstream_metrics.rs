//! Every metric and recording rule that upstream documents is served under its name, or its absence has a reason.
//!
//! Here: upstream's names (`upstream_metrics/names.txt`, of the documents of KubeVirt, CDI, SSP, CNAO, HPP and HCO), those that
//! are absent (`upstream_metrics/absent.txt`), and their comparison with the sources, which is textual. Not here: values and
//! labels, which unit tests of the programs check.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::matched::{code, holds, root};

const NAMES: &str = include_str!("upstream_metrics/names.txt");
const ABSENT: &str = include_str!("upstream_metrics/absent.txt");

/// Adds the code of all Rust sources below a folder.
fn collect(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            if !name.starts_with('.') && !["target", "tests", "benches", "e2e"].contains(&name) {
                collect(&path, text);
            }
        } else if name.ends_with(".rs") {
            text.push_str(&code(&fs::read_to_string(&path).unwrap()));
            text.push('\n');
        }
    }
}

#[test]
fn upstreams_metrics_are_served_or_absent_for_a_reason() {
    let mut sources = String::new();
    collect(&root(), &mut sources);
    let names: BTreeSet<&str> = NAMES.lines().collect();
    let absent: BTreeMap<&str, &str> = ABSENT
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_once('\t').filter(|(_, reason)| !reason.is_empty()).unwrap())
        .collect();
    let served = |name: &str| sources.contains(name) && holds(&sources, name);
    let missing: Vec<_> = names.iter().filter(|name| !absent.contains_key(*name) && !served(name)).collect();
    assert!(missing.is_empty(), "neither served nor in absent.txt: {missing:?}");
    let wrong: Vec<_> = absent.keys().filter(|name| !names.contains(*name) || served(name)).collect();
    assert!(wrong.is_empty(), "in absent.txt, and served or not upstream's: {wrong:?}");
}
