//! The steps of `virtctl image-upload` (KubeVirt, `pkg/virtctl/imageupload/imageupload.go`) against the proxy behind its
//! Service: a DataVolume, a claim of a device, a claim for an archive; and the failures on the way.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use api::upload::annotation::{CONTENT_TYPE, POD_PHASE, POD_READY, TARGET};
use e2e::volume::Volume;
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::upload::controller::{Controller, clean_up};
use crate::upload::disks::{Disk, folder};
use crate::upload::objects::{annotation, create, described, ended, get, list, log, until};
use crate::upload::{CLUSTER, MIB, SITE, namespace};

const CLAIM: &str = "PersistentVolumeClaim";
/// Times that a broken upload is sent again, and an old token replaced.
const RETRIES: usize = 5;

/// The target of an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    DataVolume,
    Claim,
}

struct Upload<'a> {
    namespace: &'static str,
    name: &'a str,
    kind: Kind,
    archive: bool,
    /// `spec.storage` of a DataVolume, `spec` of a claim.
    storage: Value,
}

fn storage(volume: &Volume, size: u64) -> Value {
    json!({
        "accessModes": ["ReadWriteOnce"],
        "volumeMode": volume.mode(),
        "storageClassName": "",
        "resources": {"requests": {"storage": size.to_string()}},
    })
}

impl Upload<'_> {
    /// 1: what is there must wait for an upload.
    fn check(&self) -> bool {
        let Some(claim) = get(CLAIM, self.namespace, self.name) else { return false };
        assert_ne!(annotation(&claim, POD_PHASE), Some("Succeeded"), "it is used already");
        assert!(annotation(&claim, TARGET).is_some(), "it is for no upload");
        true
    }

    /// 2.
    fn make(&self) {
        let content = if self.archive { "archive" } else { "kubevirt" };
        match self.kind {
            Kind::DataVolume => create(
                "DataVolume",
                self.namespace,
                json!({
                    "metadata": {
                        "name": self.name,
                        "annotations": {"cdi.kubevirt.io/storage.bind.immediate.requested": ""},
                    },
                    "spec": {"source": {"upload": {}}, "storage": self.storage, "contentType": content},
                }),
            ),
            Kind::Claim => create(
                CLAIM,
                self.namespace,
                json!({
                    "metadata": {
                        "name": self.name,
                        "labels": {"cdi.kubevirt.io/applyStorageProfile": "true"},
                        "annotations": {TARGET: "", CONTENT_TYPE: content},
                    },
                    "spec": self.storage,
                }),
            ),
        };
    }

    /// 3.
    fn wait(&self) {
        until(&format!("{} is ready for an upload", self.name), || {
            let (kind, reason) = match self.kind {
                Kind::DataVolume => ("DataVolume", "ErrClaimNotValid"),
                Kind::Claim => (CLAIM, "ProvisioningFailed"),
            };
            for event in list("Event", self.namespace) {
                let about = &event["involvedObject"];
                let fatal = about["kind"] == kind && about["name"] == self.name && event["reason"] == reason;
                assert!(!fatal, "{event}");
            }
            let found = get(kind, self.namespace, self.name)?;
            match self.kind {
                Kind::DataVolume => (found["status"]["phase"] == "UploadReady").then_some(()),
                Kind::Claim => (annotation(&found, POD_READY) == Some("true")).then_some(()),
            }
        });
    }

    /// 5.
    fn token(&self) -> String {
        let made = create(
            "UploadTokenRequest",
            self.namespace,
            json!({
                "metadata": {"generateName": "token-for-virtctl-", "namespace": self.namespace},
                "spec": {"pvcName": self.name},
            }),
        );
        made["status"]["token"].as_str().unwrap().to_owned()
    }

    /// 6 and 7; gives the path that was used.
    fn send(&self, image: &Path) -> String {
        // 4: the host has no scheme, and https is added.
        let config = get("CDIConfig", "", "config").unwrap();
        let url = config["spec"]["uploadProxyURLOverride"].as_str();
        let url = format!("https://{}", url.or(config["status"]["uploadProxyURL"].as_str()).unwrap());
        let client = SITE.client();
        let token = self.token();
        CLUSTER.run(async {
            let head = client.head(format!("{url}/v1beta1/upload-async")).bearer_auth(&token).send();
            let path = match head.await.unwrap().status() {
                StatusCode::OK => "/v1beta1/upload-async",
                _ => "/v1beta1/upload",
            };
            let bytes = fs::read(image).unwrap();
            for _ in 0..=RETRIES {
                let sent = client
                    .post(format!("{url}{path}"))
                    .bearer_auth(&token)
                    .header("content-type", "application/octet-stream")
                    .body(bytes.clone())
                    .send()
                    .await;
                match sent {
                    Ok(answer) if answer.status() == StatusCode::OK => return path.to_owned(),
                    Ok(answer) => println!("{}: {}", answer.status(), answer.text().await.unwrap()),
                    Err(error) => println!("{error:?}"),
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            panic!("it is not taken\n{}", described());
        })
    }

    /// All of it, and 8: until the claim is marked as filled.
    fn run(&self, image: &Path) {
        if !self.check() {
            self.make();
        }
        self.wait();
        // An archive has one path at the server, which is not asynchronous.
        let path = if self.archive { "/v1beta1/upload" } else { "/v1beta1/upload-async" };
        assert_eq!(self.send(image), path);
        until(&format!("{} is filled", self.name), || {
            let claim = get(CLAIM, self.namespace, self.name)?;
            (annotation(&claim, POD_PHASE) == Some("Succeeded")).then_some(())
        });
    }
}

const UPLOADED: &str = r#"{"preallocationApplied":false,"message":"Upload Complete"}"#;

#[test]
fn a_data_volume() {
    let namespace = namespace("virtctl-dv");
    let disk = Disk::new("virtctl-dv");
    let site = &*SITE;
    let _controller = Controller::start(namespace);
    let size = 128 * MIB;
    let volume = Volume::folder(&CLUSTER, namespace, "disk", size).unwrap();
    let storage = storage(&volume, size);
    let upload = Upload { namespace, name: "disk", kind: Kind::DataVolume, archive: false, storage };
    upload.run(&disk.qcow2());
    assert_eq!(ended(namespace, "cdi-upload-disk"), UPLOADED);
    disk.assert_in(&volume);
    until("the DataVolume says so", || {
        (get("DataVolume", namespace, "disk")?["status"]["phase"] == "Succeeded").then_some(())
    });
    // Afterwards it is refused, with the reason, for every client.
    let (client, token) = (site.client(), upload.token());
    CLUSTER.run(async {
        let url = format!("https://{}/v1beta1/upload", crate::upload::site::PROXY);
        let answer = client.post(url).bearer_auth(&token).body("x").send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(answer.headers()["access-control-allow-origin"], "*");
        let why = answer.text().await.unwrap();
        assert!(why.contains("already finished uploading"), "{why}");
    });
    assert!(!log(namespace, "cdi-upload-disk").contains(&token));
    clean_up(namespace, "disk");
}

#[test]
fn a_claim_of_a_device() {
    let namespace = namespace("virtctl-pvc");
    let disk = Disk::new("virtctl-pvc");
    let _site = &*SITE;
    let _controller = Controller::start(namespace);
    let size = 96 * MIB;
    let volume = Volume::device(&CLUSTER, namespace, "device", size).unwrap();
    // Stale content must not show.
    fs::write(volume.path(), vec![0xaa; usize::try_from(size).unwrap()]).unwrap();
    let storage = storage(&volume, size);
    let upload = Upload { namespace, name: "device", kind: Kind::Claim, archive: false, storage };
    upload.run(&disk.gz());
    assert_eq!(ended(namespace, "cdi-upload-device"), UPLOADED);
    disk.assert_in(&volume);
    clean_up(namespace, "device");
}

#[test]
fn an_archive_and_a_token_that_is_for_another_claim() {
    let namespace = namespace("virtctl-archive");
    let _site = &*SITE;
    let _controller = Controller::start(namespace);
    let tree = folder("virtctl-archive").join("tree");
    fs::create_dir_all(tree.join("sub")).unwrap();
    fs::write(tree.join("sub/file"), "hello").unwrap();
    let archive = tree.with_file_name("tree.tar");
    let packed = Command::new("tar").arg("-C").arg(&tree).arg("-cf").arg(&archive).arg(".").status().unwrap();
    assert!(packed.success());
    let volume = Volume::folder(&CLUSTER, namespace, "files", 64 * MIB).unwrap();
    let storage = storage(&volume, 64 * MIB);
    let upload = Upload { namespace, name: "files", kind: Kind::Claim, archive: true, storage };
    // The claim does not exist yet: there is a token, and no server.
    let early = Upload { name: "nothing", storage: Value::Null, ..upload };
    let (client, token) = (SITE.client(), early.token());
    CLUSTER.run(async {
        let url = format!("https://{}/v1beta1/upload-async", crate::upload::site::PROXY);
        let answer = client.post(&url).bearer_auth(&token).body("x").send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(answer.text().await.unwrap().contains("doesn't exist"));
        let forged = format!("{}x", &token[..token.len() - 1]);
        let answer = client.post(&url).bearer_auth(forged).body("x").send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
    });
    upload.run(&archive);
    assert_eq!(ended(namespace, "cdi-upload-files"), UPLOADED);
    assert_eq!(fs::read_to_string(volume.path().join("sub/file")).unwrap(), "hello");
    clean_up(namespace, "files");
}
