//! docs/requirements.md and docs/versions.md: what they name exists.

use std::fs;
use std::path::{Path, PathBuf};

use operator::install::{Settings, chart, manifests};

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
        if row[2].starts_with("open") {
            continue;
        }
        for proof in row[2].split(", ") {
            let (file, test) = proof.trim_matches('`').split_once(": ").unwrap_or_else(|| panic!("{proof}"));
            let source =
                fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            let at =
                source.find(&format!("fn {test}(")).unwrap_or_else(|| panic!("{file} has no test {test}"));
            assert!(source[..at].trim_end().ends_with(']'), "{test} in {file} is not marked as a test");
        }
    }
}

#[test]
fn versions_state_the_range_of_the_chart_and_the_order_in_which_objects_are_applied() {
    let text = fs::read_to_string(root().join("docs/versions.md")).unwrap();
    let range = text.split("Supported: Kubernetes ").nth(1).and_then(|rest| rest.split(". ").next()).unwrap();
    let (oldest, newest) = range.split_once(" to ").unwrap_or_else(|| panic!("{range}"));
    let chart = chart::files("1.0.0").unwrap();
    let about = chart.iter().find(|(path, _)| path == "Chart.yaml").unwrap();
    assert!(about.1.contains(&format!("kubeVersion: \">={oldest}.0-0\"")), "{oldest}: {}", about.1);
    // The newest one is what the tests run on.
    let tested = fs::read_to_string(root().join("e2e/kube/kubernetes/go.mod")).unwrap();
    assert!(tested.contains(&format!("k8s.io/kubernetes v{newest}.")), "{newest}");
    let order = text.split("## Order of an upgrade").nth(1).unwrap();
    let steps = ["definitions", "the operator", "node agents"].map(|step| order.find(step).unwrap());
    assert!(steps.is_sorted(), "{steps:?}");
    let all = manifests(&Settings::default());
    let last = |kind: &str| all.iter().rposition(|one| one["kind"] == kind).unwrap();
    let operator = all
        .iter()
        .position(|one| one["metadata"]["name"] == "ferrovirt-operator" && one["kind"] == "Deployment");
    let applied = [last("CustomResourceDefinition"), operator.unwrap(), last("DaemonSet")];
    assert!(applied.is_sorted(), "{applied:?}");
}
