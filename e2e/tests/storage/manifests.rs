//! Manifests of the storage kinds are accepted as users write them, and misspelt fields are refused by their path.

use std::fs;
use std::path::Path;

use crate::setup::CLUSTER;
use crate::space::{Space, until};

/// The API server's answer to a text, with strict validation; nothing is written.
fn applied(text: &str) -> Result<String, String> {
    let file = CLUSTER.place().path("manifests-tried.yaml");
    fs::write(&file, text).unwrap();
    let mut command = CLUSTER.kubectl();
    command.args(["apply", "-n", "manifests", "--dry-run=server", "--validate=strict", "-f"]).arg(&file);
    let run = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if run.status.success() { Ok(text(&run.stdout)) } else { Err(text(&run.stderr)) }
}

#[test]
fn manifests_of_users_pass_strict_validation() {
    let space = Space::new("manifests");
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/storage/manifests.yaml"));
    let text = text.unwrap();
    let count = text.matches("\nkind: ").count();
    assert_eq!(count, 40);
    // One DataVolume refers to a DataSource, which admission looks for.
    space.create(
        "DataSource",
        serde_json::json!({"metadata": {"name": "fedora"}, "spec": {"source": {"pvc": {"name": "golden", "namespace": "manifests"}}}}),
    );
    let said = applied(&text).unwrap();
    assert_eq!(said.lines().count(), count, "{said}");
    let volume = "apiVersion: cdi.kubevirt.io/v1beta1\nkind: DataVolume\nmetadata: {name: wrong}\nspec:\n";
    for (spec, words) in [
        (
            "  source: {blank: {}}\n  storage: {resources: {requests: {storage: 1Gi}}, size: 1Gi}\n",
            "spec.storage.size",
        ),
        (
            "  source: {http: {uri: a}}\n  storage: {resources: {requests: {storage: 1Gi}}}\n",
            "spec.source.http.u",
        ),
        ("  source: {blank: {}}\n  storage: {}\n", "PVC size is missing"),
        (
            "  source: {blank: {}, upload: {}}\n  storage: {resources: {requests: {storage: 1Gi}}}\n",
            "Multiple dataVolume sources",
        ),
    ] {
        let said = applied(&format!("{volume}{spec}")).unwrap_err();
        assert!(said.contains(words), "{words}: {said}");
    }
    space.delete("Namespace", "manifests");
    until("the namespace is gone", || space.get("Namespace", "manifests").is_none().then_some(()));
}
