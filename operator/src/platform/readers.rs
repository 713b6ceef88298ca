//! Tests: a setting that counts as read ([`super::without::READ`]) is named in a file that reads its object, with all steps of
//! its path.

use std::collections::BTreeSet;
use std::path::Path;

use super::without::READ;

/// The files that read an object of a kind, below the workspace.
const READERS: [(&str, &[&str]); 4] = [
    (
        "KubeVirt",
        &[
            // The levels of logs, by process.
            "lib/api/src/kubevirt/developer_configuration.rs",
            "operator/src/compute/launcher/placement.rs",
            "operator/src/compute/settings.rs",
            "operator/src/lifetimes.rs",
            "operator/src/platform/apply.rs",
            "operator/src/platform/placement.rs",
            "operator/src/serve/admission/settings.rs",
            "operator/src/serve/certificates.rs",
            "operator/src/view/gates.rs",
            "virt-node/agent/src/settings.rs",
        ],
    ),
    (
        "CDI",
        &[
            "operator/src/lifetimes.rs",
            "operator/src/platform/apply.rs",
            "operator/src/platform/placement.rs",
            "operator/src/storage/settings.rs",
        ],
    ),
    (
        "NetworkAddonsConfig",
        &[
            "operator/src/platform/addons/apply.rs",
            "operator/src/platform/addons/check.rs",
            "operator/src/platform/addons/render.rs",
            "operator/src/platform/addons/status.rs",
        ],
    ),
    (
        "HostPathProvisioner",
        &[
            "operator/src/platform/hostpath/check.rs",
            "operator/src/platform/hostpath/pools.rs",
            "operator/src/platform/hostpath/render.rs",
        ],
    ),
];

/// Settings whose parents are named in another file than their fields: kind, path of the parent, and why. Of these the field
/// alone is looked for.
const APART: [(&str, &str, &str); 2] = [
    (
        "KubeVirt",
        "configuration.developerConfiguration.logVerbosity",
        "levels are read by a method of the developerConfiguration",
    ),
    ("CDI", "infra", "the placement is handed from platform/apply.rs to platform/placement.rs"),
];

/// A field's name as it is in JSON and as it is in Rust.
fn plain(name: &str) -> String {
    name.replace('_', "").to_lowercase()
}

/// Names in a file, without its tests.
fn names(file: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')).map(plain).collect()
}

#[test]
fn settings_that_count_as_read_are_named_by_a_reader_of_their_object() {
    let mut missing = Vec::new();
    let mut apart = BTreeSet::new();
    for ((kind, read), (of, files)) in READ.into_iter().zip(READERS) {
        assert_eq!(kind, of);
        let names: Vec<BTreeSet<String>> = files.iter().map(|file| names(file)).collect();
        for &path in read {
            let steps: Vec<String> = path.split('.').map(plain).collect();
            let is_named = |steps: &[String]| {
                names.iter().any(|names| steps.iter().all(|step| names.contains(step.as_str())))
            };
            if is_named(&steps) {
                continue;
            }
            let (parent, field) = path.rsplit_once('.').unwrap_or(("", path));
            let is_apart = APART.iter().any(|(one, of, _)| (*one, *of) == (kind, parent));
            if is_apart && is_named(&[plain(field)]) {
                apart.insert((kind, parent));
            } else {
                missing.push(format!("{kind} {path}"));
            }
        }
    }
    for (kind, parent, why) in APART {
        assert!(apart.contains(&(kind, parent)), "{kind} {parent} is no exception any more: {why}");
    }
    assert!(missing.is_empty(), "counted as read, and named by no reader: {missing:#?}");
}
