//! Manifests of the storage kinds are accepted as users write them, and misspelt fields are refused by their path.

use std::fs;
use std::path::Path;
use std::process::Command;

use e2e::peer::web::Web;
use serde_json::json;

use crate::storage::setup::{CLUSTER, DISK, IMMEDIATE};
use crate::storage::space::{Space, until};

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

/// Phase that each DataVolume of the manifests reaches. Sources that are not there fail again and again: their DataVolumes
/// stay where they are, and have a reason.
const PHASES: [(&str, &str); 26] = [
    ("blank-file", "Succeeded"),
    ("blank-block", "Succeeded"),
    ("blank-preallocated", "Succeeded"),
    ("http-plain", "Succeeded"),
    ("http-checked", "Failed"),
    ("http-login", "Succeeded"),
    ("http-headers", "Succeeded"),
    ("http-archive", "Succeeded"),
    ("http-unverified", "Succeeded"),
    ("registry-pod", "ImportInProgress"),
    ("registry-node", "ImportScheduled"),
    ("registry-login", "ImportInProgress"),
    ("s3", "ImportInProgress"),
    ("gcs", "ImportInProgress"),
    ("upload", "UploadReady"),
    ("upload-archive", "UploadReady"),
    ("clone-claim", "Succeeded"),
    ("clone-unsized", "Succeeded"),
    ("clone-snapshot", "Succeeded"),
    ("clone-source", "Succeeded"),
    ("class", "Succeeded"),
    ("adopting", "Succeeded"),
    ("restored", "Pending"),
    ("labelled", "Succeeded"),
    ("selected", "Succeeded"),
    ("direct", "Succeeded"),
];

/// The manifests with what is there: this namespace, class, server and size.
fn adapted(text: &str, space: &Space, web: &Web) -> String {
    let class = format!("storageClassName: {IMMEDIATE}");
    let text = text
        .replace("manifests", &space.0)
        .replace("storage: {}", &format!("storage: {{{class}}}"))
        .replace("  storage:\n    resources:", &format!("  storage:\n    {class}\n    resources:"))
        .replace(
            "      storage:\n        resources:",
            &format!("      storage:\n        {class}\n        resources:"),
        )
        .replace("  storage:\n    accessModes:", &format!("  storage:\n    {class}\n    accessModes:"))
        .replace(&format!("    storageClassName: {IMMEDIATE}\n  priorityClassName"), "  priorityClassName")
        .replace("  pvc:\n    accessModes:", &format!("  pvc:\n    {class}\n    accessModes:"))
        .replace("        storage: 1Gi\n      selector", "        storage: 96Mi\n      selector")
        // The class is of a disk of the node.
        .replace("[ReadWriteMany]", "[ReadWriteOnce]")
        // Nothing leaves the machine.
        .replace("quay.io", "images.invalid")
        .replace("registry.example.com", "registry.invalid")
        .replace("s3.example.com", "s3.invalid")
        .replace("fedora.qcow2", "disk.qcow2")
        .replace("private.qcow2", "disk.qcow2")
        .replace("fedora.raw.xz", "disk.qcow2");
    let size = |line: &str| {
        let (begin, size) = line.split_once("storage: ")?;
        size.ends_with("Gi").then(|| format!("{begin}storage: 96Mi"))
    };
    // Those that name an authority, or none, ask with TLS.
    let mut all = String::new();
    for one in text.split_inclusive("---\n") {
        let tls = one.contains("certConfigMap") || one.contains("insecureSkipVerify");
        let server = if tls { web.https_url("") } else { web.url("") };
        all.push_str(&one.replace("https://cloud.example.com/", &server));
    }
    all.lines().map(|line| size(line).unwrap_or_else(|| line.to_owned()) + "\n").collect()
}

#[test]
fn manifests_of_users_reach_their_phases() {
    let space = Space::new("manifests-applied");
    let folder = tempfile::tempdir_in(DISK.qcow2.parent().unwrap()).unwrap();
    fs::copy(&DISK.qcow2, folder.path().join("disk.qcow2")).unwrap();
    let archive = Command::new("tar")
        .args(["-czf", "files.tar.gz", "disk.qcow2"])
        .current_dir(folder.path())
        .status()
        .unwrap();
    assert!(archive.success());
    let web = Web::start(CLUSTER.place(), folder.path()).unwrap();
    space
        .create("ConfigMap", json!({"metadata": {"name": "authority"}, "data": {"ca.pem": web.authority()}}));
    for (name, data) in [
        ("login", json!({"accessKeyId": "user", "secretKey": "password"})),
        ("keys", json!({"accessKeyId": "user", "secretKey": "password"})),
        ("token", json!({"header": "X-Token: secret"})),
    ] {
        space.create("Secret", json!({"metadata": {"name": name}, "stringData": data}));
    }
    let source = json!({"http": {"url": web.url("disk.qcow2")}});
    space.data_volume("golden", &source, IMMEDIATE, "Filesystem", &json!({}));
    space.phases("golden", "Succeeded");
    space.create(
        "VolumeSnapshot",
        json!({
            "metadata": {"name": "golden"},
            "spec": {"volumeSnapshotClassName": "hostpath-csi", "source": {"persistentVolumeClaimName": "golden"}},
        }),
    );
    space.create(
        "DataSource",
        json!({"metadata": {"name": "fedora"}, "spec": {"source": {"pvc": {"name": "golden", "namespace": space.0}}}}),
    );
    let text = fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/storage/manifests.yaml"),
    );
    let file = CLUSTER.place().path("manifests-applied.yaml");
    fs::write(&file, adapted(&text.unwrap(), &space, &web)).unwrap();
    let mut command = CLUSTER.kubectl();
    command.args(["apply", "-n", &space.0, "--validate=strict", "-f"]).arg(&file);
    let run = command.output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    for (name, phase) in PHASES {
        let seen = space.phases(name, phase);
        println!("{name}: {seen:?}");
    }
    // Absent objects are named.
    for (name, words) in [
        ("registry-pod", "images.invalid"),
        ("registry-login", "registry.invalid"),
        ("s3", "s3.invalid"),
        ("http-checked", "checksum"),
    ] {
        until(&format!("{name} says why"), || {
            let (status, _, message) = space.condition(name, "Running")?;
            (status == "False" && message.contains(words)).then_some(())
        });
    }
    let ready = |kind: &str, name: &str, condition: &str| {
        let object = space.get(kind, name)?;
        let conditions = object["status"]["conditions"].as_array()?.clone();
        conditions.iter().any(|one| one["type"] == condition && one["status"] == "True").then_some(())
    };
    for name in ["of-claim", "of-snapshot", "of-source", "mirrored", "web"] {
        until(&format!("DataSource {name} is ready"), || ready("DataSource", name, "Ready"));
    }
    until("the cron of a claim is up to date", || ready("DataImportCron", "of-claim", "UpToDate"));
    until("the user's claim is filled", || {
        (space.get("PersistentVolumeClaim", "imported")?["status"]["phase"] == "Bound").then_some(())
    });
    space.delete("Namespace", &space.0);
    until("the namespace is gone", || space.get("Namespace", &space.0).is_none().then_some(()));
}

#[test]
fn manifests_of_users_pass_strict_validation() {
    let space = Space::new("manifests");
    let text = fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/storage/manifests.yaml"),
    );
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
