//! Uploads: token, proxy, server, volume.

use e2e::programs::of_this_build;
use reqwest::Method;
use serde_json::{Value, json};

use crate::storage::send::{send, token, try_send, upload};
use crate::storage::setup::{CLUSTER, DISK, IMMEDIATE, PLATFORM, assert_same};
use crate::storage::space::{Space, until};

#[test]
fn claims_of_users_are_uploaded_to() {
    let space = Space::new("uploads-claims");
    space.create("VolumeUploadSource", json!({"metadata": {"name": "mine"}, "spec": {}}));
    let claim = |name: &str, annotations: Value, source: Value| {
        let mut spec = json!({
            "accessModes": ["ReadWriteOnce"], "storageClassName": IMMEDIATE,
            "resources": {"requests": {"storage": "128Mi"}},
        });
        if !source.is_null() {
            spec["dataSourceRef"] = source;
        }
        let metadata = json!({"name": name, "annotations": annotations});
        space.create("PersistentVolumeClaim", json!({"metadata": metadata, "spec": spec}));
    };
    let source = json!({"apiGroup": "cdi.kubevirt.io", "kind": "VolumeUploadSource", "name": "mine"});
    claim("named", json!({}), source);
    // As `virtctl image-upload pvc` makes it.
    claim("annotated", json!({"cdi.kubevirt.io/storage.upload.target": ""}), Value::Null);
    for name in ["named", "annotated"] {
        let says = |annotation: &str, value: &str| {
            let claim = space.get("PersistentVolumeClaim", name)?;
            let name = format!("cdi.kubevirt.io/{annotation}");
            (claim["metadata"]["annotations"][name] == value).then_some(())
        };
        until("the server is ready", || says("storage.pod.ready", "true"));
        upload(&space, name);
        until("the upload is over", || says("storage.pod.phase", "Succeeded"));
        until("the claim is bound", || {
            (space.get("PersistentVolumeClaim", name)?["status"]["phase"] == "Bound").then_some(())
        });
        assert_same(&space.file(name));
    }
}

#[test]
fn uploads_need_a_token_for_their_claim() {
    let space = Space::new("uploads-refused");
    space.data_volume("disk", &json!({"upload": {}}), IMMEDIATE, "Filesystem", &json!({}));
    space.phases("disk", "UploadReady");
    let (status, _) = send(Method::POST, "/v1beta1/upload", "a.b.c", b"x".to_vec());
    assert_eq!(status, 401);
    let other = token(&space, "other");
    let (status, body) = send(Method::POST, "/v1beta1/upload", &other, b"x".to_vec());
    assert!(status != 200, "{body}");
    let mut forged = token(&space, "disk");
    forged.truncate(forged.len() - 8);
    assert_eq!(send(Method::POST, "/v1beta1/upload", &forged, b"x".to_vec()).0, 401);
    // A user without the right to create the request gets no token.
    let asked = ["auth", "can-i", "create", "uploadtokenrequests.upload.cdi.kubevirt.io", "--as", "somebody"];
    assert!(!CLUSTER.kubectl().args(asked).output().unwrap().status.success());
    // A server that ends is replaced.
    let pods = space.names("Pod");
    let server = pods.iter().find(|name| name.starts_with("cdi-upload-")).unwrap();
    let first = space.get("Pod", server).unwrap()["metadata"]["uid"].clone();
    space.delete("Pod", server);
    // Its successor has the same name, and may be made before a look finds none.
    until("another server is ready", || {
        let pod = space.get("Pod", server).filter(|pod| pod["metadata"]["uid"] != first)?;
        let ready = pod["status"]["conditions"].as_array()?.clone();
        ready.iter().any(|one| one["type"] == "Ready" && one["status"] == "True").then_some(())
    });
    space.phases("disk", "UploadReady");
    let bytes = std::fs::read(&DISK.qcow2).unwrap();
    until("the proxy finds the other server", || {
        // As virtctl: a token for each try, and another try when the connection broke.
        let token = token(&space, "disk");
        let sent = try_send(Method::POST, "/v1beta1/upload", &token, bytes.clone());
        println!("{sent:?}");
        sent.is_ok_and(|(status, _)| status == 200).then_some(())
    });
    space.phases("disk", "Succeeded");
    assert_same(&space.file("disk"));
}

/// Kubernetes keeps events for an hour, and a user who was refused tries again under the same name.
#[test]
fn the_client_uploads_after_a_refused_data_volume_of_the_same_name() {
    let space = Space::new("uploads-again");
    let proxy = Space(PLATFORM.to_owned()).get("Service", "cdi-uploadproxy").unwrap();
    let url = format!("https://{}", proxy["spec"]["clusterIP"].as_str().unwrap());
    space.data_volume("disk", &json!({"upload": {}}), "missing", "Filesystem", &json!({}));
    until("the DataVolume is refused", || {
        space.events("disk").iter().any(|(reason, _)| reason == "ErrClaimNotValid").then_some(())
    });
    space.delete("DataVolume", "disk");
    let file = DISK.qcow2.to_str().unwrap();
    let words = ["image-upload", "dv", "disk", "--size", "96Mi", "--storage-class", IMMEDIATE, "--insecure"];
    let mut client = std::process::Command::new(of_this_build("kubectl-virt").unwrap());
    client.arg("--kubeconfig").arg(CLUSTER.kubeconfig()).args(["-n", &space.0]).args(words);
    let output = client.args(["--uploadproxy-url", &url, "--image-path", file]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // The client ends with the upload, a moment before the status says so.
    space.phases("disk", "Succeeded");
    assert_same(&space.file("disk"));
}
