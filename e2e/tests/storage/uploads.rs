//! Uploads: token, proxy, server, volume.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use operator::storage::keys::{SECRET, SigningKeys};
use operator::storage::tokens::{ANNOUNCED, PERIOD, RETIRED};
use reqwest::{Certificate, Client, Method};
use serde_json::{Value, json};

use crate::setup::{CLUSTER, DISK, IMMEDIATE, PLATFORM, WAITING, assert_same};
use crate::space::{Space, until};

/// The proxy's name in its certificate.
const PROXY: &str = "cdi-uploadproxy.kubevirt-hyperconverged.svc";

/// A client that trusts the published bundle.
static CLIENT: LazyLock<Client> = LazyLock::new(|| {
    let platform = Space(PLATFORM.to_owned());
    let bundle = platform.get("ConfigMap", "cdi-uploadproxy-signer-bundle").unwrap();
    let bundle = bundle["data"]["ca-bundle.crt"].as_str().unwrap().to_owned();
    let service = platform.get("Service", "cdi-uploadproxy").unwrap();
    let address: Ipv4Addr = service["spec"]["clusterIP"].as_str().unwrap().parse().unwrap();
    let authorities = Certificate::from_pem_bundle(bundle.as_bytes()).unwrap();
    // No connection is kept: the proxy closes idle ones, maybe while a test writes to it.
    Client::builder()
        .no_proxy()
        .pool_max_idle_per_host(0)
        .tls_certs_only(authorities)
        .resolve(PROXY, SocketAddr::from((address, 443)))
        .build()
        .unwrap()
});

/// A token for an upload, as virtctl asks for it.
fn token(space: &Space, claim: &str) -> String {
    let path = format!("/apis/upload.cdi.kubevirt.io/v1beta1/namespaces/{}/uploadtokenrequests", space.0);
    let body = json!({
        "apiVersion": "upload.cdi.kubevirt.io/v1beta1", "kind": "UploadTokenRequest",
        "metadata": {"generateName": "token-for-virtctl-"}, "spec": {"pvcName": claim},
    });
    let request = hyper::Request::post(path).header("content-type", "application/json");
    let request = request.body(body.to_string().into_bytes()).unwrap();
    let answer: Value = CLUSTER.run(CLUSTER.client().request(request)).unwrap();
    answer["status"]["token"].as_str().unwrap().to_owned()
}

/// Sends to the proxy; gives status and body. An error is a connection that ended before its answer.
fn try_send(method: Method, path: &str, token: &str, body: Vec<u8>) -> reqwest::Result<(u16, String)> {
    // Made before: it asks the cluster.
    let client = &*CLIENT;
    CLUSTER.run(async {
        let request = client.request(method, format!("https://{PROXY}{path}")).bearer_auth(token);
        let answer = request.body(body).send().await?;
        Ok((answer.status().as_u16(), answer.text().await?))
    })
}

#[track_caller]
fn send(method: Method, path: &str, token: &str, body: Vec<u8>) -> (u16, String) {
    try_send(method, path, token, body).unwrap()
}

/// Uploads the disk as virtctl does.
#[track_caller]
fn upload(space: &Space, claim: &str) {
    let token = token(space, claim);
    let (status, body) = send(Method::HEAD, "/v1beta1/upload-async", &token, Vec::new());
    assert_eq!(status, 200, "{body}");
    let bytes = std::fs::read(&DISK.qcow2).unwrap();
    let (status, body) = send(Method::POST, "/v1beta1/upload-async", &token, bytes);
    assert_eq!(status, 200, "{body}");
}

#[test]
fn a_disk_is_uploaded_into_every_kind_of_data_volume() {
    let space = Space::new("uploads");
    let forced = json!({"cdi.kubevirt.io/storage.bind.immediate.requested": ""});
    let source = json!({"upload": {}});
    for (name, class, mode, annotations) in [
        ("file", IMMEDIATE, "Filesystem", json!({})),
        ("device", IMMEDIATE, "Block", json!({})),
        ("forced", WAITING, "Filesystem", forced.clone()),
        ("direct", IMMEDIATE, "Filesystem", json!({"cdi.kubevirt.io/storage.usePopulator": "false"})),
    ] {
        space.data_volume(name, &source, class, mode, &annotations);
    }
    for name in ["file", "device", "forced", "direct"] {
        space.phases(name, "UploadReady");
        upload(&space, name);
        let phases = space.phases(name, "Succeeded");
        println!("{name}: {phases:?}");
        let volume = space.file(name);
        assert_same(&volume);
        // An event comes after the status that it is about.
        for reason in ["UploadScheduled", "UploadReady", "UploadSucceeded"] {
            until(&format!("{name} has the event {reason}"), || {
                space.events(name).iter().any(|(one, _)| one == reason).then_some(())
            });
        }
    }
    until("servers, Services and Secrets of uploads are gone", || {
        let left = ["Pod", "Service", "Secret"].iter().flat_map(|kind| space.names(kind)).collect::<Vec<_>>();
        left.iter().all(|name| !name.starts_with("cdi-upload-")).then_some(())
    });
}

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

/// Makes all signing keys older by some seconds, as if the clock had moved on for them alone.
fn age_keys(seconds: u64) {
    let platform = Space(PLATFORM.to_owned());
    let secret = platform.get("Secret", SECRET).unwrap();
    let text = |name: &str| BASE64_STANDARD.decode(secret["data"][name].as_str().unwrap()).unwrap();
    let mut ring: Value = serde_json::from_slice(&text("ring")).unwrap();
    for key in ring.as_array_mut().unwrap() {
        key["made"] = json!(key["made"].as_u64().unwrap().saturating_sub(seconds));
    }
    let ring = BASE64_STANDARD.encode(ring.to_string());
    platform.patch("Secret", SECRET, &json!({"data": {"ring": ring}}));
}

/// When the signing keys were made, oldest first, and the newest one's public half.
fn keys_made() -> (Vec<u64>, String) {
    let secret = Space(PLATFORM.to_owned()).get("Secret", SECRET).unwrap();
    let keys = SigningKeys::from(&secret);
    let newest = keys.ring.keys().last().unwrap().public.clone();
    (keys.ring.keys().iter().map(|key| key.made).collect(), newest)
}

#[test]
fn no_upload_fails_while_the_signing_key_changes() {
    let space = Space::new("uploads-rotation");
    let over = AtomicBool::new(false);
    let count = AtomicU32::new(0);
    thread::scope(|scope| {
        let uploads = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) || count.load(Ordering::Relaxed) == 0 {
                let name = format!("disk-{}", count.load(Ordering::Relaxed));
                space.data_volume(&name, &json!({"upload": {}}), IMMEDIATE, "Filesystem", &json!({}));
                space.phases(&name, "UploadReady");
                upload(&space, &name);
                space.phases(&name, "Succeeded");
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        let stopped = || uploads.is_finished().then_some(());
        let before = keys_made().0;
        // The last key is due for its successor.
        age_keys(PERIOD);
        let (made, public) = until("a successor is made", || {
            let (made, public) = keys_made();
            (made.len() > before.len() || stopped().is_some()).then_some((made, public))
        });
        assert!(made.len() > before.len(), "an upload failed");
        // It signs when verifiers have had time to read it: the kubelet brings it into the proxy's pod.
        until("the proxy has the successor", || {
            let pod = Space(PLATFORM.to_owned());
            let pods = pod.names("Pod");
            let name = pods.iter().find(|name| name.starts_with("cdi-uploadproxy-"))?;
            let uid = pod.get("Pod", name)?["metadata"]["uid"].as_str()?.to_owned();
            let folder = format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~secret");
            let found = Command::new("grep")
                .args(["-rqF", public.lines().nth(1)?])
                .arg(CLUSTER.node_path(&folder).unwrap())
                .status()
                .unwrap();
            (found.success() || stopped().is_some()).then_some(())
        });
        let beginning = count.load(Ordering::Relaxed);
        age_keys(ANNOUNCED);
        // Uploads with tokens of the new key.
        until("the successor signs", || {
            (count.load(Ordering::Relaxed) >= beginning + 2 || stopped().is_some()).then_some(())
        });
        age_keys(RETIRED + 1);
        until("the last key is dropped", || {
            (keys_made().0.len() == before.len() || stopped().is_some()).then_some(())
        });
        over.store(true, Ordering::Relaxed);
        uploads.join().unwrap();
    });
    println!("{} uploads while the signing key changed", count.load(Ordering::Relaxed));
}
