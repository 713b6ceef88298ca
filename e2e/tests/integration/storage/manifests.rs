//! Manifests of the storage kinds are accepted as users write them, and misspelt fields are refused by their path.

use std::fs;
use std::path::Path;
use std::process::Command;

use e2e::peer::web::Web;
use serde_json::json;

use crate::storage::setup::{CLUSTER, DISK, IMMEDIATE, MIB, apply, assert_same};
use crate::storage::space::{Space, until};

/// The manifests of a file.
fn manifests(file: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/storage");
    fs::read_to_string(folder.join(file)).unwrap()
}

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
    let file = CLUSTER.place().path("manifests-applied.yaml");
    fs::write(&file, adapted(&manifests("manifests.yaml"), &space, &web)).unwrap();
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
    for name in ["of-claim", "of-file"] {
        until(&format!("cron {name} is up to date"), || ready("DataImportCron", name, "UpToDate"));
    }
    // Nothing answers for their registries.
    for name in ["nightly", "by-node"] {
        until(&format!("cron {name} cannot be polled"), || {
            let cron = space.get("DataImportCron", name)?;
            let conditions = cron["status"]["conditions"].as_array()?;
            let current = conditions.iter().find(|one| one["type"] == "UpToDate")?;
            let why = current["message"].as_str()?.strip_prefix("No source digest: ")?;
            (current["status"] == "False" && current["reason"] == "NoDigest" && !why.is_empty()).then_some(())
        });
    }
    // The webhook of labelled claims gives modes, and room for the filesystem around the disk.
    let imported = space.get("PersistentVolumeClaim", "imported").unwrap();
    let spec = &imported["spec"];
    assert_eq!(
        (&spec["accessModes"], &spec["volumeMode"]),
        (&json!(["ReadWriteOnce"]), &json!("Filesystem"))
    );
    let size = api::quantity::bytes(spec["resources"]["requests"]["storage"].as_str().unwrap()).unwrap();
    assert!(size > 96 * MIB, "{size}");
    until("the user's claim is filled", || {
        (space.get("PersistentVolumeClaim", "imported")?["status"]["phase"] == "Bound").then_some(())
    });
    assert_same(&space.file("imported"));
    space.delete("Namespace", &space.0);
    until("the namespace is gone", || space.get("Namespace", &space.0).is_none().then_some(()));
}

#[test]
fn a_storage_profile_is_followed_and_an_object_transfer_is_answered() {
    let space = Space::new("manifests-cluster");
    apply(
        &CLUSTER,
        "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: hostpath-profiled}\n\
         provisioner: kubevirt.io.hostpath-provisioner\nvolumeBindingMode: Immediate\n\
         allowVolumeExpansion: true\nparameters: {storagePool: legacy}\n",
    );
    until("the class has a profile", || space.get("StorageProfile", "hostpath-profiled"));
    // A CDI object, or another CDIConfig, would change the other tests' imports.
    let text = manifests("manifests_cluster.yaml");
    let is_own =
        |one: &&str| one.contains("kind: StorageProfile\n") || one.contains("kind: ObjectTransfer\n");
    let own: Vec<&str> = text.split("---\n").filter(is_own).collect();
    assert_eq!(own.len(), 2);
    let file = CLUSTER.place().path("manifests-cluster.yaml");
    fs::write(&file, own.join("---\n")).unwrap();
    let run = CLUSTER.kubectl().args(["apply", "--validate=strict", "-f"]).arg(&file).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    until("the profile has its spec", || {
        let profile = space.get("StorageProfile", "hostpath-profiled")?;
        let (spec, status) = (&profile["spec"], &profile["status"]);
        let fields = ["claimPropertySets", "cloneStrategy", "dataImportCronSourceFormat", "snapshotClass"];
        fields.iter().all(|field| !spec[*field].is_null() && spec[*field] == status[*field]).then_some(())
    });
    let storage =
        json!({"storageClassName": "hostpath-profiled", "resources": {"requests": {"storage": "96Mi"}}});
    let spec = json!({"source": {"blank": {}}, "storage": storage});
    space.create("DataVolume", json!({"metadata": {"name": "disk"}, "spec": spec}));
    space.phases("disk", "Succeeded");
    let claim = space.get("PersistentVolumeClaim", "disk").unwrap();
    assert_eq!(claim["spec"]["volumeMode"], "Block");
    until("the transfer is answered", || {
        let status = space.get("ObjectTransfer", "moved")?["status"].clone();
        let condition = &status["conditions"][0];
        (status["phase"] == "Failed" && condition["reason"] == "NotSupported").then_some(())
    });
    space.delete("ObjectTransfer", "moved");
}

#[test]
fn manifests_of_users_pass_strict_validation() {
    let space = Space::new("manifests");
    let text = manifests("manifests.yaml");
    let count = text.matches("\nkind: ").count();
    assert_eq!(count, 40);
    // One DataVolume refers to a DataSource, which admission looks for.
    space.create(
        "DataSource",
        serde_json::json!({"metadata": {"name": "fedora"}, "spec": {"source": {"pvc": {"name": "golden", "namespace": "manifests"}}}}),
    );
    let said = applied(&text).unwrap();
    assert_eq!(said.lines().count(), count, "{said}");
    let said = applied(&manifests("manifests_cluster.yaml")).unwrap();
    assert_eq!(said.lines().count(), 4, "{said}");
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

#[test]
fn the_spec_of_a_data_volume_stays_as_it_was_created() {
    let space = Space::new("manifests-changed");
    space.data_volume("disk", &json!({"blank": {}}), IMMEDIATE, "Filesystem", &json!({}));
    for (patch, accepted) in [
        (json!({"spec": {"storage": {"resources": {"requests": {"storage": "97Mi"}}}}}), false),
        (json!({"spec": {"source": {"blank": null, "upload": {}}}}), false),
        (json!({"spec": {"checkpoints": [{"current": "a", "previous": ""}]}}), false),
        (
            json!({"metadata": {"labels": {"mine": "1"}}, "spec": {"storage": {"storageClassName": IMMEDIATE}}}),
            true,
        ),
    ] {
        let mut command = CLUSTER.kubectl();
        command
            .args(["-n", &space.0, "patch", "datavolume", "disk", "--type=merge", "-p"])
            .arg(patch.to_string());
        let run = command.output().unwrap();
        let said = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.status.success(), accepted, "{patch}: {said}");
        assert!(accepted || said.contains("Cannot update DataVolume Spec"), "{patch}: {said}");
    }
    space.phases("disk", "Succeeded");
}
