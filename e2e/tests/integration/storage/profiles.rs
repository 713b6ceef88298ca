//! Storage profiles of provisioners that no table has: their properties follow from objects of the cluster.

use serde_json::json;

use crate::storage::setup::{CLUSTER, apply};
use crate::storage::space::{Space, until};

#[test]
fn the_properties_of_an_unknown_provisioner_are_inferred_and_its_condition_is_false() {
    const CLASS: &str = "profiles-unknown";
    const DRIVER: &str = "unknown.csi.example.com";
    let space = Space::new("profiles");
    apply(
        &CLUSTER,
        &format!(
            "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {{name: {CLASS}}}\nprovisioner: {DRIVER}\n"
        ),
    );
    // The status and the message of the condition.
    let profile = |clones: &str, words: &str| {
        until(&format!("the profile has the clone strategy {clones}, and its condition {words}"), || {
            let status = space.get("StorageProfile", CLASS)?["status"].clone();
            let conditions = status["conditions"].as_array()?;
            let recognized = conditions.iter().find(|one| one["type"] == "Recognized")?;
            let is_unknown =
                recognized["status"] == "False" && recognized["reason"] == "UnrecognizedProvisioner";
            let named = recognized["message"].as_str()?.contains(words);
            (is_unknown && named && status["cloneStrategy"] == clones).then_some(status)
        })
    };
    let status = profile("copy", "set spec.claimPropertySets");
    assert!(status["claimPropertySets"].is_null(), "{status}");
    let storage = json!({"storageClassName": CLASS, "resources": {"requests": {"storage": "96Mi"}}});
    let spec = json!({"source": {"blank": {}}, "storage": storage});
    space.create("DataVolume", json!({"metadata": {"name": "disk"}, "spec": spec}));
    until("no claim can be rendered", || {
        let (status, reason, _) = space.condition("disk", "Running")?;
        (status == "False" && reason == "ErrClaimNotValid").then_some(())
    });
    apply(
        &CLUSTER,
        &format!(
            "apiVersion: storage.k8s.io/v1\nkind: CSIDriver\nmetadata: {{name: {DRIVER}}}\nspec: {{}}\n"
        ),
    );
    let status = profile("copy", "inferred from its CSIDriver");
    let properties = json!([{"accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem"}]);
    assert_eq!(status["claimPropertySets"], properties);
    let claim = until("the claim is rendered by them", || space.get("PersistentVolumeClaim", "disk"));
    assert_eq!(claim["spec"]["accessModes"], json!(["ReadWriteOnce"]));
    assert_eq!(claim["spec"]["volumeMode"], "Filesystem");
    apply(
        &CLUSTER,
        &format!(
            "apiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshotClass\nmetadata: {{name: {CLASS}}}\n\
             driver: {DRIVER}\ndeletionPolicy: Delete\n"
        ),
    );
    let status = profile("snapshot", &format!("from its VolumeSnapshotClass {CLASS}"));
    assert_eq!(status["snapshotClass"], CLASS);
    space.delete("DataVolume", "disk");
    for (kind, name) in [("volumesnapshotclass", CLASS), ("storageclass", CLASS), ("csidriver", DRIVER)] {
        let deleted = CLUSTER.kubectl().args(["delete", kind, name]).output().unwrap();
        assert!(deleted.status.success(), "{}", String::from_utf8_lossy(&deleted.stderr));
    }
}
